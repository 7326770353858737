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
				if v, _ := get(t, db, "key"); v != "value" || db.Path() != target {
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
	want := []string{dir, filepath.Join(dir, "a"), filepath.Join(dir, "a", "b")}
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
