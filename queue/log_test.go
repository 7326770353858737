package queue

import (
	"errors"
	"fmt"
	"maps"
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

	"github.com/warmwatch/warmwatch/internal/record"
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
	plain := q.Plain()
	durable, err := q.Durable("d")
	if err != nil {
		t.Fatal(err)
	}
	publishUpTo(t, q, 1, 10)
	flush(t, q)
	wantSeqs(t, "plain", upTo(1, 10), next(t, plain, 100))
	commitAnew(t, q)
	wantSeqs(t, "held by the durable one", upTo(1, 10), onDisk(t, db, true))
	wantSeqs(t, "durable", upTo(1, 6), next(t, durable, 6))
	commitAnew(t, q)
	wantSeqs(t, "held", upTo(7, 10), onDisk(t, db, true))
	if n := q.Unacked(); n != 4 {
		t.Errorf("%d unacknowledged, expected 4", n)
	}
	durable.Remove() // Its cursor still holds the log.
	publishUpTo(t, q, 11, 12)
	commitAnew(t, q)
	wantSeqs(t, "held by a name", upTo(7, 12), onDisk(t, db, true))
	if err := q.Forget("d"); err != nil {
		t.Fatal(err)
	}
	commitAnew(t, q)
	wantSeqs(t, "held by the plain one", upTo(11, 12), onDisk(t, db, true))
	plain.Remove()
	commitAnew(t, q)
	wantSeqs(t, "held by nobody", nil, onDisk(t, db, true))
}

// TestACommitRemovesWhatAllHaveAcknowledged, of many packs, and keeps what is behind a cursor.
func TestACommitRemovesWhatAllHaveAcknowledged(t *testing.T) {
	rnd := testsupport.Rand(t)
	q := newLog(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), Options{MaxBacklogBytes: -1})
	for range 30 {
		q.runs = runs{}
		seq := uint64(1)
		for len(q.runs.packed) < 8 {
			q.runs.add(run{from: seq, to: seq + uint64(rnd.Intn(2)), bytes: 300, deletions: rnd.Intn(2) == 0})
			last, _ := q.runs.last()
			seq = last + 1 + uint64(rnd.Intn(3))
		}
		q.head, q.tailBase = seq, seq
		for range 3 {
			floor := uint64(rnd.Intn(int(seq)))
			q.absent["d"] = cursor{Seq: floor}
			want := slices.DeleteFunc(slices.Collect(q.runs.seqs()), func(seq uint64) bool { return seq <= floor })
			if _, err := q.db.Update(q.trimLocked); err != nil {
				t.Fatal(err)
			}
			wantSeqs(t, "left", want, slices.Collect(q.runs.seqs()))
			checkPacks(t, &q.runs)
		}
	}
	q.runs, q.total = runs{}, total{} // None was in the file.
}

// TestADeltaThatIsAcknowledgedAtOnceIsNeverWritten looks at what is pending.
func TestADeltaThatIsAcknowledgedAtOnceIsNeverWritten(t *testing.T) {
	db := testdb.Open(t, testsupport.Path(t), testdb.Manual)
	q := newLog(t, db, Options{})
	c := q.Plain()
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
	db := testdb.Open(t, testsupport.Path(t), persist.Options{CommitInterval: time.Millisecond})
	const tailBytes, n = 10_000, 2000
	q := newLog(t, db, Options{TailBytes: tailBytes})
	stuck, quick := q.Plain(), q.Plain()
	for seq := uint64(1); seq <= n; seq++ {
		publish(t, q, numbered(seq))
		next(t, quick, 10)
		q.mu.Lock()
		size, counted, array, runs := 0, q.tailBytes, cap(q.tailArray), len(q.runs.newest)
		for _, d := range q.tail {
			size += d.SizeBytes
		}
		q.mu.Unlock()
		if size != counted || size > tailBytes || array > 1000 || runs > runsPerPack {
			t.Fatalf("the tail has %d bytes, counted %d, in an array of %d; %d runs", size, counted, array, runs)
		}
	}
	flush(t, q)
	q.mu.Lock()
	if len(q.batchHeads) > 10 {
		t.Errorf("%d batch heads are kept", len(q.batchHeads))
	}
	q.mu.Unlock()
	if quick.Cursor() != n || stuck.Cursor() != 0 || q.Unacked() != n {
		t.Errorf("cursors %d and %d, %d unacknowledged", quick.Cursor(), stuck.Cursor(), q.Unacked())
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
			stuck.Acknowledge(ds[i].Seq)
		}
	}
	wantSeqs(t, "the stuck consumer", upTo(1, n), seqs)
	commitAnew(t, q)
	commitAnew(t, q)
	if left := onDisk(t, db, true); len(left) != 0 {
		t.Errorf("%d deltas are left", len(left))
	}
}

