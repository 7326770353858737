package life_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/hook"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

// TestAStatusSaysWhichReconcileDoesNotReturn, and since when.
func TestAStatusSaysWhichReconcileDoesNotReturn(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"), source.ConfigMap("c"))
		p := process.Launch(t, testsupport.Path(t), f, nil)
		w := addReconciler(t, p, 2)
		p.Run()
		bubble.Settle()
		w.set(func(_ context.Context, what string) error {
			if strings.HasPrefix(what, "ns/b") {
				time.Sleep(time.Hour)
			}
			return nil
		})
		f.Put(source.ConfigMap("b"))
		bubble.Advance(time.Second)
		since := time.Now()
		for range 10 {
			f.Put(source.ConfigMap("a"))
			bubble.Advance(time.Minute)
		}
		st := p.Informer.Status().Reconcilers[0]
		if began := since.Sub(st.ReconcilingSince); st.Keys != 1 || st.Reconciling != "ns/b" || began <= 0 || began > time.Second {
			t.Errorf("%+v, %v", st, began)
		}
		bubble.Advance(time.Hour)
		if st := p.Informer.Status().Reconcilers[0]; st.Keys != 0 || st.Reconciling != "" || !st.ReconcilingSince.IsZero() {
			t.Errorf("once it has returned: %+v", st)
		}
	})
}

// TestAStatusSaysWhyAReconcileFails, until one of the object succeeds.
func TestAStatusSaysWhyAReconcileFails(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"))
		p := process.Launch(t, testsupport.Path(t), f, nil)
		w := addReconciler(t, p, 1)
		noRoute := errors.New("no route")
		w.set(func(_ context.Context, what string) error {
			if what == "ns/b@2" {
				return noRoute
			}
			return nil
		})
		p.Run()
		bubble.Settle()
		f.Put(source.ConfigMap("a")) // Its success says nothing about the other one.
		bubble.Settle()
		st := p.Informer.Status().Reconcilers[0]
		if !errors.Is(st.Err, noRoute) || st.Err.Error() != "reconcile ns/b: no route" || st.Keys != 1 {
			t.Errorf("%+v", st)
		}
		if b, err := json.Marshal(st); err != nil || string(b) != fmt.Sprintf(`{"Name":"r","Absent":false,"Keys":1,"Reconciling":"","Succeeded":2,"Failed":%d,"Requeued":0,"Err":"reconcile ns/b: no route"}`, st.Failed) {
			t.Errorf("%s, %v", b, err)
		}
		f.Put(source.ConfigMap("b"))
		bubble.Settle()
		if st := p.Informer.Status().Reconcilers[0]; st.Err != nil || st.Keys != 0 {
			t.Errorf("once it has succeeded: %+v", st)
		}
	})
}

// TestTheLogNamesAReconcileThatHoldsUpTheStop, and a handler beside it.
func TestTheLogNamesAReconcileThatHoldsUpTheStop(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		logger, logged := testsupport.LoggerOf("has not returned")
		f := source.New(t, source.ConfigMap("a"))
		p := process.Launch(t, testsupport.Path(t), f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.Logger = logger })
		w := addReconciler(t, p, 1)
		w.set(func(context.Context, string) error { time.Sleep(2 * hangs); return nil })
		process.AddDurable(t, p, "slow").During = func(string) { time.Sleep(2 * hangs) }
		p.Run()
		bubble.Settle()
		p.Stop()
		waiting := logged()
		if len(waiting) != 2 || !strings.Contains(waiting[0], `"handler"="slow"`) || !strings.Contains(waiting[1], `"reconciler"="r" "object"="ns/a"`) {
			t.Errorf("logged: %q", waiting)
		}
	})
}

// TestOnAFullDiskAStatusCountsWhatIsNotDone (S6), although the work waits in the handler, as the log says.
func TestOnAFullDiskAStatusCountsWhatIsNotDone(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		logger, logged := testsupport.LoggerOf("Could not write")
		f := source.New(t, source.ConfigMap("a"))
		p := process.Launch(t, testsupport.Path(t), f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.Logger = logger })
		addReconciler(t, p, 1).set(func(context.Context, string) error { return nil })
		p.Run()
		bubble.Settle()
		full := func() error { return syscall.ENOSPC }
		hook.BeforeWrite.Store(&full)
		defer hook.BeforeWrite.Store(nil)
		f.Put(source.ConfigMap("b"), source.ConfigMap("c"))
		bubble.Advance(10 * time.Second)
		if st := p.Informer.Status().Reconcilers[0]; st.Keys != 2 {
			t.Errorf("on a full disk: %+v", st)
		}
		if lines := logged(); len(lines) != 1 || !strings.Contains(lines[0], "reconcilers wait for 30 s") || !strings.Contains(lines[0], `"code"="NotWritten"`) {
			t.Errorf("logged: %q", lines)
		}
		hook.BeforeWrite.Store(nil)
		bubble.Settle()
		if st := p.Informer.Status().Reconcilers[0]; st.Keys != 0 {
			t.Errorf("once there is room: %+v", st)
		}
	})
}

// TestANewReconcilerHasNoErrorOfTheOneBefore: the name was forgotten, and there is nothing to reconcile.
func TestANewReconcilerHasNoErrorOfTheOneBefore(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"))
		p := process.Launch(t, testsupport.Path(t), f, nil)
		fails := func(context.Context, warmwatch.ReconcileRequest) (warmwatch.ReconcileResult, error) {
			return warmwatch.ReconcileResult{}, errors.New("no")
		}
		r, err := p.Informer.AddReconciler("r", fails, warmwatch.ReconcilerOptions{})
		if err != nil {
			t.Fatal(err)
		}
		p.Run()
		bubble.Settle()
		if err := p.Informer.RemoveEventHandler(r); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if err := p.Informer.ForgetDurable("r"); err != nil {
			t.Fatal(err)
		}
		f.Remove("a")
		bubble.Settle()
		if _, err := p.Informer.AddReconciler("r", fails, warmwatch.ReconcilerOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		for _, st := range p.Informer.Status().Reconcilers {
			if st.Err != nil {
				t.Errorf("a new reconciler, called for nothing, has the error of the forgotten one: %+v", st)
			}
		}
	})
}
