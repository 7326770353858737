package life_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

func init() { programs["a reconcile panics"] = func([]string) error { return reconcilePanics() } }

// reconcilePanics is the program whose reconciler d panics in each reconcile of b.
func reconcilePanics() error {
	f := source.Of()
	f.Put(source.ConfigMap("a"), source.ConfigMap("b"), source.ConfigMap("c"))
	f.Change(os.Getenv("WARMWATCH_TEST_CHANGES"))
	c, err := warmwatch.Open(context.Background(), os.Getenv("WARMWATCH_TEST_FILE"), warmwatch.Options{
		MaxPanics: 1, FullRelistEvery: -1, // What the last process has left is not reconciled before the changes have come.
	})
	if err != nil {
		return err
	}
	informer, err := c.NewSharedIndexInformer(f, &corev1.ConfigMap{}, warmwatch.InformerOptions{Resource: process.ConfigMaps})
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
	testsupport.EndIfHanging()
	informer.RunWithContext(context.Background())
	return errors.New("Run has returned")
}

// TestNothingIsSkippedForAReconciler: what panics in each process is reconciled once it does not any
// more, with the last known object (D4).
func TestNothingIsSkippedForAReconciler(t *testing.T) {
	path := testsupport.Path(t)
	for i, change := range []string{"", "", "remove b", "remove b"} {
		want := "poison: ns/b@2"
		if change != "" { // With the last known object, if the handler was notified of the deletion before.
			want = "poison: ns/b is gone"
		}
		out := ""
		for try := 0; !strings.Contains(out, want); try++ { // It may die before the reconciler is notified of the deletion.
			if try == 20 {
				t.Fatalf("process %d did not die of %q:\n%s", i, want, out)
			}
			out = testsupport.Crash(t, "a reconcile panics", "WARMWATCH_TEST_FILE="+path, "WARMWATCH_TEST_CHANGES="+change)
		}
	}
	reconciled(t, path, func(_ *testing.T, f *source.Source) { f.Remove("b") }, func(t *testing.T, _ *source.Source, w *works) {
		w.mu.Lock()
		w.done = slices.DeleteFunc(w.done, func(what string) bool { return !strings.HasPrefix(what, "ns/b is gone,") })
		w.mu.Unlock()
		w.expect(t, "ns/b is gone, deleted ns/b@4")
	})
}

// reconciled runs a process with a reconciler d that does not panic.
func reconciled(t *testing.T, path string, before func(*testing.T, *source.Source), next func(*testing.T, *source.Source, *works)) {
	t.Helper()
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"), source.ConfigMap("c"))
		before(t, f)
		p := process.Launch(t, path, f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.MaxPanics, o.FullRelistEvery = 2, -1 })
		w := addReconcilerNamed(t, p, "d")
		w.set(nil)
		p.Run()
		bubble.Settle()
		next(t, f, w)
		p.Stop()
	})
}

// TestAReconcilerIsNotAddedToAnInformerThatEnds, also where its handlers have not ended yet: nothing
// would give it a queue.
func TestAReconcilerIsNotAddedToAnInformerThatEnds(t *testing.T) {
	f := source.New(t, source.ConfigMap("a"))
	p := process.Launch(t, testsupport.Path(t), f, nil)
	blocked, unblock := make(chan struct{}), make(chan struct{})
	err := p.Informer.SetTransform(func(obj any) (any, error) {
		if source.Key(obj) == "ns/b" {
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
		p.Informer.RunWithContext(t.Context())
	}()
	process.Until(func() bool { return p.Informer.Status().Phase == warmwatch.PhaseLive })
	f.Put(source.ConfigMap("b"))
	<-blocked
	closed := make(chan error)
	go func() { closed <- p.Cache.Close() }() // It waits for the event that is being applied.
	process.Until(p.Informer.IsStopped)
	_, err = p.Informer.AddReconciler("late", func(context.Context, warmwatch.ReconcileRequest) (result warmwatch.ReconcileResult, err error) {
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

// TestAReconcileThatPanicsIsRepeated: where panics do not end the process.
func TestAReconcileThatPanicsIsRepeated(t *testing.T) {
	defer func(crash bool) { utilruntime.ReallyCrash = crash }(utilruntime.ReallyCrash)
	utilruntime.ReallyCrash = false
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"))
		p := process.Launch(t, testsupport.Path(t), f, nil)
		w := addReconciler(t, p, 1)
		panics := 0
		w.set(func(context.Context, string) error {
			if panics++; panics <= 3 {
				panic("a panic of the reconciler")
			}
			return nil
		})
		p.Run()
		bubble.Settle()
		w.expect(t, "ns/a@1")
	})
}
