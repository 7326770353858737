package persist

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// blankFiles are files with nothing in them: nobody has begun them, or finished beginning.
var blankFiles = map[string]func(t *testing.T, path string){
	"empty":      func(t *testing.T, path string) { writeFile(t, path, "") },
	"only zeros": func(t *testing.T, path string) { writeFile(t, path, string(make([]byte, 2*PageBytes))) },
	"without a bucket": func(t *testing.T, path string) {
		b, err := bolt.Open(path, 0o600, boltOptions(time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	},
}

// TestAFileWithNothingInItIsBegunInPlace: it may be a mount point, which cannot be
// renamed, and nothing is lost.
func TestAFileWithNothingInItIsBegunInPlace(t *testing.T) {
	for name, write := range blankFiles {
		t.Run(name, func(t *testing.T) {
			path := testsupport.Path(t)
			write(t, path)
			if err := os.Chmod(path, 0o644); err != nil {
				t.Fatal(err)
			}
			before, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			db := openSound(t, path, manual)
			put(t, db, "key", "value")
			flush(t, db)
			if now, err := os.Stat(path); err != nil || !os.SameFile(before, now) || len(setAside(t, path)) != 0 || now.Mode() != 0o600 {
				t.Errorf("replaced: %v, %v; mode %v", setAside(t, path), err, now.Mode())
			}
			close1(t, db)
			if v, _ := get(t, openSound(t, path, manual), "key"); v != "value" {
				t.Errorf("the file has %q", v)
			}
		})
	}
}

// mountFile returns a path with a file that is a mount point.
func mountFile(t *testing.T) string {
	t.Helper()
	dir := mountSmall(t, 8<<20)
	path, host := filepath.Join(dir, "cache.db"), filepath.Join(t.TempDir(), "host.db")
	writeFile(t, host, "")
	writeFile(t, path, "")
	unmount, err := mountBind(host, path)
	if err != nil {
		t.Skipf("cannot mount a file: %v", err)
	}
	t.Cleanup(func() {
		if err := unmount(); err != nil {
			t.Error(err)
		}
	})
	return path
}

func TestAFileThatIsAMountPointIsBegun(t *testing.T) {
	for name, write := range blankFiles {
		t.Run(name, func(t *testing.T) {
			path := mountFile(t)
			write(t, path)
			db := openSound(t, path, manual)
			put(t, db, "key", "value")
			close1(t, db)
			if v, _ := get(t, openSound(t, path, manual), "key"); v != "value" {
				t.Errorf("the file has %q", v)
			}
		})
	}
}

// TestADamagedMountPointSaysWhatToDo, and is not written to, because it cannot be set aside.
func TestADamagedMountPointSaysWhatToDo(t *testing.T) {
	path := mountFile(t)
	writeFile(t, path, "damaged")
	db := open(t, path, manual)
	if err := db.Err(); err == nil || !strings.Contains(err.Error(), "mount the directory") {
		t.Errorf("Err is %v", err)
	}
	close1(t, db)
	if b, err := os.ReadFile(path); string(b) != "damaged" || err != nil {
		t.Errorf("the file has %q, %v", b, err)
	}
}

// TestAFileThatCouldNotBeBegunInPlaceIsBegunLater. It is empty until then.
func TestAFileThatCouldNotBeBegunInPlaceIsBegunLater(t *testing.T) {
	full := fullDisk(t)
	synctest.Test(t, func(t *testing.T) {
		path := testsupport.Path(t)
		writeFile(t, path, "")
		before, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		db := open(t, path, Options{CommitInterval: time.Second})
		put(t, db, "key", "value")
		if info, err := os.Stat(path); err != nil || info.Size() != 0 || !errors.Is(db.Err(), errNoSpace) {
			t.Errorf("the file is %v, %v; Err is %v", info, err, db.Err())
		}
		full.Store(false)
		after(maxReplaceDelay)
		if now, err := os.Stat(path); err != nil || !os.SameFile(before, now) || db.Err() != nil {
			t.Errorf("replaced: %v; Err is %v", err, db.Err())
		}
		flush(t, db)
		expectContents(t, db, map[string]string{"key": "value"})
	})
}

// TestAFileWithAnOldMetaPageIsNotBlank: its other meta page is of a later commit.
func TestAFileWithAnOldMetaPageIsNotBlank(t *testing.T) {
	blank := testsupport.Path(t)
	blankFiles["without a bucket"](t, blank)
	old, err := os.ReadFile(blank)
	if err != nil {
		t.Fatal(err)
	}
	for _, commits := range []int{2, 3} { // With the newer transaction in either meta page.
		path := testsupport.Path(t)
		db := openSound(t, path, manual)
		for n := range commits {
			put(t, db, "key", strconv.Itoa(n))
			flush(t, db)
		}
		close1(t, db)
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		older := 0
		if txIDOf(validMeta(b)) > txIDOf(validMeta(b[PageBytes:])) {
			older = PageBytes
		}
		copy(b[older:][:PageBytes], old[older:])
		writeFile(t, path, string(b))
		if v, _ := get(t, openSound(t, path, manual), "key"); v != strconv.Itoa(commits-1) {
			t.Errorf("after %d commits the file has %q", commits, v)
		}
	}
}

// TestAFileThatIsBegunInPlaceIsSyncedInOrder: after a power failure, a meta page without the
// pages that it names would be damage, and a mount point has no successor.
func TestAFileThatIsBegunInPlaceIsSyncedInOrder(t *testing.T) {
	path := testsupport.Path(t)
	db := openSound(t, path, manual)
	defer func(before func(string) error) { crashpoint = before }(crashpoint)
	o, err := openBolt(path+".place", nil, false, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	inOrder := false
	crashpoint = func(what string) error {
		if what == "the new file is begun" {
			inOrder = !o.bolt.NoSync
		}
		return nil
	}
	if err := errors.Join(db.fill(&o, nil, nil), o.close()); err != nil {
		t.Fatal(err)
	}
	if !inOrder {
		t.Error("the meta page may be on the disk before what it names")
	}
}

// TestAFileWhoseBeginningWasCutIsBlank: of the four pages that bbolt begins a file with, any
// may be on the disk after the power was cut. A mount point cannot be replaced.
func TestAFileWhoseBeginningWasCutIsBlank(t *testing.T) {
	begun := testsupport.Path(t)
	db0, err := bolt.Open(begun, 0o600, boltOptions(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if err := db0.Close(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(begun)
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, image []byte, want bool) {
		path := testsupport.Path(t)
		if err := os.WriteFile(path, image, 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if got := isBlank(f); got != want {
			t.Errorf("%s: %v", what, got)
		}
	}
	for subset := range 16 {
		image := make([]byte, len(whole))
		for page := range 4 {
			if subset&(1<<page) != 0 {
				copy(image[page*PageBytes:(page+1)*PageBytes], whole[page*PageBytes:])
			}
		}
		check(fmt.Sprintf("pages %04b", subset), image, true)
	}
	used := testsupport.Path(t)
	db := openSound(t, used, manual)
	put(t, db, "key", "value")
	close1(t, db)
	b := testsupport.ReadUsed(t, used)
	check("a file with a value", b, false)
	clear(b[:PageBytes])
	check("one whose first page is lost", b, false)
	clear(b[:2*PageBytes])
	check("one whose first two pages are lost", b, false)
}
