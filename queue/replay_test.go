package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/warmwatch/warmwatch/internal/record"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/testdb"
	"github.com/warmwatch/warmwatch/persist"
)

// reopen ends a log as a process does that is stopped, and opens it again.
func reopen(t *testing.T, q *Log) *Log {
	t.Helper()
	if err := errors.Join(q.Stop(), q.db.Close()); err != nil {
		t.Fatal(err)
	}
	return newLog(t, testdb.Open(t, q.db.Path(), testdb.Manual), Options{})
}

// crash opens the file as it is now.
func crash(t *testing.T, q *Log) *Log {
	t.Helper()
	path := testsupport.Path(t)
	testsupport.CopyFile(t, q.db.Path(), path)
	return newLog(t, testdb.Open(t, path, testdb.Manual), Options{})
}

func durable(t *testing.T, q *Log, name string, known bool) *Consumer {
	t.Helper()
	c, err := q.Durable(name)
	if err != nil {
		t.Fatal(err)
	}
	if c.Known != known {
		t.Errorf("%s is known: %v, expected %v", name, c.Known, known)
	}
	return c
}

// TestADurableConsumerGoesOnWhereItStopped: exactly what it has not
// acknowledged, and what came while it was away.
func TestADurableConsumerGoesOnWhereItStopped(t *testing.T) {
	q := newLog(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), Options{})
	c := durable(t, q, "d", false)
	c.InitialListFrom(0)
	c.InitialListDone()
	publishUpTo(t, q, 1, 10)
	flush(t, q)
	wantSeqs(t, "told", upTo(1, 4), next(t, c, 4))

	q = reopen(t, q)
	publishUpTo(t, q, 11, 12) // Before anybody asks.
	flush(t, q)
	c = durable(t, q, "d", true)
	wantSeqs(t, "after a restart", upTo(5, 9), next(t, c, 5))
	c.Remove()
	publishUpTo(t, q, 13, 14)
	flush(t, q)
	c = durable(t, q, "d", true)
	wantSeqs(t, "after it was removed", upTo(10, 14), next(t, c, 100))

	q = reopen(t, q)
	wantSeqs(t, "left", nil, onDisk(t, q.db, false))
	if q.Head() != 14 {
		t.Errorf("the head is %d", q.Head())
	}
	c = durable(t, q, "d", true)
	publishUpTo(t, q, 15, 15)
	flush(t, q)
	wantSeqs(t, "new", upTo(15, 15), next(t, c, 100))
}

// TestAConsumerWhoseInitialListDidNotEndBeginsAnew, because it does not know all objects.
func TestAConsumerWhoseInitialListDidNotEndBeginsAnew(t *testing.T) {
	q := newLog(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), Options{})
	c := durable(t, q, "d", false)
	publishUpTo(t, q, 1, 3)
	flush(t, q)
	c.InitialListFrom(2)
	q = reopen(t, q)
	c = durable(t, q, "d", false)
	if !c.StartsOver() {
		t.Error("it was told of objects, and is not told of their deletions")
	}
	wantSeqs(t, "told", upTo(3, 3), append(undeliveredOf(t, c, 10), next(t, c, 10)...))
}

// TestNothingIsStoredForPlainConsumers (D1), as long as no name is in the log: then everything
// is, until the name is forgotten.
func TestNothingIsStoredForPlainConsumers(t *testing.T) {
	q := newLog(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), Options{})
	plain := q.Plain()
	publishUpTo(t, q, 1, 9)
	flush(t, q)
	wantSeqs(t, "for a plain consumer", nil, onDisk(t, q.db, true))
	c := durable(t, q, "d", false)
	c.InitialListDone()
	publishUpTo(t, q, 10, 12)
	flush(t, q)
	wantSeqs(t, "with a name", upTo(10, 12), onDisk(t, q.db, true))
	c.Remove()
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
	wantSeqs(t, "told", upTo(1, 16), next(t, plain, 100))
	commitAnew(t, q)
	if got := q.Unacked(); got != 0 {
		t.Errorf("%d are unacknowledged in the end", got)
	}
	wantSeqs(t, "left", nil, onDisk(t, q.db, true))
}

