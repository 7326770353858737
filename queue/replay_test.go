package queue

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/testdb"
	"github.com/warmwatch/warmwatch/persist"
)

// reopen ends a log as a process does that is stopped, and opens it again.
func reopen(t *testing.T, q *Log) *Log {
	t.Helper()
	q.Stop()
	if err := q.db.Close(); err != nil {
		t.Fatal(err)
	}
	return newLog(t, testdb.Open(t, q.db.Path(), testdb.Manual), Options{OnCorrupt: q.onCorrupt})
}

// crash opens the file as it is now.
func crash(t *testing.T, q *Log) *Log {
	t.Helper()
	path := testsupport.Path(t)
	testsupport.CopyFile(t, q.db.Path(), path)
	return newLog(t, testdb.Open(t, path, testdb.Manual), Options{OnCorrupt: q.onCorrupt})
}

// TestADurableConsumerGoesOnWhereItStopped: exactly what it has not
// acknowledged, and what came while it was away.
func TestADurableConsumerGoesOnWhereItStopped(t *testing.T) {
	q := newLog(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), Options{})
	c := durable(t, q, "d", true)
	publishUpTo(t, q, 1, 10)
	flush(t, q)
	wantSeqs(t, "delivered", upTo(1, 4), next(t, c, 4))

	q = reopen(t, q)
	publishUpTo(t, q, 11, 12) // Before anybody asks.
	flush(t, q)
	c = durable(t, q, "d", false)
	wantSeqs(t, "after a restart", upTo(5, 9), next(t, c, 5))
	remove(t, c)
	publishUpTo(t, q, 13, 14)
	flush(t, q)
	c = durable(t, q, "d", false)
	wantSeqs(t, "after it was removed", upTo(10, 14), next(t, c, 100))

	q = reopen(t, q)
	wantSeqs(t, "left", nil, onDisk(t, q.db, false))
	c = durable(t, q, "d", false)
	publishUpTo(t, q, 15, 15)
	flush(t, q)
	wantSeqs(t, "new", upTo(15, 15), next(t, c, 100))
}

// TestAConsumerWhoseInitialListDidNotEndBeginsAnew, because it does not know all objects. It is notified of deletions.
func TestAConsumerWhoseInitialListDidNotEndBeginsAnew(t *testing.T) {
	q := newLog(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), Options{})
	c, err := q.Durable(Handlers, "d", "")
	if err != nil {
		t.Fatal(err)
	}
	publishUpTo(t, q, 1, 3)
	flush(t, q)
	if _, err := c.BeginList(); err != nil {
		t.Fatal(err)
	}
	publishUpTo(t, q, 4, 6)
	q = reopen(t, q)
	if c, err = q.Durable(Handlers, "d", ""); err != nil || !c.StartsOver() {
		t.Fatalf("it goes on, %v", err)
	}
	wantSeqs(t, "deletions", []uint64{3, 6}, deletionsOf(t, c))
	flush(t, q)
	wantSeqs(t, "kept", []uint64{3, 6}, onDisk(t, q.db, true))
}

func deletionsOf(t *testing.T, c *Consumer) (seqs []uint64) {
	t.Helper()
	for after := uint64(0); ; {
		ds, err := c.Deletions(after, 1<<62)
		if err != nil {
			t.Fatal(err)
		}
		if len(ds) == 0 {
			return seqs
		}
		for i := range ds {
			seqs, after = append(seqs, ds[i].Seq), ds[i].Number
			if ds[i].Type != cache.Deleted {
				t.Errorf("%v is no deletion", ds[i])
			}
		}
	}
}

// TestNothingIsKeptForPlainConsumersOfFormerProcesses (D1): what was stored because one of them hung is
// removed, whether that process has ended in order or has crashed.
func TestNothingIsKeptForPlainConsumersOfFormerProcesses(t *testing.T) {
	for name, again := range map[string]func(*testing.T, *Log) *Log{"stopped": reopen, "crashed": crash} {
		t.Run(name, func(t *testing.T) {
			q := newLog(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), Options{TailBytes: 1})
			listed(t, q.Plain())
			publishUpTo(t, q, 1, 9)
			flush(t, q)
			if n := len(onDisk(t, q.db, true)); n < 8 {
				t.Fatalf("%d deltas are in the file while it hangs", n)
			}
			q = again(t, q)
			flush(t, q)
			wantSeqs(t, "left", nil, onDisk(t, q.db, true))
			c := listed(t, q.Plain())
			publishUpTo(t, q, 10, 12)
			wantSeqs(t, "the next one gets", upTo(10, 12), next(t, c, 10))
		})
	}
}

