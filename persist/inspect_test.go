package persist

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"runtime"
	"slices"
	"testing"

	bolt "go.etcd.io/bbolt"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// TestASoundFileIsNotTakenForDamaged, whatever bbolt has done to it: each of these files is
// inspected after each commit.
func TestASoundFileIsNotTakenForDamaged(t *testing.T) {
	rnd := testsupport.Rand(t)
	for range testsupport.Rounds(4, 1) {
		inspectSoundFile(t, rnd)
	}
}

func inspectSoundFile(t *testing.T, rnd *rand.Rand) {
	t.Helper()
	b, err := bolt.Open(testsupport.Path(t), 0o600, &bolt.Options{
		PageSize: []int{1 << 10, 4 << 10, PageBytes}[rnd.Intn(3)], NoSync: true, NoGrowSync: true,
		FreelistType: []bolt.FreelistType{bolt.FreelistMapType, bolt.FreelistArrayType}[rnd.Intn(2)],
	})
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(b.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	keyBytes, valueBytes := []int{8, 60, 400}[rnd.Intn(3)], []int{0, 20, 300, 3000}[rnd.Intn(4)]
	keys, buckets := 1+rnd.Intn(4000), []int{1, 3, 100}[rnd.Intn(3)]
	for range 30 {
		err := b.Update(func(tx *bolt.Tx) error {
			deletions := rnd.Float64()
			for range []int{1, 10, 300, 2000}[rnd.Intn(4)] {
				space, err := tx.CreateBucketIfNotExists(fmt.Appendf(nil, "space %d", rnd.Intn(buckets)))
				if err != nil {
					return err
				}
				name := []byte(fmt.Sprintf("bucket %d", rnd.Intn(buckets)) + repeat("b", keyBytes))
				if rnd.Intn(200) == 0 && space.Bucket(name) != nil {
					if err := space.DeleteBucket(name); err != nil {
						return err
					}
				}
				bucket, err := space.CreateBucketIfNotExists(name)
				if err != nil {
					return err
				}
				i := rnd.Intn(keys)
				key := []byte(fmt.Sprintf("%c%06d", keyPrefix, i) + repeat("k", i*7919%keyBytes))
				if rnd.Float64() < deletions {
					err = bucket.Delete(key)
				} else {
					err = bucket.Put(key, make([]byte, rnd.Intn(valueBytes+1)))
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(inspectLeaves(f), checkFreelist(f)); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestAFreelistThatHasOnePageMoreIsFound before bbolt frees that page, which may be in use.
func TestAFreelistThatHasOnePageMoreIsFound(t *testing.T) {
	path := testsupport.Path(t)
	manyLeaves(t, path)
	db := open(t, path, manual)
	freelist := uint64(0)
	for i := 0; ; i++ {
		if i == 200 {
			t.Fatal("the page behind the freelist has always been free")
		}
		put(t, db, fmt.Sprintf("%04d", i*37%600), repeat("w", PageBytes/3))
		flush(t, db)
		im := &image{pageSize: PageBytes, bytes: testsupport.ReadUsed(t, path)}
		freelist = binary.NativeEndian.Uint64(im.newestMeta(im.bytes)[metaFreelistAt:])
		page := im.page(im.bytes, int(freelist))
		free := make([]uint64, binary.NativeEndian.Uint16(page[pageCountAt:]))
		for i := range free {
			free[i] = binary.NativeEndian.Uint64(page[pageHeaderBytes+8*i:])
		}
		if int(freelist+1) < len(im.bytes)/PageBytes && !slices.Contains(free, freelist+1) {
			break
		}
	}
	overwrite(t, path, int64(freelist*PageBytes+pageOverflowAt), binary.NativeEndian.AppendUint32(nil, 1))
	for i := range 20 {
		put(t, db, fmt.Sprintf("more %04d", i), repeat("m", PageBytes/3))
		if err := db.Flush(); err != nil && !errors.Is(err, ErrCorrupt) {
			t.Fatal(err)
		}
	}
	if got := contents(t, db); len(got) != 620 || len(setAside(t, path)) != 1 {
		t.Errorf("%d keys, expected 620; set aside: %v", len(got), setAside(t, path))
	}
}

// TestAPageThatIsVeryLongIsNotReadWhole, although the file may be as long as its header says.
func TestAPageThatIsVeryLongIsNotReadWhole(t *testing.T) {
	path := testsupport.Path(t)
	manyLeaves(t, path)
	im := &image{pageSize: PageBytes, bytes: testsupport.ReadUsed(t, path)}
	const pages = 1 << 17 // A gibibyte.
	end := len(im.bytes) / PageBytes
	root := slices.Clone(im.page(im.bytes, int(binary.NativeEndian.Uint64(im.newestMeta(im.bytes)[metaRootAt:]))))
	binary.NativeEndian.PutUint64(root, uint64(end))
	binary.NativeEndian.PutUint32(root[pageOverflowAt:], uint32(pages-end-1))
	im.setMeta(im.bytes, metaHighAt, pages)
	im.setMeta(im.bytes, metaRootAt, uint64(end))
	if err := os.WriteFile(path, append(im.bytes, root...), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, pages*PageBytes); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err = inspectFile(f, false)
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; !errors.Is(err, ErrCorrupt) || n > 2*maxInspectedBytes {
		t.Errorf("%d bytes were allocated; error %v", n, err)
	}
}

// bytesFile is a file in memory.
type bytesFile []byte

func (f bytesFile) ReadAt(b []byte, at int64) (int, error) { return copy(b, f[at:]), nil }
func (f bytesFile) Stat() (os.FileInfo, error)             { return nil, errors.ErrUnsupported }

// TestAFreelistOfManyEntriesThatHasOnePageMoreIsFound: its header does not have the count.
func TestAFreelistOfManyEntriesThatHasOnePageMoreIsFound(t *testing.T) {
	const entries, pages = 70_000, (pageHeaderBytes+8*(70_000+1))/PageBytes + 1
	b := make([]byte, (pages+3)*PageBytes)
	binary.NativeEndian.PutUint64(b[pageHeaderBytes:], entries)
	in := &inspector{f: bytesFile(b), pageSize: PageBytes, pages: 2 * entries}
	for more, sound := range map[uint64]bool{0: true, 2: false} {
		h := pageHeader{flags: freelistPage, count: manyInFirst, bytes: (pages + more) * PageBytes}
		if err := in.checkFreelistHeader(0, h); (err == nil) != sound {
			t.Errorf("%d pages more: %v", more, err)
		}
	}
}

// TestAPageOfValuesInPlaceOfASpacesBuckets, left there by a write that was lost: the space
// would seem to be empty.
func TestAPageOfValuesInPlaceOfASpacesBuckets(t *testing.T) {
	path := testsupport.Path(t)
	manyLeaves(t, path)
	db := open(t, path, manual)
	var space uint64
	if err := db.bolt.View(func(tx *bolt.Tx) error {
		space = uint64(tx.Bucket([]byte(testBucket.Space)).Root())
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	leaf := leafWith(t, db.bolt, "0300")
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	page := bytes.Clone(testsupport.ReadUsed(t, path)[leaf*PageBytes:][:PageBytes])
	binary.NativeEndian.PutUint64(page, space)
	damaged := testsupport.Path(t)
	testsupport.CopyFile(t, path, damaged)
	overwrite(t, damaged, int64(space*PageBytes), page)
	f, err := os.Open(damaged)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := inspectFile(f, false); !errors.Is(err, ErrCorrupt) {
		t.Errorf("expected a damaged file, got %v", err)
	}
}
