package persist

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/warmwatch/warmwatch/internal/hook"
	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// fill makes the file of an idle DB unable to grow, or able again.
func fill(db *DB, full bool) {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.bolt.MaxSize = 0
	if full {
		db.bolt.MaxSize = 1
	}
}

// TestAFailedCommitLosesNothing: readers see the pending changes, DB.Err returns the
// error, and when there is room again all is written.
func TestAFailedCommitLosesNothing(t *testing.T) { // S6
	synctest.Test(t, func(t *testing.T) {
		path := testsupport.Path(t)
		db := openSound(t, path, Options{CommitInterval: time.Second, MaxPendingBytes: 2000})
		put(t, db, "old", "1")
		flush(t, db)
		fill(db, true)
		want := map[string]string{"old": "1"}
		for i := range 20 { // More than may wait otherwise: there is nowhere else to be.
			key := strconv.Itoa(i)
			db.WaitForRoom()
			put(t, db, key, repeat(key, 400))
			want[key] = repeat(key, 400)
			synctest.Wait()
		}
		if err := db.Err(); !errors.Is(err, bolterrors.ErrMaxSizeReached) {
			t.Errorf("Err is %v", err)
		}
		if err := db.Flush(); !errors.Is(err, bolterrors.ErrMaxSizeReached) {
			t.Errorf("Flush returned %v", err)
		}
		apply(t, db, func(b *Batch) {
			b.Delete(testBucket, "old")
			b.Delete(testBucket, "7")
			b.PutNew(testBucket, "new", []byte("2"))
		})
		delete(want, "old")
		delete(want, "7")
		want["new"] = "2"
		after(durableGrace - time.Second)
		if diff := cmp.Diff(want, contents(t, db)); diff != "" {
			t.Errorf("while commits fail: -want +got:\n%.1000s", diff)
		}
		for key := range want {
			if v, _ := get(t, db, key); v != want[key] {
				t.Errorf("key %s is %.20q", key, v)
			}
		}
		s := snapshot(t, db, true)
		got, err := scan(s, testBucket.Name, "")
		s.Close()
		if diff := cmp.Diff(map[string]string{"old": "1"}, got); diff != "" || err != nil {
			t.Errorf("the file has: %v, -want +got:\n%s", err, diff)
		}
		if n := db.Durable(); n != 1 {
			t.Errorf("durable up to %d", n)
		}
		fill(db, false)
		after(maxRetryDelay + time.Second)
		if err := db.Err(); err != nil {
			t.Errorf("still degraded: %v", err)
		}
		wantDurable(t, db, db.Applied())
		if diff := cmp.Diff(want, contents(t, db)); diff != "" {
			t.Errorf("afterwards: -want +got:\n%.1000s", diff)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, contents(t, openSound(t, path, manual))); diff != "" {
			t.Errorf("after a restart: -want +got:\n%.1000s", diff)
		}
	})
}

// TestFailedCommitsAreTriedAgainLessAndLessOften counts attempts.
func TestFailedCommitsAreTriedAgainLessAndLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := openSound(t, testsupport.Path(t), Options{CommitInterval: time.Second})
		fill(db, true)
		put(t, db, "a", repeat("x", 8<<20))
		synctest.Wait()
		attempts := 0
		count := func() error { attempts++; return nil }
		hook.BeforeWrite.Store(&count)
		defer hook.BeforeWrite.Store(nil)
		var at []time.Duration
		begin, last := time.Now(), attempts
		for time.Since(begin) < time.Minute {
			put(t, db, "b", "more") // Does not make it hurry.
			after(10 * time.Millisecond)
			if n := attempts; n != last {
				at, last = append(at, time.Since(begin).Round(100*time.Millisecond)), n
			}
		}
		want := []time.Duration{200, 400, 800, 1600, 3200, 6400, 12800, 22800, 32800, 42800, 52800}
		for i := range want {
			want[i] *= time.Millisecond
		}
		if diff := cmp.Diff(want, at); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		fill(db, false)
		if err := db.Flush(); err != nil { // Does not wait for the next attempt.
			t.Error(err)
		}
		fill(db, true)
		put(t, db, "a", repeat("y", 9<<20))
		synctest.Wait()
		if db.Err() == nil {
			t.Error("the commit did not fail")
		}
		fill(db, false)
		after(minRetryDelay) // The delays begin anew.
		wantDurable(t, db, db.Applied())
	})
}

