package queue_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"

	"github.com/warmwatch/warmwatch/persist"
	"github.com/warmwatch/warmwatch/queue"
)

func openDB(t *testing.T, path string) *persist.DB {
	t.Helper()
	db, err := persist.Open(context.Background(), path, persist.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func options(db *persist.DB) queue.Options {
	return queue.Options{DB: db, Space: "space", NewObject: func() any { return &corev1.ConfigMap{} }}
}

func newLog(t *testing.T, db *persist.DB, tailBytes int) *queue.Log {
	t.Helper()
	o := options(db)
	o.TailBytes = tailBytes
	log, err := queue.NewLog(o)
	if err != nil {
		t.Fatal(err)
	}
	return log
}

func newFIFO(t *testing.T, db *persist.DB, known cache.KeyListerGetter) *queue.DeltaFIFO {
	t.Helper()
	q, err := queue.NewDeltaFIFO(queue.DeltaFIFOOptions{Options: options(db), KnownObjects: known})
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func closeAll(t *testing.T, db *persist.DB, log *queue.Log) {
	t.Helper()
	if err := errors.Join(log.Stop(), db.Close()); err != nil {
		t.Fatal(err)
	}
}

func closeFIFO(t *testing.T, db *persist.DB, q *queue.DeltaFIFO) {
	t.Helper()
	q.Close()
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

func object(name string, rv int) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, ResourceVersion: fmt.Sprint(rv)}}
}

// describe is what a consumer sees of a popped item.
func describe(obj any) string {
	d := obj.(cache.Deltas).Newest()
	if tomb, ok := d.Object.(cache.DeletedFinalStateUnknown); ok {
		rv := ""
		if tomb.Obj != nil {
			rv = tomb.Obj.(*corev1.ConfigMap).ResourceVersion
		}
		return fmt.Sprintf("%s tombstone %s@%s", d.Type, tomb.Key, rv)
	}
	cm := d.Object.(*corev1.ConfigMap)
	return fmt.Sprintf("%s %s@%s", d.Type, cm.Name, cm.ResourceVersion)
}

// drain pops n items and applies them to the store of known objects.
func drain(t *testing.T, q cache.Queue, known cache.Store, n int) []string {
	t.Helper()
	var got []string
	for range n {
		_, err := q.Pop(func(obj any, _ bool) error {
			got = append(got, describe(obj))
			d := obj.(cache.Deltas).Newest()
			if d.Type == cache.Deleted {
				return known.Delete(d.Object)
			}
			return known.Update(d.Object)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return got
}

// TestTheQueueIsClientGosQueue makes the same random calls to client-go's
// RealFIFO and to DeltaFIFO, with some items still queued while more come.
func TestTheQueueIsClientGosQueue(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 1))
		db := openDB(t, filepath.Join(t.TempDir(), "cache.db"))
		ourKnown, theirKnown := cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc), cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc)
		ours := newFIFO(t, db, ourKnown)
		theirs := cache.NewRealFIFOWithOptions(cache.RealFIFOOptions{KnownObjects: theirKnown, KeyFunction: cache.MetaNamespaceKeyFunc})
		for rv := 1; rv < 120; rv++ {
			obj := object(fmt.Sprint("o", rng.IntN(6)), rv)
			var list []any
			for i := range rng.IntN(6) {
				list = append(list, object(fmt.Sprint("o", i), rv))
			}
			op := rng.IntN(8)
			for _, q := range []cache.Queue{ours, theirs} {
				var err error
				switch op {
				case 0:
					err = q.Delete(obj)
				case 1:
					err = q.Replace(list, fmt.Sprint(rv))
				case 2:
					err = q.Resync()
				case 3, 4:
					err = q.Add(obj)
				default:
					err = q.Update(obj)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if rng.IntN(3) == 0 {
				n := ours.Unacked()
				want, got := drain(t, theirs, theirKnown, n), drain(t, ours, ourKnown, n)
				// The order of the tombstones of one Replace is a map's.
				slices.Sort(want)
				slices.Sort(got)
				if d := cmp.Diff(want, got); d != "" {
					t.Fatalf("seed %d, version %d, operation %d (-client-go +ours):\n%s", seed, rv, op, d)
				}
			}
			if ours.HasSynced() != theirs.HasSynced() {
				t.Fatalf("seed %d, version %d: HasSynced is %v, client-go's is %v", seed, rv, ours.HasSynced(), theirs.HasSynced())
			}
		}
		closeFIFO(t, db, ours)
	}
}

func TestAControllerEndsWithWhatTheServerHas(t *testing.T) {
	defer goleak.VerifyNone(t)
	source := fcache.NewFakeControllerSource()
	for i := range 20 {
		source.Add(object(fmt.Sprint("o", i), 0))
	}
	db := openDB(t, filepath.Join(t.TempDir(), "cache.db"))
	known := cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc)
	q := newFIFO(t, db, known)
	deleted := make(chan string, 1)
	controller := cache.New(&cache.Config{
		Queue: q, ListerWatcher: source, ObjectType: &corev1.ConfigMap{},
		Process: func(obj any, _ bool) error {
			d := obj.(cache.Deltas).Newest()
			if d.Type == cache.Deleted {
				err := known.Delete(d.Object)
				deleted <- d.Object.(*corev1.ConfigMap).Name
				return err
			}
			return known.Update(d.Object)
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); controller.RunWithContext(ctx) }()
	if !cache.WaitFor(ctx, "", controller.HasSyncedChecker()) {
		t.Fatal("the controller has not synced")
	}
	source.Delete(object("o7", 0))
	if name := <-deleted; name != "o7" || len(known.ListKeys()) != 19 {
		t.Errorf("%s was deleted, %d objects are left", name, len(known.ListKeys()))
	}
	cancel()
	<-done
	source.Shutdown()
	closeFIFO(t, db, q)
}

func TestWhatWasNotProcessedIsPoppedAgainByTheNextProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cache.db")
	known := cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc)
	db := openDB(t, path)
	q := newFIFO(t, db, known)
	for i := range 5 {
		if err := q.Add(object(fmt.Sprint("o", i), i+1)); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.Delete(object("o3", 9)); err != nil {
		t.Fatal(err)
	}
	drain(t, q, known, 2)
	closeFIFO(t, db, q)

	db = openDB(t, path)
	q = newFIFO(t, db, known)
	want := []string{"Added o2@3", "Added o3@4", "Added o4@5", "Deleted o3@9"}
	if d := cmp.Diff(want, drain(t, q, known, 4)); d != "" {
		t.Errorf("popped after the restart (-want +got):\n%s", d)
	}
	closeFIFO(t, db, q)
}

