package queue_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

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

func newFIFO(t *testing.T, db *persist.DB, known cache.KeyListerGetter) *queue.DeltaFIFO {
	t.Helper()
	q, err := queue.NewDeltaFIFO(queue.DeltaFIFOOptions{Options: options(db), KnownObjects: known})
	if err != nil {
		t.Fatal(err)
	}
	return q
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
				n := queue.Unacked(ours)
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
