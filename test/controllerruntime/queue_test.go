package controllerruntime_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	clientworkqueue "k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2/ktesting"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/controllerruntime"
)

// runController runs a manager with one controller of the ConfigMaps in a namespace, until enough
// reconciles were made.
func runController(t *testing.T, path, namespace string, reconciler func(types.NamespacedName) error, enough <-chan struct{}) {
	t.Helper()
	logger := ktesting.NewLogger(t, ktesting.NewConfig())
	opened, err := warmwatch.Open(t.Context(), path, warmwatch.Options{Logger: &logger})
	if err != nil {
		t.Fatal(err)
	}
	cfg := shared.Config()
	cfg.Wrap(opened.WrapTransport)
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		Cache:      cache.Options{NewInformer: opened.NewInformer, DefaultNamespaces: map[string]cache.Config{namespace: {}}},
		Metrics:    server.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)},
		Logger:     logger,
	})
	if err != nil {
		t.Fatal(err)
	}
	look := func(_ context.Context, r ctrl.Request) (ctrl.Result, error) {
		return ctrl.Result{}, reconciler(r.NamespacedName)
	}
	err = ctrl.NewControllerManagedBy(mgr).Named("queue").For(&corev1.ConfigMap{}).
		WithOptions(controller.Options{NewQueue: controllerruntime.NewQueue(opened), MaxConcurrentReconciles: 3}).
		Complete(reconcile.Func(look))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := mgr.Start(ctx); err != nil {
			t.Error(err)
		}
	})
	select {
	case <-enough:
	case <-time.After(time.Minute):
		t.Error("not enough reconciles")
	}
	if status := opened.Status(); len(status.Workqueues) != 1 || status.Workqueues[0].Name != "queue" || status.Workqueues[0].Absent {
		t.Errorf("workqueues: %+v", status.Workqueues)
	}
	cancel()
	running.Wait()
	if err := opened.Close(); err != nil {
		t.Error(err)
	}
	utilnet.CloseIdleConnectionsFor(mgr.GetHTTPClient().Transport)
}

// TestADeletionThatIsNotReconciledIsReconciledByTheNextManager: the handler has acknowledged it.
func TestADeletionThatIsNotReconciledIsReconciledByTheNextManager(t *testing.T) {
	w, path := newWorld(t), newPath(t)
	for _, name := range []string{"a", "b"} {
		w.create(configMap(w.here, name, "red"))
	}
	mine := func(name types.NamespacedName) bool { return name.Name == "a" || name.Name == "b" }
	enough := make(chan struct{})
	var mu sync.Mutex
	seen := map[string]bool{}
	var afterDeletion int
	runController(t, path, w.here, func(name types.NamespacedName) error {
		mu.Lock()
		defer mu.Unlock()
		switch first := !seen[name.Name]; {
		case !mine(name):
		case first:
			seen[name.Name] = true
			if seen["a"] && seen["b"] {
				return w.client.Delete(t.Context(), configMap(w.here, "a", "red"))
			}
		case name.Name == "a": // It is gone.
			if afterDeletion++; afterDeletion == 2 {
				close(enough)
			}
			return errors.New("not now")
		}
		return nil
	}, enough)

	enough = make(chan struct{})
	done := sync.OnceFunc(func() { close(enough) })
	runController(t, path, w.here, func(name types.NamespacedName) error {
		if name.Name == "a" {
			done()
		}
		return nil
	}, enough)

	enough = make(chan struct{})
	done = sync.OnceFunc(func() { close(enough) })
	runController(t, path, w.here, func(name types.NamespacedName) error {
		switch name.Name {
		case "a":
			t.Error("a was reconciled, and is again")
		case "b":
			done()
		}
		return nil
	}, enough)
}

// TestASecondQueueOfAControllerIsInMemory: nothing stops the program.
func TestASecondQueueOfAControllerIsInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger := ktesting.NewLogger(t, ktesting.NewConfig())
		opened, err := warmwatch.Open(t.Context(), newPath(t), warmwatch.Options{Logger: &logger})
		if err != nil {
			t.Fatal(err)
		}
		newQueue := controllerruntime.NewQueue(opened)
		requests := []ctrl.Request{{NamespacedName: types.NamespacedName{Name: "node"}}, {NamespacedName: types.NamespacedName{Namespace: "ns", Name: "pod"}}}
		limiter := clientworkqueue.DefaultTypedControllerRateLimiter[ctrl.Request]()
		first := newQueue("name", limiter)
		second := newQueue("name", limiter)
		for _, r := range requests {
			first.Add(r)
			second.Add(r)
		}
		if st := opened.Status().Workqueues; len(st) != 1 || st[0].Keys != 2 || second.Len() != 2 {
			t.Errorf("%+v, and %d in memory", st, second.Len())
		}
		for range requests {
			r, _ := first.Get()
			first.Done(r)
		}
		first.Add(requests[1])
		r, _ := first.Get()
		first.ShutDown()
		first.AddRateLimited(r)
		first.Done(r)
		second.ShutDown()
		third := newQueue("name", limiter) // The first one is empty.
		if r, _ := third.Get(); r != requests[1] {
			t.Errorf("%v", r)
		}
		third.ShutDown()
		if err := opened.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestWhatWaitsWhenAManagerEndsIsForTheNext: as with controller-runtime's own queue, nothing more is
// reconciled, with a context that is done.
func TestWhatWaitsWhenAManagerEndsIsForTheNext(t *testing.T) {
	logger := ktesting.NewLogger(t, ktesting.NewConfig())
	opened, err := warmwatch.Open(t.Context(), newPath(t), warmwatch.Options{Logger: &logger})
	if err != nil {
		t.Fatal(err)
	}
	const requests = 10
	ctx, cancel := context.WithCancel(t.Context())
	shuttingDown := make(chan struct{})
	var reconciled []string
	c, err := controller.NewUnmanaged("queue", controller.Options{
		NewQueue: controllerruntime.NewQueue(opened), SkipNameValidation: new(true), Logger: logger,
		Reconciler: reconcile.Func(func(_ context.Context, r ctrl.Request) (ctrl.Result, error) {
			reconciled = append(reconciled, r.Name)
			cancel()
			<-shuttingDown
			return ctrl.Result{}, nil
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	err = c.Watch(source.Func(func(_ context.Context, q clientworkqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		for i := range requests {
			q.Add(ctrl.Request{NamespacedName: types.NamespacedName{Name: strconv.Itoa(i)}})
		}
		go func() {
			for !q.ShuttingDown() {
				time.Sleep(time.Millisecond)
			}
			close(shuttingDown)
		}()
		return nil
	}))
	if err == nil {
		err = c.Start(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	if st := opened.Status().Workqueues; len(reconciled) != 1 || len(st) != 1 || st[0].Keys != requests-1 {
		t.Errorf("reconciled: %v, workqueues: %+v", reconciled, st)
	}
	next := controllerruntime.NewQueue(opened)("queue", clientworkqueue.DefaultTypedControllerRateLimiter[ctrl.Request]())
	if next.Len() != requests-1 {
		t.Errorf("the next queue has %d requests", next.Len())
	}
	next.ShutDown()
	if err := opened.Close(); err != nil {
		t.Error(err)
	}
}