// TestTheTailDoesNotFillWithWhatIsAcknowledged, even if no commit comes that would
// empty it. What is stored of it is removed by the next one.
func TestTheTailDoesNotFillWithWhatIsAcknowledged(t *testing.T) {
	const tailBytes, n = 10_000, 1000
	for _, named := range []bool{false, true} {
		q := newLog(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), Options{TailBytes: tailBytes})
		consumers := []*Consumer{q.Plain(), q.Plain()}
		if named {
			c, err := q.named("n", false)
			if err != nil {
				t.Fatal(err)
			}
			consumers = append(consumers, c)
		}
		for seq := uint64(1); seq <= n; seq++ {
			publish(t, q, numbered(seq))
			for _, c := range consumers {
				next(t, c, 10)
			}
			if got := TailBytes(q); got > tailBytes/ackedTailShare+200 {
				t.Fatalf("named %t: the tail has %d bytes after %d", named, got, seq)
			}
		}
		if got := q.Unacked(); got != 0 {
			t.Errorf("named %t: %d are unacknowledged", named, got)
		}
		commitAnew(t, q)
		wantSeqs(t, "left", nil, onDisk(t, q.db, true))
	}
}

// TestLargeDeltasAreReadAFewAtATime bounds what one read holds.
func TestLargeDeltasAreReadAFewAtATime(t *testing.T) {
	db := testdb.Open(t, testsupport.Path(t), persist.Options{CommitInterval: time.Millisecond})
	q := newLog(t, db, Options{TailBytes: 1})
	c := q.Plain()
	for seq := uint64(1); seq <= 12; seq++ {
		d := numbered(seq)
		d.New.(*corev1.Pod).Annotations = map[string]string{"large": string(make([]byte, 400_000))}
		d.SizeBytes = record.EstimateSize(d.New)
		publish(t, q, d)
	}
	flush(t, q)
	total := 0
	for total < 12 {
		ds, err := c.Next()
		if err != nil || len(ds) > 4 {
			t.Fatalf("%d deltas at once, %v", len(ds), err)
		}
		total += len(ds)
		c.Acknowledge(ds[len(ds)-1].Seq)
	}
}

// TestADurableConsumerIsGivenOnlyWhatIsDurable is D2.
func TestADurableConsumerIsGivenOnlyWhatIsDurable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := testdb.Open(t, testsupport.Path(t), persist.Options{CommitInterval: time.Hour, DurableDelay: time.Second})
		q := newLog(t, db, Options{})
		c, err := q.Durable("d")
		if err != nil {
			t.Fatal(err)
		}
		var registered, done atomic.Bool
		go func() {
			if err := c.WaitDurable(0); err != nil {
				t.Error(err)
			}
			registered.Store(true)
		}()
		synctest.Wait()
		if registered.Load() {
			t.Error("the name is durable before any commit")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if !registered.Load() {
			t.Error("the name is not durable after the delay")
		}
		plain := q.Plain()
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
			t.Error("told before the commit")
		}
		if !q.HasDurable() {
			t.Error("nobody is said to wait")
		}
		flush(t, q)
		synctest.Wait()
		if !done.Load() {
			t.Error("not told after the commit")
		}
	})
}

// TestADurableConsumerWaitsForNoLongerThanTheDelay: the batch may be one that was not urgent, applied after the
// commit of the consumer's name.
func TestADurableConsumerWaitsForNoLongerThanTheDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const delay = time.Second
		db := testdb.Open(t, testsupport.Path(t), persist.Options{CommitInterval: time.Hour, DurableDelay: delay})
		q := newLog(t, db, Options{})
		c, err := q.Durable("d")
		if err != nil {
			t.Fatal(err)
		}
		if err := c.WaitDurable(0); err != nil {
			t.Fatal(err)
		}
		batch, err := db.Update(func(*persist.Batch) {})
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []time.Duration{delay, 0} { // The second time it is durable already.
			begun := time.Now()
			if err := c.WaitDurable(batch); err != nil {
				t.Fatal(err)
			}
			if waited := time.Since(begun); waited != want {
				t.Errorf("waited for %v, expected %v", waited, want)
			}
		}
	})
}