// TestAfterACrashTheLogHasWhatWasDurable: cursors and deltas of one moment.
func TestAfterACrashTheLogHasWhatWasDurable(t *testing.T) {
	q := newLog(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), Options{})
	c := durable(t, q, "d", true)
	publishUpTo(t, q, 1, 10)
	flush(t, q)
	next(t, c, 3)
	flush(t, q)
	next(t, c, 3) // The file does not have these acknowledgements.
	publishUpTo(t, q, 11, 12)

	q = crash(t, q)
	if q.Head() != 10 {
		t.Errorf("the head is %d, expected 10", q.Head())
	}
	wantSeqs(t, "durable", upTo(4, 10), next(t, durable(t, q, "d", false), 100))
}

// TestForgetRemovesANameForGood, over a restart too.
func TestForgetRemovesANameForGood(t *testing.T) {
	q := newLog(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), Options{})
	durable(t, q, "d", true)
	publishUpTo(t, q, 1, 3)
	flush(t, q)
	q = reopen(t, q)
	if !q.HasKnown() {
		t.Error("the name is not known after a restart")
	}
	if err := errors.Join(q.Forget("d"), q.Forget("never there")); err != nil {
		t.Fatal(err)
	}
	if q.HasKnown() || q.Stores() {
		t.Error("the name is still known")
	}
	q = reopen(t, q)
	wantSeqs(t, "held", nil, onDisk(t, q.db, false))
	durable(t, q, "d", true)
}

// TestAnotherEpochStartsOver, and the same one does not. So it is after a crash.
func TestAnotherEpochStartsOver(t *testing.T) {
	q := newLog(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), Options{})
	for i, epoch := range []string{"a", "a", "b", "b", "", ""} {
		c, err := q.Durable(Reconcilers, "d", epoch)
		if err != nil {
			t.Fatal(err)
		}
		if want := i%2 == 0; c.StartsOver() != want {
			t.Errorf("%d: starts over: %v, expected %v", i, c.StartsOver(), want)
		}
		if c.StartsOver() {
			flush(t, q)
			crashed := crash(t, q)
			if again, err := crashed.Durable(Reconcilers, "d", epoch); err != nil || !again.StartsOver() {
				t.Errorf("%d: after a crash in its list it goes on, %v", i, err)
			}
			listed(t, c)
		}
		q = reopen(t, q)
	}
}

// TestWhileNothingCanBeWrittenLittleWaitsInMemory (S6): who has more to do starts over. What is in the file does not
// count.
func TestWhileNothingCanBeWrittenLittleWaitsInMemory(t *testing.T) {
	size := numbered(10).SizeBytes
	q := newLog(t, testdb.Open(t, testsupport.Path(t), persist.Options{CommitInterval: time.Hour, MaxPendingBytes: int64(20 * size)}), Options{TailBytes: 1})
	c := durable(t, q, "d", true)
	publishUpTo(t, q, 1, 30)
	flush(t, q)
	heal := testsupport.FailCommits(t)
	if err := q.db.Flush(); err != nil { // There is nothing to write.
		t.Fatal(err)
	}
	publishUpTo(t, q, 31, 31)
	if err := q.db.Flush(); err == nil {
		t.Fatal("the commit did not fail")
	}
	publishUpTo(t, q, 32, 50)
	if c.StartsOver() {
		t.Fatal("it starts over too early")
	}
	publishUpTo(t, q, 51, 52)
	if !c.StartsOver() {
		t.Fatal("it does not start over")
	}
	for _, number := range onDisk(t, q.db, false) {
		if number%3 != 0 && number < 52 {
			t.Errorf("%d is still there", number)
		}
	}
	publishUpTo(t, q, 53, 1000)
	deletions := deletionsOf(t, c)
	if n := len(onDisk(t, q.db, false)); n > len(deletions)+1 || len(deletions) != 333 {
		t.Errorf("%d deltas are there, %d deletions", n, len(deletions))
	}
	heal()
	flush(t, q)
	publishUpTo(t, q, 1001, 1030)
	wantSeqs(t, "the last deletions", []uint64{1020, 1023, 1026, 1029}, deletionsOf(t, c)[len(deletionsOf(t, c))-4:])
	_, err := c.BeginList()
	if err := errors.Join(err, c.EndList()); err != nil {
		t.Fatal(err)
	}
	publishUpTo(t, q, 1031, 1090)
	if c.StartsOver() {
		t.Error("it starts over although all can be written")
	}
}

