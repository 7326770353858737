package queue

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/testdb"
	"github.com/warmwatch/warmwatch/persist"
)

func wantSeqs(t *testing.T, what string, want, got []uint64) {
	t.Helper()
	if !slices.Equal(want, got) {
		t.Errorf("%s: %v, expected %v", what, got, want)
	}
}

// TestNoDeltaIsRemovedBeforeAllHaveAcknowledged is D2.
func TestNoDeltaIsRemovedBeforeAllHaveAcknowledged(t *testing.T) {
	db := testdb.Open(t, testsupport.Path(t), testdb.Manual)
	q := newLog(t, db, Options{})
	plain := listed(t, q.Plain())
	c := durable(t, q, "d", true)
	publishUpTo(t, q, 1, 10)
	flush(t, q)
	wantSeqs(t, "plain", upTo(1, 10), next(t, plain, 100))
	flush(t, q)
	wantSeqs(t, "held by the durable one", upTo(1, 10), onDisk(t, db, true))
	wantSeqs(t, "durable", upTo(1, 6), next(t, c, 6))
	flush(t, q)
	wantSeqs(t, "held", upTo(7, 10), onDisk(t, db, true))
	if n := q.Unacked(); n != 4 {
		t.Errorf("%d unacknowledged, expected 4", n)
	}
	remove(t, c) // Its cursor still holds the log.
	publishUpTo(t, q, 11, 12)
	flush(t, q)
	wantSeqs(t, "held by a name", upTo(7, 12), onDisk(t, db, true))
	if err := q.Forget("d"); err != nil {
		t.Fatal(err)
	}
	flush(t, q)
	wantSeqs(t, "held by the plain one", upTo(11, 12), onDisk(t, db, true))
	remove(t, plain)
	flush(t, q)
	wantSeqs(t, "held by nobody", nil, onDisk(t, db, true))
}

// TestNothingIsStoredForPlainConsumers (D1), as long as no name is in the log: then everything
// is, until the name is forgotten.
func TestNothingIsStoredForPlainConsumers(t *testing.T) {
	q := newLog(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), Options{})
	plain := listed(t, q.Plain())
	publishUpTo(t, q, 1, 9)
	flush(t, q)
	wantSeqs(t, "for a plain consumer", nil, onDisk(t, q.db, true))
	c := durable(t, q, "d", true)
	publishUpTo(t, q, 10, 12)
	flush(t, q)
	wantSeqs(t, "with a name", upTo(10, 12), onDisk(t, q.db, true))
	remove(t, c)
	publishUpTo(t, q, 13, 14)
	flush(t, q)
	wantSeqs(t, "while the name has no consumer", upTo(10, 14), onDisk(t, q.db, true))
	if err := q.Forget("d"); err != nil {
		t.Fatal(err)
	}
	publishUpTo(t, q, 15, 16)
	flush(t, q)
	wantSeqs(t, "without the name", upTo(10, 14), onDisk(t, q.db, true))
	if got := q.Unacked(); got != 16 {
		t.Errorf("%d are unacknowledged, expected 16", got)
	}
	wantSeqs(t, "delivered", upTo(1, 16), next(t, plain, 100))
	flush(t, q)
	if got := q.Unacked(); got != 0 {
		t.Errorf("%d are unacknowledged in the end", got)
	}
	wantSeqs(t, "left", nil, onDisk(t, q.db, true))
}

// TestADeltaThatIsAcknowledgedAtOnceIsNeverWritten looks at what is encoded.
func TestADeltaThatIsAcknowledgedAtOnceIsNeverWritten(t *testing.T) {
	db := testdb.Open(t, testsupport.Path(t), testdb.Manual)
	q := newLog(t, db, Options{})
	c := listed(t, q.Plain())
	encodes := 0
	for seq := uint64(1); seq <= 50; seq++ {
		d := numbered(seq)
		d.Old = countingObject{&encodes}
		publish(t, q, d)
		next(t, c, 1)
	}
	flush(t, q)
	if encodes != 0 || len(onDisk(t, db, true)) != 0 {
		t.Errorf("%d deltas were encoded, %v are in the file", encodes, onDisk(t, db, true))
	}
}

type countingObject struct{ n *int }

func (c countingObject) MarshalJSON() ([]byte, error) {
	*c.n++
	return []byte("{}"), nil
}

