package persist

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// TestALinkIsFollowed to a file that is there, and to one that is not yet.
func TestALinkIsFollowed(t *testing.T) {
	for name, harm := range map[string]func(t *testing.T, target string){
		"to nothing":        func(*testing.T, string) {},
		"to a file":         func(t *testing.T, target string) { close1(t, openSound(t, target, manual)) },
		"to a damaged file": func(t *testing.T, target string) { writeFile(t, target, "damaged") },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			target := filepath.Join(dir, "there", "data.db")
			if err := os.Mkdir(filepath.Dir(target), 0o700); err != nil {
				t.Fatal(err)
			}
			harm(t, target)
			link, middle := filepath.Join(dir, "cache.db"), filepath.Join(dir, "there", "link")
			if err := errors.Join(os.Symlink("data.db", middle), os.Symlink(middle, link)); err != nil {
				t.Fatal(err)
			}
			db := openSound(t, link, manual)
			put(t, db, "key", "value")
			close1(t, db)
			for _, path := range []string{link, target} {
				db := openSound(t, path, manual)
				if v, _ := get(t, db, "key"); v != "value" || db.Path() != path {
					t.Errorf("%s has %q, the path is %s", path, v, db.Path())
				}
				close1(t, db)
			}
			if info, err := os.Lstat(link); err != nil || info.Mode().Type() != fs.ModeSymlink {
				t.Errorf("the link is %v, %v", info.Mode(), err)
			}
			aside := 0
			if name == "to a damaged file" {
				aside = 1
			}
			if len(setAside(t, target)) != aside || len(setAside(t, link)) != 0 {
				t.Errorf("set aside: %v, %v", setAside(t, target), setAside(t, link))
			}
		})
	}
}

func TestALinkToItselfLeavesMemory(t *testing.T) {
	path := testsupport.Path(t)
	if err := os.Symlink("cache.db", path); err != nil {
		t.Fatal(err)
	}
	db := open(t, path, manual)
	if !db.MemoryOnly() || db.Err() == nil {
		t.Errorf("memory only: %v, %v", db.MemoryOnly(), db.Err())
	}
	put(t, db, "key", "value")
	flush(t, db)
}

func close1(t *testing.T, db *DB) {
	t.Helper()
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestTheNamesOfNewDirectoriesAreSynced, each in the directory that it is in.
func TestTheNamesOfNewDirectoriesAreSynced(t *testing.T) {
	synced := map[string]bool{}
	defer func(before func(string) error) { syncDirectory = before }(syncDirectory)
	syncDirectory = func(dir string) error {
		synced[dir] = true
		return nil
	}
	dir := t.TempDir()
	openSound(t, filepath.Join(dir, "a", "b", "cache.db"), manual)
	want := []string{filepath.Dir(dir), dir, filepath.Join(dir, "a"), filepath.Join(dir, "a", "b")}
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(synced))); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestNothingIsDurableBeforeTheNameOfAFileThatWasFoundIs: the process that has begun it
// may have been killed before it could sync the directory, or the parent directory.
func TestNothingIsDurableBeforeTheNameOfAFileThatWasFoundIs(t *testing.T) {
	path := testsupport.Path(t)
	db := openSound(t, path, manual)
	put(t, db, "key", "value")
	close1(t, db)
	for _, bad := range []string{filepath.Dir(path), filepath.Dir(filepath.Dir(path))} {
		failing := true
		defer func(before func(string) error) { syncDirectory = before }(syncDirectory)
		syncDirectory = func(dir string) error {
			if failing && dir == bad {
				return syscall.EIO
			}
			return nil
		}
		db := openSound(t, path, manual)
		if db.Durable() >= db.Applied() {
			t.Errorf("%s: what was found counts as durable", bad)
		}
		if s, err := db.DurableSnapshot(testBucket.Space); !errors.Is(err, syscall.EIO) {
			s.Close()
			t.Errorf("%s: a durable snapshot: %v", bad, err)
		}
		put(t, db, "key", "other")
		if err := db.Flush(); !errors.Is(err, syscall.EIO) {
			t.Errorf("%s: Flush: %v", bad, err)
		}
		failing = false
		flush(t, db)
		snapshot(t, db, true).Close()
		close1(t, db)
	}
}

// TestASuccessorHasTwoNamesUntilTheNewOneIsSynced: a power failure may take back any
// change of a directory before that.
func TestASuccessorHasTwoNamesUntilTheNewOneIsSynced(t *testing.T) {
	path := testsupport.Path(t)
	db := openSound(t, path, manual)
	salvageable(t, db)
	disorder(t, path)
	defer func(before func(string) error) { syncDirectory = before }(syncDirectory)
	both := 0
	syncDirectory = func(string) error {
		if len(setAside(t, path)) > 0 {
			if _, err := os.Stat(path + finishedSuffix); err != nil {
				t.Error(err)
			}
			both++
		}
		return nil
	}
	meetDisorder(t, db)
	put(t, db, "later", "value")
	flush(t, db)
	if _, err := os.Stat(path + finishedSuffix); both == 0 || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("synced %d times; the old name: %v", both, err)
	}
	// A process that was killed in between leaves both names.
	close1(t, db)
	if err := os.Link(path, path+finishedSuffix); err != nil {
		t.Fatal(err)
	}
	openSound(t, path, manual)
	if _, err := os.Stat(path + finishedSuffix); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the old name is still there: %v", err)
	}
}