// TestALogThatIsOpenedAgainGivesOnlyWhatIsDurable: the one before may have stopped a moment
// ago, in the same process.
func TestALogThatIsOpenedAgainGivesOnlyWhatIsDurable(t *testing.T) {
	db := testdb.Open(t, testsupport.Path(t), testdb.Manual)
	q := newLog(t, db, Options{})
	if _, err := q.Durable("d"); err != nil {
		t.Fatal(err)
	}
	publishUpTo(t, q, 1, 3)
	flush(t, q)
	publishUpTo(t, q, 4, 6)
	if err := q.Stop(); err != nil {
		t.Fatal(err)
	}
	q = newLog(t, db, Options{})
	if q.durableHead >= 4 {
		t.Errorf("%d counts as durable", q.durableHead)
	}
	flush(t, q)
	c, err := q.Durable("d")
	if err != nil {
		t.Fatal(err)
	}
	wantSeqs(t, "after the commit", upTo(1, 6), next(t, c, 100))
}

// TestADurableConsumerWaitsForTheBatchOfEachDelta: commits come in between.
func TestADurableConsumerWaitsForTheBatchOfEachDelta(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := testdb.Open(t, testsupport.Path(t), testdb.Manual)
		q := newLog(t, db, Options{})
		c, err := q.Durable("d")
		if err != nil {
			t.Fatal(err)
		}
		seq, told := uint64(0), uint64(0)
		for i := range 50 {
			for range i % 4 {
				seq++
				publish(t, q, numbered(seq))
			}
			if i%3 == 0 {
				flush(t, q)
				wantSeqs(t, "told", upTo(told+1, seq), next(t, c, 1000))
				told = seq
			} else if got := next(t, c, 1000); len(got) != 0 {
				t.Errorf("told of %v before the commit", got)
			}
		}
	})
}

// TestADeltaThatCameDuringACommitIsNotDurableWithIt: it is in the next one.
func TestADeltaThatCameDuringACommitIsNotDurableWithIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := testdb.Open(t, testsupport.Path(t), testdb.Manual)
		q := newLog(t, db, Options{})
		c, err := q.Durable("d")
		if err != nil {
			t.Fatal(err)
		}
		flush(t, q)
		release := make(chan struct{})
		first := numbered(1)
		first.Old = blockingObject{release}
		publish(t, q, first)
		flushed := make(chan error, 1)
		go func() { flushed <- db.Flush() }()
		synctest.Wait()
		publish(t, q, numbered(2))
		close(release)
		if err := <-flushed; err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // The hooks come after it.
		wantSeqs(t, "after the first commit", upTo(1, 1), next(t, c, 10))
		flush(t, q)
		wantSeqs(t, "after the second", upTo(2, 2), next(t, c, 10))
	})
}

type blockingObject struct{ release chan struct{} }

func (b blockingObject) MarshalJSON() ([]byte, error) {
	<-b.release
	return []byte("{}"), nil
}

// TestDeltasArePublishedAfterTheCommitThatHasThem: the committer may be faster.
func TestDeltasArePublishedAfterTheCommitThatHasThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := testdb.Open(t, testsupport.Path(t), testdb.Manual)
		q := newLog(t, db, Options{})
		plain := q.Plain()
		durable, err := q.Durable("d")
		if err != nil {
			t.Fatal(err)
		}
		ds := []Delta{numbered(1), numbered(2)}
		batch, err := db.Update(func(b *persist.Batch) { q.Append(b, ds) })
		if err != nil {
			t.Fatal(err)
		}
		flush(t, q)
		wantSeqs(t, "in the file", upTo(1, 2), onDisk(t, db, true))
		if available(plain) || available(durable) {
			t.Error("told before they are published")
		}
		q.Publish(batch, ds)
		wantSeqs(t, "plain", upTo(1, 2), next(t, plain, 10))
		wantSeqs(t, "durable", upTo(1, 2), next(t, durable, 10))
	})
}

// TestANameThatTheFileHasNoRoomForIsRefused: its cursor could never be stored.
func TestANameThatTheFileHasNoRoomForIsRefused(t *testing.T) {
	db := testdb.Open(t, testsupport.Path(t), testdb.Manual)
	q := newLog(t, db, Options{})
	longest := strings.Repeat("n", persist.MaxKeyBytes-len(durablePrefix))
	if _, err := q.Durable(longest + "n"); err == nil || !strings.Contains(err.Error(), "a name of 32760 bytes is too long, the file has room for 32759") {
		t.Errorf("a name that is too long: %v", err)
	}
	c, err := q.Durable(longest)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Remove()
	if err := errors.Join(db.Flush(), db.Err()); err != nil {
		t.Errorf("with the longest name: %v", err)
	}
}

