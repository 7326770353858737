package persist

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// salvageable writes a file of two buckets. In one of them two keys will get out of
// order, which makes the file one that must be replaced, and can be read in part.
func salvageable(t testing.TB, db *DB) map[string]string {
	t.Helper()
	want := map[string]string{}
	for i := range 300 {
		key := fmt.Sprintf("%04d", i)
		want[key] = repeat(key, 50)
	}
	apply(t, db, func(b *Batch) {
		for key, v := range want {
			b.Put(testBucket, key, Bytes(v))
		}
		for _, key := range []string{"aaaa", "bbbb", "cccc"} {
			b.Put(Bucket{testBucket.Space, "disordered"}, key, Bytes("v"))
		}
	})
	flush(t, db)
	return want
}

// disorder damages what salvageable has written, in place.
func disorder(t testing.TB, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	for at := bytes.Index(b, []byte("bbbb")); at >= 0 && err == nil; at = bytes.Index(b, []byte("bbbb")) {
		copy(b[at:], "zzzz")
		_, err = f.WriteAt([]byte("zzzz"), int64(at)) // Needs no space on the disk.
	}
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// meetDisorder has the DB find out.
func meetDisorder(t testing.TB, db *DB) {
	t.Helper()
	s, err := db.Snapshot(testBucket.Space)
	if err == nil {
		err = s.Scan("disordered", "", func(*Item) (bool, error) { return true, nil })
		s.Close()
	}
	if !errors.Is(err, ErrCorrupt) {
		t.Fatalf("the damage was not found: %v", err)
	}
}

// TestWhatCanBeReadOfADamagedFileIsSalvagedAtTheStart: a file that is found damaged
// when it is opened is not thrown away.
func TestWhatCanBeReadOfADamagedFileIsSalvagedAtTheStart(t *testing.T) {
	for name, harm := range map[string]func(t *testing.T, path string){
		"keys out of order": func(t *testing.T, path string) { disorder(t, path) },
		"the last page cut off": func(t *testing.T, path string) {
			if err := os.Truncate(path, int64(len(readTrimmed(t, path))-1)); err != nil {
				t.Fatal(err)
			}
		},
		"a freelist of noise": func(t *testing.T, path string) {
			b := readTrimmed(t, path)
			im := &image{pageSize: PageBytes, bytes: b}
			for _, id := range im.pagesOf(freelistPage) {
				b[id*PageBytes+pageFlagsAt] = 0x77
			}
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"a page that refers to itself": func(t *testing.T, path string) {
			b := readTrimmed(t, path)
			im := &image{pageSize: PageBytes, bytes: b}
			for _, id := range im.pagesOf(branchPage) {
				b[id*PageBytes+pageHeaderBytes+branchPageIDAt] = byte(id)
			}
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := tempPath(t)
			db := openSound(t, path, manual)
			want := salvageable(t, db)
			apply(t, db, func(b *Batch) {
				for i := range 3000 { // More than one transaction of the salvage, and branch pages.
					b.Put(Bucket{"other", "bucket"}, fmt.Sprintf("%05d", i), Bytes(repeat("x", 50)))
				}
			})
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			harm(t, path)
			db = openSound(t, path, manual)
			if len(setAside(t, path)) != 1 {
				t.Fatalf("set aside: %v", setAside(t, path))
			}
			got := contents(t, db)
			for key, v := range got {
				if v != want[key] {
					t.Errorf("key %s is %.20q", key, v)
				}
			}
			if len(got) < len(want)/2 {
				t.Errorf("%d of %d keys were salvaged", len(got), len(want))
			}
			if !db.Salvaged(testBucket.Space) || !db.Salvaged("other") {
				t.Error("nothing says that something may be missing")
			}
			if db.Salvaged("another") {
				t.Error("a space that was not there counts as salvaged")
			}
		})
	}
}

func init() {
	// salvage opens a damaged file, or damages one that it has open, and ends at the
	// n-th step of the replacement.
	programs["salvage"] = func(args []string) error {
		path, how := args[0], args[1]
		n, err := strconv.Atoi(args[2])
		if err != nil {
			return err
		}
		crashpoint = func(string) error {
			if n--; n == 0 {
				os.Exit(9)
			}
			return nil
		}
		t := new(testing.T)
		db := open(t, path, manual)
		if how == "in use" {
			disorder(t, path)
			meetDisorder(t, db)
			put(t, db, "later", "value")
			flush(t, db)
		}
		if t.Failed() {
			return errors.New("the scenario failed")
		}
		return db.Close()
	}
}

// TestACrashDuringASalvageLosesNothing: whenever it comes, the next process finds
// the damaged file, or its whole successor.
func TestACrashDuringASalvageLosesNothing(t *testing.T) {
	for _, how := range []string{"at the start", "in use"} {
		t.Run(how, func(t *testing.T) {
			for n, crashed := 1, true; crashed; n++ {
				path := tempPath(t)
				db := openSound(t, path, manual)
				want := salvageable(t, db)
				if err := db.Close(); err != nil {
					t.Fatal(err)
				}
				if how == "at the start" {
					disorder(t, path)
				}
				cmd := program(t, "salvage", path, how, strconv.Itoa(n))
				out, err := cmd.CombinedOutput()
				crashed = cmd.ProcessState.ExitCode() == 9
				if !crashed && err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				if !crashed && n < 4 {
					t.Errorf("%d steps", n-1)
				}
				db = openSound(t, path, manual)
				got := contents(t, db)
				delete(got, "later")
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("a crash at step %d: -want +got:\n%.1000s", n, diff)
				}
				if !db.Salvaged(testBucket.Space) {
					t.Errorf("a crash at step %d: nothing says that something may be missing", n)
				}
				if err := db.Close(); err != nil {
					t.Fatal(err)
				}
				left, err := filepath.Glob(path + "*")
				if err != nil {
					t.Fatal(err)
				}
				left = slices.DeleteFunc(left, func(name string) bool {
					return name == path || strings.HasPrefix(name, path+asideSuffix) || strings.HasPrefix(name, path+newSuffix)
				})
				if len(left) != 0 {
					t.Errorf("a crash at step %d left %v", n, left)
				}
			}
		})
	}
}

