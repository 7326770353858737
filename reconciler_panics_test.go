package warmwatch_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
)

func init() { programs["a reconcile panics"] = func([]string) error { return reconcilePanics() } }

// reconcilePanics is the program whose reconciler d panics in each reconcile of b.
func reconcilePanics() error {
	f := newSourceOf()
	f.put(configMap("a"), configMap("b"), configMap("c"))
	f.change(os.Getenv("WARMWATCH_TEST_CHANGES"))
	c, err := warmwatch.Open(context.Background(), os.Getenv("WARMWATCH_TEST_FILE"), warmwatch.Options{
		MaxPanics: 1, FullRelistEvery: -1, // What the last process has left is not reconciled before the changes have come.
	})
	if err != nil {
		return err
	}
	informer, err := c.NewSharedIndexInformer(f, &corev1.ConfigMap{}, warmwatch.InformerOptions{Resource: configMaps})
	if err != nil {
		return err
	}
	w := &works{lister: informer.GetStore(), during: func(_ context.Context, what string) error {
		if strings.HasPrefix(what, "ns/b") {
			panic("poison: " + what)
		}
		return nil
	}}
	if _, err = informer.AddReconciler("d", w.reconcile, sameEpoch()); err != nil {
		return err
	}
	endIfHanging()
	informer.RunWithContext(context.Background())
	return errors.New("Run has returned")
}

// TestNothingIsSkippedForAReconciler: what panics in each process is reconciled once it does not any
// more, with the last known object (D4).
func TestNothingIsSkippedForAReconciler(t *testing.T) {
	path := testsupport.Path(t)
	for i, change := range []string{"", "", "remove b", "remove b"} {
		want := "poison: ns/b@2"
		if change != "" { // With the last known object, if the handler was told of the deletion before.
			want = "poison: ns/b is gone"
		}
		out := ""
		for try := 0; !strings.Contains(out, want); try++ { // It may die before the reconciler is told of the deletion.
			if try == 20 {
				t.Fatalf("process %d did not die of %q:\n%s", i, want, out)
			}
			out = crash(t, "a reconcile panics", "WARMWATCH_TEST_FILE="+path, "WARMWATCH_TEST_CHANGES="+change)
		}
	}
	reconciled(t, path, func(_ *testing.T, f *source) { f.remove("b") }, func(t *testing.T, _ *source, w *works) {
		w.mu.Lock()
		w.done = slices.DeleteFunc(w.done, func(what string) bool { return !strings.HasPrefix(what, "ns/b is gone,") })
		w.mu.Unlock()
		w.expect(t, "ns/b is gone, deleted ns/b@4")
	})
}

// reconciled runs a process with a reconciler d that does not panic.
func reconciled(t *testing.T, path string, before func(*testing.T, *source), next func(*testing.T, *source, *works)) {
	t.Helper()
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"), configMap("b"), configMap("c"))
		before(t, f)
		p := launch(t, path, f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.MaxPanics, o.FullRelistEvery = 2, -1 })
		w := addReconcilerNamed(t, p, "d")
		w.set(nil)
		p.run()
		settle()
		next(t, f, w)
		p.stop()
	})
}

// TestAReconcilerIsNotAddedToAnInformerThatEnds, also where its handlers have not ended yet: nothing
// would give it a queue.
func TestAReconcilerIsNotAddedToAnInformerThatEnds(t *testing.T) {
	f := newSource(t, configMap("a"))
	p := launch(t, testsupport.Path(t), f, nil)
	blocked, unblock := make(chan struct{}), make(chan struct{})
	err := p.informer.SetTransform(func(obj any) (any, error) {
		if keyOf(obj) == "ns/b" {
			close(blocked)
			<-unblock
		}
		return obj, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.informer.RunWithContext(t.Context())
	}()
	until(func() bool { return p.informer.Status().Phase == warmwatch.PhaseLive })
	f.put(configMap("b"))
	<-blocked
	closed := make(chan error)
	go func() { closed <- p.cache.Close() }() // It waits for the event that is being applied.
	until(p.informer.IsStopped)
	_, err = p.informer.AddReconciler("late", func(context.Context, warmwatch.ReconcileRequest) (result warmwatch.ReconcileResult, err error) {
		return result, nil
	}, warmwatch.ReconcilerOptions{})
	if err == nil || !strings.Contains(err.Error(), "stopped already") {
		t.Error(err)
	}
	close(unblock)
	if err := <-closed; err != nil {
		t.Error(err)
	}
	<-ended
}
