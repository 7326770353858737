package warmwatch_test

import (
	"context"
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

func TestSyncFromServerWaitsForWhatTheServerHadWhenItWasAsked(t *testing.T) {
	fromServer := func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.SyncPolicy = warmwatch.SyncFromServer }
	for name, catchUp := range map[string]struct {
		how    func(*source, *watch.FakeWatcher)
		synced bool
	}{
		"an event reaches it":    {func(f *source, w *watch.FakeWatcher) { w.Modify(f.objects["ns/a"]) }, true},
		"a bookmark reaches it":  {func(_ *source, w *watch.FakeWatcher) { w.Action(watch.Bookmark, bookmark("3").Object) }, true},
		"an event does not":      {func(_ *source, w *watch.FakeWatcher) { w.Action(watch.Bookmark, bookmark("2").Object) }, false},
		"it is quiet for 500 ms": {func(*source, *watch.FakeWatcher) { advance(500 * time.Millisecond) }, true},
		"it is quiet for 499 ms": {func(*source, *watch.FakeWatcher) { advance(499 * time.Millisecond) }, false},
		"the watch ends in between": {func(_ *source, w *watch.FakeWatcher) {
			w.Error(&metav1.Status{Reason: metav1.StatusReasonInternalError, Code: 500})
			advance(time.Millisecond)
		}, false},
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
				r.expect(t, "add ns/a@1 initial") // But it is served.
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

func TestSyncFromServerWaitsUntilWhatHasComeIsApplied(t *testing.T) {
	for _, c := range []struct {
		name    string
		event   runtime.Object
		refusal error
		want    string // What the store has when HasSynced.
		after   time.Duration
	}{
		{"it is applied", at("2", "uid-1", "a", "new"), nil, "ns/a@2", 2400 * time.Millisecond},
		{"it reaches the server's version", at("3", "uid-1", "a", "new"), nil, "ns/a@3", 1900 * time.Millisecond},
		{"it is refused", at("2", "uid-1", "a", "new"), errList, "ns/a@1", 2 * time.Second},
		{"it is of another type", &corev1.Secret{}, nil, "ns/a@1", 500 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t, configMap("a"))
				path := testsupport.Path(t)
				life := func(transform cache.TransformFunc) *process {
					p := launch(t, path, f, func(o *warmwatch.Options, i *warmwatch.InformerOptions) {
						o.SyncPolicy, i.TransformVersion = warmwatch.SyncFromServer, "1"
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
				if got := time.Since(begun); got != c.after {
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