// TestNothingIsKeptForPlainConsumersOfFormerProcesses (D1): what was stored because one of them hung is
// removed, whether that process has ended in order or has crashed.
func TestNothingIsKeptForPlainConsumersOfFormerProcesses(t *testing.T) {
	for name, again := range map[string]func(*testing.T, *Log) *Log{"stopped": reopen, "crashed": crash} {
		t.Run(name, func(t *testing.T) {
			q := newLog(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), Options{TailBytes: 1})
			q.Plain()
			publishUpTo(t, q, 1, 9)
			commitAnew(t, q)
			wantSeqs(t, "while it hangs", upTo(1, 9), onDisk(t, q.db, true))
			q = again(t, q)
			c := q.Plain()
			if c.StartsOver() || c.Cursor() != q.Head() {
				t.Errorf("the next one starts over: %v, from %d; the head is %d", c.StartsOver(), c.Cursor(), q.Head())
			}
			commitAnew(t, q)
			wantSeqs(t, "left", nil, onDisk(t, q.db, true))
		})
	}
}

// undeliveredOf takes all undelivered deltas, n at a time.
func undeliveredOf(t *testing.T, c *Consumer, n int) (seqs []uint64) {
	t.Helper()
	for {
		ds, err := c.Undelivered()
		if err != nil {
			t.Fatal(err)
		}
		if len(ds) == 0 {
			if c.StartsOver() {
				t.Error("it was given all undelivered deltas, and still starts over")
			}
			return seqs
		}
		for i := range ds[:min(n, len(ds))] {
			checkNumbered(t, &ds[i])
			seqs = append(seqs, ds[i].Seq)
			c.Acknowledge(ds[i].Seq)
		}
	}
}

// TestAfterACrashTheLogHasWhatWasDurable: cursors and deltas of one moment.
func TestAfterACrashTheLogHasWhatWasDurable(t *testing.T) {
	q := newLog(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), Options{})
	c := durable(t, q, "d", false)
	c.InitialListDone()
	plain := q.Plain()
	publishUpTo(t, q, 1, 10)
	flush(t, q)
	next(t, c, 3)
	next(t, plain, 5)
	commitAnew(t, q)
	next(t, c, 3) // The file does not have these acknowledgements.
	next(t, plain, 5)
	publishUpTo(t, q, 11, 12)

	q = crash(t, q)
	if q.Head() != 10 {
		t.Errorf("the head is %d, expected 10", q.Head())
	}
	c = durable(t, q, "d", true)
	wantSeqs(t, "durable", upTo(4, 10), next(t, c, 100))
	if at := q.Plain().Cursor(); at != 10 {
		t.Errorf("a plain consumer begins at %d", at)
	}
}

// TestWhoMayKnowObjects: a handler that was told of all, also where there were none, and one that a list had begun
// to tell; not one that was never told of anything.
func TestWhoMayKnowObjects(t *testing.T) {
	for name, c := range map[string]struct {
		tell func(*testing.T, *Log, *Consumer)
		want bool
	}{
		"told of nothing": {func(*testing.T, *Log, *Consumer) {}, false},
		"told of none":    {func(_ *testing.T, _ *Log, c *Consumer) { c.InitialListDone() }, true},
		"in its list": {func(t *testing.T, q *Log, c *Consumer) {
			publishUpTo(t, q, 1, 3)
			c.InitialListFrom(2)
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			q := newLog(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), Options{})
			d, err := q.Durable("d")
			if err != nil {
				t.Fatal(err)
			}
			c.tell(t, q, d)
			flush(t, q)
			q = reopen(t, q)
			if d, err = q.Durable("d"); err != nil {
				t.Fatal(err)
			}
			defer d.Remove()
			for _, again := range []bool{false, true} {
				if again {
					q.TellAgain(true)
				}
				if got := q.HasKnown(); got != c.want {
					t.Errorf("told again: %v; may know objects: %v, expected %v", again, got, c.want)
				}
			}
		})
	}
}

// TestForgetRemovesANameForGood, over a restart too.
func TestForgetRemovesANameForGood(t *testing.T) {
	q := newLog(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), Options{})
	c := durable(t, q, "d", false)
	c.InitialListDone()
	publishUpTo(t, q, 1, 3)
	flush(t, q)
	q = reopen(t, q)
	if !q.HasKnown() {
		t.Error("the name is not known after a restart")
	}
	if err := errors.Join(q.Forget("d"), q.Forget("never there")); err != nil {
		t.Fatal(err)
	}
	if q.HasKnown() {
		t.Error("the name is still known")
	}
	q = reopen(t, q)
	wantSeqs(t, "held", nil, onDisk(t, q.db, false))
	c = durable(t, q, "d", false)
	if c.Cursor() != q.Head() {
		t.Errorf("begins at %d, expected %d", c.Cursor(), q.Head())
	}
}

