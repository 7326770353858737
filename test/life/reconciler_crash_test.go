package life_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"k8s.io/client-go/tools/cache"
	clientworkqueue "k8s.io/client-go/util/workqueue"

	bolt "go.etcd.io/bbolt"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/cachefile"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
	"github.com/warmwatch/warmwatch/workqueue"
)

// TestACrashDuringTheFirstReconcileOfAChangeCostsNoWork: of an update, of a deletion, and of a key of Known that the
// cache lacks (D4). None of them has failed yet, so that no retry keeps them.
func TestACrashDuringTheFirstReconcileOfAChangeCostsNoWork(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"))
		leave := make(chan struct{})
		defer close(leave)
		hang := func(context.Context, string) error { <-leave; return nil }
		start := func(path string, during func(context.Context, string) error, known ...cache.ObjectName) (*process.Process, *works) {
			p := process.Launch(t, path, f, nil)
			w := &works{lister: p.Informer.GetStore(), during: during}
			o := sameEpoch()
			o.Known = func(context.Context) ([]cache.ObjectName, error) { return known, nil }
			if _, err := p.Informer.AddReconciler("r", w.reconcile, o); err != nil {
				t.Fatal(err)
			}
			p.Run()
			bubble.Settle()
			return p, w
		}
		p, w := start(testsupport.Path(t), nil)
		w.expect(t, "ns/a@1", "ns/b@2")
		p, w = start(p.Crash(), hang, cache.NewObjectName("ns", "a"), cache.NewObjectName("ns", "unknown"))
		f.Put(source.ConfigMap("a"))
		f.Remove("b")
		bubble.Settle()
		w.expect(t)
		expectWaiting(t, p, workqueue.Status{Name: "r", Keys: 3})
		_, w = start(p.Crash(), nil)
		w.expect(t, "ns/a@3", "ns/b is gone, deleted ns/b@4", "ns/unknown is gone")
	})
}

// TestTheKeysOfAListAreNotStored: without an epoch the next process lists all objects again.
func TestTheKeysOfAListAreNotStored(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		p := process.Launch(t, testsupport.Path(t), source.New(t, source.ConfigMap("a"), source.ConfigMap("b")), nil)
		leave := make(chan struct{})
		defer close(leave)
		w := &works{lister: p.Informer.GetStore(), during: func(context.Context, string) error { <-leave; return nil }}
		if _, err := p.Informer.AddReconciler("r", w.reconcile, warmwatch.ReconcilerOptions{}); err != nil {
			t.Fatal(err)
		}
		p.Run()
		bubble.Settle()
		expectWaiting(t, p, workqueue.Status{Name: "r", Keys: 2})
		if n := cachefile.KeyCount(t, p.Crash(), "work"); n != 0 {
			t.Errorf("the file has %d keys", n)
		}
	})
}

// TestAnInformerThatEndsBeginsNoReconcile: what waits is for the next process, and does not hold up Run (D4).
func TestAnInformerThatEndsBeginsNoReconcile(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f, path := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"), source.ConfigMap("c")), testsupport.Path(t)
		p := process.Launch(t, path, f, nil)
		w := addReconciler(t, p, 1)
		calls := 0
		w.set(func(ctx context.Context, _ string) error { calls++; <-ctx.Done(); return ctx.Err() })
		p.Run()
		bubble.Settle()
		p.Stop()
		if calls != 1 {
			t.Errorf("%d reconciles have begun", calls)
		}
		p = process.Launch(t, path, f, nil)
		w = addReconciler(t, p, 1)
		p.Run()
		bubble.Settle()
		w.expect(t, "ns/a@1", "ns/b@2", "ns/c@3")
	})
}

