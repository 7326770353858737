package persist

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"math/rand"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// manyLeavesFile is what manyLeaves has written first.
var manyLeavesFile string

// manyLeaves writes a file whose test bucket has values of a third of a page, with the keys
// 0000 to 0599.
func manyLeaves(t *testing.T, path string) {
	t.Helper()
	if manyLeavesFile == "" {
		sound := testsupport.Path(t)
		db := openSound(t, sound, manual)
		for i := range 600 {
			put(t, db, fmt.Sprintf("%04d", i), repeat("v", PageBytes/3))
		}
		flush(t, db)
		close1(t, db)
		manyLeavesFile = string(testsupport.ReadUsed(t, sound))
	}
	writeFile(t, path, manyLeavesFile)
}

// pathTo returns the branches from the root of the test bucket to the leaf of a key, in a
// sound file.
func pathTo(t *testing.T, b *handle, key string) (path []branch) {
	t.Helper()
	err := view(b, func(tx *bolt.Tx) error {
		c, err := newLeafCheck(b.file)
		if err != nil {
			return err
		}
		w := &leafWalk{check: c, root: uint64(fileBucket(tx, testBucket).b.Root())}
		err = w.leafOf([]byte(string(keyPrefix)+key), false)
		path = w.path
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// leafWith is the page of the leaf that has a key in the newest version of the test
// bucket.
func leafWith(t *testing.T, b *handle, key string) uint64 {
	t.Helper()
	path := pathTo(t, b, key)
	last := path[len(path)-1]
	return last.child(last.at)
}

// lengthen has the header of a key's leaf claim more pages than the leaf has.
func lengthen(t *testing.T, db *DB, key string) {
	t.Helper()
	id := leafWith(t, db.bolt, key)
	overwrite(t, db.path, int64(id*PageBytes+pageOverflowAt), binary.NativeEndian.AppendUint32(nil, 5))
}

// TestALeafThatLiesIsFoundAtTheStart, if it claims a page that something else refers to.
func TestALeafThatLiesIsFoundAtTheStart(t *testing.T) {
	path := testsupport.Path(t)
	manyLeaves(t, path)
	db := openSound(t, path, manual)
	lengthen(t, db, "0300")
	close1(t, db)
	db = open(t, path, manual)
	if len(setAside(t, path)) != 1 || len(contents(t, db)) != 600 {
		t.Errorf("%d files set aside, %d values", len(setAside(t, path)), len(contents(t, db)))
	}
}

// TestALeafThatLiesIsFoundBeforeBboltFreesIt, in a file in use, and not before: a commit checks
// only the leaves that it frees.
func TestALeafThatLiesIsFoundBeforeBboltFreesIt(t *testing.T) {
	for name, c := range map[string]struct {
		write func(*Batch)
		found bool
	}{
		"a commit elsewhere":      {func(b *Batch) { b.Put(testBucket, "0500", Bytes("new")) }, false},
		"a deletion elsewhere":    {func(b *Batch) { b.Delete(testBucket, "0500") }, false},
		"a commit beside it":      {func(b *Batch) { b.Put(testBucket, "0303", Bytes("new")) }, false},
		"its key is set":          {func(b *Batch) { b.Put(testBucket, "0300", Bytes("new")) }, true},
		"its key is deleted":      {func(b *Batch) { b.Delete(testBucket, "0300") }, true},
		"a key in it is new":      {func(b *Batch) { b.Put(testBucket, "0300a", Bytes("new")) }, true},
		"a deletion before it":    {func(b *Batch) { b.Delete(testBucket, "0298") }, true},
		"a deletion behind it":    {func(b *Batch) { b.Delete(testBucket, "0303") }, true},
		"its bucket is dropped":   {func(b *Batch) { b.Drop(testBucket) }, true},
		"another bucket is begun": {func(b *Batch) { b.Put(Bucket{"space", "new"}, "0300", Bytes("new")) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			path := testsupport.Path(t)
			manyLeaves(t, path)
			db, err := Open(path, Options{CommitInterval: manual.CommitInterval, Logger: &testsupport.Quiet}) // Unless it is found, the file stays as bad as it is.
			if err != nil {
				t.Fatal(err)
			}
			lengthen(t, db, "0300")
			apply(t, db, c.write)
			if err := db.Flush(); err != nil && !errors.Is(err, ErrCorrupt) {
				t.Error(err)
			}
			flush(t, db)
			if found := len(setAside(t, path)) > 0; found != c.found {
				t.Errorf("it was found: %v", found)
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestTheCommitterLooksAtAllLeavesWhenItIsIdle, so that later commits have none to check.
func TestTheCommitterLooksAtAllLeavesWhenItIsIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := testsupport.Path(t)
		manyLeaves(t, path)
		db := openSound(t, path, manual)
		put(t, db, "0001", "new")
		flush(t, db)
		after(time.Second)
		if !db.leavesChecked {
			t.Error("it has not looked at all leaves")
		}
	})
}

// valueLeaves returns what an inspector notes of the leaves with values of a file.
func valueLeaves(t *testing.T, b *handle) []uint32 {
	t.Helper()
	in, err := inspectFile(b.file, false)
	if err != nil {
		t.Fatal(err)
	}
	return in.unchecked
}

func isIn(leaves []uint32, id int) bool { return id < len(leaves) && leaves[id] != 0 }

// TestNoLeafIsFreedThatWasNotLookedAt, whatever a commit sets, deletes and drops: bbolt
// also frees what it merges.
func TestNoLeafIsFreedThatWasNotLookedAt(t *testing.T) {
	rnd := testsupport.Rand(t)
	for round := range testsupport.Rounds(8, 2) {
		synctest.Test(t, func(t *testing.T) { checkFreedLeaves(t, rnd, round) })
	}
}

func checkFreedLeaves(t *testing.T, rnd *rand.Rand, round int) {
	t.Helper()
	path := testsupport.Path(t)
	db := openSound(t, path, manual)
	buckets := []Bucket{testBucket, {"space", "other"}, {"more", "bucket"}}
	randomKey := func() string {
		return fmt.Sprintf("%05d%s", rnd.Intn(4000), repeat("k", rnd.Intn(200)/(1+rnd.Intn(20))))
	}
	keys := map[string]struct{}{}
	for range 3000 {
		key := randomKey()
		keys[key] = struct{}{}
		apply(t, db, func(b *Batch) { b.Put(buckets[rnd.Intn(3)], key, Bytes(repeat("v", rnd.Intn(3000)))) })
	}
	flush(t, db)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}

	db = openSound(t, path, manual)
	put(t, db, "first", "value") // Begins the check.
	flush(t, db)
	synctest.Wait()
	c, looked := db.leaves, 0
	c.next = c.pages // Leaves all to the commits.
	for range 30 {
		before, unchecked := valueLeaves(t, db.bolt), slices.Clone(c.in.unchecked)
		sets, deletions := rnd.Intn(30), rnd.Intn(30)
		if rnd.Intn(3) == 0 {
			deletions *= 20 // Whole leaves and branches.
		}
		apply(t, db, func(b *Batch) {
			for range sets {
				b.Put(buckets[rnd.Intn(3)], randomKey(), Bytes(repeat("w", rnd.Intn(3000))))
			}
			bucket, left := buckets[rnd.Intn(3)], deletions
			for key := range keys {
				if left--; left < 0 {
					break
				}
				b.Delete(bucket, key)
			}
			if rnd.Intn(20) == 0 {
				b.Drop(bucket)
			}
		})
		flush(t, db)
		synctest.Wait()
		if db.leavesChecked && c.count > 0 {
			t.Fatalf("round %d: a sound leaf was refused", round)
		}
		after := valueLeaves(t, db.bolt)
		for id := range before {
			if isIn(before, id) && !isIn(after, id) && isIn(unchecked, id) {
				looked++
				if isIn(c.in.unchecked, id) {
					t.Fatalf("round %d: leaf %d was freed", round, id)
				}
			}
		}
	}
	if looked == 0 {
		t.Fatal("no leaf was freed: this test says nothing")
	}
	if names := setAside(t, path); len(names) != 0 {
		t.Fatalf("set aside: %v", names)
	}
}

// TestABranchInPlaceOfALeafIsNotFollowed: a page whose last write was lost may be one that
// leads back to itself. bbolt follows it for ever where it looks for a key, and where it
// drops the bucket.
func TestABranchInPlaceOfALeafIsNotFollowed(t *testing.T) {
	for name, inUse := range map[string]bool{"at rest": false, "in use": true} {
		t.Run(name, func(t *testing.T) {
			path := testsupport.Path(t)
			manyLeaves(t, path)
			db := open(t, path, manual)
			leaf := leafWith(t, db.bolt, "0300")
			if !inUse {
				close1(t, db)
			}
			page := make([]byte, pageHeaderBytes+elementBytes+1)
			binary.NativeEndian.PutUint64(page, leaf)
			binary.NativeEndian.PutUint16(page[pageFlagsAt:], branchPage)
			binary.NativeEndian.PutUint16(page[pageCountAt:], 1)
			binary.NativeEndian.PutUint32(page[pageHeaderBytes:], elementBytes)
			binary.NativeEndian.PutUint32(page[pageHeaderBytes+4:], 1)
			binary.NativeEndian.PutUint64(page[pageHeaderBytes+branchPageIDAt:], leaf)
			page[pageHeaderBytes+elementBytes] = keyPrefix
			overwrite(t, path, int64(leaf*PageBytes), page)
			if !inUse {
				db = open(t, path, manual)
				if len(setAside(t, path)) != 1 {
					t.Fatal("it was not found before it is read")
				}
				get(t, db, "0300")
			}
			apply(t, db, func(b *Batch) { b.Drop(testBucket) })
			if err := db.Flush(); err != nil && !errors.Is(err, ErrCorrupt) {
				t.Error(err)
			}
			flush(t, db)
			if len(setAside(t, path)) != 1 {
				t.Error("it was not found")
			}
		})
	}
}

// TestAMetaPageThatHasMorePagesThanTheFileIsNotBelieved: bbolt would write behind them,
// and make the file as long.
func TestAMetaPageThatHasMorePagesThanTheFileIsNotBelieved(t *testing.T) {
	path := testsupport.Path(t)
	db := open(t, path, manual)
	put(t, db, "key", "value")
	flush(t, db)
	im := &image{pageSize: PageBytes, bytes: testsupport.ReadUsed(t, path)}
	im.setMeta(im.bytes, metaHighAt, 1<<25)
	overwrite(t, path, 0, im.bytes[:2*PageBytes])
	put(t, db, "key", "new")
	if err := db.Flush(); err != nil && !errors.Is(err, ErrCorrupt) {
		t.Error(err)
	}
	flush(t, db)
	if v, _, err := lookup(db, testBucket, "key"); v != "new" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
	if info, err := os.Stat(path); err != nil || info.Size() > 1<<30 || len(setAside(t, path)) != 1 {
		t.Errorf("a file of %d bytes, %d set aside, %v", info.Size(), len(setAside(t, path)), err)
	}
}

// misname changes the key by which a branch names the leaf of a key, or the lowest branch
// above that leaf. Its last byte becomes one less, so that the branch stays in order.
func misname(t *testing.T, b *handle, key string, leaf bool) {
	t.Helper()
	path := pathTo(t, b, key)
	br := path[len(path)-1]
	if !leaf {
		br = path[len(path)-2]
	}
	e := pageHeaderBytes + br.at*elementBytes
	at := e + int(binary.NativeEndian.Uint32(br.page[e:])) + len(br.key(br.at)) - 1
	overwrite(t, b.file.Name(), int64(br.id*PageBytes)+int64(at), []byte{br.page[at] - 1})
}

// TestABranchThatNamesAPageByAnotherKeyIsFound before bbolt writes that page: it would stay
// in the branch under the other key too, and hide what is written later.
func TestABranchThatNamesAPageByAnotherKeyIsFound(t *testing.T) {
	const keys = 600
	key := func(i int) string { return fmt.Sprintf("%s%04d", repeat("k", 200), i) }
	for _, leaf := range []bool{true, false} {
		for _, inUse := range []bool{true, false} {
			t.Run(fmt.Sprintf("leaf=%v,inUse=%v", leaf, inUse), func(t *testing.T) {
				path := testsupport.Path(t)
				sound := testsupport.Path(t)
				db := openSound(t, sound, manual)
				for i := range keys {
					put(t, db, key(i), repeat("v", PageBytes/3))
				}
				flush(t, db)
				close1(t, db)
				testsupport.CopyFile(t, sound, path)

				db = open(t, path, manual)
				misname(t, db.bolt, key(keys/2), leaf)
				if !inUse {
					close1(t, db)
					db = open(t, path, manual)
				}
				for i := range keys { // Each leaf is written twice.
					put(t, db, key(i), "new")
					if err := db.Flush(); err != nil && !errors.Is(err, ErrCorrupt) {
						t.Fatal(err)
					}
				}
				flush(t, db)
				if len(setAside(t, path)) != 1 {
					t.Error("it was not found")
				}
				for i := range keys {
					if v, _ := get(t, db, key(i)); v != "new" {
						t.Fatalf("%d is %.10q", i, v)
					}
				}
			})
		}
	}
}

// TestVerifyFindsWhatIsInTwoPlaces: where a branch is damaged between the check of a commit and the
// commit, bbolt writes a page beside the one that it replaces. Readers see the one or the other.
func TestVerifyFindsWhatIsInTwoPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := testsupport.Path(t)
		manyLeaves(t, path)
		db := open(t, path, manual)
		put(t, db, "0001", "new")
		flush(t, db)
		after(time.Second)
		if !db.leavesChecked {
			t.Fatal("not all leaves were looked at")
		}
		misname(t, db.bolt, "0300", true)
		for i := range 600 {
			put(t, db, fmt.Sprintf("%04d", i), "new")
		}
		f := db.boltFile
		db.boltFile = nil // It is not checked, then.
		flush(t, db)
		synctest.Wait()
		db.boltFile = f
		if len(setAside(t, path)) > 0 {
			t.Fatal("it was found without Verify: this test says nothing")
		}
		for from, done := "", false; !done; {
			err := db.read(testBucket.Space, db.hangsLocked, func(s *Snapshot) (err error) {
				from, done, err = s.Verify(testBucket.Name, from, 4)
				return err
			})
			if err != nil {
				if !isFileDamage(err) {
					t.Errorf("error %v", err)
				}
				break
			}
		}
		for i := range 600 {
			if v, _ := get(t, db, fmt.Sprintf("%04d", i)); v != "new" {
				t.Fatalf("%d is %.10q", i, v)
			}
		}
		if len(setAside(t, path)) != 1 {
			t.Error("it was not found")
		}
	})
}

// TestALeafIsNotBelieved to be one, or to have as many elements, because its header says so:
// keys that it hides would not be found, and be written a second time.
func TestALeafIsNotBelieved(t *testing.T) {
	for name, c := range map[string]struct {
		root   bool
		at     int
		value  uint16
		atOpen bool
	}{
		"a branch, the root, says that it is a leaf": {root: true, at: pageFlagsAt, value: leafPage, atOpen: true},
		"a leaf has fewer elements":                  {at: pageCountAt, value: 1},
		"a leaf has no elements":                     {at: pageCountAt, value: 0},
		"a leaf has more elements":                   {at: pageCountAt, value: 200},
	} {
		t.Run(name, func(t *testing.T) {
			path := testsupport.Path(t)
			manyLeaves(t, path)
			db, err := Open(path, manual)
			if err != nil {
				t.Fatal(err)
			}
			id := leafWith(t, db.bolt, "0300")
			if c.root {
				id = pathTo(t, db.bolt, "0300")[0].id
			}
			close1(t, db)
			overwrite(t, path, int64(int(id)*PageBytes+c.at), binary.NativeEndian.AppendUint16(nil, c.value))
			db = open(t, path, manual)
			if found := len(setAside(t, path)) == 1; found != c.atOpen {
				t.Errorf("found at once: %v", found)
			}
			put(t, db, "0300", "new")
			put(t, db, "0301", "new")
			if err := db.Flush(); err != nil && !errors.Is(err, ErrCorrupt) {
				t.Error(err)
			}
			flush(t, db)
			if len(setAside(t, path)) != 1 {
				t.Error("it was not found")
			}
		})
	}
}

// TestAFreelistEntryThatNamesAPageOfALeafIsFound before anything is written: bbolt would
// take the page, which has a part of a large value.
func TestAFreelistEntryThatNamesAPageOfALeafIsFound(t *testing.T) {
	path := testsupport.Path(t)
	db := openSound(t, path, manual)
	for i := range 20 {
		put(t, db, fmt.Sprintf("large%04d", i), repeat("v", 40_000))
	}
	flush(t, db)
	other := Bucket{testBucket.Space, "other"}
	for range 2 { // So that there are free pages.
		for i := range 30 {
			apply(t, db, func(b *Batch) { b.Put(other, fmt.Sprint(i), Bytes(repeat("w", 3000))) })
		}
		flush(t, db)
		apply(t, db, func(b *Batch) { b.Drop(other) })
		flush(t, db)
	}
	want := contents(t, db)
	close1(t, db)

	b := testsupport.ReadUsed(t, path)
	continued := map[uint64]bool{}
	for id := 4; id < len(b)/PageBytes; id++ {
		page := b[id*PageBytes:]
		if binary.NativeEndian.Uint64(page) == uint64(id) && binary.NativeEndian.Uint16(page[pageFlagsAt:]) == leafPage {
			for more := range binary.NativeEndian.Uint32(page[pageOverflowAt:]) {
				continued[uint64(id)+uint64(more)+1] = true
			}
		}
	}
	freelist := int(binary.NativeEndian.Uint64((&image{pageSize: PageBytes}).newestMeta(b)[metaFreelistAt:])) * PageBytes
	at, to := 0, uint64(0)
	for i := range int(binary.NativeEndian.Uint16(b[freelist+pageCountAt:])) {
		entry := freelist + pageHeaderBytes + 8*i
		for bit := range bits.Len(uint(len(b) / PageBytes)) {
			if id := binary.NativeEndian.Uint64(b[entry:]) ^ 1<<bit; continued[id] {
				at, to = entry, id
			}
		}
	}
	if at == 0 {
		t.Fatal("no flip of one bit of the freelist names a page of a leaf")
	}
	overwrite(t, path, int64(at), binary.NativeEndian.AppendUint64(nil, to))

	db = open(t, path, manual)
	if len(setAside(t, path)) != 1 {
		t.Error("it was not found at the start")
	}
	for range 20 { // As many commits as take some page.
		apply(t, db, func(b *Batch) { b.Put(other, "small", Bytes("value")) })
		flush(t, db)
	}
	for key, value := range want {
		if got, _, err := lookup(db, testBucket, key); got != value || err != nil {
			t.Errorf("%s has lost its value: %d bytes, %v", key, len(got), err)
		}
	}
}

// TestALengthThatLiesIsFoundBeforeBboltCopiesAsMuch: bbolt copies the other elements of a leaf
// in which it writes one, by the lengths of their keys and values. It frees as many pages as the header says. A
// leaf that was checked before, or that this process has written, may lie as well.
func TestALengthThatLiesIsFoundBeforeBboltCopiesAsMuch(t *testing.T) {
	element := func(i, at int) int { return pageHeaderBytes + i*elementBytes + at }
	ofSix := testsupport.Rounds(6, 1) // With -short fewer files, others each time.
	for name, lie := range map[string]struct {
		at  int
		bit uint32
	}{
		"of a key":            {element(0, 8), 1 << 20},
		"of a value":          {element(0, 12), 1 << 20},
		"of the second key":   {element(1, 8), 1 << 20},
		"of the second value": {element(1, 12), 1 << 20},
		"of where a key is":   {element(1, 4), 1 << 30},
		"of the page":         {pageOverflowAt, 1 << 2},
		"of the elements":     {pageFlagsAt, 1 << 23}, // The upper half is the count.
	} {
		for _, first := range []string{"", "of its own", "of another bucket"} {
			for write, key := range map[string]string{"a new key": "0300a", "a deletion beside it": "0298"} {
				if rand.Intn(6) >= ofSix {
					continue
				}
				t.Run(fmt.Sprintf("%s, after a commit %s, %s", name, first, write), func(t *testing.T) {
					path := testsupport.Path(t)
					manyLeaves(t, path)
					db := open(t, path, manual)
					switch first {
					case "of its own":
						put(t, db, "0300", repeat("w", PageBytes/3))
						flush(t, db)
					case "of another bucket":
						apply(t, db, func(b *Batch) { b.Put(Bucket{testBucket.Space, "other"}, "key", Bytes("value")) })
						flush(t, db)
					}
					word := int64(leafWith(t, db.bolt, "0300")*PageBytes) + int64(lie.at)
					b := testsupport.ReadUsed(t, path)
					overwrite(t, path, word, binary.NativeEndian.AppendUint32(nil, binary.NativeEndian.Uint32(b[word:])^lie.bit))
					apply(t, db, func(b *Batch) {
						if key == "0300a" {
							b.Put(testBucket, key, Bytes("new"))
						} else {
							b.Delete(testBucket, key)
						}
					})
					if err := db.Flush(); err != nil && !errors.Is(err, ErrCorrupt) {
						t.Error(err)
					}
					flush(t, db)
					if n := len(setAside(t, path)); n != 1 {
						t.Errorf("it was found %d times", n)
					}
					if v, found, err := lookup(db, testBucket, key); found != (v == "new") || found != (key == "0300a") || err != nil {
						t.Errorf("what was written is %q, %v, %v", v, found, err)
					}
				})
			}
		}
	}
}

// TestALeafThatWasCheckedIsNotBelieved either, nor is the branch that leads to it: it is found before bbolt loses
// keys, or writes one where it is not looked for.
func TestALeafThatWasCheckedIsNotBelieved(t *testing.T) {
	type file struct {
		leaf, branch uint64
		element      int // Of the branch, that of the leaf.
		other        uint64
	}
	number := func(size int, n uint64) []byte { return binary.NativeEndian.AppendUint64(nil, n)[:size] }
	for name, c := range map[string]struct {
		isRoot bool
		only   string // What is written.
		lie    func(file) (at uint64, b []byte)
	}{
		"a leaf without elements": {lie: func(f file) (uint64, []byte) { return f.leaf*PageBytes + pageCountAt, number(2, 0) }},
		"a root without elements": {isRoot: true, only: "a new key", lie: func(f file) (uint64, []byte) { return f.leaf*PageBytes + pageCountAt, number(2, 0) }},
		"a leaf that says it is a freelist": {lie: func(f file) (uint64, []byte) {
			return f.leaf*PageBytes + pageFlagsAt, number(2, freelistPage)
		}},
		"a branch that names another leaf": {lie: func(f file) (uint64, []byte) {
			return f.branch*PageBytes + pageHeaderBytes + uint64(f.element*elementBytes+branchPageIDAt), number(8, f.other)
		}},
		"a branch that names a leaf twice": {only: "new keys behind it, too", lie: func(f file) (uint64, []byte) {
			return f.branch*PageBytes + pageHeaderBytes + uint64((f.element+1)*elementBytes+branchPageIDAt), number(8, f.leaf)
		}},
		"a branch that names the first page": {lie: func(f file) (uint64, []byte) {
			return f.branch*PageBytes + pageHeaderBytes + uint64(f.element*elementBytes+branchPageIDAt), number(8, 0)
		}},
	} {
		for write, change := range map[string]func(*Batch){
			"a new key": func(b *Batch) { b.Put(testBucket, "0300a", Bytes("new")) },
			"new keys behind it, too": func(b *Batch) {
				for _, key := range []string{"0300a", "0301a", "0302a", "0303a", "0304a"} {
					b.Put(testBucket, key, Bytes("new"))
				}
			},
			"a deletion beside it": func(b *Batch) { b.Delete(testBucket, "0302") },
		} {
			if c.only != "" && c.only != write {
				continue
			}
			t.Run(name+", "+write, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					path := testsupport.Path(t)
					if !c.isRoot {
						manyLeaves(t, path)
					}
					db := open(t, path, manual)
					put(t, db, "0300", repeat("w", PageBytes/3))
					put(t, db, "0301", repeat("w", PageBytes/3))
					flush(t, db)
					after(time.Second)
					if !db.leavesChecked {
						t.Fatal("not all leaves were checked")
					}
					before := len(contents(t, db))
					var f file
					if c.isRoot {
						f.leaf = uint64(leafOfRoot(t, db.bolt))
					} else {
						way := pathTo(t, db.bolt, "0300")
						last := way[len(way)-1]
						f = file{leaf: last.child(last.at), branch: last.id, element: last.at, other: leafWith(t, db.bolt, "0500")}
					}
					at, b := c.lie(f)
					overwrite(t, path, int64(at), b)
					apply(t, db, change)
					if err := db.Flush(); err != nil && !errors.Is(err, ErrCorrupt) {
						t.Error(err)
					}
					flush(t, db)
					if n := len(setAside(t, path)); n != 1 {
						t.Errorf("it was found %d times", n)
					}
					got := contents(t, db) // What the page had may be gone, or be as it was before.
					if value, found := got["0300a"]; found != (write != "a deletion beside it") || found && value != "new" {
						t.Errorf("what was written is %q, %v", value, found)
					}
					if lost := before - len(got); lost > 4 {
						t.Errorf("%d values are gone", lost)
					}
				})
			})
		}
	}
}

