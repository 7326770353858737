package warmwatch_test

import (
	"bytes"
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
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/google/go-cmp/cmp"
	bolt "go.etcd.io/bbolt"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/httpserver"
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
		what = version(obj)
	}
	for _, deleted := range req.Deleted {
		what += ", deleted " + version(deleted)
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
func addReconciler(t *testing.T, p *process, workers int) *works {
	t.Helper()
	w := &works{lister: p.informer.GetStore()}
	o := sameEpoch()
	o.Workers = workers
	if _, err := p.informer.AddReconciler("r", w.reconcile, o); err != nil {
		t.Fatal(err)
	}
	return w
}

// addReconcilerNamed adds one whose reconciles fail until set is called.
func addReconcilerNamed(t *testing.T, p *process, name string) *works {
	t.Helper()
	w := &works{lister: p.informer.GetStore(), during: fail}
	if _, err := p.informer.AddReconciler(name, w.reconcile, sameEpoch()); err != nil {
		t.Fatal(err)
	}
	return w
}

func expectWaiting(t *testing.T, p *process, want ...workqueue.Status) {
	t.Helper()
	var got []workqueue.Status
	for _, st := range p.informer.Status().Reconcilers {
		got = append(got, st.Status)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("unexpected reconcilers (-want +got):\n%s", diff)
	}
}

// TestWhatIsInTheQueueIsReconciledByTheNextProcess: a crash, with some objects reconciled, some being
// reconciled and others in the queue, costs no work (D4).
func TestWhatIsInTheQueueIsReconciledByTheNextProcess(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t)
		for i := range 20 {
			f.put(configMap(fmt.Sprintf("c%02d", i)))
		}
		p := launch(t, testsupport.Path(t), f, nil)
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
		p.run()
		settle()
		w.mu.Lock()
		reconciled, w.done = w.done, nil
		w.mu.Unlock()
		expectWaiting(t, p, workqueue.Status{Name: "r", Keys: 20 - len(reconciled)})
		if len(reconciled) < 8 || len(reconciled) > 9 {
			t.Fatalf("%d are reconciled", len(reconciled))
		}
		q := launch(t, p.crash(), f, nil)
		w = addReconciler(t, q, 1)
		q.run()
		settle()
		left := slices.DeleteFunc(versions(q.informer.GetStore().List()), func(v string) bool { return slices.Contains(reconciled, v) })
		w.expect(t, left...)
		expectWaiting(t, q, workqueue.Status{Name: "r"})
		q.stop()
	})
}

// TestADeletionIsReconciledWithTheLastKnownObject: also after a restart, after an error, and where the
// name has another object by then (D4).
func TestADeletionIsReconciledWithTheLastKnownObject(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"), configMap("b"), configMap("c"))
		p := launch(t, testsupport.Path(t), f, nil)
		w := addReconciler(t, p, 3)
		p.run()
		settle()
		w.expect(t, "ns/a@1", "ns/b@2", "ns/c@3")
		w.set(fail)
		f.remove("a")
		f.remove("b")
		settle()
		f.put(configMap("b"))
		settle()
		f.remove("b")
		settle()
		f.put(configMap("c"))
		settle()
		w.expect(t)
		expectWaiting(t, p, workqueue.Status{Name: "r", Keys: 3})
		for range 2 { // What nobody has reconciled stays.
			path := p.crash()
			p = launch(t, path, f, nil)
			w = addReconciler(t, p, 1)
			w.set(fail)
			p.run()
			settle()
		}
		w.set(nil)
		advance(20 * time.Minute) // client-go's rate limiter waits no longer.
		w.expect(t, "ns/a is gone, deleted ns/a@4", "ns/b is gone, deleted ns/b@5, deleted ns/b@7", "ns/c@8")
		expectWaiting(t, p, workqueue.Status{Name: "r"})
		if n := keysIn(t, p.crash(), "deleted"); n != 0 {
			t.Errorf("%d deleted objects are left in the file", n)
		}
	})
}

// keysIn counts the keys of a bucket in the file.
func keysIn(t *testing.T, path, bucket string) (n int) {
	t.Helper()
	inFile(t, path, func(tx *bolt.Tx) error {
		return tx.ForEach(func(_ []byte, space *bolt.Bucket) error {
			if b := space.Bucket([]byte(bucket)); b != nil {
				n += b.Stats().KeyN
			}
			return nil
		})
	})
	return n
}