// TestCloseOfADBThatCannotWriteSaysSo, each time, and does not hang.
func TestCloseOfADBThatCannotWriteSaysSo(t *testing.T) {
	db := open(t, testsupport.Path(t), manual)
	put(t, db, "a", "1")
	flush(t, db)
	fill(db, true)
	put(t, db, "a", repeat("x", 8<<20))
	for range 2 {
		if err := db.Close(); !errors.Is(err, bolterrors.ErrMaxSizeReached) {
			t.Errorf("Close returned %v", err)
		}
	}
	if err := db.Update(func(*Batch) {}); !errors.Is(err, ErrClosed) {
		t.Errorf("Update returned %v", err)
	}
	db.closeErr = nil // Expected, so it is not reported when the test ends.
}

// TestAFlushDuringACloseThatFailsReturns: no attempt comes after the last one.
func TestAFlushDuringACloseThatFailsReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := open(t, testsupport.Path(t), manual)
		first := testsupport.HoldCommit(t)
		put(t, db, "a", repeat("x", 8<<20))
		closed, flushed := make(chan error, 1), make(chan error, 1)
		go func() { closed <- db.Close() }()
		synctest.Wait()
		fill(db, true)
		go func() { flushed <- db.Flush() }()
		synctest.Wait()
		close(first.Release)
		if err := <-closed; !errors.Is(err, bolterrors.ErrMaxSizeReached) {
			t.Errorf("Close returned %v", err)
		}
		if err := <-flushed; err == nil {
			t.Error("Flush returned nil")
		}
		db.closeErr = nil
	})
}

// TestAFullDiskLosesNothing has a small file system of its own.
func TestAFullDiskLosesNothing(t *testing.T) { // S6
	dir := mountSmall(t, 6<<20)
	path := filepath.Join(dir, "cache.db")
	db := openSound(t, path, manual)
	want := map[string]string{}
	for i := range 20 {
		key := strconv.Itoa(i)
		put(t, db, key, repeat("x", 1000))
		want[key] = repeat("x", 1000)
	}
	flush(t, db)
	ballast := filepath.Join(dir, "ballast")
	f, err := os.Create(ballast)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil { // Until nothing fits.
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	failed := false
	for i := range 400 {
		key := strconv.Itoa(i)
		put(t, db, key, repeat("y", 10_000))
		want[key] = repeat("y", 10_000)
		if i%40 == 0 {
			if err := db.Flush(); err != nil {
				failed = true
				if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, ErrCorrupt) {
					t.Fatal(err)
				}
				if db.Err() == nil {
					t.Error("Err is nil")
				}
			}
		}
	}
	if !failed {
		t.Fatal("no commit has failed")
	}
	if diff := cmp.Diff(want, contents(t, db)); diff != "" {
		t.Errorf("while the disk is full: -want +got:\n%.1000s", diff)
	}
	if err := errors.Join(os.Remove(ballast), db.Flush()); err != nil {
		t.Fatal(err)
	}
	if err := db.Err(); err != nil {
		t.Errorf("still degraded: %v", err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if names := setAside(t, path); len(names) != 0 {
		t.Errorf("set aside: %v", names)
	}
	if diff := cmp.Diff(want, contents(t, openSound(t, path, manual))); diff != "" {
		t.Errorf("after a restart: -want +got:\n%.1000s", diff)
	}
}

// TestAFileThatCannotBeBegunLeavesMemory: the disk is full from the start.
func TestAFileThatCannotBeBegunLeavesMemory(t *testing.T) {
	dir := mountSmall(t, 64<<10)
	f, err := os.Create(filepath.Join(dir, "ballast"))
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "cache.db")
	db := open(t, path, manual)
	if !db.MemoryOnly() || !errors.Is(db.Err(), syscall.ENOSPC) {
		t.Errorf("memory only: %v, %v", db.MemoryOnly(), db.Err())
	}
	put(t, db, "key", "value")
	if v, _ := get(t, db, "key"); v != "value" {
		t.Errorf("the value is %q", v)
	}
	close1(t, db)
	if err := os.Remove(f.Name()); err != nil {
		t.Fatal(err)
	}
	if db := openSound(t, path, manual); db.MemoryOnly() || len(db.SetAside()) != 0 {
		t.Errorf("with room: memory only: %v, %v, set aside: %v", db.MemoryOnly(), db.Err(), db.SetAside())
	}
}

// mountSmall returns the directory of a file system of a given size in bytes.
func mountSmall(t *testing.T, sizeBytes int) string {
	t.Helper()
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		t.Skip("only root on Linux can mount a small file system to fill it up")
	}
	dir := filepath.Join(t.TempDir(), "small")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	unmount, err := mountTmpfs(dir, fmt.Sprintf("size=%d", sizeBytes))
	if err != nil {
		t.Skipf("cannot mount a small file system to fill it up: %v", err)
	}
	t.Cleanup(func() {
		if err := unmount(); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// TestACommitThatHasOnlyFailedItsFsync: its content is in the file all the same.
func TestACommitThatHasOnlyFailedItsFsync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := testsupport.Path(t)
		db := openSound(t, path, manual)
		put(t, db, "old", "1")
		flush(t, db)
		put(t, db, "visible", "2")
		for range 3 { // Attempts.
			db.mu.Lock()
			if db.flushing == nil {
				db.flushing, db.pending, db.flushingTo = db.pending, newLayer(), db.applied
			}
			l := db.flushing
			db.mu.Unlock()
			synctest.Wait() // The committer uses the same.
			if _, err := db.write(db.bolt, l, true); err != nil {
				t.Fatal(err)
			}
			db.mu.Lock()
			db.failedLocked(errors.New("fdatasync: input/output error"))
			db.mu.Unlock()
		}
		put(t, db, "later", "3")
		if got := contents(t, db); len(got) != 3 {
			t.Errorf("%v", got)
		}
		if s, err := db.DurableSnapshot(testBucket.Space); err == nil {
			s.Close()
			t.Error("DurableSnapshot has what is not durable")
		}
		flush(t, db)
		flush(t, db)
		if got := contents(t, db); len(got) != 3 || db.Err() != nil || len(setAside(t, path)) != 0 {
			t.Errorf("%v %v", got, db.Err())
		}
	})
}

