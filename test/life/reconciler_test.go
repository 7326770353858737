package life_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/httpserver"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
	"github.com/warmwatch/warmwatch/workqueue"
)

// works is a reconciler that writes down what it finds:
//
//	ns/a@1        ns/a is gone, deleted ns/a@1        ns/a is gone
type works struct {
	lister cache.Store

	mu     sync.Mutex
	during func(context.Context, string) error // Nil: nothing.
	done   []string                            // Reconciles that have succeeded.
}

func (w *works) reconcile(ctx context.Context, req warmwatch.ReconcileRequest) (result warmwatch.ReconcileResult, err error) {
	obj, exists, err := w.lister.GetByKey(req.String())
	if err != nil {
		return result, err
	}
	what := req.String() + " is gone"
	if exists {
		what = source.Version(obj)
	}
	for _, deleted := range req.Deleted {
		what += ", deleted " + source.Version(deleted)
	}
	w.mu.Lock()
	during := w.during
	w.mu.Unlock()
	if during != nil {
		if err := during(ctx, what); err != nil {
			return result, err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done = append(w.done, what)
	return result, nil
}

// set has something done during each reconcile from now on.
func (w *works) set(during func(context.Context, string) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.during = during
}

func fail(context.Context, string) error { return errors.New("not now") }

// expect compares what was reconciled since the last call, in any order.
func (w *works) expect(t *testing.T, want ...string) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	slices.Sort(w.done)
	slices.Sort(want)
	if diff := cmp.Diff(want, w.done); diff != "" {
		t.Errorf("unexpected reconciles (-want +got):\n%s", diff)
	}
	w.done = nil
}

// expectEach is expect where a reconcile may be repeated, and others of one key may come too.
func (w *works) expectEach(t *testing.T, key string, want ...string) {
	t.Helper()
	w.mu.Lock()
	slices.Sort(w.done)
	w.done = slices.DeleteFunc(slices.Compact(w.done), func(what string) bool {
		return key != "" && strings.HasPrefix(what, key) && !slices.Contains(want, what)
	})
	w.mu.Unlock()
	w.expect(t, want...)
}

// sameEpoch has a start reconcile only what is not done.
func sameEpoch() (o warmwatch.ReconcilerOptions) {
	o.Epoch = "always the same"
	return o
}

// addReconciler adds one named "r".
func addReconciler(t *testing.T, p *process.Process, workers int) *works {
	t.Helper()
	w := &works{lister: p.Informer.GetStore()}
	o := sameEpoch()
	o.Workers = workers
	if _, err := p.Informer.AddReconciler("r", w.reconcile, o); err != nil {
		t.Fatal(err)
	}
	return w
}

// addReconcilerNamed adds one whose reconciles fail until set is called.
func addReconcilerNamed(t *testing.T, p *process.Process, name string) *works {
	t.Helper()
	w := &works{lister: p.Informer.GetStore(), during: fail}
	if _, err := p.Informer.AddReconciler(name, w.reconcile, sameEpoch()); err != nil {
		t.Fatal(err)
	}
	return w
}

func expectWaiting(t *testing.T, p *process.Process, want ...workqueue.Status) {
	t.Helper()
	var got []workqueue.Status
	for _, st := range p.Informer.Status().Reconcilers {
		got = append(got, st.Status)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("unexpected reconcilers (-want +got):\n%s", diff)
	}
}

// TestWhatChangesDuringAReconcileIsReconciledOnceMore: by the same worker or another, but not at the
// same time.
func TestWhatChangesDuringAReconcileIsReconciledOnceMore(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"))
		p := process.Launch(t, testsupport.Path(t), f, nil)
		w := addReconciler(t, p, 5)
		working := 0
		w.set(func(context.Context, string) error {
			if working++; working > 1 {
				t.Error("two workers reconcile one key")
			}
			time.Sleep(time.Minute)
			working--
			return nil
		})
		p.Run()
		bubble.Advance(time.Second)
		f.Put(source.ConfigMap("a"))
		bubble.Advance(time.Second)
		f.Put(source.ConfigMap("a"))
		bubble.Settle()
		bubble.Settle()
		w.expect(t, "ns/a@1", "ns/a@3")
		f.Put(source.ConfigMap("a"))
		bubble.Advance(time.Second)
		f.Remove("a")
		bubble.Settle()
		bubble.Settle()
		w.expect(t, "ns/a@4", "ns/a is gone, deleted ns/a@5")
	})
}

