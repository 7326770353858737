package persist

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	bolt "go.etcd.io/bbolt"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// replacedFiles lists the sound files that were set aside.
func replacedFiles(t *testing.T, path string) []string {
	t.Helper()
	names, err := filepath.Glob(path + ".replaced-*")
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func expectContents(t *testing.T, db *DB, want map[string]string) {
	t.Helper()
	if diff := cmp.Diff(want, contents(t, db)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestAFileThatAnotherHoldsIsHadOnceItIsFree: not before, and the file is set aside,
// because the DB has gone on without it.
func TestAFileThatAnotherHoldsIsHadOnceItIsFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := testsupport.Path(t)
		first := openSound(t, path, manual)
		put(t, first, "key", "first")
		put(t, first, "only in the first", "1")
		second := open(t, path, Options{LockTimeout: time.Millisecond})
		put(t, second, "key", "second")
		after(time.Hour)
		if !second.MemoryOnly() || !errors.Is(second.Err(), ErrLocked) {
			t.Fatalf("memory only: %v, %v", second.MemoryOnly(), second.Err())
		}
		put(t, first, "late", "1")
		close1(t, first)
		after(maxReplaceDelay + 2*time.Second)
		if second.MemoryOnly() || second.Err() != nil {
			t.Fatalf("memory only: %v, %v", second.MemoryOnly(), second.Err())
		}
		close1(t, second)
		expectContents(t, openSound(t, path, manual), map[string]string{"key": "second"})
		asides := second.SetAside()
		if len(asides) != 1 || len(setAside(t, path)) != 0 || strings.Contains(asides[0].Cause, "corrupt") {
			t.Fatalf("set aside: %v, %v", asides, setAside(t, path))
		}
		if diff := cmp.Diff([]string{asides[0].Path}, replacedFiles(t, path)); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		expectContents(t, openSound(t, asides[0].Path, manual),
			map[string]string{"key": "first", "only in the first": "1", "late": "1"})
	})
}

// TestAFileThatCouldNotBeOpenedIsHadLater, where there is one, and where there is none.
func TestAFileThatCouldNotBeOpenedIsHadLater(t *testing.T) {
	for name, had := range map[string]func(t *testing.T) (path string, mend func() error){
		"the directory was a file": func(t *testing.T) (string, func() error) {
			path := blockedPath(t)
			return path, func() error { return os.Remove(filepath.Dir(path)) }
		},
		"the file system was read-only": func(t *testing.T) (string, func() error) {
			dir := mountSmall(t, 8<<20)
			if err := remountTmpfs(dir, true); err != nil {
				t.Fatal(err)
			}
			return filepath.Join(dir, "cache.db"), func() error { return remountTmpfs(dir, false) }
		},
		"the file system was read-only, with a file": func(t *testing.T) (string, func() error) {
			dir := mountSmall(t, 8<<20)
			path := filepath.Join(dir, "cache.db")
			db := openSound(t, path, manual)
			put(t, db, "key", "before")
			close1(t, db)
			if err := remountTmpfs(dir, true); err != nil {
				t.Fatal(err)
			}
			return path, func() error { return remountTmpfs(dir, false) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			path, mend := had(t)
			synctest.Test(t, func(t *testing.T) {
				db := open(t, path, Options{CommitInterval: time.Second})
				put(t, db, "key", "value")
				after(time.Hour)
				if !db.MemoryOnly() || db.Err() == nil {
					t.Fatalf("memory only: %v, %v", db.MemoryOnly(), db.Err())
				}
				if err := mend(); err != nil {
					t.Fatal(err)
				}
				after(maxReplaceDelay + 2*time.Second)
				if err := db.Err(); err != nil || db.MemoryOnly() {
					t.Errorf("still degraded: %v", err)
				}
				close1(t, db)
				expectContents(t, openSound(t, path, manual), map[string]string{"key": "value"})
				if names := setAside(t, path); len(names) != 0 {
					t.Errorf("called corrupt: %v", names)
				}
			})
		})
	}
}

// TestAFileThatIsNotOursAndCameLaterIsLeftAlone: only Open sets aside whatever it finds.
func TestAFileThatIsNotOursAndCameLaterIsLeftAlone(t *testing.T) {
	for name, write := range map[string]func(t *testing.T, path string){
		"text": func(t *testing.T, path string) { writeFile(t, path, "somebody's text") },
		"a bbolt file": func(t *testing.T, path string) {
			b, err := bolt.Open(path, 0o600, nil)
			if err != nil {
				t.Fatal(err)
			}
			err = b.Update(func(tx *bolt.Tx) error {
				_, err := tx.CreateBucket([]byte("theirs"))
				return err
			})
			if err := errors.Join(err, b.Close()); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := blockedPath(t)
				db := open(t, path, Options{CommitInterval: time.Second})
				put(t, db, "key", "value")
				if err := errors.Join(os.Remove(filepath.Dir(path)), os.Mkdir(filepath.Dir(path), 0o700)); err != nil {
					t.Fatal(err)
				}
				write(t, path)
				want, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				after(time.Hour)
				if !db.MemoryOnly() || !errors.Is(db.Err(), fs.ErrExist) {
					t.Errorf("memory only: %v, %v", db.MemoryOnly(), db.Err())
				}
				if got, err := os.ReadFile(path); string(got) != string(want) || err != nil {
					t.Errorf("the file has changed, %v", err)
				}
				if err := os.Remove(path); err != nil { // It is not ours to check.
					t.Fatal(err)
				}
				after(maxReplaceDelay + 2*time.Second)
				if db.MemoryOnly() {
					t.Errorf("memory only: %v", db.Err())
				}
			})
		})
	}
}