// TestCursorsAreWrittenAnewAfterAReset: the new file may lack them.
func TestCursorsAreWrittenAnewAfterAReset(t *testing.T) {
	q := newLog(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), Options{})
	c := durable(t, q, "d", false)
	c.InitialListDone()
	publishUpTo(t, q, 1, 3)
	flush(t, q)
	next(t, c, 3)
	commitAnew(t, q)
	if _, err := q.db.Update(func(b *persist.Batch) { b.Drop(q.cursors) }); err != nil {
		t.Fatal(err)
	}
	q.afterDamage(errors.New("test"))
	commitAnew(t, q)
	q = crash(t, q)
	if c = durable(t, q, "d", true); c.Cursor() != 3 {
		t.Errorf("the cursor is %d", c.Cursor())
	}
}

// damageDelta writes something over a delta in the file.
func damageDelta(t *testing.T, q *Log, key string, v persist.Value) {
	t.Helper()
	if _, err := q.db.Update(func(b *persist.Batch) { b.Put(q.deltas, key, v) }); err != nil {
		t.Fatal(err)
	}
	flush(t, q)
}

// TestAnUnreadableDeltaMeansEverythingAgain: what is before it is told, then the
// deletions behind the cursor, of which the unreadable one is known by its tombstone;
// the caller tells of all objects, and then the log goes on.
func TestAnUnreadableDeltaMeansEverythingAgain(t *testing.T) {
	for _, name := range []string{"", "d"} {
		for _, bad := range []uint64{3, 4} {
			t.Run(fmt.Sprintf("name=%q, delta %d", name, bad), func(t *testing.T) {
				reported := 0
				q := newLog(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), Options{TailBytes: 1, OnCorrupt: func(error) { reported++ }})
				c := q.Plain()
				if name != "" {
					c.Remove()
					c = durable(t, q, name, false)
				}
				c.InitialListDone()
				publishUpTo(t, q, 1, 5)
				flush(t, q)
				damageDelta(t, q, deltaKey(bad), persist.Bytes("\x07no delta"))
				wantSeqs(t, "told", upTo(1, bad-1), next(t, c, int(bad-1)))
				if _, err := c.Next(); !errors.Is(err, ErrLost) {
					t.Fatalf("Next: %v, expected %v", err, ErrLost)
				}
				if !c.StartsOver() || reported == 0 {
					t.Errorf("starts over: %v, reported %d times", c.StartsOver(), reported)
				}
				var deleted []string
				for {
					ds, err := c.Undelivered()
					if err != nil {
						t.Fatal(err)
					}
					if len(ds) == 0 {
						break
					}
					for i := range ds {
						if ds[i].Type == cache.Deleted {
							lost := ds[i].Object().(cache.DeletedFinalStateUnknown)
							pod := lost.Obj.(*corev1.Pod)
							deleted = append(deleted, fmt.Sprint(lost.Key, pod.Namespace, pod.Name, pod.ResourceVersion))
						}
						c.Acknowledge(ds[i].Seq)
					}
				}
				var want []string
				if bad == 3 {
					want = []string{"ns/pod-3nspod-33"}
				}
				if !slices.Equal(deleted, want) {
					t.Errorf("deletions %q, expected %q", deleted, want)
				}
				commitAnew(t, q)
				if name != "" && !q.storedCursors[durablePrefix+name].InitialPending {
					t.Error("the file does not know that it has to be told everything again")
				}
				c.InitialListDone()
				publishUpTo(t, q, 6, 7)
				flush(t, q)
				wantSeqs(t, "told afterwards", upTo(6, 7), next(t, c, 100))
				commitAnew(t, q)
				wantSeqs(t, "left", nil, onDisk(t, q.db, true))
			})
		}
	}
}

// unreadable is a value that cannot be encoded. The file gets a placeholder without a
// checksum, which is read like a damaged value.
type unreadable struct{}

func (unreadable) SizeBytes() int                    { return 0 }
func (unreadable) AppendTo(b []byte) ([]byte, error) { return b, errors.New("test") }

