package persist

import (
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// commits counts the commits of a DB, and what the last one made durable.
type commits struct{ n, durable atomic.Int64 }

func countCommits(db *DB) *commits {
	c := &commits{}
	db.AddHook(&Hook{AfterCommit: func(durable uint64) {
		c.n.Add(1)
		c.durable.Store(int64(durable))
	}})
	return c
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
		c := countCommits(db)
		after(time.Hour)
		if n := c.n.Load(); n != 0 {
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
		if n := c.n.Load(); n != 2 {
			t.Errorf("%d commits, expected 2", n)
		}
	})
}

func TestAnUrgentChangeIsDurableAfterTheDurableDelay(t *testing.T) {
	urgent := func(b *Batch) {
		b.Put(testBucket, "urgent", Bytes("x"))
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

// TestWhatHooksTakeBackIsNotWritten: deltas that were acknowledged soon cause no
// commit, and Updates that waited for room go on.
func TestWhatHooksTakeBackIsNotWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := openSound(t, testsupport.Path(t), Options{CommitInterval: time.Hour, MaxPendingBytes: 20_000})
		c := countCommits(db)
		var passing []string // Guarded by the DB's lock.
		db.AddHook(&Hook{BeforeCommit: func(b *Batch) {
			for _, key := range passing {
				b.Delete(testBucket, key)
			}
			passing = nil
		}})
		for i := range 1000 {
			apply(t, db, func(b *Batch) {
				b.PutNew(testBucket, strconv.Itoa(i), Bytes(repeat("x", 1000)))
				passing = append(passing, strconv.Itoa(i))
			})
		}
		synctest.Wait()
		if n := c.n.Load(); n != 0 || db.Durable() != 0 {
			t.Errorf("%d commits, durable up to %d", n, db.Durable())
		}
		for i := range 6 { // More than half of what makes a commit.
			put(t, db, "stays "+strconv.Itoa(i), repeat("x", 1000))
		}
		for i := range 5 {
			apply(t, db, func(b *Batch) {
				b.PutNew(testBucket, strconv.Itoa(i), Bytes(repeat("x", 1000)))
				passing = append(passing, strconv.Itoa(i))
			})
		}
		synctest.Wait()
		if n := c.n.Load(); n != 1 {
			t.Errorf("%d commits, expected one of what stays", n)
		}
		if got := contents(t, db); len(got) > 6+5 || len(got) < 6 {
			t.Errorf("%d keys", len(got))
		}
	})
}

// TestAHotKeyIsEncodedOnce is the point of keeping values unencoded.
func TestAHotKeyIsEncodedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := openSound(t, testsupport.Path(t), Options{CommitInterval: time.Second, MaxPendingBytes: 4000})
		encoded := 0
		for i := range 1000 {
			apply(t, db, func(b *Batch) {
				b.Put(testBucket, "hot", &blob{text: strconv.Itoa(i), size: 1500, encoded: &encoded})
			})
		}
		wantDurable(t, db, 0) // What was replaced does not count as waiting.
		after(time.Second)
		wantDurable(t, db, 1000)
		if encoded != 1 {
			t.Errorf("encoded %d times", encoded)
		}
		if v, _ := get(t, db, "hot"); v != "999" {
			t.Errorf("value is %q", v)
		}
	})
}

func TestPendingBytesComeBackToNothing(t *testing.T) {
	db := openSound(t, testsupport.Path(t), manual)
	for i := range 50 {
		apply(t, db, func(b *Batch) {
			b.Put(testBucket, strconv.Itoa(i%7), Bytes(repeat("x", i)))
			b.PutNew(testBucket, "new"+strconv.Itoa(i), Bytes("y"))
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

// TestUpdateWaitsWhileTooMuchIsPending holds up a commit.
func TestUpdateWaitsWhileTooMuchIsPending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := openSound(t, testsupport.Path(t), Options{CommitInterval: time.Hour, MaxPendingBytes: 1000})
		release := make(chan struct{})
		apply(t, db, func(b *Batch) { b.Put(testBucket, "held", &blob{text: "x", size: 600, release: release}) })
		synctest.Wait()
		put(t, db, "fits", repeat("y", 400))
		var done atomic.Int64
		for i := range 3 {
			go func() {
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
		close(release)
		synctest.Wait()
		if n := done.Load(); n != 3 || db.Err() != nil {
			t.Errorf("%d of 3 updates go on, %v", n, db.Err())
		}
	})
}

func TestAWaitingUpdateEndsWhenTheDBIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := openSound(t, testsupport.Path(t), Options{CommitInterval: time.Hour, MaxPendingBytes: 1000})
		release := make(chan struct{})
		apply(t, db, func(b *Batch) { b.Put(testBucket, "held", &blob{text: "x", size: 2000, release: release}) })
		waiting := make(chan error, 1)
		go func() {
			_, err := db.Update(func(b *Batch) { b.Put(testBucket, "waits", Bytes("y")) })
			waiting <- err
		}()
		synctest.Wait()
		closed := make(chan error, 1)
		go func() { closed <- db.Close() }()
		synctest.Wait()
		select {
		case err := <-waiting:
			if !errors.Is(err, ErrClosed) {
				t.Errorf("the update returned %v", err)
			}
		default:
			t.Error("the update still waits")
		}
		close(release)
		if err := <-closed; err != nil {
			t.Error(err)
		}
	})
}

