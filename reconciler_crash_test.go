package warmwatch_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"k8s.io/client-go/tools/cache"
	clientworkqueue "k8s.io/client-go/util/workqueue"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/workqueue"
)

// TestACrashDuringTheFirstReconcileOfAChangeCostsNoWork: of an update, of a deletion, and of a key of Known that the cache
// lacks (D4). None of them has failed yet, so that no retry keeps them.
func TestACrashDuringTheFirstReconcileOfAChangeCostsNoWork(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"), configMap("b"))
		leave := make(chan struct{})
		defer close(leave)
		hang := func(context.Context, string) error { <-leave; return nil }
		start := func(path string, during func(context.Context, string) error, known ...cache.ObjectName) (*process, *works) {
			p := launch(t, path, f, nil)
			w := &works{lister: p.informer.GetStore(), during: during}
			o := sameEpoch()
			o.Known = func(context.Context) ([]cache.ObjectName, error) { return known, nil }
			if _, err := p.informer.AddReconciler("r", w.reconcile, o); err != nil {
				t.Fatal(err)
			}
			p.run()
			settle()
			return p, w
		}
		p, w := start(testsupport.Path(t), nil)
		w.expect(t, "ns/a@1", "ns/b@2")
		p, w = start(p.crash(), hang, cache.NewObjectName("ns", "a"), cache.NewObjectName("ns", "unknown"))
		f.put(configMap("a"))
		f.remove("b")
		settle()
		w.expect(t)
		expectWaiting(t, p, workqueue.Status{Name: "r", Keys: 3})
		_, w = start(p.crash(), nil)
		w.expect(t, "ns/a@3", "ns/b is gone, deleted ns/b@4", "ns/unknown is gone")
	})
}

// TestTheKeysOfAListAreNotStored: without an epoch the next process lists all objects again.
func TestTheKeysOfAListAreNotStored(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := launch(t, testsupport.Path(t), newSource(t, configMap("a"), configMap("b")), nil)
		leave := make(chan struct{})
		defer close(leave)
		w := &works{lister: p.informer.GetStore(), during: func(context.Context, string) error { <-leave; return nil }}
		if _, err := p.informer.AddReconciler("r", w.reconcile, warmwatch.ReconcilerOptions{}); err != nil {
			t.Fatal(err)
		}
		p.run()
		settle()
		expectWaiting(t, p, workqueue.Status{Name: "r", Keys: 2})
		if n := keysIn(t, p.crash(), "work"); n != 0 {
			t.Errorf("the file has %d keys", n)
		}
	})
}

// TestAnInformerThatEndsBeginsNoReconcile: what waits is for the next process, and does not hold up Run (D4).
func TestAnInformerThatEndsBeginsNoReconcile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f, path := newSource(t, configMap("a"), configMap("b"), configMap("c")), testsupport.Path(t)
		p := launch(t, path, f, nil)
		w := addReconciler(t, p, 1)
		calls := 0
		w.set(func(ctx context.Context, _ string) error { calls++; <-ctx.Done(); return ctx.Err() })
		p.run()
		settle()
		p.stop()
		if calls != 1 {
			t.Errorf("%d reconciles have begun", calls)
		}
		p = launch(t, path, f, nil)
		w = addReconciler(t, p, 1)
		p.run()
		settle()
		w.expect(t, "ns/a@1", "ns/b@2", "ns/c@3")
	})
}

// TestAReconcileThatHasSucceededHasNoFailuresLeft: the next failure is repeated as soon as a first one.
func TestAReconcileThatHasSucceededHasNoFailuresLeft(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := launch(t, testsupport.Path(t), newSource(t, configMap("a")), nil)
		w := &works{lister: p.informer.GetStore(), during: fail}
		o := sameEpoch()
		o.RateLimiter = clientworkqueue.DefaultTypedControllerRateLimiter[cache.ObjectName]()
		if _, err := p.informer.AddReconciler("r", w.reconcile, o); err != nil {
			t.Fatal(err)
		}
		p.run()
		settle()
		w.set(nil)
		advance(20 * time.Minute)
		w.expect(t, "ns/a@1")
		if n := o.RateLimiter.NumRequeues(cache.NewObjectName("ns", "a")); n != 0 {
			t.Errorf("%d failures are counted", n)
		}
	})
}

// TestWhatIsReconciledIsForgotten: the next reconcile does not look for a deleted object that an earlier one had.
func TestWhatIsReconciledIsForgotten(t *testing.T) {
	bubble(t, func(t *testing.T) {
		logger, logged := loggerOf("Could not read a deleted object")
		f := newSource(t, configMap("a"))
		p := launch(t, testsupport.Path(t), f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.Logger = logger })
		w := addReconciler(t, p, 1)
		p.run()
		settle()
		f.remove("a")
		settle()
		f.put(configMap("a"))
		settle()
		w.expect(t, "ns/a@1", "ns/a is gone, deleted ns/a@2", "ns/a@3")
		if lines := logged(); len(lines) > 0 {
			t.Errorf("logged: %q", lines)
		}
	})
}

// TestADeletionWhoseKeyIsDamagedStopsNoReconciler: one bit of its key in the workqueue, or of that of its object, makes
// it another one. All objects are reconciled, and the deletion with what is left of it (D4, S2).
func TestADeletionWhoseKeyIsDamagedStopsNoReconciler(t *testing.T) {
	for bucket, deletion := range map[string]string{
		"work":    "ns/a is gone, deleted ns/a@3",
		"deleted": "ns/a is gone",
	} {
		t.Run(bucket, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t, configMap("a"), configMap("b"))
				p := launch(t, testsupport.Path(t), f, nil)
				w := addReconciler(t, p, 1)
				p.run()
				settle()
				w.expect(t, "ns/a@1", "ns/b@2")
				w.set(fail)
				f.remove("a")
				settle()
				path := p.crash()
				changeBucket(t, path, bucket, func(b *bolt.Bucket) error {
					key, value := b.Cursor().First()
					value = bytes.Clone(value)
					other := bytes.Replace(key, []byte("ns/a"), []byte("ns/c"), 1)
					return errors.Join(b.Delete(key), b.Put(other, value))
				})
				p = launch(t, path, f, nil)
				w = addReconciler(t, p, 1)
				p.run()
				settle()
				w.expectEach(t, "", deletion, "ns/b@2", "ns/c is gone")
			})
		})
	}
}
