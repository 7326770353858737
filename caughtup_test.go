package warmwatch_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// TestHasSyncedWaitsForWhatTheServerHadWhenItWasAsked (A6). Before that the store can be read, and no plain handler is called.
func TestHasSyncedWaitsForWhatTheServerHadWhenItWasAsked(t *testing.T) {
	fromServer := func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.ServeStaleAfter = 0 }
	for name, catchUp := range map[string]struct {
		how    func(*source, *watch.FakeWatcher)
		synced bool
	}{
		"an event reaches it": {func(f *source, w *watch.FakeWatcher) { w.Modify(f.objects["ns/a"]); advance(100 * time.Millisecond) }, true},
		"a bookmark reaches it": {func(_ *source, w *watch.FakeWatcher) {
			w.Action(watch.Bookmark, bookmark("3").Object)
			advance(100 * time.Millisecond)
		}, true},
		"an event does not": {func(_ *source, w *watch.FakeWatcher) {
			w.Action(watch.Bookmark, bookmark("2").Object)
			advance(100 * time.Millisecond)
		}, false},
		"it is quiet for 500 ms": {func(*source, *watch.FakeWatcher) { advance(500 * time.Millisecond) }, true},
		"it is quiet for 499 ms": {func(*source, *watch.FakeWatcher) { advance(499 * time.Millisecond) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t, configMap("a"))
				path := filled(t, f, nil)
				f.put(configMap("a"), configMap("a"))
				w := watch.NewFake()
				once := false
				f.onWatch = func(context.Context, metav1.ListOptions) (watch.Interface, error) {
					if once {
						return nil, errList
					}
					once = true
					return w, nil
				}
				f.hold = make(chan struct{})
				p := launch(t, path, f, fromServer)
				r, registration := add(t, p.informer)
				p.run()
				settle()
				if p.informer.HasSynced() || registration.HasSynced() {
					t.Error("synced before the server has answered")
				}
				r.expect(t)
				if got := versions(p.informer.GetStore().List()); !slices.Equal(got, []string{"ns/a@1"}) {
					t.Errorf("the store has %q", got)
				}
				close(f.hold)
				synctest.Wait()
				if p.informer.HasSynced() {
					t.Error("synced before the watch has brought anything")
				}
				catchUp.how(f, w)
				synctest.Wait()
				if got := p.informer.HasSynced(); got != catchUp.synced {
					t.Errorf("HasSynced is %v", got)
				}
				if got := registration.HasSynced(); got != catchUp.synced {
					t.Errorf("HasSynced of the registration is %v", got)
				}
				if told := len(r.take()); told > 0 != catchUp.synced {
					t.Errorf("the handler was called %d times", told)
				}
				if got := cache.IsDone(p.informer.CaughtUp()); got != catchUp.synced {
					t.Errorf("CaughtUp is %v", got)
				}
			})
		})
	}
	t.Run("nothing has changed", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			f := newSource(t, configMap("a"))
			p := launch(t, filled(t, f, nil), f, fromServer).run()
			if !p.informer.HasSynced() {
				t.Error("not synced at once")
			}
		})
	})
	t.Run("it has to relist", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			f := newSource(t, configMap("a"))
			path := filled(t, f, nil)
			f.restart()
			p := launch(t, path, f, fromServer).run()
			settle()
			if st := p.informer.Status(); !p.informer.HasSynced() || st.Relists != 1 {
				t.Errorf("after the relist: %+v", st)
			}
		})
	})
}