// TestWhatChangesDuringAReconcileIsReconciledOnceMore: by the same worker or another, but not at the
// same time.
func TestWhatChangesDuringAReconcileIsReconciledOnceMore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"))
		p := launch(t, testsupport.Path(t), f, nil)
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
		p.run()
		advance(time.Second)
		f.put(configMap("a"))
		advance(time.Second)
		f.put(configMap("a"))
		settle()
		settle()
		w.expect(t, "ns/a@1", "ns/a@3")
		f.put(configMap("a"))
		advance(time.Second)
		f.remove("a")
		settle()
		settle()
		w.expect(t, "ns/a@4", "ns/a is gone, deleted ns/a@5")
	})
}

// TestAHandlerThatReturnsWhileTheCacheIsBeingClosed: its acknowledgement is in the last commit, and so
// is what it has added before (D5).
func TestAHandlerThatReturnsWhileTheCacheIsBeingClosed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t)
		p := launch(t, testsupport.Path(t), f, nil)
		q, err := workqueue.New(p.cache.Workqueues(), "q", workqueue.Options[cache.ObjectName]{})
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
		if _, err := p.informer.AddDurableEventHandler("d", cache.ResourceEventHandlerFuncs{AddFunc: enqueue(q)}, warmwatch.DurableOptions{}); err != nil {
			t.Fatal(err)
		}
		p.run()
		settle()
		for i := range 300 {
			f.put(configMap(fmt.Sprint(i)))
		}
		time.Sleep(100 * time.Millisecond)
		if err := p.cache.Close(); err != nil {
			t.Error(err)
		}
		path := p.crash()
		p = launch(t, path, f, nil)
		q, err = workqueue.New(p.cache.Workqueues(), "q", workqueue.Options[cache.ObjectName]{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(q.ShutDown)
		if q.Len() == 0 || q.Len() == 300 {
			t.Errorf("%d keys were stored: change when the Cache is closed", q.Len())
		}
		if _, err := p.informer.AddDurableEventHandler("d", cache.ResourceEventHandlerFuncs{AddFunc: enqueue(q)}, warmwatch.DurableOptions{}); err != nil {
			t.Fatal(err)
		}
		p.run()
		settle()
		if st := p.cache.Status().Workqueues; q.Len() != 300 || len(st) != 1 || st[0] != (workqueue.Status{Name: "q", Keys: 300}) {
			t.Errorf("%d keys are in the queue, status %v", q.Len(), st)
		}
	})
}

// TestAKeyThatIsDamagedStopsNoReconciler: one bit makes "ns/my-map" a key that is none.
func TestAKeyThatIsDamagedStopsNoReconciler(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("my-map"), configMap("b"))
		p := launch(t, testsupport.Path(t), f, nil)
		addReconcilerNamed(t, p, "r")
		p.run()
		settle()
		path := p.crash()
		changeBucket(t, path, "work", func(b *bolt.Bucket) error {
			value := bytes.Clone(b.Get([]byte("k1/r/ns/my-map")))
			return errors.Join(b.Delete([]byte("k1/r/ns/my-map")), b.Put([]byte("k1/r/ns/my/map"), value))
		})
		p = launch(t, path, f, nil)
		w := addReconciler(t, p, 1)
		p.run()
		settle()
		w.expectEach(t, "", "ns/my-map@1", "ns/b@2")
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
		a := newAgent(t, path, api)
		informer := a.make(a.configMaps("ns", noTweak), &corev1.ConfigMap{})
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
		a.run(informer)
		if c.calls > 0 {
			<-called
		}
		if !c.fail {
			until(func() bool {
				st := informer.Status().Reconcilers
				return len(st) == 1 && st[0].Keys == 0
			})
		}
		a.stop()
		if calls != c.calls {
			t.Errorf("%+v: %d reconciles", c, calls)
		}
	}
}

// TestWhatAReconcilerWithoutAnEpochDoes: every start reconciles all objects.
func TestWhatAReconcilerWithoutAnEpochDoes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"), configMap("b"))
		path := testsupport.Path(t)
		for range 3 {
			p := launch(t, path, f, nil)
			w := &works{lister: p.informer.GetStore()}
			if _, err := p.informer.AddReconciler("r", w.reconcile, warmwatch.ReconcilerOptions{}); err != nil {
				t.Fatal(err)
			}
			p.run()
			settle()
			w.expect(t, "ns/a@1", "ns/b@2")
			path = p.crash()
		}
	})
}