// TestADamagedNumberDoesNotMoveTheHead: a number far ahead would make deltas
// invisible, and the next one the last.
func TestADamagedNumberDoesNotMoveTheHead(t *testing.T) {
	q := newLog(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), Options{})
	c := durable(t, q, "d", false)
	c.InitialListDone()
	publishUpTo(t, q, 1, 3)
	flush(t, q)
	if err := errors.Join(q.Stop(), q.db.Close()); err != nil {
		t.Fatal(err)
	}
	// Another process puts there what looks like deltas, with no right checksum.
	var quiet klog.Logger
	db, err := persist.Open(context.Background(), q.db.Path(), persist.Options{CommitInterval: time.Hour, Logger: &quiet})
	if err != nil {
		t.Fatal(err)
	}
	for _, far := range []uint64{1 << 40, 1<<64 - 1} {
		if _, err := db.Update(func(b *persist.Batch) { b.Put(q.deltas, deltaKey(far), unreadable{}) }); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	reported := 0
	q2 := newLog(t, testdb.Open(t, q.db.Path(), testdb.Manual), Options{OnCorrupt: func(error) { reported++ }})
	if q2.Head() != 3 {
		t.Fatalf("the head is %d", q2.Head())
	}
	if reported != 2 {
		t.Errorf("reported %d times", reported)
	}
	c = durable(t, q2, "d", true)
	publishUpTo(t, q2, 4, 5)
	flush(t, q2)
	wantSeqs(t, "told", upTo(1, 5), next(t, c, 100))
	commitAnew(t, q2)
	wantSeqs(t, "left", nil, onDisk(t, q2.db, true))
}

// TestADeltaOfValues is the one of their objects.
func TestADeltaOfValues(t *testing.T) {
	old, now := newPod("pod", "1"), newPod("pod", "2")
	plain := Delta{Seq: 2, Type: cache.Updated, Key: "ns/pod", Old: old, New: now}
	want, err := deltaValue{&plain}.AppendTo(nil)
	if err != nil {
		t.Fatal(err)
	}
	ofValues := plain
	ofValues.NewValue = record.NewObject(now, false)
	ofValues.NewValue.Seq = 2
	stored, err := record.Append(nil, 2, old)
	if err != nil {
		t.Fatal(err)
	}
	r, err := record.Parse(stored)
	if err != nil {
		t.Fatal(err)
	}
	// Another object shows whether it is encoded.
	ofValues.OldValue = record.StoredObject(newPod("another", "1"), r, true)
	got, err := deltaValue{&ofValues}.AppendTo([]byte("before"))
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != "before"+string(want) {
		t.Errorf("%q, expected %q", got, want)
	}
}

// FuzzParseDelta: any input is refused or has the parts of a delta, and what
// was written is read back.
func FuzzParseDelta(f *testing.F) {
	for _, d := range []Delta{
		numbered(1),
		{Seq: 2, Type: cache.Updated, Key: "ns/pod", Old: newPod("pod", "1"), New: newPod("pod", "2")},
		{Seq: 3, Type: cache.Deleted, Key: "", FinalStateUnknown: true},
	} {
		b, err := deltaValue{&d}.AppendTo(nil)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(b[:len(b)/2])
	}
	f.Add([]byte{})
	f.Add([]byte{7, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := parseDelta(9, b, newPodObject)
		if err != nil {
			return
		}
		again, err := deltaValue{&d}.AppendTo(nil)
		if err != nil {
			t.Fatal(err)
		}
		e, err := parseDelta(9, again, newPodObject)
		if err != nil {
			t.Fatalf("%x was read as %+v, and written as %x: %v", b, d, again, err)
		}
		if e.Type != d.Type || e.Key != d.Key || e.FinalStateUnknown != d.FinalStateUnknown || (e.Old == nil) != (d.Old == nil) || (e.New == nil) != (d.New == nil) {
			t.Errorf("%+v, expected %+v", e, d)
		}
	})
}

// TestWhatARemovedConsumerStillAcknowledgesCounts: its handler was running when it
// was removed, and who waits for that before the name is used again is not told twice.
func TestWhatARemovedConsumerStillAcknowledgesCounts(t *testing.T) {
	q := newLog(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), Options{})
	c, err := q.Durable("name")
	if err != nil {
		t.Fatal(err)
	}
	c.InitialListDone()
	publishUpTo(t, q, 1, 4)
	flush(t, q)
	wantSeqs(t, "all", upTo(1, 4), next(t, c, 4))
	c.Acknowledge(1)
	c.Remove()
	c.Acknowledge(2)
	if c, err = q.Durable("name"); err != nil {
		t.Fatal(err)
	}
	if at := c.Cursor(); at != 2 {
		t.Errorf("the next consumer begins behind %d, expected 2", at)
	}
	stale := c
	stale.Remove()
	if c, err = q.Durable("name"); err != nil {
		t.Fatal(err)
	}
	stale.Acknowledge(3) // The next one has not begun.
	if _, err := c.Next(); err != nil {
		t.Fatal(err)
	}
	stale.Acknowledge(4) // Too late: it is another's.
	if at := c.Cursor(); at != 3 {
		t.Errorf("the next consumer is behind %d, expected 3", at)
	}
	c.Remove()
	if err := q.Forget("name"); err != nil {
		t.Fatal(err)
	}
	c.Acknowledge(3)
	if n := len(q.absent); n != 0 {
		t.Errorf("%d names are known after it was forgotten", n)
	}
	stale = c
	if c, err = q.Durable("name"); err != nil {
		t.Fatal(err)
	}
	stale.Acknowledge(4)
	if at := c.Cursor(); c.Known || at != q.Head() {
		t.Errorf("what was forgotten counts: known %v, behind %d", c.Known, at)
	}
}

