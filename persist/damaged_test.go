package persist

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// openDamaged is open for a file that is damaged in use: Close says so.
func openDamaged(t *testing.T, path string) *DB {
	t.Helper()
	return openToBeDamaged(t, path, nil)
}

// openToBeDamaged is openDamaged with Options.OnEvent.
func openToBeDamaged(t *testing.T, path string, onEvent func(Code, error)) *DB {
	t.Helper()
	o := manual
	o.Logger, o.OnEvent = &testsupport.Quiet, onEvent
	db, err := Open(t.Context(), path, o)
	if err != nil || db.MemoryOnly() {
		t.Fatal(err, db.Err())
	}
	t.Cleanup(func() {
		if err := db.Close(); !errors.Is(err, ErrCorrupt) {
			t.Errorf("Close returned %v, expected the damage", err)
		}
	})
	return db
}

// manyLeaves writes values of a third of a page, with the keys 0000 to 0599, into some buckets, and returns the page of
// the branch above the leaves of each.
func manyLeaves(t *testing.T, path string, names ...string) (branches []int) {
	t.Helper()
	db := openSound(t, path, manual)
	apply(t, db, func(b *Batch) {
		for _, name := range append(names, testBucket.Name) {
			for i := range 600 {
				b.Put(Bucket{testBucket.Space, name}, fmt.Sprintf("%04d", i), []byte(repeat("v", PageBytes/3)))
			}
		}
	})
	flush(t, db)
	if err := db.bolt.View(func(tx *bolt.Tx) error {
		for _, name := range append(names, testBucket.Name) {
			branches = append(branches, int(fileBucket(tx, Bucket{testBucket.Space, name}).Root()))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	close1(t, db)
	return branches
}

// circle has the first child of a branch lead back to the branch, which is no leaf any more.
func circle(t *testing.T, path string, branch int) {
	t.Helper()
	at := branch*PageBytes + pageHeaderBytes + branchPageIDAt
	overwrite(t, path, int64(at), binary.NativeEndian.AppendUint64(nil, 1))
}

// TestDamageInUseIsReadAround (S3): what cannot be read counts as dropped, what is written afterwards stays in memory
// and counts as durable, nothing is replaced, and the next Open sets the file aside.
func TestDamageInUseIsReadAround(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := testsupport.Path(t)
		branches := manyLeaves(t, path, "other")
		var reported atomic.Int64
		db := openToBeDamaged(t, path, func(code Code, cause error) {
			if code != CodeFileDamaged || !errors.Is(cause, ErrCorrupt) {
				t.Errorf("reported %s, %v", code, cause)
			}
			reported.Add(1)
		})
		seen := follow(t, db)
		put(t, db, "0300", "before")
		circle(t, path, branches[1])
		if _, _, err := lookup(db, testBucket, "0000"); !errors.Is(err, ErrCorrupt) {
			t.Errorf("the read that meets the damage: %v", err)
		}
		synctest.Wait()
		if code, _, err := db.Problem(); reported.Load() != 1 || !errors.Is(err, ErrCorrupt) || code != CodeFileDamaged || db.MemoryOnly() {
			t.Errorf("reported %d times, Err %v, memory only: %v", reported.Load(), db.Err(), db.MemoryOnly())
		}
		n := apply(t, db, func(b *Batch) {
			b.Put(testBucket, "0001", []byte("after"))
			b.Delete(Bucket{testBucket.Space, "other"}, "0001")
			b.Urgent()
		})
		if db.Durable() != n {
			t.Errorf("durable up to %d of %d", db.Durable(), n)
		}
		after(2 * time.Hour)
		if got := seen.Load(); got != n {
			t.Errorf("who waits has seen batch %d, expected %d", got, n)
		}
		for _, durable := range []bool{false, true} {
			s := snapshot(t, db, durable)
			got, err := scan(s, testBucket.Name, "")
			if len(got) != 2 || got["0300"] != "before" || got["0001"] != "after" || err != nil {
				t.Errorf("the damaged bucket has %d keys, %v", len(got), err)
			}
			if got, err := scan(s, "other", ""); len(got) != 599 || err != nil {
				t.Errorf("another bucket has %d keys, %v", len(got), err)
			}
			s.Close()
		}
		if err := db.Flush(); !errors.Is(err, ErrCorrupt) {
			t.Errorf("Flush returned %v", err)
		}
		circle(t, path, branches[0])
		s := snapshot(t, db, false)
		if _, err := scan(s, "other", ""); !errors.Is(err, ErrCorrupt) {
			t.Errorf("a scan of the other bucket: %v", err)
		}
		s.Close()
		synctest.Wait()
		if reported.Load() != 2 || len(setAside(t, path)) != 0 {
			t.Errorf("reported %d times; set aside: %v", reported.Load(), setAside(t, path))
		}
		for range 20 { // Much stays in memory.
			db.WaitForRoom()
			put(t, db, "large", repeat("x", 2<<20))
		}
		_ = db.Close()
		db = openSound(t, path, manual)
		if got := contents(t, db); len(got) != 0 || len(setAside(t, path)) != 1 || len(db.SetAside()) != 1 {
			t.Errorf("%d keys, set aside: %v, %v", len(got), setAside(t, path), db.SetAside())
		} else if reason := db.SetAside()[0].Reason; !strings.Contains(reason, "the last process has found it damaged") {
			t.Errorf("set aside because %s", reason)
		}
	})
}

// TestAFileOfWhichNothingCanBeReadLeavesMemory: bbolt would panic, and keep its locks.
func TestAFileOfWhichNothingCanBeReadLeavesMemory(t *testing.T) {
	for name, harm := range map[string]func(t *testing.T, path string){
		"both meta pages are damaged": func(t *testing.T, path string) {
			overwrite(t, path, 0, make([]byte, 2*PageBytes))
		},
		"it is cut": func(t *testing.T, path string) {
			if err := os.Truncate(path, PageBytes); err != nil {
				t.Fatal(err)
			}
		},
		"it goes back": func(t *testing.T, path string) {
			for at := range int64(2) {
				overwrite(t, path, at*PageBytes+metaOffset+metaTxIDAt, make([]byte, 8))
			}
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			head := make([]byte, 2*PageBytes)
			_, _ = f.ReadAt(head, 0)
			resealMetas(head)
			_, _ = f.WriteAt(head, 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := testsupport.Path(t)
				db := openDamaged(t, path)
				put(t, db, "key", "value")
				flush(t, db)
				held := snapshot(t, db, false)
				put(t, db, "waits", "1")
				harm(t, path)
				if s, err := db.Snapshot(testBucket.Space); !errors.Is(err, ErrCorrupt) {
					s.Close()
					t.Errorf("a snapshot: %v", err)
				}
				put(t, db, "key 2", "value")
				if got := contents(t, db); len(got) != 2 || !db.MemoryOnly() {
					t.Errorf("memory only: %v, it has %v", db.MemoryOnly(), got)
				}
				apply(t, db, func(b *Batch) { b.Delete(testBucket, "waits") })
				if _, found := get(t, db, "waits"); found {
					t.Error("what was deleted is there")
				}
				held.Close()
				_ = db.Close()
				if openSound(t, path, manual); len(setAside(t, path)) != 1 {
					t.Errorf("set aside: %v", setAside(t, path))
				}
			})
		})
	}
}

