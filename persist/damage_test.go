package persist

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"maps"
	"math"
	"math/rand"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// image is the content of a sound file, and every value that was ever written
// to it.
type image struct {
	bytes    []byte
	pageSize int
	rnd      *rand.Rand
	state    contentsOf                     // What it has.
	ever     map[string]map[string][]string // What any key of it ever had.
}

// newImage writes a file with branch pages, overflow pages, free pages and
// values of earlier batches in them.
func newImage(t testing.TB, rnd *rand.Rand) *image {
	t.Helper()
	path := testsupport.Path(t)
	m := newModel(rnd)
	db := openSound(t, path, manual)
	im := &image{pageSize: PageBytes, rnd: rnd, ever: map[string]map[string][]string{}}
	for i := range 60 {
		apply(t, db, m.batch())
		for k := range 40 { // Enough for branch pages.
			key, value := fmt.Sprintf("%04d", i*20+k), repeat(strconv.Itoa(i), 30)
			apply(t, db, func(b *Batch) { b.Put(Bucket{"space", "a"}, key, []byte(value)) })
			m.state["a"][key] = value
		}
		if i%10 == 0 {
			flush(t, db)
		}
		for name, keys := range m.state {
			if im.ever[name] == nil {
				im.ever[name] = map[string][]string{}
			}
			for key, v := range keys {
				if vs := im.ever[name][key]; !slices.Contains(vs, v) {
					im.ever[name][key] = append(vs, v)
				}
			}
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	im.bytes, im.state = testsupport.ReadUsed(t, path), m.state
	if len(im.pagesOf(branchPage)) == 0 || im.pages() < 20 {
		return newImage(t, rnd) // The last batches have dropped most of it.
	}
	return im
}

func (im *image) pages() int { return len(im.bytes) / im.pageSize }

func (im *image) page(b []byte, id int) []byte { return b[id*im.pageSize : (id+1)*im.pageSize] }

// pagesOf lists the pages of a kind, free ones included.
func (im *image) pagesOf(flags uint16) (ids []int) {
	for id := range im.pages() {
		p := im.page(im.bytes, id)
		if binary.NativeEndian.Uint64(p) == uint64(id) && binary.NativeEndian.Uint16(p[8:]) == flags {
			ids = append(ids, id)
		}
	}
	return ids
}

// newestMeta is the meta page that counts.
func (im *image) newestMeta(b []byte) []byte {
	m0, m1 := b[metaOffset:][:metaBytes], b[im.pageSize+metaOffset:][:metaBytes]
	if !soundMeta(m1) || (soundMeta(m0) && binary.NativeEndian.Uint64(m0[metaTxIDAt:]) > binary.NativeEndian.Uint64(m1[metaTxIDAt:])) {
		return m0
	}
	return m1
}

// setMeta changes a field of both meta pages, and their checksums.
func (im *image) setMeta(b []byte, at int, v uint64) {
	for id := range 2 {
		m := b[id*im.pageSize+metaOffset:][:metaBytes]
		binary.NativeEndian.PutUint64(m[at:], v)
		binary.NativeEndian.PutUint64(m[metaChecksumAt:], metaChecksum(m))
	}
}

func metaChecksum(m []byte) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(m[:metaChecksumAt])
	return h.Sum64()
}

// checkDamaged opens a damaged copy of the file and uses it: no panic, no
// value that was never written under that key, and the next process has a sound file.
func (im *image) checkDamaged(damaged []byte, path string) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	if err := os.WriteFile(path, damaged, 0o600); err != nil {
		return err
	}
	for range 2 {
		if err := im.useDamaged(path); err != nil {
			return err
		}
	}
	return nil
}