// TestADiscardedConsumerLeavesNothing of a name that nobody had, also where names may be lost.
func TestADiscardedConsumerLeavesNothing(t *testing.T) {
	for _, lost := range []bool{false, true} {
		path := testsupport.Path(t)
		db := testdb.Open(t, path, testdb.Manual)
		q := newLog(t, db, Options{})
		durable(t, q, "stays", false)
		publish(t, q, numbered(1))
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		db = testdb.Open(t, path, testdb.Manual)
		if lost {
			if _, err := db.Update(func(b *persist.Batch) { b.Put(q.state, stateKey, persist.Bytes("\x00")) }); err != nil {
				t.Fatal(err)
			}
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		db = testdb.Open(t, path, testdb.Manual)
		q = newLog(t, db, Options{OnCorrupt: func(error) {}})
		if q.nameLost != lost {
			t.Fatalf("a name may be lost: %v, expected %v", q.nameLost, lost)
		}
		for _, name := range []string{"new", "stays"} {
			c, err := q.Durable(name)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Discard(); err != nil {
				t.Fatal(err)
			}
		}
		if names := slices.Collect(maps.Keys(q.absent)); !slices.Equal(names, []string{"stays"}) {
			t.Errorf("state lost: %v; deltas are kept for %q", lost, names)
		}
	}
}

func TestANameHasOneConsumerAtATime(t *testing.T) {
	db := testdb.Open(t, testsupport.Path(t), testdb.Manual)
	q := newLog(t, db, Options{})
	if _, err := q.Durable(""); err == nil {
		t.Error("an empty name was accepted")
	}
	c, err := q.Durable("d")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := q.Durable("d"); !errors.Is(err, ErrInUse) {
		t.Errorf("a second consumer: %v", err)
	}
	if err := q.Forget("d"); !errors.Is(err, ErrInUse) {
		t.Errorf("Forget: %v", err)
	}
	c.Stop() // Still in use: it may be acknowledging.
	if _, err := q.Durable("d"); !errors.Is(err, ErrInUse) {
		t.Errorf("a second consumer after Stop: %v", err)
	}
	c.Remove()
	c.Remove() // Is idempotent.
	if _, err = q.Durable("d"); err != nil {
		t.Errorf("after Remove: %v", err)
	}
}

func TestInterruptAndStopEndAWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := testdb.Open(t, testsupport.Path(t), testdb.Manual)
		q := newLog(t, db, Options{})
		c := q.Plain()
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
		if err := c.WaitDurable(100); !errors.Is(err, ErrStopped) {
			t.Errorf("WaitDurable: %v", err)
		}
		c = q.Plain()
		if got := wait(); got != "waits" {
			t.Errorf("without deltas: %s", got)
		}
		c.Remove()
		if got := <-results; got != "0 deltas, "+ErrStopped.Error() {
			t.Errorf("removed: %s", got)
		}
	})
}

// TestALateConsumerBeginsAtTheHead: its initial list covers what came before.
func TestALateConsumerBeginsAtTheHead(t *testing.T) {
	db := testdb.Open(t, testsupport.Path(t), testdb.Manual)
	q := newLog(t, db, Options{})
	early := q.Plain()
	publishUpTo(t, q, 1, 5)
	late := q.Plain()
	lateDurable, err := q.Durable("d")
	if err != nil {
		t.Fatal(err)
	}
	publishUpTo(t, q, 6, 8)
	flush(t, q)
	wantSeqs(t, "early", upTo(1, 8), next(t, early, 10))
	wantSeqs(t, "late", upTo(6, 8), next(t, late, 10))
	wantSeqs(t, "late and durable", upTo(6, 8), next(t, lateDurable, 10))
	if late.StartsOver() || lateDurable.StartsOver() {
		t.Error("a late consumer starts over")
	}
}