// TestAHandlerThatReturnsWhileTheCacheIsBeingClosed: its acknowledgement is in the last commit, and so
// is what it has added before (D5).
func TestAHandlerThatReturnsWhileTheCacheIsBeingClosed(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t)
		p := process.Launch(t, testsupport.Path(t), f, nil)
		q, err := workqueue.New(p.Cache.Workqueues(), "q", workqueue.Options[cache.ObjectName]{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(q.ShutDown)
		enqueue := func(q *workqueue.Queue[cache.ObjectName]) func(any) {
			return func(obj any) {
				key, err := cache.DeletionHandlingObjectToName(obj)
				if err != nil {
					t.Error(err)
				}
				time.Sleep(time.Millisecond)
				q.Add(key)
			}
		}
		if _, err := p.Informer.AddDurableEventHandler("d", cache.ResourceEventHandlerFuncs{AddFunc: enqueue(q)}, warmwatch.DurableOptions{}); err != nil {
			t.Fatal(err)
		}
		p.Run()
		bubble.Settle()
		for i := range 300 {
			f.Put(source.ConfigMap(fmt.Sprint(i)))
		}
		time.Sleep(100 * time.Millisecond)
		if err := p.Cache.Close(); err != nil {
			t.Error(err)
		}
		path := p.Crash()
		p = process.Launch(t, path, f, nil)
		q, err = workqueue.New(p.Cache.Workqueues(), "q", workqueue.Options[cache.ObjectName]{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(q.ShutDown)
		if q.Len() == 0 || q.Len() == 300 {
			t.Errorf("%d keys were stored: change when the Cache is closed", q.Len())
		}
		if _, err := p.Informer.AddDurableEventHandler("d", cache.ResourceEventHandlerFuncs{AddFunc: enqueue(q)}, warmwatch.DurableOptions{}); err != nil {
			t.Fatal(err)
		}
		p.Run()
		bubble.Settle()
		if st := p.Cache.Status().Workqueues; q.Len() != 300 || len(st) != 1 || st[0] != (workqueue.Status{Name: "q", Keys: 300}) {
			t.Errorf("%d keys are in the queue, status %v", q.Len(), st)
		}
	})
}

// TestAReconcilerOfANewInformer is kept in the space that the informer has once it runs.
func TestAReconcilerOfANewInformer(t *testing.T) {
	api, path := httpserver.New(t, ""), testsupport.Path(t)
	for _, c := range []struct {
		forget, fail bool
		calls        int
	}{
		{fail: true, calls: 1}, {calls: 1}, {calls: 0}, {forget: true, calls: 1},
	} {
		a := process.NewAgent(t, path, api)
		informer := a.Make(a.ConfigMaps("ns", process.NoTweak), &corev1.ConfigMap{})
		if c.forget {
			if err := informer.ForgetDurable("r"); err != nil {
				t.Error(err)
			}
		}
		calls, called := 0, make(chan struct{}, 1)
		reconcile := func(ctx context.Context, _ warmwatch.ReconcileRequest) (result warmwatch.ReconcileResult, err error) {
			calls++
			called <- struct{}{}
			if !c.fail {
				return result, nil
			}
			<-ctx.Done() // The informer ends.
			return result, ctx.Err()
		}
		if _, err := informer.AddReconciler("r", reconcile, sameEpoch()); err != nil {
			t.Fatal(err)
		}
		a.Run(informer)
		if c.calls > 0 {
			<-called
		}
		if !c.fail {
			process.Until(func() bool {
				st := informer.Status().Reconcilers
				return len(st) == 1 && st[0].Keys == 0
			})
		}
		a.Stop()
		if calls != c.calls {
			t.Errorf("%+v: %d reconciles", c, calls)
		}
	}
}

// TestWhatAReconcilerWithoutAnEpochDoes: every start reconciles all objects.
func TestWhatAReconcilerWithoutAnEpochDoes(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"))
		path := testsupport.Path(t)
		for range 3 {
			p := process.Launch(t, path, f, nil)
			w := &works{lister: p.Informer.GetStore()}
			if _, err := p.Informer.AddReconciler("r", w.reconcile, warmwatch.ReconcilerOptions{}); err != nil {
				t.Fatal(err)
			}
			p.Run()
			bubble.Settle()
			w.expect(t, "ns/a@1", "ns/b@2")
			path = p.Crash()
		}
	})
}

// TestAReconcileCanAskForAnother: after the time that it says, and at once in a new process.
func TestAReconcileCanAskForAnother(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"))
		path := testsupport.Path(t)
		for range 2 {
			p := process.Launch(t, path, f, nil)
			var calls atomic.Int64
			reconcile := func(context.Context, warmwatch.ReconcileRequest) (warmwatch.ReconcileResult, error) {
				calls.Add(1)
				return warmwatch.ReconcileResult{After: time.Hour}, nil
			}
			if _, err := p.Informer.AddReconciler("r", reconcile, sameEpoch()); err != nil {
				t.Fatal(err)
			}
			p.Run()
			for i, wait := range []time.Duration{time.Minute, time.Hour} {
				bubble.Advance(wait)
				if n := calls.Load(); n != int64(i)+1 {
					t.Errorf("%d reconciles, not %d", n, i+1)
				}
			}
			path = p.Crash()
		}
	})
}

// TestEnqueue: a key that the cache lacks is reconciled, also if it comes before the informer runs. One that a durable
// handler has enqueued outlives the process.
func TestEnqueue(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t)
		start := func(path string, during func(context.Context, string) error, early ...cache.ObjectName) (*process.Process, *works) {
			p := process.Launch(t, path, f, nil)
			w := &works{lister: p.Informer.GetStore(), during: during}
			r, err := p.Informer.AddReconciler("r", w.reconcile, sameEpoch())
			if err != nil {
				t.Fatal(err)
			}
			r.Enqueue(early...)
			h := cache.ResourceEventHandlerFuncs{AddFunc: func(any) { r.Enqueue(cache.NewObjectName("ns", "owner")) }}
			if _, err := p.Informer.AddDurableEventHandler("d", h, warmwatch.DurableOptions{}); err != nil {
				t.Fatal(err)
			}
			p.Run()
			bubble.Settle()
			return p, w
		}
		p, w := start(testsupport.Path(t), nil, cache.NewObjectName("ns", "early"))
		w.expect(t, "ns/early is gone")
		w.set(fail)
		f.Put(source.ConfigMap("a"))
		bubble.Settle()
		if st := p.Informer.Status(); st.Handlers[0].Undelivered != 0 || st.Reconcilers[0].Keys != 2 {
			t.Errorf("%+v, %+v", st.Handlers, st.Reconcilers)
		}
		_, w = start(p.Crash(), nil)
		w.expect(t, "ns/a@1", "ns/owner is gone")
	})
}