// TestAValueThatSaysItIsABucketIsStillThere: bbolt does not find its key, although a cursor
// does. It cannot be read, and the file is replaced by one that has it again.
func TestAValueThatSaysItIsABucketIsStillThere(t *testing.T) {
	path := testsupport.Path(t)
	manyLeaves(t, path)
	db := open(t, path, manual)
	want := contents(t, db)
	leaf := leafWith(t, db.bolt, "0300")
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	flags := int64(leaf*PageBytes) + pageHeaderBytes + elementBytes
	page := salvagePage{flags: leafPage, bytes: testsupport.ReadUsed(t, path)[leaf*PageBytes:][:PageBytes]}
	name, _, _ := page.element(1)
	key := string(name[1:])
	overwrite(t, path, flags, binary.NativeEndian.AppendUint32(nil, leafBucketFlag))

	db = open(t, path, manual)
	if _, found, err := lookup(db, testBucket, key); !found || !errors.Is(err, ErrCorrupt) {
		t.Errorf("key %q: found %v, %v", key, found, err)
	}
	put(t, db, key+"a", "new")
	flush(t, db)
	if n := len(setAside(t, path)); n != 1 {
		t.Errorf("the file was replaced %d times", n)
	}
	want[key+"a"] = "new"
	expectContents(t, db, want)
}

