package persist

import (
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// commits returns how many commits the DB of a new file has made since Open, which makes bbolt's transaction 2.
func commits(db *DB) int {
	db.mu.RLock()
	defer db.mu.RUnlock()
	return db.boltTxID - 2
}

// follow returns the number of the last batch that one who waits for Committed has seen to be durable.
func follow(t *testing.T, db *DB) *atomic.Uint64 {
	seen, stop := &atomic.Uint64{}, make(chan struct{})
	t.Cleanup(func() { close(stop) })
	go func() {
		for {
			committed := db.Committed()
			seen.Store(db.Durable())
			select {
			case <-committed:
			case <-stop:
				return
			}
		}
	}()
	return seen
}

// after lets d pass, and waits for the commits that this causes.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func wantDurable(t *testing.T, db *DB, want uint64) {
	t.Helper()
	synctest.Wait()
	if got := db.Durable(); got != want {
		t.Errorf("durable up to batch %d, expected %d", got, want)
	}
}

func TestAChangeIsDurableAfterTheCommitInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := openSound(t, testsupport.Path(t), Options{CommitInterval: time.Minute})
		after(time.Hour)
		if n := commits(db); n != 0 {
			t.Errorf("%d commits of nothing", n)
		}
		put(t, db, "a", "1")
		after(time.Minute - 1)
		put(t, db, "b", "2") // Rides along.
		wantDurable(t, db, 0)
		after(1)
		wantDurable(t, db, 2)
		put(t, db, "c", "3") // Has an interval of its own.
		after(time.Minute - 1)
		wantDurable(t, db, 2)
		after(1)
		wantDurable(t, db, 3)
		after(time.Hour)
		if n := commits(db); n != 2 {
			t.Errorf("%d commits, expected 2", n)
		}
	})
}

func TestAnUrgentChangeIsDurableAfterTheDurableDelay(t *testing.T) {
	urgent := func(b *Batch) {
		b.Put(testBucket, "urgent", []byte("x"))
		b.Urgent()
	}
	synctest.Test(t, func(t *testing.T) {
		db := openSound(t, testsupport.Path(t), Options{CommitInterval: time.Minute, DurableDelay: time.Second})
		put(t, db, "a", "1")
		after(10 * time.Second)
		apply(t, db, urgent)
		after(time.Second / 2)
		apply(t, db, urgent) // Does not put it off.
		after(time.Second/2 - 1)
		wantDurable(t, db, 0)
		after(1)
		wantDurable(t, db, 3)

		put(t, db, "a", "2") // The next one is not urgent any more.
		after(time.Minute - 1)
		wantDurable(t, db, 3)
		after(1)
		wantDurable(t, db, 4)

		put(t, db, "a", "3")
		after(time.Minute - time.Millisecond)
		apply(t, db, urgent) // The interval ends before the delay does.
		after(time.Millisecond)
		wantDurable(t, db, 6)
	})
}

func TestManyBytesAreCommittedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := openSound(t, testsupport.Path(t), Options{CommitInterval: time.Hour, MaxPendingBytes: 20_000})
		for i := range 9 {
			put(t, db, strconv.Itoa(i), repeat("x", 1000))
		}
		wantDurable(t, db, 0)
		put(t, db, "9", repeat("x", 1000))
		wantDurable(t, db, 10)
	})
}

// TestAHotKeyIsWrittenOnce in a commit, and does not count as waiting more than once.
func TestAHotKeyIsWrittenOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := openSound(t, testsupport.Path(t), Options{CommitInterval: time.Second, MaxPendingBytes: 4000})
		for i := range 1000 {
			put(t, db, "hot", fmt.Sprintf("%1500d", i))
		}
		wantDurable(t, db, 0) // What was replaced does not count as waiting.
		after(time.Second)
		wantDurable(t, db, 1000)
		if n := commits(db); n != 1 {
			t.Errorf("%d commits", n)
		}
		if v, _ := get(t, db, "hot"); strings.TrimSpace(v) != "999" {
			t.Errorf("value is %q", v)
		}
	})
}