// TestAConsumerPassesGaps: numbers that have no delta, and heads without one.
func TestAConsumerPassesGaps(t *testing.T) {
	db := testdb.Open(t, testsupport.Path(t), testdb.Manual)
	q := newLog(t, db, Options{Seq: 100, TailBytes: 1})
	c := q.Plain()
	if c.Cursor() != 100 {
		t.Errorf("begins at %d", c.Cursor())
	}
	for _, seq := range []uint64{105, 106, 200, 1000} {
		publish(t, q, numbered(seq))
	}
	wantSeqs(t, "told", []uint64{105, 106, 200, 1000}, next(t, c, 10))
	batch, err := db.Update(func(*persist.Batch) {})
	if err != nil {
		t.Fatal(err)
	}
	q.Advance(batch, 2000)
	q.Advance(batch, 1500) // Not back.
	wantSeqs(t, "told of a write without a delta", nil, next(t, c, 10))
	if c.Cursor() != 2000 || q.Head() != 2000 {
		t.Errorf("cursor %d, head %d", c.Cursor(), q.Head())
	}
	commitAnew(t, q)
	wantSeqs(t, "left", nil, onDisk(t, db, true))
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
			want := from
			for want <= n {
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
					if c.durable && ds[i].Seq > 0 && q.db.Durable() < ds[i].batch && ds[i].batch != 0 {
						t.Errorf("%s: delta %d of batch %d is not durable", what, ds[i].Seq, ds[i].batch)
					}
					checkNumbered(t, &ds[i])
					want++
					if i%every == 0 {
						c.Acknowledge(ds[i].Seq)
					}
				}
				if len(ds) > 0 {
					c.Acknowledge(ds[len(ds)-1].Seq)
				}
			}
		})
	}
	for i := range 3 {
		consume(fmt.Sprintf("plain %d", i), q.Plain(), 1, 1+i*50)
		c, err := q.Durable(fmt.Sprint(i))
		if err != nil {
			t.Fatal(err)
		}
		consume(fmt.Sprintf("durable %d", i), c, 1, 1+i*50)
	}
	for seq := uint64(1); seq <= n; seq++ {
		publish(t, q, numbered(seq))
		if seq%500 == 0 {
			c := q.Plain()
			consume(fmt.Sprintf("late %d", seq), c, c.Cursor()+1, 7)
		}
		if seq%700 == 0 { // A removed consumer must hold nothing.
			q.Plain().Remove()
		}
	}
	wg.Wait()
	commitAnew(t, q)
	commitAnew(t, q)
	if left := onDisk(t, db, true); len(left) != 0 || q.Unacked() != 0 {
		t.Errorf("%d deltas are left, %d unacknowledged", len(left), q.Unacked())
	}
}

func TestDeltasKeepAllTheirParts(t *testing.T) {
	path := testsupport.Path(t)
	db := testdb.Open(t, path, testdb.Manual)
	q := newLog(t, db, Options{})
	c, err := q.Durable("d")
	if err != nil {
		t.Fatal(err)
	}
	c.InitialListDone()
	old, obj := newPod("pod", "1"), newPod("pod", "2")
	want := []Delta{
		{Seq: 1, Type: cache.Added, Key: "ns/pod", New: obj},
		{Seq: 2, Type: cache.Updated, Key: "ns/pod", Old: old, New: obj},
		{Seq: 3, Type: cache.Deleted, Key: "ns/pod", New: obj},
		{Seq: 4, Type: cache.Deleted, Key: "ns/pod", New: obj, FinalStateUnknown: true},
		{Seq: 5, Type: cache.Deleted, Key: "", FinalStateUnknown: true},
		{Seq: 6, Type: cache.Sync, Key: "\x00\xff", Old: old, New: old},
		{Seq: 7, Type: cache.Updated, Key: "ns/pod", Old: old, New: obj, NewValue: &record.Object{Seq: 7, Object: obj}},
	}
	publish(t, q, want...)
	flush(t, q)
	if err := errors.Join(q.Stop(), db.Close()); err != nil {
		t.Fatal(err)
	}
	db = testdb.Open(t, path, testdb.Manual)
	q = newLog(t, db, Options{})
	if c, err = q.Durable("d"); err != nil {
		t.Fatal(err)
	}
	got, err := c.Next()
	if err != nil {
		t.Fatal(err)
	}
	for i := range got {
		got[i].SizeBytes, got[i].batch = 0, 0
		want[i].NewValue, want[i].stored = nil, false
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(Delta{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if tomb, ok := got[3].Object().(cache.DeletedFinalStateUnknown); !ok || tomb.Key != "ns/pod" || tomb.Obj == nil {
		t.Errorf("a tombstone is %#v", got[3].Object())
	}
}