// TestValuesThatCannotBeEncodedStayInMemory. The others are committed, and the next
// process gets an error for such a value.
func TestValuesThatCannotBeEncodedStayInMemory(t *testing.T) {
	path := testsupport.Path(t)
	db := open(t, path, manual)
	bad := errors.New("no encoding")
	apply(t, db, func(b *Batch) {
		b.Put(testBucket, "bad", &blob{text: "bad", err: bad})
		b.PutNew(testBucket, "new and bad", &blob{text: "new and bad", err: bad})
		b.Put(testBucket, "good", Bytes("good"))
	})
	flush(t, db)
	if err := db.Err(); !errors.Is(err, bad) {
		t.Errorf("Err is %v", err)
	}
	want := map[string]string{"bad": "bad", "new and bad": "new and bad", "good": "good"}
	for i := range 3 {
		put(t, db, "good", "good")
		flush(t, db)
		if diff := cmp.Diff(want, contents(t, db)); diff != "" {
			t.Errorf("after commit %d: -want +got:\n%s", i, diff)
		}
	}
	// A deletion needs a tombstone now. A value that can be encoded replaces a bad one.
	apply(t, db, func(b *Batch) { b.Delete(testBucket, "new and bad") })
	flush(t, db)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}

	db = openSound(t, path, manual)
	var corrupt *CorruptError
	if _, _, err := lookup(db, testBucket, "bad"); !errors.As(err, &corrupt) || corrupt.Key != "bad" {
		t.Errorf("the bad value reads as %v", err)
	}
	if v, _ := get(t, db, "good"); v != "good" {
		t.Errorf("the good value reads as %q", v)
	}
	if _, found := get(t, db, "new and bad"); found {
		t.Error("the deleted value is found")
	}
	put(t, db, "bad", "healed")
	flush(t, db)
	if v, _ := get(t, db, "bad"); v != "healed" {
		t.Errorf("the healed value reads as %q", v)
	}
}

func TestErrForgetsAValueThatCouldNotBeEncodedOnceItIsReplaced(t *testing.T) {
	db := open(t, testsupport.Path(t), manual)
	bad := errors.New("no encoding")
	apply(t, db, func(b *Batch) {
		b.Put(testBucket, "replaced", &blob{text: "bad", err: bad})
		b.Put(testBucket, "deleted", &blob{text: "bad", err: bad})
	})
	flush(t, db)
	put(t, db, "replaced", "good")
	flush(t, db)
	if err := db.Err(); !errors.Is(err, bad) {
		t.Errorf("Err is %v while one of them is there", err)
	}
	apply(t, db, func(b *Batch) { b.Delete(testBucket, "deleted") })
	flush(t, db)
	if err := db.Err(); err != nil {
		t.Errorf("Err is still %v", err)
	}
}

// TestValuesThatCannotBeEncodedDoNotHoldUpOthers: they stay in memory, but do not
// count as pending bytes.
func TestValuesThatCannotBeEncodedDoNotHoldUpOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := open(t, testsupport.Path(t), Options{CommitInterval: time.Second, MaxPendingBytes: 4000})
		c := countCommits(db)
		for i := range 10 {
			apply(t, db, func(b *Batch) {
				b.Put(testBucket, strconv.Itoa(i), &blob{size: 1000, err: errors.New("no encoding")})
			})
		}
		after(time.Minute)
		before := c.n.Load()
		done := make(chan struct{})
		go func() {
			put(t, db, "good", "1")
			close(done)
		}()
		after(time.Minute)
		select {
		case <-done:
		default:
			t.Fatal("an update waits for values that cannot be written")
		}
		wantDurable(t, db, 11)
		if n := c.n.Load() - before; n != 1 {
			t.Errorf("%d commits, expected 1", n)
		}
	})
}

