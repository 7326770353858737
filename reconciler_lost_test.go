package warmwatch_test

import (
	"errors"
	"os"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// TestLostWorkIsRememberedUntilItIsQueuedAgain (Q6): a process that finds keys lost, or its name used by
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
							o.SyncPolicy = warmwatch.SyncFromServer
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

// TestAFirstReconcilerHearsOfWhatItIsCalledFor: while nothing can be committed its handler is told of nothing,
// so that it would not hear of the deletion of an object that it was called for.
func TestAFirstReconcilerHearsOfWhatItIsCalledFor(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"), configMap("b"))
		path := testsupport.Path(t)
		p := launch(t, path, f, nil)
		p.damaged = true
		p.run()
		settle()
		other := path + ".other"
		if err := errors.Join(os.WriteFile(other, []byte("other"), 0o600), os.Rename(other, path)); err != nil {
			t.Fatal(err)
		}
		f.put(configMap("b"))
		settle()
		w := addReconciler(t, p, 1)
		settle()
		f.remove("a")
		settle()
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		w.expect(t, "ns/b@3")
	})
}

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
