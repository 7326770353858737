package queue

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"

	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/testdb"
	"github.com/warmwatch/warmwatch/persist"
)

// popped is what the consumer of a queue saw.
type popped struct {
	What    string
	Initial bool
	Synced  bool // Afterwards.
}

func pop(t *testing.T, q cache.Queue, known cache.Store) popped {
	t.Helper()
	var p popped
	_, err := q.Pop(func(obj any, isInInitialList bool) error {
		d := obj.(cache.Deltas).Newest()
		p.What, p.Initial = describe(d), isInInitialList
		if d.Type == cache.Deleted {
			return known.Delete(d.Object)
		}
		return known.Update(d.Object)
	})
	if err != nil {
		t.Fatal(err)
	}
	p.Synced = q.HasSynced()
	return p
}

func describe(d *cache.Delta) string {
	switch obj := d.Object.(type) {
	case cache.DeletedFinalStateUnknown:
		rv := "nothing"
		if pod, ok := obj.Obj.(*corev1.Pod); ok {
			rv = pod.ResourceVersion
		}
		return fmt.Sprintf("%s tombstone %s@%s", d.Type, obj.Key, rv)
	case *corev1.Pod:
		return fmt.Sprintf("%s %s@%s", d.Type, obj.Name, obj.ResourceVersion)
	}
	return fmt.Sprintf("%s %T", d.Type, d.Object)
}

func newKnown() cache.Store { return cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc) }

// TestPopGivesWhatClientGosQueueGives makes the same calls to both, with the
// order of each, and compares also what is said about the initial list. Where
// an order is that of a map, it is not compared.
func TestPopGivesWhatClientGosQueueGives(t *testing.T) {
	rnd := testsupport.Rand(t)
	for range 30 {
		seed := rnd.Int63()
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rnd := rand.New(rand.NewSource(seed))
			ourKnown, theirKnown := newKnown(), newKnown()
			ours := newFIFO(t, testdb.Open(t, testsupport.Path(t), persist.Options{CommitInterval: time.Millisecond}), DeltaFIFOOptions{KnownObjects: ourKnown, Options: Options{TailBytes: 1 + rnd.Intn(3000)}})
			theirs := cache.NewRealFIFOWithOptions(cache.RealFIFOOptions{KnownObjects: theirKnown, KeyFunction: cache.MetaNamespaceKeyFunc})
			n := 0 // Items in the queues.
			drain := func(k int) {
				t.Helper()
				var got, want []popped
				for range k {
					got, want = append(got, pop(t, ours, ourKnown)), append(want, pop(t, theirs, theirKnown))
				}
				sortRuns(got)
				sortRuns(want)
				if diff := cmp.Diff(want, got); diff != "" {
					t.Fatalf("-client-go +ours:\n%s", diff)
				}
				n -= k
			}
			for rv := range 150 {
				p := newPod(fmt.Sprintf("pod-%d", rnd.Intn(6)), fmt.Sprint(rv))
				var list []any
				for i := range rnd.Intn(7) {
					list = append(list, newPod(fmt.Sprintf("pod-%d", i), fmt.Sprint(rv)))
				}
				op := rnd.Intn(12)
				if rv < 3 && rnd.Intn(3) == 0 {
					op = 0 // The first thing may be a Replace, or not.
				}
				for _, q := range []cache.Queue{ours, theirs} {
					var err error
					switch op {
					case 0, 1:
						err = q.Replace(list, fmt.Sprint(rv))
					case 2:
						err = q.Resync()
					case 3, 4, 5:
						err = q.Delete(p)
					case 6:
						err = q.Delete(cache.DeletedFinalStateUnknown{Key: "ns/" + p.Name, Obj: p})
					case 7, 8:
						err = q.Add(p)
					default:
						err = q.Update(p)
					}
					if err != nil {
						t.Fatal(err)
					}
				}
				if ours.HasSynced() != theirs.HasSynced() {
					t.Fatalf("synced: %v, client-go %v", ours.HasSynced(), theirs.HasSynced())
				}
				n = ours.log.Unacked()
				switch {
				case op < 3: // The order of a map is within what these bring.
					drain(n)
				case n > 0:
					drain(rnd.Intn(n + 1))
				}
			}
		})
	}
}

// sortRuns sorts what comes in the order of a map: tombstones, or syncs, that
// follow each other. Each keeps the flags of its place.
func sortRuns(ps []popped) {
	kind := func(p popped) string {
		if strings.HasPrefix(p.What, "Deleted tombstone") || strings.HasPrefix(p.What, "Sync") {
			return p.What[:4]
		}
		return ""
	}
	for from := 0; from < len(ps); {
		to := from + 1
		for to < len(ps) && kind(ps[from]) != "" && kind(ps[to]) == kind(ps[from]) {
			to++
		}
		var whats []string
		for _, p := range ps[from:to] {
			whats = append(whats, p.What)
		}
		slices.Sort(whats)
		for i, what := range whats {
			ps[from+i].What = what
		}
		from = to
	}
}