// TestAnInitialListThatEndsAfterItsConsumerWasRemovedCounts, for one that was added meanwhile too.
func TestAnInitialListThatEndsAfterItsConsumerWasRemovedCounts(t *testing.T) {
	for name, removals := range map[string]int{"for the next": 0, "for the one after the next": 1} {
		t.Run(name, func(t *testing.T) {
			q := newLog(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), Options{})
			publishUpTo(t, q, 1, 4)
			c, err := q.Durable("name")
			if err != nil {
				t.Fatal(err)
			}
			listing := c
			publishUpTo(t, q, 5, 6)
			flush(t, q)
			listing.InitialListFrom(5)
			for range 1 + removals {
				c.Remove()
				if c, err = q.Durable("name"); err != nil {
					t.Fatal(err)
				}
				if c.Known {
					t.Error("known before the initial list has ended")
				}
			}
			listing.InitialListDone()
			if !c.Known || c.Cursor() != 5 {
				t.Errorf("known: %v, behind %d", c.Known, c.Cursor())
			}
			wantSeqs(t, "told", []uint64{6}, next(t, c, 10))
			q = reopen(t, q)
			if c = durable(t, q, "name", true); c.Cursor() != 6 {
				t.Errorf("after a restart it is behind %d", c.Cursor())
			}
		})
	}
}

// TestTheTombstoneOfAnObjectThatCouldNotBeRead has no object, rather than one without a name.
func TestTheTombstoneOfAnObjectThatCouldNotBeRead(t *testing.T) {
	q := newLog(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), Options{TailBytes: 1, OnCorrupt: func(error) {}})
	c := durable(t, q, "d", false)
	c.InitialListDone()
	publish(t, q, Delta{Seq: 1, Type: cache.Deleted, Key: "ns/pod", FinalStateUnknown: true}, numbered(2), numbered(3))
	flush(t, q)
	damageDelta(t, q, deltaKey(1), persist.Bytes("\x07no delta"))
	if _, err := c.Next(); !errors.Is(err, ErrLost) {
		t.Fatalf("Next: %v, expected %v", err, ErrLost)
	}
	ds, err := c.Undelivered()
	if err != nil || len(ds) == 0 {
		t.Fatal(ds, err)
	}
	if got, want := ds[0].Object(), (cache.DeletedFinalStateUnknown{Key: "ns/pod"}); got != want {
		t.Errorf("told %#v, expected %#v", got, want)
	}
}

// TestADeltaThatIsLostWithinAListMakesAnotherOne: that the list has ended must not count for the next one, which is
// pending, also in the file, until it has.
func TestADeltaThatIsLostWithinAListMakesAnotherOne(t *testing.T) {
	q := newLog(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), Options{TailBytes: 1, OnCorrupt: func(error) {}})
	c := durable(t, q, "d", false)
	publishUpTo(t, q, 1, 2*deltasPerRead)
	flush(t, q)
	if err := c.NoteRange("", ListedRange{Last: true, Seq: 5}, q.Epoch()); err != nil {
		t.Fatal(err)
	}
	c.InitialListFrom(2)
	c.InitialListDone()
	damageDelta(t, q, deltaKey(4), persist.Bytes("\x07no delta"))
	wantSeqs(t, "told", upTo(3, 3), next(t, c, 1))
	if _, err := c.Next(); !errors.Is(err, ErrLost) {
		t.Fatalf("%v, expected %v", err, ErrLost)
	}
	for {
		ds, err := c.Undelivered()
		if err != nil {
			t.Fatal(err)
		}
		if len(ds) == 0 {
			break
		}
		c.Acknowledge(ds[len(ds)-1].Seq)
	}
	commitAnew(t, q)
	if !c.InitialPending() {
		t.Error("the consumer need not be told everything again")
	}
	durable(t, reopen(t, q), "d", false)
}