// publish writes deltas as the sink of an informer does.
func publish(t *testing.T, db *persist.DB, q *queue.Log, from, to uint64) {
	t.Helper()
	for seq := from; seq <= to; seq++ {
		ds := []queue.Delta{{Seq: seq, Type: cache.Added, Key: fmt.Sprint("ns/o", seq), New: object(fmt.Sprint("o", seq), int(seq)), SizeBytes: 100}}
		batch, err := db.Update(func(b *persist.Batch) {
			q.Append(b, ds)
			if q.HasDurable() {
				b.Urgent()
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		q.Publish(batch, ds)
	}
}

// read reads deltas up to a Seq, and acknowledges them.
func read(t *testing.T, c *queue.Consumer, to uint64) (seqs []uint64) {
	t.Helper()
	for c.Cursor() < to {
		ds, err := c.Next()
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range ds {
			if got := d.New.(*corev1.ConfigMap).ResourceVersion; got != fmt.Sprint(d.Seq) {
				t.Errorf("delta %d has the object at %s", d.Seq, got)
			}
			seqs = append(seqs, d.Seq)
			c.Acknowledge(d.Seq)
		}
	}
	return seqs
}

func storedDeltas(t *testing.T, db *persist.DB) (n int) {
	t.Helper()
	if err := db.Flush(); err != nil {
		t.Fatal(err)
	}
	s, err := db.DurableSnapshot("space")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Scan("deltas", "", func(*persist.Item) (bool, error) { n++; return true, nil }); err != nil {
		t.Fatal(err)
	}
	return n
}

// D2 and D6: a consumer that does not read holds the log, on disk; the memory
// of the log stays within its bound, and the consumer is told everything later.
func TestAStuckConsumerCostsDiskNotMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := openDB(t, filepath.Join(t.TempDir(), "cache.db"))
		q := newLog(t, db, 1000)
		stuck, err := q.Durable("stuck")
		if err != nil {
			t.Fatal(err)
		}
		quick := q.Plain()
		const last = 2000
		publish(t, db, q, 1, last)
		if got := len(read(t, quick, last)); got != last {
			t.Errorf("the quick consumer was told %d deltas, expected %d", got, last)
		}
		if got := queue.TailBytes(q); got > 1000 {
			t.Errorf("D6: the tail holds %d bytes, expected at most 1000", got)
		}
		if got := storedDeltas(t, db); got != last {
			t.Errorf("D2: %d deltas are stored, expected %d", got, last)
		}
		seqs := read(t, stuck, last)
		if len(seqs) != last || !slices.IsSorted(seqs) {
			t.Errorf("the stuck consumer was told %d deltas, expected %d in order", len(seqs), last)
		}
		time.Sleep(5 * time.Second) // Virtual time: commits that store the cursors.
		publish(t, db, q, last+1, last+1)
		read(t, stuck, last+1)
		read(t, quick, last+1)
		time.Sleep(5 * time.Second)
		if got := storedDeltas(t, db); got != 0 {
			t.Errorf("%d deltas are stored although all were acknowledged", got)
		}
		closeAll(t, db, q)
	})
}