// TestTheTailStaysWithinItsBoundWhateverAConsumerDoes is D6: others go on, the tail stays
// within its bound, and what is behind it comes from disk, in order.
func TestTheTailStaysWithinItsBoundWhateverAConsumerDoes(t *testing.T) {
	for _, name := range []string{"", "stuck"} {
		db := testdb.Open(t, testsupport.Path(t), persist.Options{CommitInterval: time.Millisecond})
		const tailBytes, n = 10_000, 2000
		q := newLog(t, db, Options{TailBytes: tailBytes})
		var stuck *Consumer
		if name == "" {
			stuck = listed(t, q.Plain())
		} else {
			stuck = durable(t, q, name, true)
		}
		quick := listed(t, q.Plain())
		for seq := uint64(1); seq <= n; seq++ {
			publish(t, q, numbered(seq))
			next(t, quick, 10)
			q.mu.Lock()
			size, counted, array := 0, q.tail.bytes, cap(q.tail.deltas)
			for _, d := range q.tail.deltas {
				size += d.SizeBytes
			}
			q.mu.Unlock()
			if size != counted || size > tailBytes+300 || array > 1000 {
				t.Fatalf("the tail has %d bytes, counted %d, in an array of %d", size, counted, array)
			}
		}
		flush(t, q)
		if b := stuck.Behind(); b.Deltas != n || b.Bytes < n*50 || q.Unacked() != n || quick.Behind() != (Backlog{}) {
			t.Errorf("%+v are behind, %d unacknowledged; behind the quick one %+v", b, q.Unacked(), quick.Behind())
		}
		var seqs []uint64
		for len(seqs) < n {
			ds, err := stuck.Next()
			if err != nil {
				t.Fatal(err)
			}
			if len(ds) > deltasPerRead {
				t.Fatalf("%d deltas at once", len(ds))
			}
			for i := range ds {
				checkNumbered(t, &ds[i])
				seqs = append(seqs, ds[i].Seq)
			}
			acknowledge(t, stuck, ds)
		}
		wantSeqs(t, "the stuck consumer", upTo(1, n), seqs)
		if b := stuck.Behind(); b != (Backlog{}) {
			t.Errorf("%+v are behind in the end", b)
		}
		flush(t, q)
		if left := onDisk(t, db, true); len(left) != 0 {
			t.Errorf("%d deltas are left", len(left))
		}
	}
}

// TestTheTailDoesNotFillWithWhatIsAcknowledged, even if no delta comes that would
// empty it.
func TestTheTailDoesNotFillWithWhatIsAcknowledged(t *testing.T) {
	for _, named := range []bool{false, true} {
		q := newLog(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), Options{TailBytes: 10_000})
		consumers := []*Consumer{listed(t, q.Plain()), listed(t, q.Plain())}
		if named {
			c, err := q.named(Handlers, "n", "", false)
			if err != nil {
				t.Fatal(err)
			}
			consumers = append(consumers, listed(t, c))
		}
		for seq := uint64(1); seq <= 1000; seq++ {
			publish(t, q, numbered(seq))
			for _, c := range consumers {
				next(t, c, 10)
			}
			if got := TailBytes(q); got != 0 {
				t.Fatalf("named %t: the tail has %d bytes after %d", named, got, seq)
			}
		}
		flush(t, q)
		wantSeqs(t, "left", nil, onDisk(t, q.db, true))
	}
}

// TestLargeDeltasAreReadAFewAtATime bounds what one read holds.
func TestLargeDeltasAreReadAFewAtATime(t *testing.T) {
	db := testdb.Open(t, testsupport.Path(t), persist.Options{CommitInterval: time.Millisecond})
	q := newLog(t, db, Options{TailBytes: 1})
	c := listed(t, q.Plain())
	for seq := uint64(1); seq <= 12; seq++ {
		d := numbered(seq)
		d.New.(*corev1.Pod).Annotations = map[string]string{"large": string(make([]byte, 400_000))}
		d.SizeBytes = sizeOf(d.New)
		publish(t, q, d)
	}
	flush(t, q)
	for total := 0; total < 12; {
		ds, err := c.Next()
		if err != nil || len(ds) > 4 {
			t.Fatalf("%d deltas at once, %v", len(ds), err)
		}
		total += len(ds)
		acknowledge(t, c, ds)
	}
}