// TestADirectoryThatCannotBeSyncedIsNoReasonToHaveNoFile: some systems cannot sync one.
// An error of the disk does count.
func TestADirectoryThatCannotBeSyncedIsNoReasonToHaveNoFile(t *testing.T) {
	defer func(before func(string) error) { syncDirectory = before }(syncDirectory)
	for _, cause := range []error{syscall.EINVAL, syscall.ENOTSUP, syscall.EBADF, syscall.EPERM, syscall.EACCES, syscall.ENOSYS, syscall.EISDIR} {
		syncDirectory = func(dir string) error { return &fs.PathError{Op: "sync", Path: dir, Err: cause} }
		path := filepath.Join(t.TempDir(), "new", "cache.db")
		db := openSound(t, path, manual)
		salvageable(t, db)
		disorder(t, path)
		meetDisorder(t, db)
		put(t, db, "later", "value")
		flush(t, db)
		if len(setAside(t, path)) != 1 {
			t.Errorf("%v: the damaged file was not replaced", cause)
		}
		close1(t, db)
	}
	syncDirectory = func(string) error { return syscall.EIO }
	path := filepath.Join(t.TempDir(), "new", "cache.db")
	if db := open(t, path, manual); !errors.Is(db.Err(), syscall.EIO) {
		t.Errorf("Err is %v", db.Err())
	}
}

// TestALockOnAFileThatHasBeenReplacedDoesNotCount: the file that has the name now is
// another one. Whoever waits opens it anew for each attempt; a file that is replaced between
// the opening and the lock is in TestALockCountsOnlyWherePathNamesTheFile.
func TestALockOnAFileThatHasBeenReplacedDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := testsupport.Path(t)
		close1(t, openSound(t, path, manual))
		old, err := lockFile(path, 0)
		if err != nil {
			t.Fatal(err)
		}
		writeFile(t, path+".successor", "new")
		go func() {
			time.Sleep(time.Second)
			if err := errors.Join(os.Link(path, path+".old"), os.Rename(path+".successor", path), old.Close()); err != nil {
				t.Error(err)
			}
		}()
		f, err := lockFile(path, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if b, err := os.ReadFile(f.Name()); string(b) != "new" || err != nil || !isAt(f, path) {
			t.Errorf("locked a file of %q, %v", b, err)
		}
		if _, err := f.WriteString("x"); err != nil { // NFS locks such files only.
			t.Error(err)
		}
		if err := os.Rename(path+".old", path); err != nil { // Checked when the test ends.
			t.Error(err)
		}
	})
}

// TestARelativePathIsOfTheDirectoryAtOpen: the process may change its directory later.
func TestARelativePathIsOfTheDirectoryAtOpen(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	t.Chdir(dir)
	db := open(t, "cache.db", manual)
	want := salvageable(t, db)
	t.Chdir(other)
	disorder(t, filepath.Join(dir, "cache.db"))
	meetDisorder(t, db)
	put(t, db, "later", "value")
	want["later"] = "value"
	flush(t, db)
	close1(t, db)
	if entries, err := os.ReadDir(other); len(entries) != 0 || err != nil || db.Path() != "cache.db" {
		t.Errorf("in the other directory: %v, %v; the path is %s", entries, err, db.Path())
	}
	t.Chdir(dir)
	if diff := cmp.Diff(want, contents(t, openSound(t, "cache.db", manual))); diff != "" || len(setAside(t, "cache.db")) != 1 {
		t.Errorf("set aside: %v, -want +got:\n%.1000s", setAside(t, "cache.db"), diff)
	}
}

// TestAFileThatCameFirstIsNotReplaced, whether links work or not: another process made it.
func TestAFileThatCameFirstIsNotReplaced(t *testing.T) {
	defer func(before func(from, to string) error) { link = before }(link)
	for _, failure := range []error{fs.ErrExist, syscall.EPERM, syscall.ENOTSUP, syscall.ENOSPC, syscall.EIO} {
		link = func(from, to string) error { return &os.LinkError{Op: "link", Old: from, New: to, Err: failure} }
		dir := t.TempDir()
		from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
		writeFile(t, from, "ours")
		writeFile(t, to, "theirs")
		if err := publish(from, to); !errors.Is(err, fs.ErrExist) {
			t.Errorf("%v: publish returned %v", failure, err)
		}
		if b, err := os.ReadFile(to); string(b) != "theirs" || err != nil {
			t.Errorf("%v: the file is %q, %v", failure, b, err)
		}
		if err := os.Remove(to); err != nil {
			t.Fatal(err)
		}
		if err := publish(from, to); (err == nil) == errors.Is(failure, fs.ErrExist) {
			t.Errorf("%v, and no file: publish returned %v", failure, err)
		}
	}
}