// TestWhoHasTooMuchToDoStartsOver (D6): first updates are dropped, then the oldest deletions. Others go on.
func TestWhoHasTooMuchToDoStartsOver(t *testing.T) {
	for _, name := range []string{"", "d"} {
		t.Run(name, func(t *testing.T) {
			size := numbered(10).SizeBytes
			q := newLog(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), Options{TailBytes: 10 * size, MaxBacklogBytes: int64(30 * size)})
			var c *Consumer
			if name == "" {
				c = listed(t, q.Plain())
			} else {
				c = durable(t, q, name, true)
			}
			quick := listed(t, q.Plain())
			publishUpTo(t, q, 1, 30)
			if c.StartsOver() {
				t.Fatal("it starts over too early")
			}
			wantSeqs(t, "the quick one", upTo(1, 30), next(t, quick, 100))
			publishUpTo(t, q, 31, 32)
			if !c.StartsOver() {
				t.Fatal("it does not start over")
			}
			wantSeqs(t, "deletions", []uint64{3, 6, 9, 12, 15, 18, 21, 24, 27, 30}, deletionsOf(t, c))
			wantSeqs(t, "the quick one", upTo(31, 32), next(t, quick, 100))
			flush(t, q)
			wantSeqs(t, "left", []uint64{3, 6, 9, 12, 15, 18, 21, 24, 27, 30}, onDisk(t, q.db, true))
			for seq := uint64(33); seq <= 33+3*25; seq += 3 {
				publish(t, q, numbered(seq))
				next(t, quick, 100)
			}
			if n := len(deletionsOf(t, c)); n < 15 || n > 25 {
				t.Errorf("%d deletions are left", n)
			}
			if b := c.Behind(); b.Bytes > int64(30*size) || b.Deltas > 30 {
				t.Errorf("%+v are behind", b)
			}
			listed(t, c)
			publishUpTo(t, q, 200, 202)
			flush(t, q)
			wantSeqs(t, "afterwards", upTo(200, 202), next(t, c, 100))
			next(t, quick, 100)
			flush(t, q)
			wantSeqs(t, "left in the end", nil, onDisk(t, q.db, true))
		})
	}
}

// TestTooMuchDuringAListMakesAnotherOne: the first one ends.
func TestTooMuchDuringAListMakesAnotherOne(t *testing.T) {
	size := numbered(1).SizeBytes
	q := newLog(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), Options{MaxBacklogBytes: int64(10 * size)})
	c, err := q.Durable(Handlers, "d", "")
	if err != nil {
		t.Fatal(err)
	}
	flush(t, q)
	if _, err := c.BeginList(); err != nil {
		t.Fatal(err)
	}
	publishUpTo(t, q, 1, 12)
	if err := c.EndList(); err != nil {
		t.Fatal(err)
	}
	if !c.StartsOver() {
		t.Fatal("it goes on, although changes were dropped")
	}
	wantSeqs(t, "deletions", []uint64{3, 6, 9, 12}, deletionsOf(t, c))
	listed(t, c)
	if _, err := c.ready(); err != nil {
		t.Error(err)
	}
}