// D2: a durable consumer waits for the commit, a plain one does not.
func TestADurableConsumerIsToldOnlyWhatIsDurable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := openDB(t, filepath.Join(t.TempDir(), "cache.db"))
		q := newLog(t, db, 0)
		durable, err := q.Durable("d")
		if err != nil {
			t.Fatal(err)
		}
		plain := q.Plain()
		time.Sleep(time.Minute) // Virtual time: the name is committed.
		begin := time.Now()
		publish(t, db, q, 1, 1)
		read(t, plain, 1)
		if waited := time.Since(begin); waited != 0 {
			t.Errorf("a plain consumer waited %v", waited)
		}
		applied := db.Applied()
		if db.Durable() >= applied {
			t.Fatal("the batch is durable already")
		}
		read(t, durable, 1)
		if db.Durable() < applied {
			t.Error("D2: a durable consumer was told of what is not durable")
		}
		closeAll(t, db, q)
	})
}

func TestADurableNameGoesOnWhereItStoppedUntilItIsForgotten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cache.db")
	db := openDB(t, path)
	q := newLog(t, db, 0)
	c, err := q.Durable("d")
	if err != nil {
		t.Fatal(err)
	}
	c.InitialListDone()
	if _, err := q.Durable("d"); err == nil {
		t.Error("a name has two consumers")
	}
	if err := q.Forget("d"); err == nil {
		t.Error("a name was forgotten while it has a consumer")
	}
	publish(t, db, q, 1, 4)
	read(t, c, 4)
	publish(t, db, q, 5, 10)
	closeAll(t, db, q)

	db = openDB(t, path)
	q = newLog(t, db, 0)
	if c, err = q.Durable("d"); err != nil {
		t.Fatal(err)
	}
	if !c.Known {
		t.Error("the name is not known any more")
	}
	if d := cmp.Diff([]uint64{5, 6, 7, 8, 9, 10}, read(t, c, 10)); d != "" {
		t.Errorf("told after the restart (-want +got):\n%s", d)
	}
	c.Remove()
	if err := q.Forget("d"); err != nil {
		t.Error(err)
	}
	if c, err = q.Durable("d"); err != nil || c.Known {
		t.Errorf("a forgotten name is known (%v)", err)
	}
	closeAll(t, db, q)
}
