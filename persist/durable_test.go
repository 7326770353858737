package persist

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// commitUntilVisible does what the committer, which must be idle, does until bbolt shows the commit. Then its
// fsync may still fail: end says how that went.
func commitUntilVisible(t *testing.T, db *DB) (end func(error)) {
	t.Helper()
	synctest.Wait() // The committer uses what write uses.
	db.mu.Lock()
	db.flushing, db.pending, db.flushingTo = db.pending, newLayer(), db.applied
	l := db.flushing
	db.mu.Unlock()
	txID, err := db.write(db.bolt, l, false)
	if err != nil {
		t.Fatal(err)
	}
	return func(err error) {
		db.mu.Lock()
		defer db.mu.Unlock()
		if err != nil {
			db.failedLocked(err)
		} else {
			db.boltTxID, db.durable, db.flushing = txID, db.flushingTo, nil
		}
		db.announceLocked()
	}
}

// TestADurableSnapshotWaitsForTheCommitThatItSees: bbolt shows a commit before its last
// fsync has returned.
func TestADurableSnapshotWaitsForTheCommitThatItSees(t *testing.T) {
	for name, failure := range map[string]error{
		"that succeeds": nil,
		"that fails":    errors.New("fdatasync: input/output error"),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := openSound(t, testsupport.Path(t), manual)
				put(t, db, "old", "1")
				flush(t, db)
				put(t, db, "new", "2")
				end := commitUntilVisible(t, db)
				var s *Snapshot
				var err error
				returned := false
				go func() {
					s, err = db.DurableSnapshot(testBucket.Space)
					returned = true
				}()
				synctest.Wait()
				if returned {
					t.Errorf("it did not wait: %v", err)
				}
				defer func() {
					if s != nil {
						s.Close()
					}
				}()
				end(failure)
				synctest.Wait()
				if !returned || !errors.Is(err, failure) {
					t.Fatalf("returned %v, with %v", returned, err)
				}
				if failure != nil {
					flush(t, db)
					return
				}
				if got, err := scan(s, testBucket.Name, ""); len(got) != 2 || err != nil {
					t.Errorf("it has %v, %v", got, err)
				}
			})
		})
	}
}

// TestADurableSnapshotThatWaitsEndsWithDamage: it stops waiting for a commit, and has what is in memory, which
// counts as durable from then on.
func TestADurableSnapshotThatWaitsEndsWithDamage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := openDamaged(t, testsupport.Path(t))
		put(t, db, "old", "1")
		flush(t, db)
		put(t, db, "new", "2")
		end := commitUntilVisible(t, db)
		var got map[string]string
		go func() {
			s := snapshot(t, db, true)
			defer s.Close()
			var err error
			if got, err = scan(s, testBucket.Name, ""); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		_ = db.readError(db.bolt, Bucket{"another", "bucket"}, corruptFile("test"))
		end(nil)
		synctest.Wait()
		if got["old"] != "1" || got["new"] != "2" {
			t.Errorf("it has %v", got)
		}
	})
}

// TestASnapshotOfAFileThatAnotherWritesToReturns: somebody who does not respect the lock has
// committed to the file.
func TestASnapshotOfAFileThatAnotherWritesToReturns(t *testing.T) {
	path, copied := testsupport.Path(t), testsupport.Path(t)
	o := manual
	o.Logger = &testsupport.Quiet
	db, err := Open(t.Context(), path, o) // The file is not checked afterwards: two have written to it.
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	put(t, db, "a", "1")
	flush(t, db)
	testsupport.CopyFile(t, path, copied)
	other := openSound(t, copied, manual)
	for _, value := range []string{"2", "3"} {
		put(t, other, "b", value)
		flush(t, other)
	}
	close1(t, other)
	b := testsupport.ReadUsed(t, copied)
	overwrite(t, path, 0, b)
	done := make(chan error, 1)
	go func() {
		s, err := db.Snapshot(testBucket.Space)
		if err == nil {
			s.Close()
		}
		done <- err
	}()
	select {
	case err := <-done:
		t.Log(err)
	case <-time.After(time.Minute):
		t.Fatal("the snapshot does not return")
	}
	put(t, db, "a", "2")
	if err := db.Flush(); err != nil && !errors.Is(err, ErrCorrupt) {
		t.Error(err)
	}
	if v, _, err := lookup(db, testBucket, "a"); v != "2" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
}
