package warmwatch_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	bolt "go.etcd.io/bbolt"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// TestLostWorkIsRememberedUntilItIsQueuedAgain (D4): a process that finds keys lost, or its name used by
// another handler, may end before it can reconcile everything.
func TestLostWorkIsRememberedUntilItIsQueuedAgain(t *testing.T) {
	loseKey := func(t *testing.T, p *process) (path string) {
		w := addReconciler(t, p, 1)
		w.set(fail)
		p.run()
		settle()
		path = p.crash()
		change(t, path, "work", func(b *bolt.Bucket) error { return b.Delete([]byte("k1/r/ns/a")) })
		return path
	}
	useName := func(t *testing.T, p *process) (path string) {
		addDurable(t, p, "r")
		p.run()
		settle()
		return p.crash()
	}
	crash := (*process).crash
	stop := func(p *process) string { p.stop(); return p.path }
	for name, c := range map[string]struct {
		lose    func(*testing.T, *process) string
		end     func(*process) string // How the process between ends. Nil: there is none.
		waitFor bool                  // It waits for another cache, not for the server.
	}{
		"keys are lost":                            {lose: loseKey},
		"the next one waits, and crashes":          {lose: loseKey, end: crash},
		"the next one waits, and ends":             {lose: loseKey, end: stop},
		"the next one waits for another cache":     {lose: loseKey, end: crash, waitFor: true},
		"a handler has used the name":              {lose: useName},
		"and its first reconciler waits":           {lose: useName, end: crash},
		"and its first reconciler waits, and ends": {lose: useName, end: stop},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t, configMap("a"), configMap("b"))
				path := c.lose(t, launch(t, testsupport.Path(t), f, nil))
				if c.end != nil {
					var o warmwatch.ReconcilerOptions
					if c.waitFor {
						o.WaitFor = []cache.DoneChecker{neverDone{}}
					} else {
						f.setDown(errUnreachable)
					}
					p := launch(t, path, f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) {
						if !c.waitFor {
							o.ServeStaleAfter = 0
						}
					})
					w := &works{lister: p.informer.GetStore()}
					if _, err := p.informer.AddReconciler("r", w.reconcile, o); err != nil {
						t.Fatal(err)
					}
					p.run()
					settle()
					w.expect(t)
					path = c.end(p)
					f.setDown(nil)
				}
				p := launch(t, path, f, nil)
				w := addReconciler(t, p, 1)
				p.run()
				settle()
				w.expect(t, "ns/a@1", "ns/b@2")
				p = launch(t, p.crash(), f, nil)
				w = addReconciler(t, p, 1)
				p.run()
				settle()
				w.expect(t)
			})
		})
	}
}

type neverDone struct{}

func (neverDone) Name() string          { return "never" }
func (neverDone) Done() <-chan struct{} { return nil }

// TestAReconcilerAfterAnotherHandlerOfItsName reconciles everything: the other one was told of changes
// that nobody has put into a queue.
func TestAReconcilerAfterAnotherHandlerOfItsName(t *testing.T) {
	for name, c := range map[string]struct{ reconcilerBefore, forget, restart, early bool }{
		"the first one":                       {},
		"after another reconciler":            {reconcilerBefore: true},
		"of a name that was forgotten":        {reconcilerBefore: true, forget: true},
		"in the next process":                 {reconcilerBefore: true, restart: true},
		"in the next process, forgotten":      {reconcilerBefore: true, forget: true, restart: true},
		"added before the informer runs":      {reconcilerBefore: true, early: true},
		"added before it runs, then in a new": {reconcilerBefore: true, early: true, restart: true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t, configMap("a"), configMap("b"))
				p := launch(t, testsupport.Path(t), f, nil)
				p.run()
				settle()
				if c.reconcilerBefore {
					w := &works{lister: p.informer.GetStore()}
					registration, err := p.informer.AddReconciler("r", w.reconcile, warmwatch.ReconcilerOptions{})
					if err != nil {
						t.Fatal(err)
					}
					settle()
					w.expect(t, "ns/a@1", "ns/b@2")
					remove(t, p, registration)
					settle()
				}
				if c.forget {
					if err := p.informer.ForgetDurableEventHandler("r"); err != nil {
						t.Fatal(err)
					}
				}
				if c.early {
					p = launch(t, p.crash(), f, nil)
				}
				registration, err := p.informer.AddDurableEventHandler("r", &recorder{})
				if err != nil {
					t.Fatal(err)
				}
				if c.early {
					p.run()
				}
				settle()
				f.put(configMap("a"))
				settle()
				remove(t, p, registration)
				settle()
				if c.restart {
					p = launch(t, p.crash(), f, nil)
				}
				w := addReconciler(t, p, 1)
				if c.restart {
					p.run()
				}
				settle()
				w.expect(t, "ns/a@3", "ns/b@2")
			})
		})
	}
}

// TestAHandlerThatGetsTheNameOfARemovedReconciler at once: what it is told of is reconciled by the next
// reconciler, although the removed one may not have ended yet.
func TestAHandlerThatGetsTheNameOfARemovedReconciler(t *testing.T) {
	for name, c := range map[string]struct{ wait, inFlight bool }{
		"after a moment":            {wait: true},
		"at once":                   {},
		"a reconcile is in flight":  {inFlight: true},
		"one is in flight, a while": {inFlight: true, wait: true},
	} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restart %v", name, restart), func(t *testing.T) {
				bubble(t, func(t *testing.T) { checkNameOfARemovedReconciler(t, c.wait, c.inFlight, restart) })
			})
		}
	}
}