// TestADurableConsumerIsGivenOnlyWhatIsDurable is D2. So is its name when its list begins.
func TestADurableConsumerIsGivenOnlyWhatIsDurable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := testdb.Open(t, testsupport.Path(t), persist.Options{CommitInterval: time.Hour, DurableDelay: time.Second})
		q := newLog(t, db, Options{})
		c, err := q.Durable(Handlers, "d", "")
		if err != nil {
			t.Fatal(err)
		}
		var listing, done atomic.Bool
		go func() {
			if _, err := c.BeginList(); err != nil {
				t.Error(err)
			}
			listing.Store(true)
		}()
		synctest.Wait()
		if listing.Load() {
			t.Error("the list begins before any commit")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if !listing.Load() {
			t.Fatal("the list does not begin after the delay")
		}
		if err := c.EndList(); err != nil {
			t.Fatal(err)
		}
		plain := listed(t, q.Plain())
		publishUpTo(t, q, 1, 3)
		wantSeqs(t, "plain", upTo(1, 3), next(t, plain, 10))
		go func() {
			ds, err := c.Next()
			if err != nil || len(ds) != 3 {
				t.Errorf("%d deltas, %v", len(ds), err)
			}
			done.Store(true)
		}()
		synctest.Wait()
		if done.Load() {
			t.Error("delivered before the commit")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if !done.Load() {
			t.Error("not delivered after the delay")
		}
	})
}

// TestALogThatIsOpenedAgainGivesOnlyWhatIsDurable: the one before may have stopped a moment
// ago, in the same process.
func TestALogThatIsOpenedAgainGivesOnlyWhatIsDurable(t *testing.T) {
	db := testdb.Open(t, testsupport.Path(t), testdb.Manual)
	q := newLog(t, db, Options{})
	remove(t, durable(t, q, "d", true))
	publishUpTo(t, q, 1, 3)
	flush(t, q)
	publishUpTo(t, q, 4, 6)
	q.Stop()
	q = newLog(t, db, Options{})
	c := durable(t, q, "d", false)
	wantSeqs(t, "before the commit", upTo(1, 3), next(t, c, 100))
	flush(t, q)
	wantSeqs(t, "after the commit", upTo(4, 6), next(t, c, 100))
}

// TestADurableConsumerWaitsForTheBatchOfEachDelta: commits come in between.
func TestADurableConsumerWaitsForTheBatchOfEachDelta(t *testing.T) {
	db := testdb.Open(t, testsupport.Path(t), testdb.Manual)
	q := newLog(t, db, Options{})
	c := durable(t, q, "d", true)
	seq, delivered := uint64(0), uint64(0)
	for i := range 50 {
		for range i % 4 {
			seq++
			publish(t, q, numbered(seq))
		}
		if i%3 == 0 {
			flush(t, q)
			wantSeqs(t, "delivered", upTo(delivered+1, seq), next(t, c, 1000))
			delivered = seq
		} else if got := next(t, c, 1000); len(got) != 0 {
			t.Errorf("notified of %v before the commit", got)
		}
	}
}

// TestADeltaThatCameDuringACommitIsNotDurableWithIt: it is in the next one.
func TestADeltaThatCameDuringACommitIsNotDurableWithIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := testdb.Open(t, testsupport.Path(t), testdb.Manual)
		q := newLog(t, db, Options{})
		c := durable(t, q, "d", true)
		held := testsupport.HoldCommit(t)
		publish(t, q, numbered(1))
		flushed := make(chan error, 1)
		go func() { flushed <- db.Flush() }()
		synctest.Wait()
		publish(t, q, numbered(2))
		close(held.Release)
		if err := <-flushed; err != nil {
			t.Fatal(err)
		}
		wantSeqs(t, "after the first commit", upTo(1, 1), next(t, c, 10))
		flush(t, q)
		wantSeqs(t, "after the second", upTo(2, 2), next(t, c, 10))
	})
}

// TestANameThatIsTooLongIsRefused: its position could never be stored.
func TestANameThatIsTooLongIsRefused(t *testing.T) {
	db := testdb.Open(t, testsupport.Path(t), testdb.Manual)
	q := newLog(t, db, Options{})
	longest := strings.Repeat("n", maxNameBytes)
	if _, err := q.Durable(Handlers, longest+"n", ""); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("a name of %d bytes is too long, at most %d are allowed", len(longest)+1, len(longest))) {
		t.Errorf("a name that is too long: %v", err)
	}
	durable(t, q, longest, true)
	if _, _, err := db.Problem(); errors.Join(db.Flush(), err) != nil {
		t.Errorf("with the longest name: %v", err)
	}
}

