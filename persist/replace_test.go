package persist

import (
	"errors"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// ballast fills a disk. The function that it returns makes space again.
func ballast(t *testing.T, dir string) (remove func()) {
	t.Helper()
	name := filepath.Join(dir, "ballast")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
}

// TestADamagedFileOnAFullDiskIsReplacedOnceThereIsSpace: until then nothing is lost,
// and nothing is said to be in the file that is not.
func TestADamagedFileOnAFullDiskIsReplacedOnceThereIsSpace(t *testing.T) {
	for _, how := range []string{"in use", "at the start", "in use, beyond reading", "no file"} {
		t.Run(how, func(t *testing.T) {
			path := filepath.Join(mountSmall(t, 8<<20), "cache.db")
			synctest.Test(t, func(t *testing.T) {
				o := Options{CommitInterval: time.Second}
				want := map[string]string{}
				var db *DB
				if how != "no file" {
					db = open(t, path, o)
					want = salvageable(t, db)
				}
				remove := func() {}
				switch how {
				case "in use":
					remove = ballast(t, filepath.Dir(path))
					disorder(t, path)
					meetDisorder(t, db)
				case "at the start":
					if err := db.Close(); err != nil {
						t.Fatal(err)
					}
					disorder(t, path)
					remove = ballast(t, filepath.Dir(path))
					db = open(t, path, o)
				case "in use, beyond reading":
					damage(t, path, "without meta pages", rand.New(rand.NewSource(1)))
					remove = ballast(t, filepath.Dir(path))
					want = map[string]string{}
				case "no file":
					remove = ballast(t, filepath.Dir(path))
					db = open(t, path, o)
				}
				put(t, db, "later", "value")
				want["later"] = "value"
				err := db.Flush()
				if how == "no file" && err != nil {
					t.Errorf("Flush of a DB that never had a file returned %v", err)
				}
				if how != "no file" && !errors.Is(err, syscall.ENOSPC) {
					t.Errorf("Flush returned %v", err)
				}
				after(time.Hour)
				if err := db.Err(); !errors.Is(err, syscall.ENOSPC) {
					t.Errorf("Err is %v", err)
				}
				if diff := cmp.Diff(want, contents(t, db)); diff != "" {
					t.Errorf("while the disk is full: -want +got:\n%.1000s", diff)
				}
				if durable := db.Durable() == db.Applied(); durable != db.MemoryOnly() {
					t.Errorf("durable up to %d of %d", db.Durable(), db.Applied())
				}
				remove()
				after(maxReplaceDelay + 2*time.Second)
				if err := db.Err(); err != nil || db.MemoryOnly() {
					t.Errorf("still degraded: %v", err)
				}
				flush(t, db)
				if diff := cmp.Diff(want, contents(t, db)); diff != "" {
					t.Errorf("with space again: -want +got:\n%.1000s", diff)
				}
				if err := db.Close(); err != nil {
					t.Fatal(err)
				}
				db = openSound(t, path, o)
				if diff := cmp.Diff(want, contents(t, db)); diff != "" {
					t.Errorf("after a restart: -want +got:\n%.1000s", diff)
				}
			})
		})
	}
}

// TestWhatCountedAsDurableWithoutAFileStillDoesOnceThereIsOne: whoever was told that a
// batch is durable may look for it before it is written.
func TestWhatCountedAsDurableWithoutAFileStillDoesOnceThereIsOne(t *testing.T) {
	dir := mountSmall(t, 8<<20)
	synctest.Test(t, func(t *testing.T) {
		remove := ballast(t, dir)
		db := open(t, filepath.Join(dir, "cache.db"), manual)
		put(t, db, "key", "value")
		before := db.Durable()
		remove()
		after(maxReplaceDelay)
		if db.MemoryOnly() || db.Durable() < before {
			t.Errorf("memory only: %v; durable up to %d, and had been up to %d", db.MemoryOnly(), db.Durable(), before)
		}
		for _, commit := range []bool{false, true} {
			if commit {
				flush(t, db)
			}
			s := snapshot(t, db, true)
			got, err := scan(s, testBucket.Name, "")
			s.Close()
			if diff := cmp.Diff(map[string]string{"key": "value"}, got); diff != "" || err != nil {
				t.Errorf("committed: %v, %v, -want +got:\n%s", commit, err, diff)
			}
		}
	})
}

// TestADamagedFileIsReplacedWhereOpenFilesCannotBe, as on Windows: the new one gets
// its name before it is opened to be used.
func TestADamagedFileIsReplacedWhereOpenFilesCannotBe(t *testing.T) {
	defer func(before bool) { mayReplaceOpenFiles = before }(mayReplaceOpenFiles)
	mayReplaceOpenFiles = false
	path := testsupport.Path(t)
	db := openSound(t, path, manual)
	want := salvageable(t, db)
	disorder(t, path)
	meetDisorder(t, db)
	put(t, db, "later", "value")
	want["later"] = "value"
	flush(t, db)
	close1(t, db)
	if diff := cmp.Diff(want, contents(t, openSound(t, path, manual))); diff != "" || len(setAside(t, path)) != 1 {
		t.Errorf("set aside: %v, -want +got:\n%.1000s", setAside(t, path), diff)
	}
}

// TestCloseOfADBThatHasLostItsFileSaysSo, and so does Flush.
func TestCloseOfADBThatHasLostItsFileSaysSo(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	path := filepath.Join(dir, "cache.db")
	db := open(t, path, manual)
	put(t, db, "a", "1")
	flush(t, db)
	put(t, db, "b", "2")
	apply(t, db, func(b *Batch) { b.PutNew(testBucket, "new", Bytes("3")) })
	damage(t, path, "truncated to nothing", rand.New(rand.NewSource(1)))
	if err := errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600)); err != nil { // Nothing can be begun there.
		t.Fatal(err)
	}
	if _, found, err := lookup(db, testBucket, "a"); found || (err != nil && !errors.Is(err, ErrCorrupt)) {
		t.Errorf("the lost value is found: %v, %v", found, err)
	}
	if err := db.Flush(); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("Flush returned %v", err)
	}
	if !db.MemoryOnly() || db.Err() == nil {
		t.Fatalf("memory only: %v, %v", db.MemoryOnly(), db.Err())
	}
	put(t, db, "c", "4")
	apply(t, db, func(b *Batch) { b.Delete(testBucket, "b") })
	if diff := cmp.Diff(map[string]string{"c": "4", "new": "3"}, contents(t, db)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	for range 2 {
		if err := db.Close(); !errors.Is(err, syscall.ENOTDIR) {
			t.Errorf("Close returned %v", err)
		}
	}
	db.closeErr = nil // Expected: not to be told again when the test ends.
}