// TestAReconcileThatHasSucceededHasNoFailuresLeft: the next failure is repeated as soon as a first one.
func TestAReconcileThatHasSucceededHasNoFailuresLeft(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		p := process.Launch(t, testsupport.Path(t), source.New(t, source.ConfigMap("a")), nil)
		w := &works{lister: p.Informer.GetStore(), during: fail}
		o := sameEpoch()
		o.RateLimiter = clientworkqueue.DefaultTypedControllerRateLimiter[cache.ObjectName]()
		if _, err := p.Informer.AddReconciler("r", w.reconcile, o); err != nil {
			t.Fatal(err)
		}
		p.Run()
		bubble.Settle()
		w.set(nil)
		bubble.Advance(20 * time.Minute)
		w.expect(t, "ns/a@1")
		if n := o.RateLimiter.NumRequeues(cache.NewObjectName("ns", "a")); n != 0 {
			t.Errorf("%d failures are counted", n)
		}
	})
}

// TestWhatIsReconciledIsForgotten: the next reconcile does not look for a deleted object that an earlier one had.
func TestWhatIsReconciledIsForgotten(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		logger, logged := testsupport.LoggerOf("Could not read a deleted object")
		f := source.New(t, source.ConfigMap("a"))
		p := process.Launch(t, testsupport.Path(t), f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.Logger = logger })
		w := addReconciler(t, p, 1)
		p.Run()
		bubble.Settle()
		f.Remove("a")
		bubble.Settle()
		f.Put(source.ConfigMap("a"))
		bubble.Settle()
		w.expect(t, "ns/a@1", "ns/a is gone, deleted ns/a@2", "ns/a@3")
		if lines := logged(); len(lines) > 0 {
			t.Errorf("logged: %q", lines)
		}
	})
}

// TestWhatIsInTheQueueIsReconciledByTheNextProcess: a crash, with some objects reconciled, some being
// reconciled and others in the queue, costs no work (D4).
func TestWhatIsInTheQueueIsReconciledByTheNextProcess(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t)
		for i := range 20 {
			f.Put(source.ConfigMap(fmt.Sprintf("c%02d", i)))
		}
		p := process.Launch(t, testsupport.Path(t), f, nil)
		w := addReconciler(t, p, 2)
		var reconciled []string
		hang := make(chan struct{})
		defer close(hang)
		w.set(func(context.Context, string) error {
			w.mu.Lock()
			hangs := len(w.done) >= 8
			w.mu.Unlock()
			if hangs {
				<-hang
			}
			return nil
		})
		p.Run()
		bubble.Settle()
		w.mu.Lock()
		reconciled, w.done = w.done, nil
		w.mu.Unlock()
		expectWaiting(t, p, workqueue.Status{Name: "r", Keys: 20 - len(reconciled)})
		if len(reconciled) < 8 || len(reconciled) > 9 {
			t.Fatalf("%d are reconciled", len(reconciled))
		}
		q := process.Launch(t, p.Crash(), f, nil)
		w = addReconciler(t, q, 1)
		q.Run()
		bubble.Settle()
		left := slices.DeleteFunc(source.Versions(q.Informer.GetStore().List()), func(v string) bool { return slices.Contains(reconciled, v) })
		w.expect(t, left...)
		expectWaiting(t, q, workqueue.Status{Name: "r"})
		q.Stop()
	})
}

// TestAKeyThatIsDamagedStopsNoReconciler: one bit makes "ns/my-map" a key that is none.
func TestAKeyThatIsDamagedStopsNoReconciler(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("my-map"), source.ConfigMap("b"))
		p := process.Launch(t, testsupport.Path(t), f, nil)
		addReconcilerNamed(t, p, "r")
		p.Run()
		bubble.Settle()
		path := p.Crash()
		cachefile.ChangeBucket(t, path, "work", func(b *bolt.Bucket) error {
			value := bytes.Clone(b.Get([]byte("k1/r/ns/my-map")))
			return errors.Join(b.Delete([]byte("k1/r/ns/my-map")), b.Put([]byte("k1/r/ns/my/map"), value))
		})
		p = process.Launch(t, path, f, nil)
		w := addReconciler(t, p, 1)
		p.Run()
		bubble.Settle()
		w.expectEach(t, "", "ns/my-map@1", "ns/b@2")
	})
}
