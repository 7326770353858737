package persist

import (
	"errors"
	"os"
	"runtime"
	"syscall"
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
	txID, _, err := db.write(db.bolt, l)
	if err != nil {
		t.Fatal(err)
	}
	return func(err error) {
		db.mu.Lock()
		defer db.mu.Unlock()
		db.committing = nil
		db.attempts++
		if err != nil {
			db.failedLocked(err)
		} else {
			db.boltTxID, db.durable, db.flushing = txID, db.flushingTo, nil
		}
		db.cond.Broadcast()
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

// TestADurableSnapshotDoesNotWaitForADiskThatDoesNotAnswer: whoever waits for it could not be stopped.
func TestADurableSnapshotDoesNotWaitForADiskThatDoesNotAnswer(t *testing.T) {
	for name, hang := range map[string]func(t *testing.T, db *DB) (release func()){
		"behind a commit's meta page": func(t *testing.T, db *DB) func() {
			working, end := db.work(db.committer), commitUntilVisible(t, db)
			return func() {
				end(nil)
				working()
			}
		},
		"in the fsync of what was found": func(_ *testing.T, db *DB) func() {
			sync, release := db.bolt.sync, make(chan struct{})
			db.bolt.synced.Store(false)
			db.bolt.sync = func() error {
				<-release
				return sync()
			}
			return func() { close(release) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := openSound(t, testsupport.Path(t), manual)
				put(t, db, "old", "1")
				flush(t, db)
				put(t, db, "new", "2")
				synctest.Wait() // The committer is idle.
				release := hang(t, db)
				returned := false
				go func() {
					if s, err := db.DurableSnapshot(testBucket.Space); err == nil {
						s.Close()
						t.Error("it has what may not be durable")
					}
					returned = true
				}()
				after(hangingCommit)
				if !returned {
					t.Error("it waits")
				}
				goroutines := runtime.NumGoroutine()
				for range 10 {
					if s, err := db.DurableSnapshot(testBucket.Space); err == nil {
						s.Close()
						t.Error("it has what may not be durable")
					}
				}
				if n := runtime.NumGoroutine(); n > goroutines {
					t.Errorf("those that gave up have left %d goroutines", n-goroutines)
				}
				release()
				synctest.Wait()
				flush(t, db)
				snapshot(t, db, true).Close()
			})
		})
	}
}

// TestADurableSnapshotThatWaitsEndsWithTheFile: it stops waiting if the file is replaced, or
// the DB closed, before the commit has ended.
func TestADurableSnapshotThatWaitsEndsWithTheFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := open(t, testsupport.Path(t), manual)
		put(t, db, "old", "1")
		flush(t, db)
		put(t, db, "new", "2")
		end := commitUntilVisible(t, db)
		var got map[string]string
		go func() {
			s, err := db.DurableSnapshot(testBucket.Space)
			if err != nil {
				t.Error(err)
				return
			}
			defer s.Close()
			if got, err = scan(s, testBucket.Name, ""); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		_ = db.readError(db.bolt, &CorruptError{Err: errors.New("test")})
		end(errors.New("test"))
		flush(t, db)
		synctest.Wait()
		if got["old"] != "1" {
			t.Errorf("of the new file it has %v", got)
		}
	})
}

// TestWhatIsFoundInAFileIsWrittenToTheDiskBeforeItIsCalledDurable: a process may have
// crashed between the last write of a commit and its fsync.
func TestWhatIsFoundInAFileIsWrittenToTheDiskBeforeItIsCalledDurable(t *testing.T) {
	path := testsupport.Path(t)
	db := openSound(t, path, manual)
	put(t, db, "a", "1")
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	db = openSound(t, path, manual)
	if !db.bolt.synced.Swap(false) { // From here on as if that had failed.
		t.Error("the file was not synced when it was opened")
	}
	syncs, failure := 0, errors.New("input/output error")
	db.bolt.sync = func() error {
		syncs++
		return failure
	}
	if s, err := db.DurableSnapshot(testBucket.Space); !errors.Is(err, failure) {
		s.Close()
		t.Fatalf("the first one: %v", err)
	}
	failure = nil
	for range 3 {
		snapshot(t, db, true).Close()
	}
	if syncs != 2 {
		t.Errorf("synced %d times", syncs)
	}
}