// failMetaSync has bbolt's next commit fail once its meta page is written, as it does when
// the fsync fails that follows. bbolt has no option for that.
func failMetaSync(db *DB) {
	field := reflect.ValueOf(db.bolt.DB).Elem().FieldByName("ops").FieldByName("writeAt")
	writeAt := (*func([]byte, int64) (int, error))(field.Addr().UnsafePointer())
	before := *writeAt
	*writeAt = func(b []byte, at int64) (int, error) {
		n, err := before(b, at)
		if err == nil && at <= db.bolt.pageSize {
			*writeAt = before
			return n, syscall.ENOSPC
		}
		return n, err
	}
}

// TestAfterAFailedFsyncReadersAreWaitedFor: nothing is wrong any more once they have ended.
func TestAfterAFailedFsyncReadersAreWaitedFor(t *testing.T) {
	for name, c := range map[string]struct {
		write func(*DB) error
		long  time.Duration // How long the last one reads.
	}{
		"by a flush": {(*DB).Flush, maxReadersWait / 2},
		"by Close":   {(*DB).Close, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := testsupport.Path(t)
				db := open(t, path, manual)
				put(t, db, "a", "old")
				flush(t, db)
				s := snapshot(t, db, false)
				failMetaSync(db)
				put(t, db, "a", "new")
				if err := db.Flush(); !errors.Is(err, syscall.ENOSPC) {
					t.Fatal(err)
				}
				put(t, db, "a", "newest")
				time.AfterFunc(c.long, s.Close)
				if err := c.write(db); err != nil {
					t.Error(err)
				}
				_ = db.Close()
				db = open(t, path, manual)
				if got, _ := get(t, db, "a"); got != "newest" {
					t.Errorf("the file has %q", got)
				}
			})
		})
	}
}