func (im *image) useDamaged(path string) error {
	db, err := Open(context.Background(), path, Options{CommitInterval: manual.CommitInterval, Logger: &testsupport.Quiet})
	if err != nil {
		return err
	}
	if db.MemoryOnly() {
		return errors.Join(fmt.Errorf("no file: %w", db.Err()), db.Close())
	}
	if err := im.readDamaged(db); err != nil {
		return errors.Join(err, db.Close())
	}
	for range 2 { // Writes go everywhere.
		if err := db.Update(func(b *Batch) {
			for i := range 50 {
				b.Put(Bucket{"space", "a"}, strconv.Itoa(i), []byte("after"))
				b.Put(Bucket{"space", "b"}, strconv.Itoa(i), []byte("after"))
			}
			b.Drop(Bucket{"space", "deltas"})
			b.Put(Bucket{"new", "bucket"}, "key", []byte("after"))
		}); err != nil {
			return err
		}
		if err := errors.Join(db.Flush(), im.readDamaged(db)); err != nil {
			return errors.Join(err, db.Close())
		}
	}
	for _, key := range []string{"0", "49"} {
		if v, _, err := lookup(db, Bucket{"space", "b"}, key); v != "after" || err != nil {
			return fmt.Errorf("what was written afterwards is %q, %w", v, err)
		}
	}
	return errors.Join(db.Err(), db.Close())
}

// readDamaged reads all there is, in all ways.
func (im *image) readDamaged(db *DB) error {
	for name, keys := range im.ever {
		s, err := db.Snapshot("space")
		if err != nil {
			if errors.Is(err, ErrCorrupt) {
				continue
			}
			return err
		}
		got := map[string]string{}
		err = s.Scan(name, "", func(it *Item) (bool, error) {
			if v, err := text(it); err == nil {
				got[it.Key] = v
			}
			return true, nil
		})
		s.Close()
		if err != nil && !errors.Is(err, ErrCorrupt) {
			return err
		}
		left := 100 // Each map has an order of its own, each time.
		for key := range keys {
			if left--; left < 0 {
				break
			}
			v, found, err := lookup(db, Bucket{"space", name}, key)
			switch {
			case err != nil && !errors.Is(err, ErrCorrupt):
				return err
			case err == nil && found:
				if err := im.known(name, key, v); err != nil {
					return err
				}
			}
		}
		for key, v := range got {
			if err := im.known(name, key, v); err != nil {
				return err
			}
		}
	}
	return nil
}

func (im *image) known(name, key, v string) error {
	if v != "after" && !slices.Contains(im.ever[name][key], v) {
		return fmt.Errorf("%s/%q has a value that was never written: %.50q", name, key, v)
	}
	return nil
}

// checkAll opens the image with each damage, or with some.
func (im *image) checkAll(t *testing.T, damages map[string]func([]byte) []byte) {
	t.Helper()
	dir := t.TempDir()
	names := slices.Sorted(maps.Keys(damages))
	most := max(1, rounds(len(names), 40, 16))
	step := max(1, (len(names)+most-1)/most)
	for i := im.rnd.Intn(step); i < len(names); i += step {
		name := names[i]
		path := fmt.Sprintf("%s/%d.db", dir, i)
		if err := im.checkDamaged(damages[name](slices.Clone(im.bytes)), path); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		removeAll(t, path)
	}
}

func removeAll(t *testing.T, path string) {
	t.Helper()
	for _, name := range append(setAside(t, path), path) {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
	}
}

func TestAnUndamagedFileIsReadInFull(t *testing.T) {
	im := newImage(t, testsupport.Rand(t))
	path := testsupport.Path(t)
	if err := os.WriteFile(path, im.bytes, 0o600); err != nil {
		t.Fatal(err)
	}
	db := openSound(t, path, manual)
	s := snapshot(t, db, false)
	got, err := read(s)
	s.Close()
	if diff := cmp.Diff(im.state, got); diff != "" || err != nil {
		t.Errorf("%v, -want +got:\n%.2000s", err, diff)
	}
	if names := setAside(t, path); len(names) != 0 {
		t.Errorf("set aside: %v", names)
	}
}

