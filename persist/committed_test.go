package persist

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// TestCommittedIsClosedWhenMoreIsDurable, and not before.
func TestCommittedIsClosedWhenMoreIsDurable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := open(t, testsupport.Path(t), Options{CommitInterval: time.Minute})
		expectClosedAfter := func(d time.Duration, durable uint64) {
			t.Helper()
			committed := db.Committed()
			after(d - 1)
			if isClosed(committed) || db.Durable() >= durable {
				t.Errorf("too early: closed %v, durable up to %d", isClosed(committed), db.Durable())
			}
			after(1)
			if !isClosed(committed) || db.Durable() != durable {
				t.Errorf("closed %v, durable up to %d, expected %d", isClosed(committed), db.Durable(), durable)
			}
		}
		put(t, db, "a", "1")
		expectClosedAfter(time.Minute, 1)

		// While nothing can be written it is closed at each attempt, and when what waits counts as durable.
		fill(db, true)
		put(t, db, "big", repeat("x", 8<<20))
		synctest.Wait()
		failing := time.Now()
		for db.Durable() < 2 {
			committed := db.Committed()
			if db.Durable() < 2 {
				<-committed
			}
		}
		if d := time.Since(failing); d != durableGrace {
			t.Errorf("a change counts as durable after %v", d)
		}
		fill(db, false)
		after(maxRetryDelay)
		if err := db.Err(); err != nil {
			t.Fatal(err)
		}

		put(t, db, "last", "1")
		committed := db.Committed()
		close1(t, db)
		if !isClosed(committed) || db.Durable() != 3 {
			t.Errorf("after Close: closed %v, durable up to %d", isClosed(committed), db.Durable())
		}
	})
}

// TestCommittedIsClosedByAClose: also one that has nothing to write, so that nobody waits for ever.
func TestCommittedIsClosedByAClose(t *testing.T) {
	db := openSound(t, testsupport.Path(t), manual)
	committed := db.Committed()
	close1(t, db)
	if !isClosed(committed) {
		t.Error("it is open")
	}
}

// TestEachDamagedBucketIsReported, once.
func TestEachDamagedBucketIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var causes []error
		db := openToBeDamaged(t, testsupport.Path(t), func(_ Code, cause error) { causes = append(causes, cause) })
		for _, name := range []string{"one", "another", "one"} {
			_ = db.readError(db.bolt, Bucket{testBucket.Space, name}, corruptFile("test"))
			synctest.Wait()
		}
		if len(causes) != 2 || !errors.Is(causes[0], ErrCorrupt) || !errors.Is(causes[1], ErrCorrupt) {
			t.Errorf("reported %v", causes)
		}
	})
}

// TestTheFileIsWhatTheLastCommitHasLeft, while more waits in memory or is being written.
func TestTheFileIsWhatTheLastCommitHasLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := openSound(t, testsupport.Path(t), manual)
		expectCopy := func(want map[string]string) {
			t.Helper()
			path := testsupport.Path(t)
			testsupport.CopyFile(t, db.Path(), path)
			expectContents(t, openSound(t, path, manual), want)
		}
		expectCopy(map[string]string{})
		put(t, db, "a", "1")
		put(t, db, "b", "1")
		flush(t, db)
		apply(t, db, func(b *Batch) {
			b.Put(testBucket, "a", []byte("2"))
			b.Delete(testBucket, "b")
		})
		expectCopy(map[string]string{"a": "1", "b": "1"})
		held := testsupport.HoldCommit(t)
		put(t, db, "c", "3")
		flushed := make(chan error, 1)
		go func() { flushed <- db.Flush() }()
		synctest.Wait()
		put(t, db, "d", "4")
		expectCopy(map[string]string{"a": "1", "b": "1"})
		close(held.Release)
		if err := <-flushed; err != nil {
			t.Fatal(err)
		}
		expectCopy(map[string]string{"a": "2", "c": "3"})
		if diff := cmp.Diff(map[string]string{"a": "2", "c": "3", "d": "4"}, contents(t, db)); diff != "" {
			t.Errorf("the DB itself: -want +got:\n%s", diff)
		}
	})
}
