package warmwatch_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/warmwatch/warmwatch"
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
