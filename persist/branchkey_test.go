package persist

import (
	"encoding/binary"
	"errors"
	"os"
	"testing"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// TestABranchThatNamesALeafByAHigherKeyIsFoundBeforeAnythingIsWrittenBesideIt (P6): the first key of the leaf is
// looked for, and would be written, in the leaf before it, whose own keys are sound.
func TestABranchThatNamesALeafByAHigherKeyIsFoundBeforeAnythingIsWrittenBesideIt(t *testing.T) {
	for name, restarted := range map[string]bool{"at rest": true, "in use": false} {
		t.Run(name, func(t *testing.T) {
			path := testsupport.Path(t)
			twoLevels(t, path)
			db := open(t, path, manual)
			first := raiseLeafName(t, db.bolt)
			if restarted {
				close1(t, db)
				db = open(t, path, manual)
			}
			write := func(key string) {
				put(t, db, key, "new")
				if err := db.Flush(); err != nil && !errors.Is(err, ErrCorrupt) {
					t.Fatal(err)
				}
				flush(t, db)
			}
			write(twoLevelsKey(first))
			if n := len(setAside(t, path)); n != 1 {
				t.Errorf("the file was replaced %d times", n)
			}
			for i := first - 20; i < first+20; i++ {
				write(twoLevelsKey(i))
			}
			for i := first - 20; i < first+20; i++ {
				if v, _ := get(t, db, twoLevelsKey(i)); v != "new" {
					t.Errorf("%d was written, and is %.10q", i, v)
				}
			}
		})
	}
}

// raiseLeafName adds one to the last byte of a key by which a branch names a leaf, so that the branch stays in
// order. It returns the first key of the leaf.
func raiseLeafName(t *testing.T, b *handle) (first int) {
	t.Helper()
	for i := twoLevelsKeys / 2; i < twoLevelsKeys; i++ {
		path := pathTo(t, b, twoLevelsKey(i))
		last := path[len(path)-1]
		name := last.key(last.at)
		if last.at == 0 || string(name[1:]) != twoLevelsKey(i) || name[len(name)-1] == '9' {
			continue
		}
		element := pageHeaderBytes + last.at*elementBytes
		end := element + int(binary.NativeEndian.Uint32(last.page[element:])) + len(name) - 1
		overwrite(t, b.file.Name(), int64(last.id*PageBytes)+int64(end), []byte{name[len(name)-1] + 1})
		return i
	}
	t.Fatal("no leaf")
	return 0
}

// TestALeafInPlaceOfABranchIsFoundAtTheStart: bbolt's trees have leaves at one depth only, and a disk that has
// lost a write may have a leaf, with the same first key, where a branch was written.
func TestALeafInPlaceOfABranchIsFoundAtTheStart(t *testing.T) {
	path := testsupport.Path(t)
	twoLevels(t, path)
	end := boundaryOf(t, path, true)
	db := openSound(t, path, manual)
	p := pathTo(t, db.bolt, twoLevelsKey(end.behind)) // The first key of the second of two branches.
	branch, leaf := p[1].id, p[1].child(0)
	close1(t, db)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	copy(b[branch*PageBytes:][:PageBytes], b[leaf*PageBytes:][:PageBytes])
	binary.NativeEndian.PutUint64(b[branch*PageBytes:], branch)
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	db = open(t, path, manual)
	if n := len(setAside(t, path)); n != 1 {
		t.Errorf("the file was replaced %d times", n)
	}
	put(t, db, twoLevelsKey(end.behind), "new")
	flush(t, db)
	close1(t, db)
	db = openSound(t, path, manual)
	if v, _ := get(t, db, twoLevelsKey(end.behind)); v != "new" {
		t.Errorf("what was written is %.10q", v)
	}
}