// TestWhatIsFoundInADamagedFileIsWrittenToTheDiskAsWell, where it cannot be replaced yet
// and is read from.
func TestWhatIsFoundInADamagedFileIsWrittenToTheDiskAsWell(t *testing.T) {
	path := testsupport.Path(t)
	db := openSound(t, path, manual)
	salvageable(t, db)
	close1(t, db)
	disorder(t, path)
	full := fullDisk(t)
	db = open(t, path, manual)
	if db.MemoryOnly() || !db.bolt.synced.Load() {
		t.Errorf("memory only: %v; the file was not synced", db.MemoryOnly())
	}
	full.Store(false)
	flush(t, db)
}

// TestAFileThatTheDiskCouldNotSyncIsReplaced: a second fsync that succeeds proves nothing,
// because some systems have dropped by then what they could not write.
func TestAFileThatTheDiskCouldNotSyncIsReplaced(t *testing.T) {
	path := testsupport.Path(t)
	db := openSound(t, path, manual)
	want := salvageable(t, db)
	close1(t, db)
	db = openSound(t, path, manual)
	db.bolt.synced.Store(false) // From here on as if that had failed.
	syncs := 0
	db.bolt.sync = func() error {
		if syncs++; syncs == 1 {
			return syscall.EIO
		}
		return nil
	}
	for range 2 {
		if s, err := db.DurableSnapshot(testBucket.Space); !errors.Is(err, syscall.EIO) {
			s.Close()
			t.Errorf("a durable snapshot: %v", err)
		}
	}
	put(t, db, "later", "value")
	want["later"] = "value"
	flush(t, db)
	snapshot(t, db, true).Close()
	expectContents(t, db, want)
	if syncs != 1 || len(setAside(t, path)) != 1 {
		t.Errorf("synced %d times; set aside: %v", syncs, setAside(t, path))
	}
}

// TestASnapshotOfAFileThatAnotherWritesToReturns: somebody who does not respect the lock has
// committed to the file.
func TestASnapshotOfAFileThatAnotherWritesToReturns(t *testing.T) {
	path, copied := testsupport.Path(t), testsupport.Path(t)
	o := manual
	o.Logger = &testsupport.Quiet
	db, err := Open(path, o) // The file is not checked afterwards: two have written to it.
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
	flush(t, db)
	if v, _, err := lookup(db, testBucket, "a"); v != "2" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
}

// TestASnapshotThatBeginsLateIsOfOneFile: while it begins, what was being written when it was captured is in the file,
// and more; then the file is replaced by one whose last transaction has the number that the former one's had.
func TestASnapshotThatBeginsLateIsOfOneFile(t *testing.T) {
	for name, durable := range map[string]bool{"of memory": false, "of what counts as durable": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := testsupport.Path(t)
				db := open(t, path, manual)
				putBoth := func(value string) {
					apply(t, db, func(b *Batch) { b.Put(testBucket, "x", Bytes(value)); b.Put(testBucket, "y", Bytes(value)) })
				}
				for db.boltTxID < 3 {
					putBoth("old")
					flush(t, db)
				}
				written, begun := make(chan struct{}), make(chan struct{})
				put(t, db, "x", "new")
				apply(t, db, func(b *Batch) { b.Put(Bucket{"another", "b"}, "stuck", stuck(written)) })
				go func() { _ = db.Flush() }()
				synctest.Wait()
				if durable {
					db.mu.Lock()
					db.grace.countedTo = db.flushingTo // As after DurableGrace.
					db.mu.Unlock()
				}
				former, check, waits := db.bolt, db.bolt.checkMeta, true
				former.checkMeta = func() error {
					if waits {
						waits = false
						<-begun
					}
					return check()
				}
				var got map[string]string
				go func() {
					s := snapshot(t, db, durable)
					defer s.Close()
					got, _ = scan(s, testBucket.Name, "")
				}()
				synctest.Wait()
				close(written)
				synctest.Wait()
				putBoth("newest")
				flush(t, db)
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
				db.mu.Lock()
				db.flushRequested = true
				db.wakeCommitter()
				db.mu.Unlock()
				synctest.Wait()
				if db.bolt == former || db.boltTxID != 3 {
					t.Fatalf("the file was not replaced, or by one of transaction %d", db.boltTxID)
				}
				close(begun)
				synctest.Wait()
				if got["x"] != "newest" || got["y"] != "newest" {
					t.Errorf("it has %v", got)
				}
			})
		})
	}
}
