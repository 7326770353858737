package persist

import (
	"bytes"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// twoLevelsKeys is how many keys twoLevels writes, from twoLevelsKey(0) on.
const twoLevelsKeys = 600

func twoLevelsKey(i int) string { return fmt.Sprintf("%s%04d", repeat("0", 200), i) }

// twoLevels writes a file whose test bucket has two levels of branches.
func twoLevels(t *testing.T, path string) (contents map[string]string) {
	t.Helper()
	db := openSound(t, path, manual)
	contents = map[string]string{}
	for i := range twoLevelsKeys {
		contents[twoLevelsKey(i)] = repeat("v", PageBytes/3)
		put(t, db, twoLevelsKey(i), contents[twoLevelsKey(i)])
	}
	flush(t, db)
	close1(t, db)
	return contents
}

// A boundary is where a leaf ends, and another begins.
type boundary struct {
	leaf   branch // The lowest branch above the one that ends.
	page   uint64 // The leaf.
	first  int    // The number of its first key,
	behind int    // and that of the next leaf's.
}

// boundaryOf returns a boundary of a file of twoLevels, between the leaves of two branches, or of
// one. The keys beside it differ in their last digit only.
func boundaryOf(t *testing.T, path string, twoBranches bool) (end boundary) {
	t.Helper()
	db := openSound(t, path, manual)
	defer close1(t, db)
	for i := range twoLevelsKeys {
		branches := pathTo(t, db.bolt, twoLevelsKey(i))
		if len(branches) != 2 {
			t.Fatalf("%d levels of branches", len(branches))
		}
		next := branches[1]
		page := next.child(next.at)
		if page == end.page {
			continue
		}
		if i%10 != 0 && (next.id != end.leaf.id) == twoBranches {
			end.behind = i
			return end
		}
		end = boundary{leaf: next, page: page, first: i}
	}
	t.Fatal("there is no such boundary")
	return end
}

// flipInKey flips bits of a byte of a key on a page.
func flipInKey(t *testing.T, path string, page uint64, key string, at int, bits byte) {
	t.Helper()
	b := testsupport.ReadUsed(t, path)
	i := bytes.Index(b[page*PageBytes:][:PageBytes], []byte(string(keyPrefix)+key))
	if i < 0 {
		t.Fatal("the key is not there")
	}
	at += int(page*PageBytes) + i + 1
	overwrite(t, path, int64(at), []byte{b[at] ^ bits})
}

// TestALastKeyBeyondItsLeafIsFoundBeforeTheLeafIsWritten: the leaf itself is in order. Once bbolt has
// merged it with the next one it is not, and searches miss what is written there.
func TestALastKeyBeyondItsLeafIsFoundBeforeTheLeafIsWritten(t *testing.T) {
	sound := testsupport.Path(t)
	want := twoLevels(t, sound)
	for _, twoBranches := range []bool{false, true} {
		end := boundaryOf(t, sound, twoBranches)
		for _, equal := range []bool{false, true} {
			for name, write := range map[string]func(*Batch){
				"its other keys are deleted": func(b *Batch) {
					for i := end.first; i < end.behind-1; i++ {
						b.Delete(testBucket, twoLevelsKey(i))
					}
				},
				"a key in it is set":           func(b *Batch) { b.Put(testBucket, twoLevelsKey(end.first), Bytes("new")) },
				"a key of the next is set":     func(b *Batch) { b.Put(testBucket, twoLevelsKey(end.behind), Bytes("new")) },
				"another is, and then nothing": func(b *Batch) { b.Put(testBucket, twoLevelsKey(twoLevelsKeys-1), Bytes("new")) },
			} {
				t.Run(fmt.Sprintf("two branches %v, equal %v, %s", twoBranches, equal, name), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						path := testsupport.Path(t)
						testsupport.CopyFile(t, sound, path)
						writeBesideABadLastKey(t, path, end, equal, write, want)
					})
				})
			}
		}
	}
}

func writeBesideABadLastKey(t *testing.T, path string, end boundary, equal bool, write func(*Batch), want map[string]string) {
	t.Helper()
	last, next := twoLevelsKey(end.behind-1), twoLevelsKey(end.behind)
	if at := len(last) - 1; equal {
		flipInKey(t, path, end.page, last, at, last[at]^next[at])
	} else {
		flipInKey(t, path, end.page, last, 0, 1<<6)
	}
	db := open(t, path, manual)
	apply(t, db, write)
	flush(t, db)
	after(time.Second)
	if n := len(setAside(t, path)); n != 1 {
		t.Errorf("the file was replaced %d times", n)
	}
	for i := range twoLevelsKeys { // Some keys of the leaf are deleted, and one is damaged.
		key := twoLevelsKey(i)
		v, found := get(t, db, key)
		if v != want[key] && v != "new" && (found || i < end.first || i >= end.behind) {
			t.Errorf("%d is %.10q, %v", i, v, found)
		}
	}
	for i := end.first; i < end.behind+10; i++ {
		put(t, db, twoLevelsKey(i), "new")
		flush(t, db)
	}
	for range 2 {
		for i := end.first; i < end.behind+10; i++ {
			if v, _ := get(t, db, twoLevelsKey(i)); v != "new" {
				t.Errorf("%d was written, and is %.10q", i, v)
			}
		}
		close1(t, db)
		db = open(t, path, manual)
	}
}

// TestALastKeyOfABranchBeyondTheNextBranchIsFoundAtTheStart: bbolt may merge the two branches, and
// then looks for keys in the wrong leaves.
func TestALastKeyOfABranchBeyondTheNextBranchIsFoundAtTheStart(t *testing.T) {
	path := testsupport.Path(t)
	twoLevels(t, path)
	end := boundaryOf(t, path, true)
	flipInKey(t, path, end.leaf.id, twoLevelsKey(end.first), 0, 1<<6)
	db := open(t, path, manual)
	if len(setAside(t, path)) != 1 || len(contents(t, db)) != twoLevelsKeys {
		t.Errorf("%d files set aside, %d values", len(setAside(t, path)), len(contents(t, db)))
	}
}