func TestANameHasOneConsumerAtATime(t *testing.T) {
	db := testdb.Open(t, testsupport.Path(t), testdb.Manual)
	q := newLog(t, db, Options{})
	if _, err := q.Durable(Handlers, "", ""); err == nil {
		t.Error("an empty name was accepted")
	}
	c := durable(t, q, "d", true)
	if _, err := q.Durable(Handlers, "d", ""); !errors.Is(err, ErrInUse) {
		t.Errorf("a second consumer: %v", err)
	}
	if _, err := q.Durable(Reconcilers, "d", ""); err != nil {
		t.Errorf("one of another kind: %v", err)
	}
	if err := q.Forget("d"); !errors.Is(err, ErrInUse) {
		t.Errorf("Forget: %v", err)
	}
	c.Stop() // Still in use: it may be acknowledging.
	if _, err := q.Durable(Handlers, "d", ""); !errors.Is(err, ErrInUse) {
		t.Errorf("a second consumer after Stop: %v", err)
	}
	remove(t, c)
	remove(t, c) // Is idempotent.
	durable(t, q, "d", false)
}

func TestInterruptAndStopEndAWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := testdb.Open(t, testsupport.Path(t), testdb.Manual)
		q := newLog(t, db, Options{})
		c := listed(t, q.Plain())
		results := make(chan string, 1)
		wait := func() string {
			t.Helper()
			go func() {
				ds, err := c.Next()
				results <- fmt.Sprintf("%d deltas, %v", len(ds), err)
			}()
			synctest.Wait()
			select {
			case r := <-results:
				return r
			default:
				return "waits"
			}
		}
		if got := wait(); got != "waits" {
			t.Errorf("without deltas: %s", got)
		}
		c.Interrupt()
		if got := <-results; got != "0 deltas, <nil>" {
			t.Errorf("interrupted: %s", got)
		}
		c.Interrupt() // Before the wait.
		if got := wait(); got != "0 deltas, <nil>" {
			t.Errorf("interrupted before: %s", got)
		}
		if got := wait(); got != "waits" {
			t.Errorf("an interrupt counts once: %s", got)
		}
		c.Stop()
		if got := <-results; got != "0 deltas, "+ErrStopped.Error() {
			t.Errorf("stopped: %s", got)
		}
		c.Stop()
		c = listed(t, q.Plain())
		if got := wait(); got != "waits" {
			t.Errorf("without deltas: %s", got)
		}
		q.Stop()
		if got := <-results; got != "0 deltas, "+ErrStopped.Error() {
			t.Errorf("stopped with the log: %s", got)
		}
	})
}