// TestAFileOfAnotherIsNotReplaced: ours is gone, and another process has begun one there.
func TestAFileOfAnotherIsNotReplaced(t *testing.T) {
	path := testsupport.Path(t)
	db := open(t, path, manual)
	salvageable(t, db)
	disorder(t, path)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	other := openSound(t, path, manual)
	put(t, other, "key", "other")
	flush(t, other)
	meetDisorder(t, db)
	put(t, db, "key", "ours")
	if err := db.Flush(); err == nil || !strings.Contains(err.Error(), "another file or directory is at "+path) {
		t.Errorf("Flush returned %v", err)
	}
	if err := db.Close(); err == nil {
		t.Error("Close returned nil")
	}
	db.closeErr = nil
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if v, _ := get(t, openSound(t, path, manual), "key"); v != "other" || len(setAside(t, path)) != 0 {
		t.Errorf("the file has %q; set aside: %v", v, setAside(t, path))
	}
}

// TestFilesThatWereReplacedAreClosed, and those that get damaged again and again are
// replaced less and less often.
func TestFilesThatWereReplacedAreClosed(t *testing.T) {
	if _, err := os.Stat("/proc/self/maps"); err != nil {
		t.Skip("open files and maps are counted in /proc: ", err)
	}
	for _, how := range []string{"keys out of order", "without meta pages", "without meta pages, found by a commit"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := testsupport.Path(t)
				db := open(t, path, Options{CommitInterval: time.Second})
				resets := 0
				db.AddHook(&Hook{AfterReset: func(error) { resets++ }})
				replaced := map[string]bool{}
				for range 130 {
					switch how {
					case "keys out of order":
						apply(t, db, func(b *Batch) { b.Drop(Bucket{testBucket.Space, "disordered"}) })
						salvageableAgain(t, db)
						disorder(t, path)
						if s, err := db.Snapshot(testBucket.Space); err == nil {
							_ = s.Scan("disordered", "", func(*Item) (bool, error) { return true, nil }) // Finds out.
							s.Close()
						}
					case "without meta pages":
						damage(t, path, how, rand.New(rand.NewSource(1)))
						_, _, _ = lookup(db, testBucket, "key") // Finds out.
					default:
						damage(t, path, "without meta pages", rand.New(rand.NewSource(1)))
						put(t, db, "key", "value")
						_ = db.Flush()
					}
					after(time.Second)
					for _, a := range db.SetAside() {
						replaced[a.Path] = true
					}
				}
				// In 130 seconds: at 0, 1, 3, 7, 15, 31, 63 and 127, or a little later.
				if n := len(replaced); n < 5 || n > 8 {
					t.Errorf("replaced %d times, told of %d", n, resets)
				}
				after(time.Hour)
				if maps, files := openOf(t, path); maps > 1 || files > 1 {
					t.Errorf("%d maps and %d descriptors of one file", maps, files)
				}
			})
		})
	}
}

