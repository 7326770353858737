package contract_test

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
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/recorder"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

// TestHasSyncedWaitsForWhatTheServerHadWhenItWasAsked (A6). Before that the store can be read, and no plain handler is
// called.
func TestHasSyncedWaitsForWhatTheServerHadWhenItWasAsked(t *testing.T) {
	fromServer := func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.ServeStaleAfter = 0 }
	for name, catchUp := range map[string]struct {
		how    func(*source.Source, *watch.FakeWatcher)
		synced bool
	}{
		"an event reaches it": {func(f *source.Source, w *watch.FakeWatcher) {
			w.Modify(f.Objects["ns/a"])
			bubble.Advance(100 * time.Millisecond)
		}, true},
		"a bookmark reaches it": {func(_ *source.Source, w *watch.FakeWatcher) {
			w.Action(watch.Bookmark, source.Bookmark("3").Object)
			bubble.Advance(100 * time.Millisecond)
		}, true},
		"an event does not": {func(_ *source.Source, w *watch.FakeWatcher) {
			w.Action(watch.Bookmark, source.Bookmark("2").Object)
			bubble.Advance(100 * time.Millisecond)
		}, false},
		"it is quiet for 500 ms": {func(*source.Source, *watch.FakeWatcher) { bubble.Advance(500 * time.Millisecond) }, true},
		"it is quiet for 499 ms": {func(*source.Source, *watch.FakeWatcher) { bubble.Advance(499 * time.Millisecond) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Run(t, func(t *testing.T) {
				f := source.New(t, source.ConfigMap("a"))
				path := process.Filled(t, f, nil)
				f.Put(source.ConfigMap("a"), source.ConfigMap("a"))
				w := watch.NewFake()
				once := false
				f.OnWatch = func(context.Context, metav1.ListOptions) (watch.Interface, error) {
					if once {
						return nil, errList
					}
					once = true
					return w, nil
				}
				f.Hold = make(chan struct{})
				p := process.Launch(t, path, f, fromServer)
				r, registration := recorder.Add(t, p.Informer)
				p.Run()
				bubble.Settle()
				if p.Informer.HasSynced() || registration.HasSynced() {
					t.Error("synced before the server has answered")
				}
				r.Expect(t)
				if got := source.Versions(p.Informer.GetStore().List()); !slices.Equal(got, []string{"ns/a@1"}) {
					t.Errorf("the store has %q", got)
				}
				close(f.Hold)
				synctest.Wait()
				if p.Informer.HasSynced() {
					t.Error("synced before the watch has brought anything")
				}
				catchUp.how(f, w)
				synctest.Wait()
				if got := p.Informer.HasSynced(); got != catchUp.synced {
					t.Errorf("HasSynced is %v", got)
				}
				if got := registration.HasSynced(); got != catchUp.synced {
					t.Errorf("HasSynced of the registration is %v", got)
				}
				if delivered := len(r.Take()); delivered > 0 != catchUp.synced {
					t.Errorf("the handler was called %d times", delivered)
				}
				if got := cache.IsDone(p.Informer.CaughtUp()); got != catchUp.synced {
					t.Errorf("CaughtUp is %v", got)
				}
			})
		})
	}
	t.Run("nothing has changed", func(t *testing.T) {
		bubble.Run(t, func(t *testing.T) {
			f := source.New(t, source.ConfigMap("a"))
			p := process.Launch(t, process.Filled(t, f, nil), f, fromServer).Run()
			if !p.Informer.HasSynced() {
				t.Error("not synced at once")
			}
		})
	})
	t.Run("it has to relist", func(t *testing.T) {
		bubble.Run(t, func(t *testing.T) {
			f := source.New(t, source.ConfigMap("a"))
			path := process.Filled(t, f, nil)
			f.Restart()
			p := process.Launch(t, path, f, fromServer).Run()
			bubble.Settle()
			if st := p.Informer.Status(); !p.Informer.HasSynced() || st.Relists != 1 {
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
		{"it is applied", source.At("2", "uid-1", "a", "new"), nil, "ns/a@2", 1900 * time.Millisecond},
		{"it reaches the server's version", source.At("3", "uid-1", "a", "new"), nil, "ns/a@3", 1900 * time.Millisecond},
		{"it is refused", source.At("2", "uid-1", "a", "new"), errList, "ns/a@1", 1900 * time.Millisecond},
		{"it is of another type", &corev1.Secret{}, nil, "ns/a@1", 500 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble.Run(t, func(t *testing.T) {
				f := source.New(t, source.ConfigMap("a"))
				path := testsupport.Path(t)
				life := func(transform cache.TransformFunc) *process.Process {
					p := process.Launch(t, path, f, func(o *warmwatch.Options, i *warmwatch.InformerOptions) {
						o.ServeStaleAfter, i.TransformVersion = 0, "1"
					})
					if err := p.Informer.SetTransform(transform); err != nil {
						t.Fatal(err)
					}
					return p.Run()
				}
				p := life(func(obj any) (any, error) { return obj, nil })
				bubble.Settle()
				p.Stop()
				f.Put(source.ConfigMap("a"), source.ConfigMap("a"))
				w := watch.NewFake()
				f.OnWatch = func(context.Context, metav1.ListOptions) (watch.Interface, error) { return w, nil }
				p = life(func(obj any) (any, error) {
					time.Sleep(1900 * time.Millisecond)
					return obj, c.refusal
				})
				_, registration := recorder.Add(t, p.Informer)
				w.Modify(c.event)
				begun := time.Now()
				for !p.Informer.HasSynced() && time.Since(begun) < 5*time.Second {
					if registration.HasSynced() {
						t.Fatal("the registration has synced before the informer")
					}
					bubble.Advance(time.Millisecond)
				}
				if got := time.Since(begun); got < c.after || got > c.after+200*time.Millisecond {
					t.Errorf("synced after %v, expected %v", got, c.after)
				}
				got := source.Versions(p.Informer.GetStore().List())
				if diff := cmp.Diff([]string{c.want}, got); diff != "" {
					t.Errorf("the store has something else (-want +got):\n%s", diff)
				}
				bubble.Advance(3 * time.Second) // The transform is done.
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
			bubble.Run(t, func(t *testing.T) {
				f := source.New(t, source.ConfigMap("a"))
				path := testsupport.Path(t)
				if c.stored {
					process.Fill(t, path, f, nil)
				}
				f.Put(source.ConfigMap("b"))
				if c.down {
					f.SetDown(source.ErrUnreachable)
				}
				p := process.Launch(t, path, f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.ServeStaleAfter = c.after })
				r, registration := recorder.Add(t, p.Informer)
				p.Run()
				if n := len(p.Informer.GetStore().List()); n > 0 != c.stored {
					t.Errorf("%d objects can be read", n)
				}
				begun := time.Now()
				for !p.Informer.HasSynced() && time.Since(begun) < time.Minute {
					if delivered := r.Take(); len(delivered) > 0 {
						t.Errorf("delivered %q before", delivered)
					}
					bubble.Advance(50 * time.Millisecond)
				}
				at := time.Since(begun).Truncate(time.Second) // The server's answers take a moment.
				if at >= time.Minute {
					at = -1
				}
				if at != c.synced {
					t.Errorf("synced after %v, expected %v", at, c.synced)
				}
				if got := cache.IsDone(p.Informer.CaughtUp()); got == c.down {
					t.Errorf("caught up: %v", got)
				}
				synctest.Wait()
				if got := registration.HasSynced(); got != (c.synced >= 0) {
					t.Errorf("the registration has synced: %v", got)
				}
				f.SetDown(nil)
				bubble.Settle()
				process.ExpectStore(t, p.Informer, f)
				if !p.Informer.HasSynced() || !cache.IsDone(p.Informer.CaughtUp()) || !registration.HasSynced() {
					t.Error("not synced with the server")
				}
			})
		})
	}
}

// TestDurableHandlersAreCalledBeforeHasSynced (A6): the deltas that wait for them are delivered at once, also without a
// server.
func TestDurableHandlersAreCalledBeforeHasSynced(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"))
		path := testsupport.Path(t)
		p := process.Launch(t, path, f, nil)
		release := make(chan struct{})
		if _, err := p.Informer.AddDurableEventHandler("d", &recorder.Recorder{During: func(event string) {
			if event == "update ns/a@1→2" {
				<-release
			}
		}}, warmwatch.DurableOptions{}); err != nil {
			t.Fatal(err)
		}
		p.Run()
		bubble.Settle()
		f.Put(source.ConfigMap("a"))
		bubble.Settle()
		path = p.Crash()
		close(release)
		p.Stop()
		f.SetDown(source.ErrUnreachable)
		p = process.Launch(t, path, f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.ServeStaleAfter = 0 })
		d := process.AddDurable(t, p, "d")
		plain, _ := recorder.Add(t, p.Informer)
		p.Run()
		bubble.Settle()
		d.Expect(t, "update ns/a@1→2")
		plain.Expect(t)
	})
}