// TestAReconcileCanAskForAnother: after the time that it says, and at once in a new process.
func TestAReconcileCanAskForAnother(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"))
		path := testsupport.Path(t)
		for range 2 {
			p := launch(t, path, f, nil)
			var calls atomic.Int64
			reconcile := func(context.Context, warmwatch.ReconcileRequest) (warmwatch.ReconcileResult, error) {
				calls.Add(1)
				return warmwatch.ReconcileResult{After: time.Hour}, nil
			}
			if _, err := p.informer.AddReconciler("r", reconcile, sameEpoch()); err != nil {
				t.Fatal(err)
			}
			p.run()
			for i, wait := range []time.Duration{time.Minute, time.Hour} {
				advance(wait)
				if n := calls.Load(); n != int64(i)+1 {
					t.Errorf("%d reconciles, not %d", n, i+1)
				}
			}
			path = p.crash()
		}
	})
}

// TestEnqueue: a key that the cache lacks is reconciled, also if it comes before the informer runs. One that a durable
// handler has enqueued outlives the process.
func TestEnqueue(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t)
		start := func(path string, during func(context.Context, string) error, early ...cache.ObjectName) (*process, *works) {
			p := launch(t, path, f, nil)
			w := &works{lister: p.informer.GetStore(), during: during}
			r, err := p.informer.AddReconciler("r", w.reconcile, sameEpoch())
			if err != nil {
				t.Fatal(err)
			}
			r.Enqueue(early...)
			h := cache.ResourceEventHandlerFuncs{AddFunc: func(any) { r.Enqueue(cache.NewObjectName("ns", "owner")) }}
			if _, err := p.informer.AddDurableEventHandler("d", h, warmwatch.DurableOptions{}); err != nil {
				t.Fatal(err)
			}
			p.run()
			settle()
			return p, w
		}
		p, w := start(testsupport.Path(t), nil, cache.NewObjectName("ns", "early"))
		w.expect(t, "ns/early is gone")
		w.set(fail)
		f.put(configMap("a"))
		settle()
		if st := p.informer.Status(); st.Handlers[0].Undelivered != 0 || st.Reconcilers[0].Keys != 2 {
			t.Errorf("%+v, %+v", st.Handlers, st.Reconcilers)
		}
		_, w = start(p.crash(), nil)
		w.expect(t, "ns/a@1", "ns/owner is gone")
	})
}

// TestAReconcileThatPanicsIsRepeated: where panics do not end the process.
func TestAReconcileThatPanicsIsRepeated(t *testing.T) {
	defer func(crash bool) { utilruntime.ReallyCrash = crash }(utilruntime.ReallyCrash)
	utilruntime.ReallyCrash = false
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"))
		p := launch(t, testsupport.Path(t), f, nil)
		w := addReconciler(t, p, 1)
		panics := 0
		w.set(func(context.Context, string) error {
			if panics++; panics <= 3 {
				panic("a panic of the reconciler")
			}
			return nil
		})
		p.run()
		settle()
		w.expect(t, "ns/a@1")
	})
}

// TestADeletionThatComesWhileAnEarlierOneIsReconciledIsReconciled, with its object, which is selected again and again.
func TestADeletionThatComesWhileAnEarlierOneIsReconciledIsReconciled(t *testing.T) { // D4
	for _, seen := range []bool{true, false} {
		t.Run(fmt.Sprintf("it is seen: %t", seen), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t, configMap("b"))
				p := launch(t, testsupport.Path(t), f, nil)
				w := addReconcilerNamed(t, p, "r")
				w.set(nil)
				p.run()
				settle()
				w.expect(t, "ns/b@1")
				leave := make(chan struct{})
				w.set(func(context.Context, string) error { <-leave; return nil })
				again := configMap("b")
				again.SetUID("uid-1")
				f.remove("b")
				settle()
				f.put(again)
				settle()
				want := "ns/b is gone, deleted ns/b@4"
				if !seen {
					f.setDown(errUnreachable)
					f.closeWatches()
					want = "ns/b is gone, deleted ns/b@3"
				}
				f.remove("b")
				f.compact()
				f.setDown(nil)
				settle()
				close(leave)
				settle()
				w.expect(t, "ns/b is gone, deleted ns/b@2", want)
				p.stop()
			})
		})
	}
}