// TestAListCoversWhatItHasSeen: each range as of its own write.
func TestAListCoversWhatItHasSeen(t *testing.T) {
	q := newLog(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), Options{})
	c := q.Plain()
	if _, err := c.BeginList(); err != nil {
		t.Fatal(err)
	}
	c.Listed("g", false, 10)
	c.Listed("", true, 20)
	for _, tc := range []struct {
		key  string
		seq  uint64
		want bool
	}{{"a", 10, true}, {"a", 11, false}, {"g", 11, true}, {"z", 20, true}, {"z", 21, false}, {"a", 5, false}} { // 21 ends the list.
		if got := c.Covers(&Delta{Key: tc.key, Seq: tc.seq}); got != tc.want {
			t.Errorf("%s as of %d is covered: %v", tc.key, tc.seq, got)
		}
	}
}

// TestPanicsAreCountedPerObject, over restarts, until the handler returns.
func TestPanicsAreCountedPerObject(t *testing.T) {
	q := newLog(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), Options{})
	for i := 1; i <= 3; i++ {
		c := durable(t, q, "d", i == 1)
		for _, key := range []string{"ns/a", "ns/b"} {
			if got := c.Panics(key); got != i-1 {
				t.Errorf("%d panics on %s, expected %d", got, key, i-1)
			}
			if n, err := c.NotePanic(key); n != i || err != nil {
				t.Errorf("%d panics, %v", n, err)
			}
		}
		q = crash(t, q)
	}
	c := durable(t, q, "d", false)
	if err := errors.Join(c.Returned("ns/a"), c.Returned("ns/c")); err != nil {
		t.Fatal(err)
	}
	q = reopen(t, q)
	c = durable(t, q, "d", false)
	if a, b := c.Panics("ns/a"), c.Panics("ns/b"); a != 0 || b != 3 {
		t.Errorf("%d and %d panics after one has returned", a, b)
	}
}

// damage writes something over a value in the DB.
func damage(t *testing.T, q *Log, bucket persist.Bucket, key string) {
	t.Helper()
	if _, err := q.db.Update(func(b *persist.Batch) { b.Put(bucket, key, []byte("\x07damage")) }); err != nil {
		t.Fatal(err)
	}
	flush(t, q)
}

// TestDamageMeansStartingOver (S2): of a delta that is behind, of one that is missing, of a position, of the state.
func TestDamageMeansStartingOver(t *testing.T) {
	for name, harm := range map[string]func(*testing.T, *Log){
		"a delta is damaged": func(t *testing.T, q *Log) { damage(t, q, q.deltas, deltaKey(4, false)) },
		"a delta is missing": func(t *testing.T, q *Log) {
			if _, err := q.db.Update(func(b *persist.Batch) { b.Delete(q.deltas, deltaKey(4, false)) }); err != nil {
				t.Fatal(err)
			}
		},
		"the last delta is missing": func(t *testing.T, q *Log) {
			if _, err := q.db.Update(func(b *persist.Batch) { b.Delete(q.deltas, deltaKey(5, false)) }); err != nil {
				t.Fatal(err)
			}
		},
		"the position is damaged": func(t *testing.T, q *Log) { damage(t, q, q.handlers, Handlers.Key("d")) },
		"the position is missing": func(t *testing.T, q *Log) {
			if _, err := q.db.Update(func(b *persist.Batch) { b.Delete(q.handlers, Handlers.Key("d")) }); err != nil {
				t.Fatal(err)
			}
		},
		"the state is damaged": func(t *testing.T, q *Log) { damage(t, q, q.state, LastKey) },
		"the state is missing": func(t *testing.T, q *Log) {
			if _, err := q.db.Update(func(b *persist.Batch) { b.Delete(q.state, LastKey) }); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			reported := 0
			q := newLog(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), Options{OnCorrupt: func(error) { reported++ }})
			durable(t, q, "d", true)
			other := durable(t, q, "other", true)
			publishUpTo(t, q, 1, 5)
			flush(t, q)
			wantSeqs(t, "the other", upTo(1, 5), next(t, other, 10))
			flush(t, q)
			harm(t, q)
			q = reopen(t, q)
			c, err := q.Durable(Handlers, "d", "")
			if err != nil {
				t.Fatal(err)
			}
			var seqs []uint64
			for !c.StartsOver() && len(seqs) < 5 { // What is before the damage is delivered.
				ds, err := c.ready()
				for i := range ds {
					seqs = append(seqs, ds[i].Seq)
				}
				acknowledge(t, c, ds)
				if err != nil && !errors.Is(err, ErrStartOver) {
					t.Fatal(err)
				}
			}
			if !c.StartsOver() {
				t.Fatalf("it got %v, and does not start over", seqs)
			}
			if reported == 0 && name != "the position is missing" {
				t.Error("the damage is not reported")
			}
			q = reopen(t, q)
			if c, err = q.Durable(Handlers, "d", ""); err != nil || !c.StartsOver() {
				t.Fatalf("after a restart it goes on, %v", err)
			}
			if got := deletionsOf(t, c); !slices.Equal(got, []uint64{3}) && !slices.Contains(seqs, 3) && name != "the state is missing" && name != "the position is missing" {
				t.Errorf("deletions %v", got)
			}
			listed(t, c)
			publishUpTo(t, q, 6, 7)
			flush(t, q)
			wantSeqs(t, "delivered afterwards", upTo(6, 7), next(t, c, 100))
		})
	}
}

