package life_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/cachefile"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

func TestTheNameOfAReconciler(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"))
		path := testsupport.Path(t)
		p := process.Launch(t, path, f, nil)
		w := &works{lister: p.Informer.GetStore()}
		add := func(name string) (cache.ResourceEventHandlerRegistration, error) {
			return p.Informer.AddReconciler(name, w.reconcile, warmwatch.ReconcilerOptions{})
		}
		if _, err := add(""); err == nil {
			t.Error("a reconciler without a name")
		}
		if _, err := p.Informer.AddReconciler("r", nil, warmwatch.ReconcilerOptions{}); err == nil {
			t.Error("a reconciler without a function")
		}
		if _, err := add(strings.Repeat("r", 1025)); err == nil {
			t.Error("a reconciler whose name is too long for a workqueue")
		}
		removed, err := add("r")
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Informer.RemoveEventHandler(removed); err != nil {
			t.Error(err)
		}
		for i := range 2 { // Before the start, and while it runs.
			registration, err := add("r")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := add("r"); !errors.Is(err, warmwatch.ErrInUse) {
				t.Errorf("a second reconciler: %v", err)
			}
			if err := p.Informer.ForgetDurable("r"); !errors.Is(err, warmwatch.ErrInUse) {
				t.Errorf("forget: %v", err)
			}
			if p.End == nil {
				p.Run()
			}
			bubble.Settle()
			w.expect(t, fmt.Sprint("ns/a@", 1+2*i))
			if err := p.Informer.RemoveEventHandler(registration); err != nil {
				t.Error(err)
			}
			f.Remove("a")
			bubble.Settle()
			w.expect(t)
			if err := p.Informer.ForgetDurable("r"); err != nil { // A handler may have the name.
				t.Error(err)
			}
			f.Put(source.ConfigMap("a"))
			bubble.Settle()
		}
		p.Stop()
		if _, err := add("r"); err == nil {
			t.Error("a reconciler was added after the end")
		}
	})
}

// TestTheNextReconcilerOfANameHasTheDeletionsOfTheOneBefore: also those that wait for their next try and
// are not in the file yet. The name is free once they are.
func TestTheNextReconcilerOfANameHasTheDeletionsOfTheOneBefore(t *testing.T) {
	for range testsupport.Rounds(20, 5) {
		bubble.Run(t, func(t *testing.T) {
			f := source.New(t, source.ConfigMap("a"))
			p := process.Launch(t, testsupport.Path(t), f, nil)
			w := &works{lister: p.Informer.GetStore()}
			add := func() (cache.ResourceEventHandlerRegistration, error) {
				return p.Informer.AddReconciler("r", w.reconcile, sameEpoch())
			}
			registration, err := add()
			if err != nil {
				t.Fatal(err)
			}
			p.Run()
			bubble.Settle()
			w.expect(t, "ns/a@1")
			w.set(fail)
			f.Remove("a")
			bubble.Advance(30 * time.Millisecond)
			w.set(nil)
			if err := p.Informer.RemoveEventHandler(registration); err != nil {
				t.Fatal(err)
			}
			for _, err = add(); err != nil; _, err = add() {
				if !errors.Is(err, warmwatch.ErrInUse) {
					t.Fatal(err)
				}
			}
			bubble.Settle()
			w.expect(t, "ns/a is gone, deleted ns/a@2")
			if n := cachefile.KeyCount(t, p.Crash(), "deleted"); n != 0 {
				t.Errorf("%d deleted objects are left in the file", n)
			}
		})
	}
}

// TestTheNextReconcilerOfANameBeginsWithWhatIsLeft, which is known, although the first one was the first of
// its name.
func TestTheNextReconcilerOfANameBeginsWithWhatIsLeft(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"))
		p := process.Launch(t, testsupport.Path(t), f, nil)
		w := &works{lister: p.Informer.GetStore()}
		p.Run()
		for _, want := range [][]string{{"ns/a@1", "ns/b@2"}, {"ns/b@3"}, nil} {
			registration, err := p.Informer.AddReconciler("r", w.reconcile, sameEpoch())
			if err != nil {
				t.Fatal(err)
			}
			bubble.Settle()
			w.expect(t, want...)
			process.Remove(t, p, registration)
			bubble.Settle()
			if len(want) == 2 {
				f.Put(source.ConfigMap("b"))
				bubble.Settle()
			}
		}
	})
}