// TestKeysOutOfOrderAreFoundBeforeAnythingIsWrittenBesideThem: bbolt's search would put a new key
// where later searches, among another number of keys, do not find it.
func TestKeysOutOfOrderAreFoundBeforeAnythingIsWrittenBesideThem(t *testing.T) {
	for name, large := range map[string]bool{"in one page": false, "in several pages": true} {
		t.Run(name, func(t *testing.T) {
			path := testsupport.Path(t)
			db := openSound(t, path, manual)
			want := map[string]string{} // In a single leaf, the root of its bucket.
			if large {
				want["04"], want["05"], want["06"] = repeat("v", 3*PageBytes), repeat("v", 400), repeat("v", 400)
			}
			for i := 0; i < 11 && !large; i++ {
				want[fmt.Sprintf("%02d", i)] = repeat("v", 400)
			}
			for key, value := range want {
				put(t, db, key, value)
			}
			flush(t, db)
			leaf := leafOfRoot(t, db.bolt)
			close1(t, db)

			key := bytes.Index(testsupport.ReadUsed(t, path)[leaf*PageBytes:], []byte(string(keyPrefix)+"05"))
			overwrite(t, path, int64(leaf*PageBytes+key), []byte{keyPrefix ^ 1<<6})
			delete(want, "05")

			db = open(t, path, manual)
			put(t, db, "03a", "new")
			put(t, db, "03b", "new")
			flush(t, db)
			if n := len(setAside(t, path)); n != 1 {
				t.Errorf("the file was replaced %d times", n)
			}
			want["03a"], want["03b"] = "new", "new"
			expectContents(t, db, want)
		})
	}
}

// leafOfRoot is the page of the test bucket, which has one.
func leafOfRoot(t *testing.T, b *handle) (leaf int) {
	t.Helper()
	if err := view(b, func(tx *bolt.Tx) error {
		leaf = int(fileBucket(tx, testBucket).b.Root())
		return nil
	}); err != nil || leaf == 0 {
		t.Fatal(leaf, err)
	}
	return leaf
}