func TestTruncatedFilesAreSetAside(t *testing.T) {
	im := newImage(t, testsupport.Rand(t))
	damages := map[string]func([]byte) []byte{}
	cut := func(n int) {
		if n >= 0 && n < len(im.bytes) {
			damages[fmt.Sprintf("%07d bytes", n)] = func(b []byte) []byte { return b[:n] }
		}
	}
	for n := range 4 {
		cut(n)
	}
	for n := 16; n < 3*im.pageSize; n += 400 {
		cut(n)
	}
	for id := 1; id <= im.pages(); id += 1 + im.pages()/60 {
		cut(id*im.pageSize - 1)
		cut(id * im.pageSize)
		cut(id*im.pageSize + 1)
	}
	cut(len(im.bytes) - 1)
	im.checkAll(t, damages)

	path := testsupport.Path(t)
	if err := os.WriteFile(path, im.bytes[:len(im.bytes)-1], 0o600); err != nil {
		t.Fatal(err)
	}
	db := openSound(t, path, manual)
	if got := contents(t, db); len(got) != 0 || len(setAside(t, path)) != 1 {
		t.Errorf("%d keys, set aside: %v", len(got), setAside(t, path))
	}
}

func TestFlippedBytesNeverBecomeValues(t *testing.T) {
	rnd := testsupport.Rand(t)
	im := newImage(t, rnd)
	inUse := slices.Concat(im.pagesOf(branchPage), im.pagesOf(leafPage), im.pagesOf(freelistPage), []int{0, 1})
	damages := map[string]func([]byte) []byte{}
	for i := range 150 {
		n := 1 + rnd.Intn(3)
		var name strings.Builder
		fmt.Fprintf(&name, "%04d:", i)
		at, to := make([]int, n), make([]byte, n)
		for f := range n {
			at[f], to[f] = rnd.Intn(len(im.bytes)), byte(rnd.Intn(256))
			if rnd.Intn(2) == 0 { // The heads of pages say what is where.
				at[f] = inUse[rnd.Intn(len(inUse))]*im.pageSize + rnd.Intn(200)
			}
			fmt.Fprintf(&name, " byte %d = %02x", at[f], to[f])
		}
		damages[name.String()] = func(b []byte) []byte {
			for f := range n {
				b[at[f]] = to[f]
			}
			return b
		}
	}
	im.checkAll(t, damages)
}

func TestLostAndMisplacedPagesNeverBecomeValues(t *testing.T) {
	rnd := testsupport.Rand(t)
	im := newImage(t, rnd)
	damages := map[string]func([]byte) []byte{}
	for id := range im.pages() {
		switch rnd.Intn(3) {
		case 0:
			damages[fmt.Sprintf("page %03d zero", id)] = func(b []byte) []byte {
				clear(im.page(b, id))
				return b
			}
		case 1:
			other := rnd.Intn(im.pages())
			damages[fmt.Sprintf("page %03d is page %d", id, other)] = func(b []byte) []byte {
				copy(im.page(b, id), im.page(im.bytes, other))
				return b
			}
		default:
			noise := rand.New(rand.NewSource(rnd.Int63()))
			damages[fmt.Sprintf("page %03d noise", id)] = func(b []byte) []byte {
				_, _ = noise.Read(im.page(b, id)[16*rnd.Intn(2):]) // With or without the page's head.
				return b
			}
		}
	}
	im.checkAll(t, damages)
}

func TestFilesOfNoiseAreSetAside(t *testing.T) {
	rnd := testsupport.Rand(t)
	im := newImage(t, rnd)
	damages := map[string]func([]byte) []byte{}
	for _, n := range []int{1, 15, 64, 80, 1000, 4096, 8191, 8192, 16384, 100_000} {
		damages[fmt.Sprintf("%d bytes of noise", n)] = func([]byte) []byte {
			b := make([]byte, n)
			_, _ = rnd.Read(b)
			return b
		}
		damages[fmt.Sprintf("%d zeros", n)] = func([]byte) []byte { return make([]byte, n) }
		damages[fmt.Sprintf("noise after %d bytes", n)] = func(b []byte) []byte {
			_, _ = rnd.Read(b[min(n, len(b)):])
			return b
		}
	}
	damages["SQLite"] = func([]byte) []byte { return append([]byte("SQLite format 3\x00"), make([]byte, 8192)...) }
	im.checkAll(t, damages)
}

