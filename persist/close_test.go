package persist

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// TestCloseWritesAllThatWasApplied is S7.
func TestCloseWritesAllThatWasApplied(t *testing.T) {
	path := testsupport.Path(t)
	db := openSound(t, path, manual)
	want := map[string]string{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, w := range []string{"a", "b", "c"} {
		wg.Go(func() {
			for i := 0; ; i++ {
				key := w + repeat("+", i%100)
				err := db.Update(func(b *Batch) {
					b.Put(testBucket, key, []byte(repeat(w, i)))
					mu.Lock()
					want[key] = repeat(w, i)
					mu.Unlock()
				})
				if errors.Is(err, ErrClosed) {
					return
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	for db.Applied() < 500 {
		flush(t, db)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if diff := cmp.Diff(want, contents(t, openSound(t, path, manual))); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestCallsAfterCloseReturnErrClosed(t *testing.T) {
	for name, path := range map[string]string{"file": testsupport.Path(t), "memory": blockedPath(t)} {
		t.Run(name, func(t *testing.T) {
			db := open(t, path, manual)
			put(t, db, "key", "value")
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			for call, err := range map[string]error{
				"Update":          db.Update(func(*Batch) { t.Error("the function was called") }),
				"View":            second(db.View(testBucket, "key", func(*Item) error { t.Error("the function was called"); return nil })),
				"View of nothing": second(db.View(testBucket, "none", func(*Item) error { return nil })),
				"Snapshot":        second(db.Snapshot(testBucket.Space)),
				"DurableSnapshot": second(db.DurableSnapshot(testBucket.Space)),
				"Flush":           db.Flush(),
			} {
				if !errors.Is(err, ErrClosed) {
					t.Errorf("%s returned %v", call, err)
				}
			}
			for range 2 {
				if err := db.Close(); err != nil {
					t.Errorf("Close returned %v", err)
				}
			}
		})
	}
}

func second[T any](_ T, err error) error { return err }

func TestCloseMayBeCalledByManyAtOnce(t *testing.T) {
	path := testsupport.Path(t)
	db := openSound(t, path, manual)
	put(t, db, "key", "value")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := db.Close(); err != nil {
				t.Error(err)
			}
			if n := db.Durable(); n < 1 {
				t.Error("Close returned before all was durable")
			}
		})
	}
	wg.Wait()
}

func TestCloseWaitsForOpenSnapshots(t *testing.T) {
	db := openSound(t, testsupport.Path(t), manual)
	put(t, db, "key", "value")
	flush(t, db)
	s := snapshot(t, db, false)
	closed := make(chan error, 1)
	go func() { closed <- db.Close() }()
	for !errors.Is(db.Flush(), ErrClosed) { // Then all that is left is to close the file.
		time.Sleep(time.Millisecond)
	}
	if v, found, err := viewText(s, testBucket.Name, "key"); v != "value" || !found || err != nil {
		t.Errorf("the snapshot has %q, %v, %v", v, found, err)
	}
	select {
	case err := <-closed:
		t.Errorf("Close did not wait, and returned %v", err)
	default:
	}
	s.Close()
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

// TestEachCallOfCloseWaits: also one that comes while another one does, and without stopping the clock of a synctest
// bubble.
func TestEachCallOfCloseWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := openSound(t, testsupport.Path(t), manual)
		held := testsupport.HoldCommit(t)
		put(t, db, "key", "value")
		closed := make(chan error)
		for range 2 {
			go func() { closed <- db.Close() }()
		}
		synctest.Wait()
		select {
		case err := <-closed:
			t.Errorf("Close did not wait, and returned %v", err)
		default:
		}
		close(held.Release)
		for range 2 {
			if err := <-closed; err != nil {
				t.Error(err)
			}
		}
	})
}

func TestFlushWithNothingToWriteReturnsAtOnce(t *testing.T) {
	db := openSound(t, testsupport.Path(t), manual)
	for range 3 {
		flush(t, db)
	}
	put(t, db, "key", "value")
	for range 3 {
		flush(t, db)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if n := commits(db); n != 1 {
		t.Errorf("%d commits, expected 1", n)
	}
}

// TestFlushIsForWhatWasAppliedBeforeIt: a commit that was under way already
// does not count, and what comes later is not waited for.
func TestFlushIsForWhatWasAppliedBeforeIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := openSound(t, testsupport.Path(t), manual)
		first := testsupport.HoldCommit(t)
		put(t, db, "a", "1")
		flushed := make(chan error, 2)
		go func() { flushed <- db.Flush() }()
		synctest.Wait()
		put(t, db, "b", "2")
		go func() { flushed <- db.Flush() }()
		synctest.Wait()
		close(first.Release)
		if err := <-flushed; err != nil {
			t.Error(err)
		}
		if err := <-flushed; err != nil {
			t.Error(err)
		}
		wantDurable(t, db, 2)
		second := testsupport.HoldCommit(t)
		put(t, db, "c", "3")
		after(time.Minute)
		wantDurable(t, db, 2)
		close(second.Release)
	})
}