// TestReplaceTombstonesItemsThatAreOnlyInTheQueue is kubernetes#115658.
func TestReplaceTombstonesItemsThatAreOnlyInTheQueue(t *testing.T) {
	known := newKnown()
	q := newFIFO(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), DeltaFIFOOptions{KnownObjects: known})
	for _, err := range []error{
		q.Add(newPod("queued", "1")), q.Update(newPod("queued", "2")),
		known.Add(newPod("known", "3")),
		q.Add(newPod("gone", "4")), q.Delete(newPod("gone", "5")), // Needs no second deletion.
		known.Add(newPod("both", "6")), q.Update(newPod("both", "7")), // The newer one is in the queue.
		q.Replace([]any{newPod("new", "8")}, "9"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for q.log.Unacked() > 0 {
		got = append(got, pop(t, q, known).What)
	}
	slices.Sort(got[5:8])
	want := []string{
		"Added queued@1", "Updated queued@2", "Added gone@4", "Deleted gone@5", "Updated both@7",
		"Deleted tombstone ns/both@7", "Deleted tombstone ns/known@3", "Deleted tombstone ns/queued@2",
		"Replaced new@8",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if keys := known.ListKeys(); len(keys) != 1 {
		t.Errorf("left: %v", keys)
	}
}

// TestASyncBehindADeletionIsNoDeletion is kubernetes#83810.
func TestASyncBehindADeletionIsNoDeletion(t *testing.T) {
	known := newKnown()
	q := newFIFO(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), DeltaFIFOOptions{KnownObjects: known})
	pod := newPod("pod", "1")
	if err := errors.Join(known.Add(pod), q.Delete(pod), q.Resync(), q.Replace([]any{newPod("pod", "2")}, "2")); err != nil {
		t.Fatal(err)
	}
	got := []string{pop(t, q, known).What, pop(t, q, known).What}
	if diff := cmp.Diff([]string{"Deleted pod@1", "Replaced pod@2"}, got); diff != "" || q.log.Unacked() != 0 {
		t.Errorf("%d left, -want +got:\n%s", q.log.Unacked(), diff)
	}
	if err := q.Resync(); err != nil {
		t.Fatal(err)
	}
	if got := pop(t, q, known).What; got != "Sync pod@2" {
		t.Errorf("%s", got)
	}
}

func TestHasSyncedCountsTheFirstReplace(t *testing.T) {
	for name, c := range map[string]struct {
		before  func(*DeltaFIFO) error
		pops    int // Until it has synced.
		initial bool
	}{
		"of two":           {func(q *DeltaFIFO) error { return q.Replace([]any{newPod("a", "1"), newPod("b", "1")}, "1") }, 2, true},
		"of nothing":       {func(q *DeltaFIFO) error { return q.Replace(nil, "1") }, 0, true},
		"after an Add":     {func(q *DeltaFIFO) error { return errors.Join(q.Add(newPod("a", "1")), q.Replace(nil, "1")) }, 0, false},
		"after a deletion": {func(q *DeltaFIFO) error { return q.Delete(newPod("a", "1")) }, 0, false},
		"after a Resync": {func(q *DeltaFIFO) error {
			return errors.Join(q.Resync(), q.Replace([]any{newPod("a", "1")}, "1"))
		}, 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			q := newFIFO(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), DeltaFIFOOptions{KnownObjects: newKnown()})
			if q.HasSynced() {
				t.Error("synced before anything came")
			}
			if err := c.before(q); err != nil {
				t.Fatal(err)
			}
			for i := range c.pops {
				if q.HasSynced() {
					t.Errorf("synced after %d pops", i)
				}
				synced := true
				if _, err := q.Pop(func(_ any, initial bool) error {
					synced = q.HasSynced() // Not before it was processed.
					if !initial {
						t.Error("not said to be of the initial list")
					}
					return nil
				}); err != nil || synced {
					t.Errorf("synced while processing: %v, %v", synced, err)
				}
			}
			if !q.HasSynced() || !cache.IsDone(q.HasSyncedChecker()) {
				t.Errorf("not synced after %d pops", c.pops)
			}
		})
	}
}