// salvageableAgain is salvageable for a DB that may not be able to write now.
func salvageableAgain(t *testing.T, db *DB) {
	t.Helper()
	apply(t, db, func(b *Batch) {
		for _, key := range []string{"aaaa", "bbbb", "cccc"} {
			b.Put(Bucket{testBucket.Space, "disordered"}, key, Bytes("v"))
		}
	})
	_ = db.Flush()
}

// openOf counts the maps and descriptors of a cache file and of those that were set
// aside.
func openOf(t *testing.T, path string) (maps, files int) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	maps = strings.Count(string(b), path)
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(to, path) {
			files++
		}
	}
	return maps, files
}

// TestASnapshotOfAFileThatWasReplacedIsStillReadable, and the file is closed after it.
func TestASnapshotOfAFileThatWasReplacedIsStillReadable(t *testing.T) {
	path := testsupport.Path(t)
	db := openSound(t, path, manual)
	want := salvageable(t, db)
	s := snapshot(t, db, true)
	disorder(t, path)
	meetDisorder(t, db)
	put(t, db, "later", "value")
	flush(t, db)
	got, err := scan(s, testBucket.Name, "")
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v, -want +got:\n%.1000s", err, diff)
	}
	s.Close()
	if len(db.SetAside()) != 1 || db.SetAside()[0].Path != setAside(t, path)[0] || db.SetAside()[0].Cause == "" || db.SetAside()[0].Time.IsZero() {
		t.Errorf("set aside: %v", db.SetAside())
	}
}

// countCopies counts the successors that are made.
func countCopies(t *testing.T) *int {
	copies, before := 0, crashpoint
	t.Cleanup(func() { crashpoint = before })
	crashpoint = func(what string) error {
		if what == "the new file is whole" {
			copies++
		}
		return nil
	}
	return &copies
}

// TestAFileWhoseNameAnotherHasIsNotCopied before it can be replaced: each copy is as long
// as the file, and synced.
func TestAFileWhoseNameAnotherHasIsNotCopied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := testsupport.Path(t)
		db := openSound(t, path, Options{CommitInterval: time.Second})
		want := salvageable(t, db)
		copies := countCopies(t)
		writeFile(t, path+".other", "other")
		if err := os.Rename(path+".other", path); err != nil {
			t.Fatal(err)
		}
		put(t, db, "later", "value")
		want["later"] = "value"
		after(24 * time.Hour)
		if *copies != 0 || db.Err() == nil {
			t.Errorf("%d copies, %v", *copies, db.Err())
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		after(maxReplaceDelay + 2*time.Second)
		flush(t, db)
		expectContents(t, db, want)
	})
}

