package queue

import (
	"flag"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"

	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/testdb"
	"github.com/warmwatch/warmwatch/persist"
)

var churnNames = flag.Int("churn.names", 20_000, "names of TestADeletionThatWaitsTakesAFewBytesOfMemory")

// ofSize returns a delta that counts as so many bytes.
func ofSize(seq uint64, typ cache.DeltaType, name string, bytes int) Delta {
	pod := newPod(name, fmt.Sprint(seq))
	d := Delta{Seq: seq, Type: typ, Key: "ns/" + name, New: pod, SizeBytes: bytes}
	if typ == cache.Updated {
		d.Old = newPod(name, fmt.Sprint(seq-1))
	}
	return d
}

func foldingOf(q *Log) folding {
	q.folder.Wait()
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.folding
}

// TestAPassThatGainsLittleDoesNotDelayThoseOfLaterBacklogs: the next pass waits until the
// backlog has doubled, but since it was least.
func TestAPassThatGainsLittleDoesNotDelayThoseOfLaterBacklogs(t *testing.T) {
	const bytes, maxBacklog = 1000, 10_000
	q := newLog(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), Options{TailBytes: 1, MaxBacklogBytes: maxBacklog})
	c := durable(t, q, "d", false)
	c.InitialListDone()
	var seq uint64
	for range 40 {
		seq++
		publish(t, q, ofSize(seq, cache.Deleted, fmt.Sprint("deleted-", seq), bytes))
	}
	flush(t, q)
	if f := foldingOf(q); f.backlog < 40*bytes {
		t.Fatalf("of deletions there wait %d bytes, a pass has removed some", f.backlog)
	}
	for c.Cursor() < seq {
		ds, err := c.Next()
		if err != nil {
			t.Fatal(err)
		}
		for i := range ds {
			c.Acknowledge(ds[i].Seq)
		}
	}
	commitAnew(t, q)
	if f := foldingOf(q); f.backlog != 0 {
		t.Fatalf("all was acknowledged, there wait %d bytes", f.backlog)
	}
	for range 30 {
		seq++
		publish(t, q, ofSize(seq, cache.Updated, "updated", bytes))
		q.folder.Wait()
	}
	if f := foldingOf(q); f.backlog > maxBacklog+bytes {
		t.Errorf("of updates there wait %d bytes, expected at most %d", f.backlog, maxBacklog+bytes)
	}
}

// TestAPassWhileCommitsHangDoesNotDelayThoseOfLaterHangs is the same of what waits in
// memory.
func TestAPassWhileCommitsHangDoesNotDelayThoseOfLaterHangs(t *testing.T) {
	const bytes = 1 << 20
	db := testdb.Open(t, testsupport.Path(t), persist.Options{CommitInterval: 1, DurableDelay: 1, MaxPendingBytes: 1 << 40})
	q := newLog(t, db, Options{TailBytes: 1})
	c := durable(t, q, "d", false)
	c.InitialListDone()
	flush(t, q)
	var seq uint64
	hang := func(n int, delta func(seq uint64) Delta) {
		hanging := hangingValue{make(chan struct{})}
		if _, err := db.Update(func(b *persist.Batch) {
			b.Put(persist.Bucket{Space: "other", Name: "other"}, "key", hanging)
		}); err != nil {
			t.Fatal(err)
		}
		for range n {
			seq++
			publish(t, q, delta(seq))
			q.folder.Wait()
		}
		f := foldingOf(q)
		close(hanging.until)
		flush(t, q)
		t.Logf("%d MB waited in memory", f.pending>>20)
		if n > 50 && f.pending > foldPendingMaxBytes+foldPendingBytes {
			t.Errorf("%d MB wait in memory", f.pending>>20)
		}
	}
	hang(50, func(seq uint64) Delta { return ofSize(seq, cache.Deleted, fmt.Sprint("deleted-", seq), bytes) })
	hang(70, func(seq uint64) Delta { return ofSize(seq, cache.Updated, "updated", bytes) })
}

// TestAGroupIsFoldedThoughAReplacementBeginsWhereItIsFull: its bound is passed by one.
func TestAGroupIsFoldedThoughAReplacementBeginsWhereItIsFull(t *testing.T) {
	q := newLog(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), Options{TailBytes: 1, MaxBacklogBytes: -1})
	durable(t, q, "d", false).InitialListDone()
	const n = 4 * foldMembers
	for seq := uint64(1); seq <= n; seq++ {
		d := ofSize(seq, cache.Updated, "pod", 100)
		if seq == foldMembers {
			d = ofSize(seq, cache.Deleted, "pod", 100)
		}
		d.Replaced = seq == foldMembers || seq == foldMembers+1
		publish(t, q, d)
	}
	p := &foldPass{q: q, groups: foldGroups{}}
	for at := uint64(0); at < n; {
		var err error
		if at, err = p.note(at, n); err != nil {
			t.Fatal(err)
		}
		for _, g := range p.groups {
			if len(g.members) > foldMembers {
				t.Fatalf("after %d deltas of a key %d of them wait to be folded", at, len(g.members))
			}
		}
	}
}