// TestASnapshotStaysAsItIsWhenAFsyncFails: the pages that the commit has freed are not written
// to before those who read them have ended.
func TestASnapshotStaysAsItIsWhenAFsyncFails(t *testing.T) {
	path := testsupport.Path(t)
	db := openSound(t, path, manual)
	want := map[string]string{}
	fillKeys := func(value string) {
		for i := range 3000 {
			key := fmt.Sprintf("key-%05d", i)
			put(t, db, key, value)
			if value == "old" {
				want[key] = value
			}
		}
	}
	fillKeys("old")
	flush(t, db)
	s, err := db.Snapshot(testBucket.Space)
	if err != nil {
		t.Fatal(err)
	}
	failMetaSync(db)
	fillKeys("new")
	if err := db.Flush(); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	fillKeys("newer")
	if err := db.Flush(); err == nil {
		t.Error("a commit while the snapshot is open")
	}
	if got, err := scan(s, testBucket.Name, ""); err != nil || !maps.Equal(got, want) {
		t.Errorf("the snapshot has %d keys, expected %d: %v", len(got), len(want), err)
	}
	later, err := db.Snapshot(testBucket.Space)
	if err != nil {
		t.Fatal(err)
	}
	defer later.Close()
	s.Close()
	flush(t, db)
	if got, err := scan(later, testBucket.Name, ""); err != nil || len(got) != len(want) || got["key-00000"] != "newer" {
		t.Errorf("the later snapshot has %d keys, %q, %v", len(got), got["key-00000"], err)
	}
}

// TestAfterAFailedCommitTheFileIsSyncedAgain before the next attempt: bbolt believes its newest meta page, and the disk
// may not have it.
func TestAfterAFailedCommitTheFileIsSyncedAgain(t *testing.T) {
	db := openSound(t, testsupport.Path(t), manual)
	synced := 0
	defer func(before func(string) error) { syncDirectory = before }(syncDirectory)
	syncDirectory = func(string) error { synced++; return nil } // The last steps of DB.sync.
	put(t, db, "first", "1")
	flush(t, db)
	if synced != 0 {
		t.Error("without a failure")
	}
	fill(db, true)
	put(t, db, "large", repeat("x", 1<<20))
	if err := db.Flush(); err == nil {
		t.Fatal("the commit did not fail")
	}
	fill(db, false)
	flush(t, db)
	if synced == 0 {
		t.Error("not after a failure")
	}
}

// TestChangesMeetACommitThatDidNotFit: the next attempt writes both together.
func TestChangesMeetACommitThatDidNotFit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := testsupport.Path(t)
		db := openSound(t, path, manual)
		put(t, db, "old", "1")
		put(t, db, "dropped", "1")
		flush(t, db)
		first := testsupport.HoldCommit(t)
		apply(t, db, func(b *Batch) {
			b.Delete(testBucket, "old")
			b.PutNew(testBucket, "new", []byte("2"))
			b.Put(testBucket, "large", []byte(repeat("x", 1<<20)))
			b.Put(otherBucket, "before", nil)
		})
		done := make(chan error)
		go func() { done <- db.Flush() }()
		<-first.Started
		apply(t, db, func(b *Batch) {
			b.PutNew(testBucket, "old", []byte("again"))
			b.Put(testBucket, "new", []byte("3"))
			b.Drop(otherBucket)
			b.Put(otherBucket, "behind", nil)
		})
		fill(db, true)
		close(first.Release)
		if err := <-done; !errors.Is(err, bolterrors.ErrMaxSizeReached) {
			t.Fatal(err)
		}
		expectContents(t, db, map[string]string{"dropped": "1", "old": "again", "new": "3", "large": repeat("x", 1<<20)})
		apply(t, db, func(b *Batch) {
			b.Delete(testBucket, "old")
			b.Delete(testBucket, "large")
			b.Delete(testBucket, "new")
		})
		fill(db, false)
		flush(t, db)
		expectContents(t, db, map[string]string{"dropped": "1"})
		close1(t, db)
		db = openSound(t, path, manual)
		expectContents(t, db, map[string]string{"dropped": "1"})
		if err := db.Read(otherBucket.Space, func(s *Snapshot) error {
			got, err := scan(s, otherBucket.Name, "")
			if len(got) != 1 {
				t.Errorf("the dropped bucket has %v", got)
			}
			return err
		}); err != nil {
			t.Error(err)
		}
	})
}