// TestADamagedMountPointIsNotCopiedEveryMinute: it stays a mount point while it is in use.
func TestADamagedMountPointIsNotCopiedEveryMinute(t *testing.T) {
	path := mountFile(t)
	synctest.Test(t, func(t *testing.T) {
		db, err := Open(path, Options{Logger: &testsupport.Quiet})
		if err != nil {
			t.Fatal(err)
		}
		salvageable(t, db)
		copies := countCopies(t)
		disorder(t, path)
		meetDisorder(t, db)
		put(t, db, "later", "value")
		after(24 * time.Hour)
		if *copies < 24 || *copies > 40 {
			t.Errorf("%d copies in a day, %v", *copies, db.Err())
		}
		if err := db.Close(); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("Close returned %v", err)
		}
	})
}

// TestAReplacementThatFailsLeavesNoCopy: a copy takes as much of the disk as the file.
func TestAReplacementThatFailsLeavesNoCopy(t *testing.T) {
	defer func(before func(string) error) { syncDirectory = before }(syncDirectory)
	var failing atomic.Bool
	before := syncDirectory
	syncDirectory = func(dir string) error {
		if failing.Load() {
			return syscall.EIO
		}
		return before(dir)
	}
	synctest.Test(t, func(t *testing.T) {
		path := testsupport.Path(t)
		db := openSound(t, path, manual)
		salvageable(t, db)
		disorder(t, path)
		failing.Store(true)
		meetDisorder(t, db)
		put(t, db, "later", "value")
		synctest.Wait()
		if !errors.Is(db.Err(), syscall.EIO) {
			t.Errorf("Err is %v", db.Err())
		}
		if left := append(db.filesBeside(finishedSuffix, func(string) bool { return true }), db.filesBeside(newSuffix, isNumber)...); len(left) != 0 {
			t.Errorf("it left %v", left)
		}
		failing.Store(false)
		flush(t, db)
	})
}

// TestASuccessorThatCannotBeOpenedAtOnceIsOpenedLater, where open files cannot be replaced.
// It has its name by then, and must not be taken for another process's file.
func TestASuccessorThatCannotBeOpenedAtOnceIsOpenedLater(t *testing.T) {
	defer func(before bool) { mayReplaceOpenFiles = before }(mayReplaceOpenFiles)
	mayReplaceOpenFiles = false
	for name, meanwhile := range map[string]func(t *testing.T, path string){
		"and is as it was": func(*testing.T, string) {},
		"but another process has written to it": func(t *testing.T, path string) {
			other := openSound(t, path, manual)
			put(t, other, "key", "other")
			close1(t, other)
		},
	} {
		t.Run(name, func(t *testing.T) {
			defer func(before func(string) error) { crashpoint = before }(crashpoint)
			synctest.Test(t, func(t *testing.T) {
				path := testsupport.Path(t)
				db, err := Open(path, Options{Logger: &testsupport.Quiet})
				if err != nil {
					t.Fatal(err)
				}
				want := salvageable(t, db)
				disorder(t, path)
				copies := 0
				crashpoint = func(what string) error {
					switch what {
					case "the new file is whole":
						copies++
					case "the bad file is set aside":
						holder, err := lockFile(path+finishedSuffix, 0)
						if err != nil {
							return err
						}
						time.AfterFunc(db.opts.LockTimeout+minReplaceDelay/2, func() {
							_ = holder.Close()
							crashpoint = func(string) error { return nil }
							meanwhile(t, path)
						})
					}
					return nil
				}
				meetDisorder(t, db)
				put(t, db, "later", "value")
				want["later"] = "value"
				after(time.Hour)
				if name != "and is as it was" {
					if db.Err() == nil {
						t.Error("the file of another process was taken")
					}
					_ = db.Close()
					return
				}
				if copies != 1 || db.Err() != nil || db.Durable() < db.Applied() {
					t.Errorf("%d copies, durable up to %d of %d, %v", copies, db.Durable(), db.Applied(), db.Err())
				}
				expectContents(t, db, want)
				close1(t, db)
			})
		})
	}
}