func checkNameOfARemovedReconciler(t *testing.T, wait, inFlight, restart bool) {
	t.Helper()
	f := newSource(t, configMap("a"), configMap("b"))
	p := launch(t, testsupport.Path(t), f, nil)
	p.run()
	settle()
	w := &works{lister: p.informer.GetStore()}
	registration, err := p.informer.AddReconciler("r", w.reconcile, warmwatch.ReconcilerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	settle()
	w.expect(t, "ns/a@1", "ns/b@2")
	want, release := []string{"ns/a@3", "ns/b@2"}, make(chan struct{})
	if inFlight {
		w.set(func(context.Context, string) error { <-release; return nil })
		f.put(configMap("b"))
		settle()
		want = []string{"ns/a@4", "ns/b@3"}
	}
	remove(t, p, registration)
	if wait {
		settle()
	}
	h, err := p.informer.AddDurableEventHandler("r", &recorder{})
	if err != nil {
		t.Fatal(err)
	}
	f.put(configMap("a"))
	settle()
	close(release)
	settle()
	remove(t, p, h)
	settle()
	if restart {
		p = launch(t, p.crash(), f, nil)
	}
	w = addReconciler(t, p, 1)
	if restart {
		p.run()
	}
	settle()
	w.expect(t, want...)
}

// TestAHandlerHasTheNameOfAReconcilerForAProcess: the keys that the file has for the name may be lost then.
func TestAHandlerHasTheNameOfAReconcilerForAProcess(t *testing.T) {
	for name, c := range map[string]struct{ removed, forgotten bool }{
		"it stays":               {},
		"it was removed":         {removed: true},
		"the name was forgotten": {removed: true, forgotten: true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t, configMap("a"), configMap("b"))
				path := testsupport.Path(t)
				first := launch(t, path, f, nil)
				w := addReconciler(t, first, 1)
				first.run()
				settle()
				w.expect(t, "ns/a@1", "ns/b@2")
				first.stop()
				second := launch(t, path, f, nil)
				h, err := second.informer.AddDurableEventHandler("r", &recorder{})
				if err != nil {
					t.Fatal(err)
				}
				second.run()
				settle()
				f.put(configMap("a"))
				settle()
				if c.removed {
					remove(t, second, h)
				}
				if c.forgotten {
					if err := second.informer.ForgetDurableEventHandler("r"); err != nil {
						t.Fatal(err)
					}
				}
				second.stop()

				next := launch(t, path, f, nil)
				w = addReconciler(t, next, 1)
				next.run()
				settle()
				w.expect(t, "ns/a@3", "ns/b@2")
			})
		})
	}
}

// TestADurableHandlerIsAddedWhileTheInformerBegins: whatever comes first, the next reconciler of its name
// is called for what it is told of. The race detector and many runs make most of it.
func TestADurableHandlerIsAddedWhileTheInformerBegins(t *testing.T) {
	for range 20 {
		bubble(t, func(t *testing.T) {
			f := newSource(t, configMap("a"))
			path := testsupport.Path(t)
			p := launch(t, path, f, nil)
			w := addReconciler(t, p, 1)
			p.run()
			settle()
			w.expect(t, "ns/a@1")
			p.stop()
			p = launch(t, path, f, nil)
			added := make(chan error, 1)
			go func() {
				_, err := p.informer.AddDurableEventHandler("r", &recorder{})
				added <- err
			}()
			p.run()
			if err := <-added; err != nil {
				t.Fatal(err)
			}
			settle()
			p.stop()
			p = launch(t, path, f, nil)
			w = addReconciler(t, p, 1)
			p.run()
			settle()
			w.expect(t, "ns/a@1")
		})
	}
}

// TestAReconcilerIsRefusedWhileItsNameIsInUse: that changes nothing for the next one.
func TestAReconcilerIsRefusedWhileItsNameIsInUse(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart %v", restart), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t, configMap("a"), configMap("b"))
				p := launch(t, testsupport.Path(t), f, nil).run()
				settle()
				release := make(chan struct{})
				h, err := p.informer.AddDurableEventHandler("r", &recorder{during: func(string) { <-release }})
				if err != nil {
					t.Fatal(err)
				}
				refused := &works{lister: p.informer.GetStore()}
				if _, err := p.informer.AddReconciler("r", refused.reconcile, warmwatch.ReconcilerOptions{}); !errors.Is(err, warmwatch.ErrInUse) {
					t.Errorf("a reconciler of a name that is in use: %v", err)
				}
				close(release)
				f.put(configMap("a"))
				settle()
				remove(t, p, h)
				settle()
				if restart {
					p = launch(t, p.crash(), f, nil)
				}
				w := addReconciler(t, p, 1)
				if restart {
					p.run()
				}
				settle()
				w.expect(t, "ns/a@3", "ns/b@2")
				refused.expect(t)
			})
		})
	}
}

// TestAReconcilerGetsTheNameOfAHandlerThatIsAtItsLastObject: when the handler returns, its name has been told of all
// objects, and the reconciler is told of none.
func TestAReconcilerGetsTheNameOfAHandlerThatIsAtItsLastObject(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"), configMap("b"))
		p := launch(t, testsupport.Path(t), f, nil).run()
		settle()
		release := make(chan struct{})
		h, err := p.informer.AddDurableEventHandler("r", &recorder{during: func(event string) {
			if event == "add ns/b@2 initial" {
				<-release
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		settle()
		remove(t, p, h)
		w := addReconciler(t, p, 1)
		close(release)
		settle()
		w.expect(t, "ns/a@1", "ns/b@2")
		p = launch(t, p.crash(), f, nil)
		w = addReconciler(t, p, 1)
		p.run()
		settle()
		w.expect(t)
	})
}