// TestACommitOverWhichBboltPanicsIsTheLast, and loses nothing in this process.
func TestACommitOverWhichBboltPanicsIsTheLast(t *testing.T) {
	path := testsupport.Path(t)
	branches := manyLeaves(t, path)
	db := openDamaged(t, path)
	flags := binary.NativeEndian.AppendUint16(nil, freelistPage)
	overwrite(t, path, int64(branches[0])*PageBytes+pageFlagsAt, flags)
	put(t, db, "0000", "new")
	if err := db.Flush(); !errors.Is(err, ErrCorrupt) {
		t.Errorf("Flush returned %v", err)
	}
	if v, _ := get(t, db, "0000"); v != "new" {
		t.Errorf("the value is %.20q", v)
	}
	if v, _, err := lookup(db, testBucket, "0001"); !errors.Is(err, ErrCorrupt) {
		t.Errorf("another value is %.20q, %v", v, err)
	}
	for range 2 {
		if err := db.Close(); !errors.Is(err, ErrCorrupt) {
			t.Errorf("Close returned %v", err)
		}
	}
	if openSound(t, path, manual); len(setAside(t, path)) != 1 {
		t.Errorf("set aside: %v", setAside(t, path))
	}
}

// TestACommitThatIsUnderWayWhenDamageIsFound: what it writes stays visible, and can be deleted.
func TestACommitThatIsUnderWayWhenDamageIsFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := openDamaged(t, testsupport.Path(t))
		held := testsupport.HoldCommit(t)
		apply(t, db, func(b *Batch) { b.PutNew(testBucket, "a", []byte("1")); b.PutNew(testBucket, "b", []byte("2")) })
		go func() { _ = db.Flush() }()
		synctest.Wait()
		_ = db.readError(db.bolt, Bucket{"another", "bucket"}, corruptFile("test"))
		apply(t, db, func(b *Batch) { b.Delete(testBucket, "b") })
		for range 2 {
			if _, found, err := lookup(db, testBucket, "a"); !found {
				t.Errorf("what is being written is not there: %v", err)
			}
			if _, found := get(t, db, "b"); found {
				t.Error("what was deleted is there")
			}
			if !isClosed(held.Release) {
				close(held.Release)
				synctest.Wait()
			}
		}
	})
}