// TestWhatPopHasProcessedIsRemovedFromTheFile: nothing holds the log of a queue
// but its one consumer.
func TestWhatPopHasProcessedIsRemovedFromTheFile(t *testing.T) {
	path := testsupport.Path(t)
	known := newKnown()
	for range 3 {
		db := testdb.Open(t, path, testdb.Manual)
		q := newFIFO(t, db, DeltaFIFOOptions{KnownObjects: known})
		for i := range 20 {
			if err := q.Update(newPod(fmt.Sprintf("pod-%d", i), "1")); err != nil {
				t.Fatal(err)
			}
		}
		flush(t, q.log)
		for q.log.Unacked() > 5 {
			pop(t, q, known)
		}
		flush(t, q.log)
		if n := len(onDisk(t, db, true)); n != 5 {
			t.Errorf("%d deltas in the file, expected 5", n)
		}
		q.Close()
		q.Close() // Is idempotent.
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAnItemIsPoppedAgainUnlessItWasProcessed, in the next process, whatever
// ended this one.
func TestAnItemIsPoppedAgainUnlessItWasProcessed(t *testing.T) {
	known := newKnown()
	q := newFIFO(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), DeltaFIFOOptions{KnownObjects: known})
	if err := q.Replace([]any{newPod("a", "1"), newPod("b", "2"), newPod("c", "3")}, "3"); err != nil {
		t.Fatal(err)
	}
	pop(t, q, known)
	flush(t, q.log)
	failed := errors.New("failed")
	if _, err := q.Pop(func(any, bool) error { return failed }); !errors.Is(err, failed) {
		t.Errorf("Pop returned %v", err)
	}
	// It crashes now: the failed one counts as processed, but not durably.
	q = fifoOf(t, crash(t, q.log))
	q.o.KnownObjects = known
	if got := pop(t, q, known); got.What != "Replaced b@2" {
		t.Errorf("popped %+v", got)
	}
	// A list that lacks the one in the queue tombstones it.
	if err := q.Replace([]any{newPod("a", "1"), newPod("b", "2")}, "4"); err != nil {
		t.Fatal(err)
	}
	var got []string
	for q.log.Unacked() > 0 {
		got = append(got, pop(t, q, known).What)
	}
	if diff := cmp.Diff([]string{"Replaced c@3", "Deleted tombstone ns/c@3", "Replaced a@1", "Replaced b@2"}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if !q.HasSynced() {
		t.Error("not synced")
	}
}

func TestCloseEndsAWaitingPop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFIFO(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), DeltaFIFOOptions{KnownObjects: newKnown()})
		result := make(chan error, 1)
		go func() {
			_, err := q.Pop(func(any, bool) error { return nil })
			result <- err
		}()
		synctest.Wait()
		select {
		case err := <-result:
			t.Fatalf("Pop returned %v", err)
		default:
		}
		q.Close()
		if err := <-result; !errors.Is(err, cache.ErrFIFOClosed) {
			t.Errorf("Pop returned %v", err)
		}
		if _, err := q.Pop(func(any, bool) error { return nil }); !errors.Is(err, cache.ErrFIFOClosed) {
			t.Errorf("a later Pop returned %v", err)
		}
	})
}

// TestPopOnAClosedDBSaysThatTheQueueIsClosed, for client-go's controller to end.
func TestPopOnAClosedDBSaysThatTheQueueIsClosed(t *testing.T) {
	db := testdb.Open(t, testsupport.Path(t), testdb.Manual)
	q := newFIFO(t, db, DeltaFIFOOptions{KnownObjects: newKnown(), Options: Options{TailBytes: 1}})
	for i := range 3 {
		if err := q.Add(newPod(fmt.Sprint(i), "1")); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := q.Pop(func(any, bool) error { return nil }); !errors.Is(err, cache.ErrFIFOClosed) {
		t.Errorf("Pop returned %v", err)
	}
	if err := q.Add(newPod("late", "1")); !errors.Is(err, persist.ErrClosed) {
		t.Errorf("Add returned %v", err)
	}
}

type fakeSource struct{ *fcache.FakeControllerSource }

func (fakeSource) IsWatchListSemanticsUnSupported() bool { return true }

// TestUnderClientGosControllerAfterARestart: the store of known objects is
// rebuilt by the controller, from what was not processed and from the list.
func TestUnderClientGosControllerAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := testsupport.Path(t)
		source := fakeSource{fcache.NewFakeControllerSource()}
		defer source.Broadcaster.Shutdown()
		for i := range 5 {
			source.Add(newPod(fmt.Sprintf("pod-%d", i), ""))
		}
		known := newKnown()
		// run processes until the limit; then the consumer hangs, as if killed.
		run := func(limit int) (seen []string) {
			db := testdb.Open(t, path, persist.Options{})
			q := newFIFO(t, db, DeltaFIFOOptions{KnownObjects: known})
			ctx, cancel := context.WithCancel(t.Context())
			ctrl := cache.New(&cache.Config{
				Queue: q, ListerWatcher: source, ObjectType: &corev1.Pod{},
				Process: func(obj any, _ bool) error {
					if len(seen) == limit {
						<-ctx.Done()
						return nil
					}
					d := obj.(cache.Deltas).Newest()
					seen = append(seen, describe(d))
					if d.Type == cache.Deleted {
						return known.Delete(d.Object)
					}
					return known.Update(d.Object)
				},
			})
			done := make(chan struct{})
			go func() {
				defer close(done)
				ctrl.RunWithContext(ctx)
			}()
			time.Sleep(time.Minute)
			if limit > 5 && !ctrl.HasSynced() {
				t.Error("the controller has not synced")
			}
			cancel()
			<-done
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			return seen
		}
		if got := run(3); len(got) != 3 || len(known.ListKeys()) != 3 {
			t.Errorf("processed %v", got)
		}
		source.Delete(newPod("pod-0", ""))
		source.Delete(newPod("pod-1", ""))
		run(100)
		keys := known.ListKeys()
		slices.Sort(keys)
		if diff := cmp.Diff([]string{"ns/pod-2", "ns/pod-3", "ns/pod-4"}, keys); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	})
}