// TestAFoldThatFoldsNothingMakesNoRangeOld: what was read for an initial list need not be read again.
func TestAFoldThatFoldsNothingMakesNoRangeOld(t *testing.T) {
	q := newLog(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), Options{TailBytes: 1, MaxBacklogBytes: -1})
	c := durable(t, q, "d", false)
	c.InitialListDone()
	for seq := uint64(1); seq <= 4; seq++ {
		publish(t, q, ofSize(seq, cache.Updated, "pod", 100))
	}
	c.Acknowledge(1)
	flush(t, q)
	for _, pass := range []struct {
		first uint64
		want  error
	}{{1, nil}, {2, ErrOldRange}} { // The first one has been acknowledged since the pass has read it.
		epoch := q.Epoch()
		p := &foldPass{q: q, ops: []foldOp{{key: "pod", members: []uint64{pass.first, 3}, keep: []uint64{3}}}}
		if err := p.apply(); err != nil {
			t.Fatal(err)
		}
		if err := c.NoteRange("", ListedRange{Last: true, Seq: 1}, epoch); err != pass.want { //nolint:errorlint // As it is.
			t.Errorf("after a fold from %d on: %v", pass.first, err)
		}
	}
}

// churn publishes an addition and a deletion of each of n names, with a durable consumer
// that hangs, and returns how many bytes of heap the log takes for each.
func churn(t testing.TB, n int) (q *Log, perName float64) {
	db := testdb.Open(t, testsupport.Path(t), testdb.Manual)
	q = newLog(t, db, Options{TailBytes: 10_000, MaxBacklogBytes: 100_000})
	c, err := q.Durable("d")
	if err != nil {
		t.Fatal(err)
	}
	c.InitialListDone()
	flush(t, q)
	heap := func() float64 {
		q.folder.Wait()
		flush(t, q)
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	seq, before := uint64(0), 0.0
	for i := range n {
		if i == n/10 {
			before = heap()
		}
		name := fmt.Sprint("pod-", i)
		publish(t, q, ofSize(seq+1, cache.Added, name, 300), ofSize(seq+2, cache.Deleted, name, 300))
		seq += 2
		if i%1000 == 999 {
			flush(t, q)
		}
	}
	return q, (heap() - before) / float64(n-n/10)
}

// TestADeletionThatWaitsTakesAFewBytesOfMemory: those of ever new names, which nothing
// folds, for a consumer that hangs.
func TestADeletionThatWaitsTakesAFewBytesOfMemory(t *testing.T) {
	names := testsupport.Rounds(*churnNames, 4000)
	q, perName := churn(t, names)
	deltas := q.Unacked()
	t.Logf("%d names, %d deltas wait, %.1f bytes of heap for each name", names, deltas, perName)
	if perName > 16 {
		t.Errorf("%.1f bytes of heap for each deletion", perName)
	}
	if deltas > names*3/2 {
		t.Errorf("%d deltas wait, nothing was folded", deltas)
	}
	if err := q.Stop(); err != nil {
		t.Fatal(err)
	}
}

// TestAPassForgetsNamesThatAreDeleted: it has groups only for objects that exist.
func TestAPassForgetsNamesThatAreDeleted(t *testing.T) {
	q := newLog(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), Options{TailBytes: 1, MaxBacklogBytes: -1})
	durable(t, q, "d", false).InitialListDone()
	const n = 1000
	for i := range uint64(n) {
		name := fmt.Sprint("pod-", i)
		publish(t, q, ofSize(2*i+1, cache.Added, name, 100), ofSize(2*i+2, cache.Deleted, name, 100))
	}
	p := &foldPass{q: q, groups: foldGroups{}}
	if err := p.run(); err != nil {
		t.Fatal(err)
	}
	for at := uint64(0); at < 2*n; {
		var err error
		if at, err = p.note(at, 2*n); err != nil {
			t.Fatal(err)
		}
		if len(p.groups) > 1 {
			t.Fatalf("%d groups of keys that are gone", len(p.groups))
		}
	}
	if left := onDisk(t, q.db, false); len(left) != n {
		t.Errorf("%d deltas are left, expected %d deletions", len(left), n)
	}
}

// TestWhatComesBeforeAnInitialListAndBehindItIsNotFolded: each chunk of an initial list has a Seq
// above the cursor.
func TestWhatComesBeforeAnInitialListAndBehindItIsNotFolded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newLog(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), Options{TailBytes: 1, MaxBacklogBytes: 1})
		publish(t, q, ofSize(1, cache.Added, "x", 100))
		flush(t, q)
		c := durable(t, q, "d", false)
		c.InitialListFrom(1)
		tellChunk(t, c, "", "ns/b", 1)
		publish(t, q, ofSize(2, cache.Added, "a", 100), ofSize(3, cache.Added, "b", 100))
		flush(t, q)
		tellChunk(t, c, "ns/b", "", 3)
		publish(t, q, ofSize(4, cache.Updated, "a", 100), ofSize(5, cache.Updated, "b", 100), ofSize(6, cache.Updated, "b", 100))
		flush(t, q)
		synctest.Wait()
		for i, bytes := range []int{5_000, 50_000, 500_000} { // A pass that begins with the last one sees all others.
			publish(t, q, ofSize(uint64(7+i), cache.Deleted, "other", bytes))
			synctest.Wait()
		}
		// The deltas of a, which was told as of 1, are folded. Those of b are not folded with
		// those that its chunk covers.
		wantSeqs(t, "stored", []uint64{3, 4, 6, 7, 8, 9}, onDisk(t, q.db, false))
		if err := q.Stop(); err != nil {
			t.Fatal(err)
		}
	})
}

// tellChunk is what a listener does to tell of the objects with keys from from to to.
func tellChunk(t *testing.T, c *Consumer, from, to string, seq uint64) {
	t.Helper()
	if err := c.NoteRange(from, ListedRange{To: to, Last: to == "", Seq: seq}, c.q.Epoch()); err != nil {
		t.Fatal(err)
	}
}
