package persist

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"

	bolt "go.etcd.io/bbolt"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// informerFile writes a file with the buckets that an informer has, large ones and small ones
// within the page of the space. It returns how many values each has, and the pages of the root and
// of the space.
func informerFile(t *testing.T, path string) (values map[string]int, root, space uint64) {
	t.Helper()
	values = map[string]int{"checkpoint": 1, "cursors": 2, "deltas": 40, "index": 40, "objects": 100, "queue": 1, "store": 1, "tombstones": 3}
	db := openSound(t, path, manual)
	apply(t, db, func(b *Batch) {
		for name, n := range values {
			for i := range n {
				b.Put(Bucket{testBucket.Space, name}, fmt.Sprintf("%04d", i), Bytes(repeat("v", 300)))
			}
		}
	})
	flush(t, db)
	if err := view(db.bolt, func(tx *bolt.Tx) error {
		root, space = uint64(tx.Cursor().Bucket().Root()), uint64(tx.Bucket([]byte(testBucket.Space)).Root())
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return values, root, space
}

// headBytes calls fn with each byte of the header and the elements of a leaf, and of the small
// buckets in it. field is the byte of the header, or 16 and the byte of the element.
func headBytes(page []byte, inline bool, fn func(at, field int)) {
	h := pageHeader{flags: leafPage, count: binary.NativeEndian.Uint16(page[pageCountAt:])}
	for at := range pageHeaderBytes {
		fn(at, at)
	}
	for i := range int(h.count) {
		at := pageHeaderBytes + i*elementBytes
		for field := range elementBytes {
			fn(at+field, pageHeaderBytes+field)
		}
		e := h.element(page[at:])
		value := at + int(e.pos+e.ksize)
		if !inline && binary.NativeEndian.Uint64(page[value:]) == 0 {
			value += bucketHeaderBytes
			headBytes(page[value:], true, func(at, field int) { fn(value+at, field) })
		}
	}
}

// readableValues counts, by bucket, the values that a program of bbolt finds in a file, also those
// that are damaged.
func readableValues(t *testing.T, path string) map[string]int {
	t.Helper()
	b, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	found := map[string]int{}
	if err := b.View(func(tx *bolt.Tx) error {
		space := tx.Bucket([]byte(testBucket.Space))
		if space == nil {
			return nil
		}
		return space.ForEachBucket(func(name []byte) error {
			return space.Bucket(name).ForEach(func([]byte, []byte) error {
				found[string(name)]++
				return nil
			})
		})
	}); err != nil {
		t.Fatal(err)
	}
	return found
}

// salvagedValues counts, by bucket, the values of a damaged file that are copied.
func salvagedValues(t *testing.T, f *os.File) map[string]int {
	t.Helper()
	found := map[string]int{}
	if _, err := forEachReadable(f, nil, func(name Bucket, key, value []byte) error {
		if _, err := unseal(name, string(key[min(1, len(key)):]), value); err == nil {
			found[name.Name]++
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return found
}

// TestOneBitHidesNoBucket: the pages that have the buckets have no checksum. A file in which one of
// their bits has flipped either has all values, or is replaced; and a bit of what is said in several
// places, or follows from the depth, loses none.
func TestOneBitHidesNoBucket(t *testing.T) {
	path := testsupport.Path(t)
	values, root, space := informerFile(t, path)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sound := testsupport.ReadUsed(t, path)
	for name, id := range map[string]uint64{"root": root, "space": space} {
		page := sound[id*PageBytes:][:PageBytes]
		headBytes(page, false, func(at, field int) {
			for bit := range 8 {
				damaged := slices.Clone(page)
				damaged[at] ^= 1 << bit
				if _, err := f.WriteAt(damaged, int64(id*PageBytes)); err != nil {
					t.Fatal(err)
				}
				_, err := inspectFile(f, false)
				isFlags := field >= pageHeaderBytes && field < pageHeaderBytes+4
				switch {
				case err == nil:
					if got := readableValues(t, path); !maps.Equal(got, values) {
						t.Errorf("page of the %s, byte %d, bit %d: the file is taken for sound and has %v", name, at, bit, got)
					}
				case !isBad(err):
					t.Fatal(err)
				case field < pageHeaderBytes || isFlags:
					if err := checkFormat(f, f.Name()); err != nil {
						t.Errorf("page of the %s, byte %d, bit %d: %v", name, at, bit, err)
					}
					if got := salvagedValues(t, f); !maps.Equal(got, values) {
						t.Errorf("page of the %s, byte %d, bit %d: salvaged are %v", name, at, bit, got)
					}
				}
			}
		})
		if _, err := f.WriteAt(page, int64(id*PageBytes)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestALeafThatSeemsToBeEmptyIsDamaged, whatever bucket it is the root of: what has no elements has
// zeros instead.
func TestALeafThatSeemsToBeEmptyIsDamaged(t *testing.T) {
	path := testsupport.Path(t)
	db := openSound(t, path, manual)
	put(t, db, "a", repeat("v", PageBytes/2)) // Too large to be within another page.
	flush(t, db)
	var leaf uint64
	if err := view(db.bolt, func(tx *bolt.Tx) error {
		leaf = uint64(fileBucket(tx, testBucket).b.Root())
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	close1(t, db)
	overwrite(t, path, int64(leaf*PageBytes+pageCountAt), []byte{0, 0})
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := inspectFile(f, false); !errors.Is(err, ErrCorrupt) {
		t.Errorf("the file is taken for sound: %v", err)
	}
	if got := salvagedValues(t, f); got[testBucket.Name] != 1 {
		t.Errorf("salvaged are %v", got)
	}
}

// TestABranchWithADamagedKeyStillLeadsToItsPages: where its keys are matters to bbolt alone.
func TestABranchWithADamagedKeyStillLeadsToItsPages(t *testing.T) {
	path := testsupport.Path(t)
	manyLeaves(t, path)
	db := openSound(t, path, manual)
	branch := pathTo(t, db.bolt, "0300")[0]
	close1(t, db)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, i := range []int{0, 1, branch.at, branch.children() - 1} {
		at := pageHeaderBytes + i*elementBytes
		for bit := range 8 * branchPageIDAt { // Its pos and ksize.
			damaged := slices.Clone(branch.page)
			damaged[at+bit/8] ^= 1 << (bit % 8)
			if _, err := f.WriteAt(damaged, int64(branch.id*PageBytes)); err != nil {
				t.Fatal(err)
			}
			if got := salvagedValues(t, f)[testBucket.Name]; got != 600 {
				t.Errorf("element %d of %d, bit %d: %d of 600 values", i, branch.children(), bit, got)
			}
		}
	}
	if _, err := f.WriteAt(branch.page, int64(branch.id*PageBytes)); err != nil {
		t.Fatal(err)
	}
}