// TestADamagedNumberDoesNotMoveTheHead: a number far ahead would make deltas
// invisible, and the next one the last.
func TestADamagedNumberDoesNotMoveTheHead(t *testing.T) {
	q := newLog(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), Options{})
	durable(t, q, "d", true)
	publishUpTo(t, q, 1, 3)
	flush(t, q)
	q.Stop()
	if err := q.db.Close(); err != nil {
		t.Fatal(err)
	}
	var quiet klog.Logger
	db, err := persist.Open(context.Background(), q.db.Path(), persist.Options{CommitInterval: time.Hour, Logger: &quiet})
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{deltaKey(1<<40, false), deltaKey(1<<64-1, true), "no key of a delta"} {
		if _, err := db.Update(func(b *persist.Batch) { b.Put(q.deltas, key, []byte("far")) }); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	q = newLog(t, testdb.Open(t, q.db.Path(), testdb.Manual), Options{})
	if q.Head() != 3 {
		t.Fatalf("the head is %d", q.Head())
	}
	c := durable(t, q, "d", false)
	publishUpTo(t, q, 4, 5)
	flush(t, q)
	wantSeqs(t, "delivered", upTo(1, 5), next(t, c, 100))
	flush(t, q)
	wantSeqs(t, "left", nil, onDisk(t, q.db, true))
}

// TestADeltaOfRecords is the one of their objects. What cannot be encoded is left out.
func TestADeltaOfRecords(t *testing.T) {
	old, now := newPod("pod", "1"), newPod("pod", "2")
	d := Delta{Seq: 2, Type: cache.Updated, Key: "ns/pod", Old: old, New: now}
	want := d.encode()
	// Other objects show whether they are encoded.
	d.Old, d.OldRecord = newPod("another", "1"), recordOf(old, nil)
	d.New, d.NewRecord = newPod("another", "2"), recordOf(now, nil)
	if got := d.encode(); string(got) != string(want) {
		t.Errorf("%q, expected %q", got, want)
	}
	d = Delta{Seq: 2, Type: cache.Deleted, Key: "ns/pod", New: func() {}}
	got, err := parseDelta(d.encode(), newPodObject)
	if d.New = nil; err != nil || !reflect.DeepEqual(got, d) {
		t.Errorf("%+v, expected %+v (%v)", got, d, err)
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
		b := d.encode()
		f.Add(b)
		f.Add(b[:len(b)/2])
	}
	f.Add([]byte{})
	f.Add([]byte{7, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := parseDelta(b, newPodObject)
		if err != nil {
			return
		}
		again := d.encode()
		e, err := parseDelta(again, newPodObject)
		if err != nil {
			t.Fatalf("%x was read as %+v, and written as %x: %v", b, d, again, err)
		}
		if fmt.Sprint(e.Seq, e.Type, e.Key, e.FinalStateUnknown, e.Replaced, e.Old == nil, e.New == nil) != fmt.Sprint(d.Seq, d.Type, d.Key, d.FinalStateUnknown, d.Replaced, d.Old == nil, d.New == nil) {
			t.Errorf("%+v, expected %+v", e, d)
		}
	})
}
