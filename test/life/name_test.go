package life_test

import (
	"errors"
	"strings"
	"testing"

	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/recorder"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

func TestARemovedDurableHandlerKeepsItsPlace(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"))
		p := process.Launch(t, testsupport.Path(t), f, nil)
		d := &recorder.Recorder{}
		registration, err := p.Informer.AddDurableEventHandler("d", d, warmwatch.DurableOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Informer.AddDurableEventHandler("d", &recorder.Recorder{}, warmwatch.DurableOptions{}); !errors.Is(err, warmwatch.ErrInUse) {
			t.Errorf("a second handler of the name: %v", err)
		}
		if err := p.Informer.ForgetDurable("d"); !errors.Is(err, warmwatch.ErrInUse) {
			t.Errorf("forget a name that has a handler: %v", err)
		}
		p.Run()
		bubble.Settle()
		if err := cache.ShutDownEventHandler(p.Informer, registration); err != nil {
			t.Fatal(err)
		}
		f.Put(source.ConfigMap("a"), source.ConfigMap("b"))
		bubble.Settle()
		if n := process.Undelivered(p.Informer.Status()); n != 2 {
			t.Errorf("%d deltas are kept for the name, expected 2", n)
		}
		d.Expect(t, "add ns/a@1 initial")
		d = process.AddDurable(t, p, "d")
		bubble.Settle()
		d.Expect(t, "update ns/a@1→2", "add ns/b@3")
	})
}

func TestAForgottenDurableHandlerBeginsAnew(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"))
		path := testsupport.Path(t)
		p := process.Launch(t, path, f, nil)
		process.AddDurable(t, p, "d")
		p.Run()
		bubble.Settle()
		p.Stop()

		f.Put(source.ConfigMap("a"))
		p = process.Launch(t, path, f, nil).Run()
		bubble.Settle()
		if n := process.Undelivered(p.Informer.Status()); n != 1 {
			t.Errorf("%d deltas are kept for the name, expected 1", n)
		}
		for range 2 {
			if err := p.Informer.ForgetDurable("d"); err != nil {
				t.Fatal(err)
			}
		}
		bubble.Settle()
		if n := process.Undelivered(p.Informer.Status()); n != 0 {
			t.Errorf("%d deltas are kept for nobody", n)
		}
		p.Stop()

		p = process.Launch(t, path, f, nil)
		d := process.AddDurable(t, p, "d")
		p.Run()
		bubble.Settle()
		d.Expect(t, "add ns/a@2 initial")
	})
}

// TestAnInformerThatHasEndedForgetsNothing: the next one of its identity uses the names.
func TestAnInformerThatHasEndedForgetsNothing(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"))
		path := testsupport.Path(t)
		p := process.Launch(t, path, f, nil)
		process.AddDurable(t, p, "d")
		p.Run()
		bubble.Settle()
		p.End()
		ended := p.Informer
		var err error
		if p.Informer, err = p.Cache.NewSharedIndexInformer(f, source.ConfigMap(""), warmwatch.InformerOptions{Resource: process.ConfigMaps}); err != nil {
			t.Fatal(err)
		}
		process.AddDurable(t, p, "d")
		p.Run()
		bubble.Settle()
		if err := ended.ForgetDurable("d"); err == nil || !strings.Contains(err.Error(), "stopped already") {
			t.Errorf("forget after the end: error %v", err)
		}
		bubble.Settle()
		path = p.Crash()
		p.Stop()

		f.Remove("a")
		p = process.Launch(t, path, f, nil)
		d := process.AddDurable(t, p, "d")
		p.Run()
		bubble.Settle()
		d.Expect(t, "delete ns/a@2")
	})
}

func TestDurableHandlersOfDifferentNamesHaveCursorsOfTheirOwn(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"))
		path := testsupport.Path(t)
		for life, names := range [][]string{{"x", "y"}, {"x"}, {"x", "y", "z"}} {
			f.Put(source.ConfigMap("a"))
			hold := make(chan struct{})
			f.With(func() { f.Hold = hold })
			p := process.Launch(t, path, f, nil)
			handlers := map[string]*recorder.Recorder{}
			for _, name := range names {
				handlers[name] = process.AddDurable(t, p, name)
			}
			p.Run()
			bubble.Settle()
			close(hold)
			bubble.Settle()
			switch life {
			case 0:
				handlers["x"].Expect(t, "add ns/a@2 initial")
				handlers["y"].Expect(t, "add ns/a@2 initial")
			case 1:
				handlers["x"].Expect(t, "update ns/a@2→3")
			case 2:
				handlers["x"].Expect(t, "update ns/a@3→4")
				handlers["y"].Expect(t, "update ns/a@2→3", "update ns/a@3→4")
				handlers["z"].Expect(t, "add ns/a@3 initial", "update ns/a@3→4")
			}
			p.Stop()
		}
	})
}

// TestANameIsFreeWhenItsCallbackHasReturned: what that finishes counts for the next handler.
func TestANameIsFreeWhenItsCallbackHasReturned(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"))
		p := process.Launch(t, testsupport.Path(t), f, nil)
		first, registration, release := addHung(t, p, "d", "update ns/a@1→2")
		p.Run()
		bubble.Settle()
		f.Put(source.ConfigMap("a"), source.ConfigMap("b"))
		f.Remove("a")
		bubble.Settle()
		process.Remove(t, p, registration)
		second := &recorder.Recorder{}
		if _, err := p.Informer.AddDurableEventHandler("d", second, warmwatch.DurableOptions{}); !errors.Is(err, warmwatch.ErrInUse) {
			t.Errorf("a handler beside the one before: %v", err)
		}
		if err := p.Informer.ForgetDurable("d"); !errors.Is(err, warmwatch.ErrInUse) {
			t.Errorf("forget: %v", err)
		}
		close(release)
		bubble.Settle()
		if _, err := p.Informer.AddDurableEventHandler("d", second, warmwatch.DurableOptions{}); err != nil {
			t.Fatal(err)
		}
		bubble.Settle()
		first.Expect(t, "add ns/a@1 initial", "update ns/a@1→2")
		second.Expect(t, "add ns/b@3", "delete ns/a@4")
	})
}