func TestPendingBytesComeBackToNothing(t *testing.T) {
	db := openSound(t, testsupport.Path(t), manual)
	for i := range 50 {
		apply(t, db, func(b *Batch) {
			b.Put(testBucket, strconv.Itoa(i%7), []byte(repeat("x", i)))
			b.PutNew(testBucket, "new"+strconv.Itoa(i), []byte("y"))
			b.Delete(testBucket, "new"+strconv.Itoa(i-1))
			b.Delete(testBucket, strconv.Itoa(i%3))
		})
	}
	apply(t, db, func(b *Batch) { b.Drop(testBucket) })
	if n := db.pending.bytes; n != 0 {
		t.Errorf("%d bytes pending in an empty layer", n)
	}
}

// TestADroppedSpaceLeavesNothingInMemory: informers that work from memory come and go.
func TestADroppedSpaceLeavesNothingInMemory(t *testing.T) {
	db, err := OpenMemory(Options{Logger: &testsupport.Quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for range 10 {
		put(t, db, "key", "value")
		apply(t, db, func(b *Batch) { b.Drop(testBucket) })
		if _, found := get(t, db, "key"); found || len(db.pending.buckets) > 0 || db.pending.bytes != 0 {
			t.Fatalf("%d buckets and %d bytes are left", len(db.pending.buckets), db.pending.bytes)
		}
	}
}

// TestWhoWaitsForRoomGoesOnWithTheCommit holds up a commit.
func TestWhoWaitsForRoomGoesOnWithTheCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := openSound(t, testsupport.Path(t), Options{CommitInterval: time.Hour, MaxPendingBytes: 1000})
		held := testsupport.HoldCommit(t)
		put(t, db, "held", repeat("x", 600))
		synctest.Wait()
		put(t, db, "fits", repeat("y", 400))
		var done atomic.Int64
		for i := range 3 {
			go func() {
				db.WaitForRoom()
				put(t, db, "waits"+strconv.Itoa(i), repeat("z", 600))
				done.Add(1)
			}()
		}
		after(hangingCommit - time.Second)
		if n := done.Load(); n != 0 || db.Err() != nil {
			t.Errorf("%d updates did not wait, %v", n, db.Err())
		}
		// Readers do not wait with them.
		if got := contents(t, db); len(got) != 2 {
			t.Errorf("readable: %v", got)
		}
		close(held.Release)
		synctest.Wait()
		if n := done.Load(); n != 3 || db.Err() != nil {
			t.Errorf("%d of 3 updates go on, %v", n, db.Err())
		}
	})
}

func TestOptionsHaveDefaultsAndBounds(t *testing.T) {
	o, err := Options{}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	o.Logger, o.OnEvent = nil, nil
	want := Options{CommitInterval: time.Second, DurableDelay: 10 * time.Millisecond, LockTimeout: 30 * time.Second, MaxPendingBytes: 16 << 20}
	if diff := cmp.Diff(want, o, cmp.AllowUnexported(Options{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	o, err = Options{CommitInterval: time.Millisecond}.withDefaults()
	if err != nil || o.DurableDelay != time.Millisecond {
		t.Errorf("DurableDelay %v, %v: not bounded by CommitInterval", o.DurableDelay, err)
	}
	for _, bad := range []Options{{CommitInterval: -1}, {DurableDelay: -1}, {MaxPendingBytes: -1}, {MaxFileBytes: -1}} {
		if _, err := Open(t.Context(), testsupport.Path(t), bad); err == nil {
			t.Errorf("%+v was accepted", bad)
		}
	}
}

func TestTheBatchesAreNumbered(t *testing.T) {
	db := openSound(t, testsupport.Path(t), manual)
	for i := range uint64(5) {
		if db.Applied() != i {
			t.Errorf("applied %d, expected %d", db.Applied(), i)
		}
		if n := apply(t, db, func(*Batch) {}); n != i+1 {
			t.Errorf("batch %d, expected %d", n, i+1)
		}
	}
	flush(t, db)
	if db.Durable() != 5 {
		t.Errorf("durable %d", db.Durable())
	}
}

// TestNoEndlessCommits: a DB at rest stays at rest.
func TestNoEndlessCommits(t *testing.T) {
	for name, o := range map[string]Options{"file": {}, "memory": {}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := testsupport.Path(t)
				if name == "memory" {
					path = blockedPath(t)
				}
				db := open(t, path, o)
				for i := range 3 {
					put(t, db, fmt.Sprint(i), repeat("x", 6<<20))
				}
				after(time.Hour)
				n := commits(db) // In memory the clock would stand still.
				after(time.Hour)
				if commits(db) != n || n > 4 {
					t.Errorf("%d commits for 3 batches, then %d at rest", n, commits(db)-n)
				}
			})
		})
	}
}