// TestConsumersOfAllKindsAtOnce has them read while deltas come and commits
// run.
func TestConsumersOfAllKindsAtOnce(t *testing.T) {
	db := testdb.Open(t, testsupport.Path(t), persist.Options{CommitInterval: time.Millisecond})
	q := newLog(t, db, Options{TailBytes: 3000})
	const n = 3000
	var wg sync.WaitGroup
	consume := func(what string, c *Consumer, from uint64, every int) {
		wg.Go(func() {
			for want := from; want <= n; {
				ds, err := c.Next()
				if err != nil {
					t.Errorf("%s: %v", what, err)
					return
				}
				for i := range ds {
					if ds[i].Seq != want {
						t.Errorf("%s: delta %d, expected %d", what, ds[i].Seq, want)
						return
					}
					if c.durable && ds[i].batch != 0 && q.db.Durable() < ds[i].batch {
						t.Errorf("%s: delta %d of batch %d is not durable", what, ds[i].Seq, ds[i].batch)
					}
					checkNumbered(t, &ds[i])
					want++
				}
				for some := range slices.Chunk(ds, every) {
					if err := c.Acknowledge(some); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	for i := range 3 {
		consume(fmt.Sprintf("plain %d", i), listed(t, q.Plain()), 1, 1+i*50)
		consume(fmt.Sprintf("durable %d", i), durable(t, q, fmt.Sprint(i), true), 1, 1+i*50)
	}
	for seq := uint64(1); seq <= n; seq++ {
		publish(t, q, numbered(seq))
		if seq%500 == 0 {
			consume(fmt.Sprintf("late %d", seq), listed(t, q.Plain()), seq+1, 7)
		}
		if seq%700 == 0 { // A removed consumer must hold nothing.
			remove(t, q.Plain())
		}
	}
	wg.Wait()
	flush(t, q)
	if left := onDisk(t, db, true); len(left) != 0 || q.Unacked() != 0 {
		t.Errorf("%d deltas are left, %d unacknowledged", len(left), q.Unacked())
	}
}

func TestDeltasKeepAllTheirParts(t *testing.T) {
	q := newLog(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), Options{})
	remove(t, durable(t, q, "d", true))
	old, obj := newPod("pod", "1"), newPod("pod", "2")
	want := []Delta{
		{Seq: 1, Type: cache.Added, Key: "ns/pod", New: obj},
		{Seq: 2, Type: cache.Updated, Key: "ns/pod", Old: old, New: obj},
		{Seq: 3, Type: cache.Deleted, Key: "ns/pod", New: obj},
		{Seq: 4, Type: cache.Deleted, Key: "ns/pod", New: obj, FinalStateUnknown: true},
		{Seq: 5, Type: cache.Deleted, Key: "", FinalStateUnknown: true},
		{Seq: 6, Type: cache.Sync, Key: "\x00\xff", Old: old, New: old},
		{Seq: 7, Type: cache.Updated, Key: "ns/pod", Old: old, New: obj, NewRecord: recordOf(obj, nil), OldRecord: recordOf(old, nil)},
		{Seq: 1 << 60, Type: cache.Updated, Key: "ns/pod", Old: old, New: obj, Replaced: true},
	}
	publish(t, q, want...)
	flush(t, q)
	q = reopen(t, q)
	got, err := durable(t, q, "d", false).Next()
	if err != nil {
		t.Fatal(err)
	}
	for i := range got {
		got[i].SizeBytes, got[i].batch = 0, 0
		want[i].NewRecord, want[i].OldRecord, want[i].stored = nil, nil, false
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(Delta{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if tomb, ok := got[3].Object().(cache.DeletedFinalStateUnknown); !ok || tomb.Key != "ns/pod" || tomb.Obj == nil {
		t.Errorf("a tombstone is %#v", got[3].Object())
	}
}

// TestAConsumerReadsABatchOnceItIsVisible, although it was woken within the batch.
func TestAConsumerReadsABatchOnceItIsVisible(t *testing.T) {
	for _, name := range []string{"", "d"} {
		db := testdb.Open(t, testsupport.Path(t), persist.Options{CommitInterval: time.Millisecond, DurableDelay: time.Millisecond})
		q := newLog(t, db, Options{TailBytes: 1})
		c := listed(t, q.Plain())
		if name != "" {
			c = durable(t, q, name, true)
		}
		var reads sync.WaitGroup
		reads.Go(func() {
			for number := uint64(1); number <= 300; {
				ds, err := c.Next()
				if err != nil {
					t.Error(err)
					return
				}
				for i := range ds {
					found, err := db.View(persist.Bucket{Space: testSpace, Name: "values"}, fmt.Sprint(ds[i].Number), func(*persist.Item) error { return nil })
					if !found || err != nil || ds[i].Number != number {
						t.Errorf("delta %d, expected %d; its batch is visible: %t, %v", ds[i].Number, number, found, err)
					}
					number++
				}
				acknowledge(t, c, ds)
			}
		})
		for seq := uint64(1); seq <= 300; seq++ {
			if err := db.Update(func(b *persist.Batch) {
				q.Append(b, []Delta{numbered(seq)})
				runtime.Gosched()
				b.Put(persist.Bucket{Space: testSpace, Name: "values"}, fmt.Sprint(seq), nil)
			}); err != nil {
				t.Fatal(err)
			}
		}
		reads.Wait()
	}
}

// TestWhoIsRemovedWhileItReadsHasLostNothing: what it was about to read is not needed any more.
func TestWhoIsRemovedWhileItReadsHasLostNothing(t *testing.T) {
	q := newLog(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), Options{TailBytes: 1})
	c, other := listed(t, q.Plain()), listed(t, q.Plain())
	publishUpTo(t, q, 1, 3)
	next(t, other, 1) // So that the others are stored.
	publishUpTo(t, q, 4, 5)
	remove(t, c)
	if ds, err := c.readStored(0, 3); !errors.Is(err, ErrStopped) {
		t.Errorf("%v, %v", ds, err)
	}
}