// TestAFileThatAnotherIsReplacingIsLeftAlone: for a moment no file has the name.
func TestAFileThatAnotherIsReplacingIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := testsupport.Path(t)
		first := open(t, path, manual)
		put(t, first, "key", "first")
		flush(t, first)
		second := open(t, path, Options{LockTimeout: time.Millisecond})
		put(t, second, "key", "second")
		if err := os.Rename(path, path+finishedSuffix); err != nil {
			t.Fatal(err)
		}
		after(time.Hour)
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) || !second.MemoryOnly() {
			t.Errorf("the second has begun a file: %v", err)
		}
		if err := os.Rename(path+finishedSuffix, path); err != nil {
			t.Fatal(err)
		}
		close1(t, first)
		after(2*maxReplaceDelay + 2*time.Second)
		if second.MemoryOnly() {
			t.Errorf("memory only: %v", second.Err())
		}
	})
}

// TestAFileThatHasLostItsNameGetsASuccessor: the next process would not find it, and
// another one could begin a file of its own.
func TestAFileThatHasLostItsNameGetsASuccessor(t *testing.T) {
	for name, lose := range map[string]func(path string) error{
		"removed":                    os.Remove,
		"renamed":                    func(path string) error { return os.Rename(path, path+".away") },
		"removed with its directory": func(path string) error { return os.RemoveAll(filepath.Dir(path)) },
	} {
		for _, found := range []string{"by a commit", "by Close"} {
			t.Run(name+", found "+found, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "dir", "cache.db")
				db := openSound(t, path, manual)
				resets := 0
				db.AddHook(&Hook{Space: testBucket.Space, AfterReset: func(error) { resets++ }})
				want := map[string]string{"a": "1"}
				put(t, db, "a", "1")
				flush(t, db)
				if err := lose(path); err != nil {
					t.Fatal(err)
				}
				if found == "by a commit" {
					put(t, db, "b", "2")
					want["b"] = "2"
					flush(t, db)
					if _, err := os.Stat(path); err != nil {
						t.Error(err)
					}
				}
				close1(t, db)
				if resets != 1 || len(db.SetAside()) != 0 {
					t.Errorf("%d resets, set aside: %v", resets, db.SetAside())
				}
				expectContents(t, openSound(t, path, manual), want)
			})
		}
	}
}

// TestAFileThatTookTheNameOfOursIsLeftAlone, and Err, Flush and Close say so.
func TestAFileThatTookTheNameOfOursIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := testsupport.Path(t)
		db := open(t, path, manual)
		put(t, db, "a", "1")
		flush(t, db)
		writeFile(t, path+".other", "other")
		if err := os.Rename(path+".other", path); err != nil {
			t.Fatal(err)
		}
		put(t, db, "b", "2")
		if err := db.Flush(); err == nil || db.Err() == nil {
			t.Errorf("Flush returned %v, Err is %v", err, db.Err())
		}
		after(time.Hour)
		expectContents(t, db, map[string]string{"a": "1", "b": "2"})
		if b, err := os.ReadFile(path); string(b) != "other" || err != nil {
			t.Errorf("the file has %q, %v", b, err)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		after(maxReplaceDelay + 2*time.Second)
		if err := db.Err(); err != nil {
			t.Errorf("still degraded: %v", err)
		}
		close1(t, db)
		expectContents(t, openSound(t, path, manual), map[string]string{"a": "1", "b": "2"})
	})
}

// TestAFileThatTookTheNameOfABadOneIsLeftAlone: only the one that was found bad is
// replaced later.
func TestAFileThatTookTheNameOfABadOneIsLeftAlone(t *testing.T) {
	full := fullDisk(t)
	synctest.Test(t, func(t *testing.T) {
		path := testsupport.Path(t)
		writeFile(t, path, "damaged")
		db := open(t, path, Options{CommitInterval: time.Second})
		writeFile(t, path+".other", "other")
		if err := os.Rename(path+".other", path); err != nil {
			t.Fatal(err)
		}
		full.Store(false)
		after(time.Hour)
		if b, err := os.ReadFile(path); string(b) != "other" || err != nil || !errors.Is(db.Err(), fs.ErrExist) {
			t.Errorf("the file has %q, %v; Err is %v", b, err, db.Err())
		}
	})
}