func TestHasSyncedWaitsUntilWhatHasComeIsApplied(t *testing.T) {
	for _, c := range []struct {
		name    string
		event   runtime.Object
		refusal error
		want    string // What the store has when HasSynced.
		after   time.Duration
	}{
		{"it is applied", at("2", "uid-1", "a", "new"), nil, "ns/a@2", 1900 * time.Millisecond},
		{"it reaches the server's version", at("3", "uid-1", "a", "new"), nil, "ns/a@3", 1900 * time.Millisecond},
		{"it is refused", at("2", "uid-1", "a", "new"), errList, "ns/a@1", 1900 * time.Millisecond},
		{"it is of another type", &corev1.Secret{}, nil, "ns/a@1", 500 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t, configMap("a"))
				path := testsupport.Path(t)
				life := func(transform cache.TransformFunc) *process {
					p := launch(t, path, f, func(o *warmwatch.Options, i *warmwatch.InformerOptions) {
						o.ServeStaleAfter, i.TransformVersion = 0, "1"
					})
					if err := p.informer.SetTransform(transform); err != nil {
						t.Fatal(err)
					}
					return p.run()
				}
				p := life(func(obj any) (any, error) { return obj, nil })
				settle()
				p.stop()
				f.put(configMap("a"), configMap("a"))
				w := watch.NewFake()
				f.onWatch = func(context.Context, metav1.ListOptions) (watch.Interface, error) { return w, nil }
				p = life(func(obj any) (any, error) {
					time.Sleep(1900 * time.Millisecond)
					return obj, c.refusal
				})
				_, registration := add(t, p.informer)
				w.Modify(c.event)
				begun := time.Now()
				for !p.informer.HasSynced() && time.Since(begun) < 5*time.Second {
					if registration.HasSynced() {
						t.Fatal("the registration has synced before the informer")
					}
					advance(time.Millisecond)
				}
				if got := time.Since(begun); got < c.after || got > c.after+200*time.Millisecond {
					t.Errorf("synced after %v, expected %v", got, c.after)
				}
				got := versions(p.informer.GetStore().List())
				if diff := cmp.Diff([]string{c.want}, got); diff != "" {
					t.Errorf("the store has something else (-want +got):\n%s", diff)
				}
				advance(3 * time.Second) // The transform is done.
			})
		})
	}
}

// TestServeStaleAfter (A6): HasSynced turns true with what the disk has when the server is not heard for that long.
func TestServeStaleAfter(t *testing.T) {
	for name, c := range map[string]struct {
		after  time.Duration
		stored bool
		down   bool
		synced time.Duration // When HasSynced turns true, in whole seconds, within a minute; negative: not.
	}{
		"it does not wait":                        {-1, true, true, 0},
		"it waits for a while":                    {5 * time.Second, true, true, 5 * time.Second},
		"it waits for the server":                 {0, true, true, -1},
		"the server is there":                     {5 * time.Second, true, false, 0},
		"nothing is stored":                       {5 * time.Second, false, true, -1},
		"nothing is stored, and it does not wait": {-1, false, true, -1},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t, configMap("a"))
				path := testsupport.Path(t)
				if c.stored {
					fill(t, path, f, nil)
				}
				f.put(configMap("b"))
				if c.down {
					f.setDown(errUnreachable)
				}
				p := launch(t, path, f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.ServeStaleAfter = c.after })
				r, registration := add(t, p.informer)
				p.run()
				if n := len(p.informer.GetStore().List()); n > 0 != c.stored {
					t.Errorf("%d objects can be read", n)
				}
				begun := time.Now()
				for !p.informer.HasSynced() && time.Since(begun) < time.Minute {
					if told := r.take(); len(told) > 0 {
						t.Errorf("told %q before", told)
					}
					advance(50 * time.Millisecond)
				}
				at := time.Since(begun).Truncate(time.Second) // The server's answers take a moment.
				if at >= time.Minute {
					at = -1
				}
				if at != c.synced {
					t.Errorf("synced after %v, expected %v", at, c.synced)
				}
				if got := cache.IsDone(p.informer.CaughtUp()); got == c.down {
					t.Errorf("caught up: %v", got)
				}
				synctest.Wait()
				if got := registration.HasSynced(); got != (c.synced >= 0) {
					t.Errorf("the registration has synced: %v", got)
				}
				f.setDown(nil)
				settle()
				expectStore(t, p.informer, f)
				if !p.informer.HasSynced() || !cache.IsDone(p.informer.CaughtUp()) || !registration.HasSynced() {
					t.Error("not synced with the server")
				}
			})
		})
	}
}

// TestDurableHandlersAreCalledBeforeHasSynced (A6): the deltas that wait for them are delivered at once, also without a server.
func TestDurableHandlersAreCalledBeforeHasSynced(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"))
		path := testsupport.Path(t)
		p := launch(t, path, f, nil)
		release := make(chan struct{})
		if _, err := p.informer.AddDurableEventHandler("d", &recorder{during: func(event string) {
			if event == "update ns/a@1→2" {
				<-release
			}
		}}, warmwatch.DurableOptions{}); err != nil {
			t.Fatal(err)
		}
		p.run()
		settle()
		f.put(configMap("a"))
		settle()
		path = p.crash()
		close(release)
		p.stop()
		f.setDown(errUnreachable)
		p = launch(t, path, f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.ServeStaleAfter = 0 })
		d := addDurable(t, p, "d")
		plain, _ := add(t, p.informer)
		p.run()
		settle()
		d.expect(t, "update ns/a@1→2")
		plain.expect(t)
	})
}