// TestALastHookIsCalledAfterTheOthers: whatever order they were added in.
func TestALastHookIsCalledAfterTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := openSound(t, testsupport.Path(t), Options{})
		var called []bool
		for i := range 12 {
			last := i%3 == 0
			db.AddHook(&Hook{Last: last, BeforeCommit: func(*Batch) { called = append(called, last) }})
		}
		put(t, db, "a", "1")
		after(time.Minute)
		db.mu.Lock()
		defer db.mu.Unlock()
		for i, last := range called {
			if want := i%12 >= 8; last != want {
				t.Fatalf("call %d was one of a hook that is last: %t", i, last)
			}
		}
		if len(called) < 12 {
			t.Errorf("%d calls", len(called))
		}
	})
}

// TestHooksTakePartInEveryCommit: what BeforeCommit puts is in the commit.
func TestHooksTakePartInEveryCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := testsupport.Path(t)
		db := openSound(t, path, Options{CommitInterval: time.Minute, DurableDelay: time.Second})
		var n atomic.Int64
		heard := make(chan uint64, 10)
		remove := db.AddHook(&Hook{
			BeforeCommit: func(b *Batch) {
				b.Put(testBucket, "hook", Bytes(strconv.FormatInt(n.Add(1), 10)))
				if n.Load() == 2 {
					b.Urgent() // Once more, soon.
				}
			},
			AfterCommit: func(durable uint64) { heard <- durable },
		})
		want := func(commits int64) {
			t.Helper()
			synctest.Wait()
			if got := n.Load(); got != commits {
				t.Errorf("%d commits, expected %d", got, commits)
			}
		}
		put(t, db, "a", "1")
		after(time.Minute)
		db.Kick() // Nothing was put, but the hook has something to say.
		after(time.Minute - 1)
		want(1)
		after(1)
		after(time.Second - 1)
		want(2)
		after(1)
		want(3)
		put(t, db, "a", "2")
		flush(t, db)
		want(4)
		for _, durable := range []uint64{1, 1, 1, 2} {
			if got := <-heard; got != durable {
				t.Errorf("the hook heard of batch %d, expected %d", got, durable)
			}
		}
		if v, _ := get(t, db, "hook"); v != "4" {
			t.Errorf("the hook's value is %q", v)
		}
		remove()
		want(5) // Its last word.
		put(t, db, "a", "3")
		flush(t, db)
		want(5)
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestCloseMakesWhatHooksHaveToSayDurable: acknowledgements that hooks have not
// put into a commit yet.
func TestCloseMakesWhatHooksHaveToSayDurable(t *testing.T) {
	path := testsupport.Path(t)
	db := openSound(t, path, manual)
	said := "before"
	db.AddHook(&Hook{BeforeCommit: func(b *Batch) { b.Put(testBucket, "hook", Bytes(said)) }})
	put(t, db, "a", "1")
	flush(t, db)
	db.mu.Lock()
	said = "last"
	db.mu.Unlock()
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	db = openSound(t, path, manual)
	if v, _ := get(t, db, "hook"); v != "last" {
		t.Errorf("the hook's value is %q", v)
	}
}

func TestOptionsHaveDefaultsAndBounds(t *testing.T) {
	o, err := Options{}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	o.Logger = nil
	want := Options{CommitInterval: time.Second, DurableDelay: 10 * time.Millisecond, LockTimeout: 30 * time.Second, MaxPendingBytes: 16 << 20}
	if diff := cmp.Diff(want, o); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	o, err = Options{CommitInterval: time.Millisecond}.withDefaults()
	if err != nil || o.DurableDelay != time.Millisecond {
		t.Errorf("DurableDelay %v, %v: not bounded by CommitInterval", o.DurableDelay, err)
	}
	for _, bad := range []Options{{CommitInterval: -1}, {DurableDelay: -1}, {MaxPendingBytes: -1}} {
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
				c := countCommits(db)
				for i := range 3 {
					put(t, db, fmt.Sprint(i), repeat("x", 6<<20))
				}
				after(time.Hour)
				n := c.n.Load()
				after(time.Hour)
				if c.n.Load() != n || n > 4 {
					t.Errorf("%d commits for 3 batches, then %d at rest", n, c.n.Load()-n)
				}
			})
		})
	}
}