// TestAReplacementThatFailsIsTriedAgain at each of its steps.
func TestAReplacementThatFailsIsTriedAgain(t *testing.T) {
	defer func(before func(string) error) { crashpoint = before }(crashpoint)
	injected := errors.New("injected")
	for n, hit := 1, true; hit; n++ {
		synctest.Test(t, func(t *testing.T) {
			path := tempPath(t)
			db := openSound(t, path, Options{CommitInterval: time.Second})
			resets := 0
			db.AddHook(&Hook{Space: testBucket.Space, AfterReset: func(error) { resets++ }})
			want := salvageable(t, db)
			disorder(t, path)
			left := n
			hit = false
			crashpoint = func(string) error {
				if left--; left == 0 {
					hit = true
					return injected
				}
				return nil
			}
			meetDisorder(t, db)
			put(t, db, "later", "value")
			want["later"] = "value"
			synctest.Wait()
			if hit {
				if err := db.Err(); !errors.Is(err, injected) || db.MemoryOnly() || db.Durable() == db.Applied() {
					t.Errorf("step %d: %v, memory only: %v, durable: %d of %d", n, err, db.MemoryOnly(), db.Durable(), db.Applied())
				}
				if diff := cmp.Diff(want, contents(t, db)); diff != "" {
					t.Errorf("step %d, before the next attempt: -want +got:\n%.1000s", n, diff)
				}
				if !db.Salvaged(testBucket.Space) {
					t.Errorf("step %d: nothing says that something may be missing", n)
				}
			}
			after(minReplaceDelay + 2*time.Second)
			if err := db.Err(); err != nil || resets != 1 {
				t.Errorf("step %d: %v, %d resets", n, err, resets)
			}
			wantDurable(t, db, db.Applied())
			if diff := cmp.Diff(want, contents(t, db)); diff != "" {
				t.Errorf("step %d: -want +got:\n%.1000s", n, diff)
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, contents(t, openSound(t, path, manual))); diff != "" {
				t.Errorf("step %d, after a restart: -want +got:\n%.1000s", n, diff)
			}
			if n := len(setAside(t, path)); n != 1 {
				t.Errorf("step %d: %d files set aside", n, n)
			}
		})
	}
}

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

// TestAFileOfAnotherIsNotReplaced: ours is gone, and somebody has begun one there.
func TestAFileOfAnotherIsNotReplaced(t *testing.T) {
	path := tempPath(t)
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
	if err := db.Flush(); err == nil {
		t.Error("Flush returned nil")
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
				path := tempPath(t)
				db := open(t, path, Options{CommitInterval: time.Second})
				resets := 0
				db.AddHook(&Hook{AfterReset: func(error) { resets++ }})
				replaced := map[string]bool{}
				for range 600 {
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
				// In 600 seconds: at 0, 1, 3, 7, 15, 31, 63, 127, 255 and 511.
				if n := len(replaced); n < 5 || n > 12 {
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
	path := tempPath(t)
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