func TestMetaPagesThatLieAreFoundOut(t *testing.T) {
	im := newImage(t, testsupport.Rand(t))
	damages := map[string]func([]byte) []byte{}
	for name, at := range map[string]int{"root": 16, "freelist": metaFreelistAt, "high water": metaHighAt, "txid": metaTxIDAt} {
		old := binary.NativeEndian.Uint64(im.newestMeta(im.bytes)[at:])
		for _, v := range []uint64{0, 1, 2, 3, old + 1, old - 1, old * 2, uint64(im.pages()) - 1, uint64(im.pages()), 1 << 20, 1 << 40, math.MaxInt64, math.MaxUint64 - 1, math.MaxUint64} {
			if at == metaTxIDAt && v > 1<<40 {
				continue // No file gets so old.
			}
			damages[fmt.Sprintf("%s %d", name, v)] = func(b []byte) []byte {
				im.setMeta(b, at, v)
				return b
			}
		}
	}
	im.checkAll(t, damages)
}

// TestPagesThatReferToThemselvesAreFoundOut: bbolt would follow them until the
// stack overflows, or memory is exhausted, which ends the process.
func TestPagesThatReferToThemselvesAreFoundOut(t *testing.T) {
	im := newImage(t, testsupport.Rand(t))
	damages := map[string]func([]byte) []byte{}
	branches := im.pagesOf(branchPage)
	for _, id := range branches {
		count := int(binary.NativeEndian.Uint16(im.page(im.bytes, id)[pageCountAt:]))
		for _, to := range append([]int{0, 1}, branches...) {
			for _, i := range []int{0, count / 2, count - 1} {
				damages[fmt.Sprintf("page %d, child %d is page %d", id, i, to)] = func(b []byte) []byte {
					binary.NativeEndian.PutUint64(im.page(b, id)[pageHeaderBytes+i*elementBytes+branchPageIDAt:], uint64(to))
					return b
				}
			}
		}
	}
	im.checkAll(t, damages)
}

// TestAFreelistOfImpossibleLengthIsFoundOut: bbolt would allocate it, which
// ends the process.
func TestAFreelistOfImpossibleLengthIsFoundOut(t *testing.T) {
	im := newImage(t, testsupport.Rand(t))
	damages := map[string]func([]byte) []byte{}
	id := int(binary.NativeEndian.Uint64(im.newestMeta(im.bytes)[metaFreelistAt:]))
	for _, count := range []uint64{1 << 10, 1 << 20, 1 << 36, 1 << 40, 1 << 44, 1 << 60, 1<<61 + 1, 1 << 63, math.MaxUint64} {
		damages[fmt.Sprintf("%d free pages", count)] = func(b []byte) []byte {
			p := im.page(b, id)
			binary.NativeEndian.PutUint16(p[pageCountAt:], manyInFirst)
			binary.NativeEndian.PutUint64(p[pageHeaderBytes:], count)
			return b
		}
	}
	for _, free := range []uint64{0, 1, uint64(id), uint64(im.pages()), 1 << 50, binary.NativeEndian.Uint64(im.newestMeta(im.bytes)[metaRootAt:])} {
		damages[fmt.Sprintf("page %d is free", free)] = func(b []byte) []byte {
			binary.NativeEndian.PutUint64(im.page(b, id)[pageHeaderBytes:], free)
			return b
		}
	}
	im.checkAll(t, damages)
}

// TestAValueThatSeemsToBeABucketIsFoundOut: bbolt refuses to write it
// or to delete it, for ever.
func TestAValueThatSeemsToBeABucketIsFoundOut(t *testing.T) {
	im := newImage(t, testsupport.Rand(t))
	damages := map[string]func([]byte) []byte{}
	for _, id := range im.pagesOf(leafPage) {
		p := im.page(im.bytes, id)
		for i := range int(binary.NativeEndian.Uint16(p[pageCountAt:])) {
			at := pageHeaderBytes + i*elementBytes
			key := at + int(binary.NativeEndian.Uint32(p[at+4:])) // May be on an overflow page.
			if n := binary.NativeEndian.Uint32(p[at+8:]); n > 3 || key >= len(p) || p[key] != keyPrefix || len(damages) > 20 {
				continue // Not one of those that are written again.
			}
			damages[fmt.Sprintf("page %d, element %d", id, i)] = func(b []byte) []byte {
				binary.NativeEndian.PutUint32(im.page(b, id)[at:], leafBucketFlag)
				return b
			}
		}
	}
	im.checkAll(t, damages)
}
