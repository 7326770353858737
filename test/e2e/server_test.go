package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/test/e2e/link"
	"github.com/warmwatch/warmwatch/test/e2e/meter"
)

// TestBookmarks: a quiet informer is kept near the present by bookmarks, and its
// next life resumes there.
func TestBookmarks(t *testing.T) {
	t.Parallel()
	client := newClient(t, shared.Config())
	quiet, busy := newNamespace(t, client), newNamespace(t, client)
	putConfigMap(t, client, quiet, "only", nil)
	c := client.CoreV1().ConfigMaps(quiet)
	// The server sends a bookmark each minute, and two seconds before a watch
	// times out.
	soon := func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		if !o.AllowWatchBookmarks {
			t.Error("a watch without bookmarks")
		}
		o.TimeoutSeconds = new(int64(4))
		return c.Watch(ctx, o)
	}
	path, durable := newPath(t), newRecorder(t)
	begin := func() (*program, *warmwatch.SharedIndexInformer) {
		p := launch(t, path, warmwatch.Options{})
		informer := p.informer(newListWatch(client, c.List, soon, nil), &corev1.ConfigMap{}, configMaps, warmwatch.InformerOptions{Namespace: quiet})
		addDurable(t, informer, "quiet", durable)
		p.run()
		awaitSync(t, informer)
		return p, informer
	}
	p, informer := begin()
	var last *corev1.ConfigMap
	for i := range 20 {
		last = putConfigMap(t, client, busy, fmt.Sprintf("busy-%d", i), nil)
	}
	eventually(t, "a bookmark", func() error {
		if rv := informer.Status().ResourceVersion; goesBack(delivery{Old: last.ResourceVersion, New: rv}) {
			return fmt.Errorf("the cache is at %s, others at %s", rv, last.ResourceVersion)
		}
		return nil
	})
	if got, want := informer.LastSyncResourceVersion(), informer.Status().ResourceVersion; goesBack(delivery{Old: want, New: got}) {
		t.Errorf("LastSyncResourceVersion is %s, behind %s", got, want)
	}
	p.stop()
	p, informer = begin()
	expectServer(t, listConfigMaps(t, client, quiet), informer.GetStore(), durable)
	expectStart(t, informer, "disk", 0, 1)
	if got := informer.Status().Cause; got != warmwatch.CauseResumed {
		t.Errorf("started because of %q", got)
	}
	if n := len(durable.take()); n != 1 {
		t.Errorf("%d notifications, want one: bookmarks are not delivered", n)
	}
	p.stop()
}

// TestEventsAreNeverResumed: the API server keeps no history of them.
func TestEventsAreNeverResumed(t *testing.T) {
	t.Parallel()
	client := newClient(t, shared.Config())
	namespace := newNamespace(t, client)
	c := client.CoreV1().Events(namespace)
	create := func(name string) {
		t.Helper()
		_, err := c.Create(t.Context(), &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Name: name},
			InvolvedObject: corev1.ObjectReference{Namespace: namespace, Kind: "Pod", Name: "x"},
			Reason:         "Testing", Type: corev1.EventTypeNormal,
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	path, durable := newPath(t), newRecorder(t)
	expect := func(informer *warmwatch.SharedIndexInformer) {
		t.Helper()
		list, err := c.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		expectServer(t, list, informer.GetStore(), durable)
	}
	for life, from := range []string{"server", "disk", "disk"} {
		create(fmt.Sprintf("down-%d", life))
		var m meter.Meter
		metered := newClient(t, m.Attach(shared.Config()))
		mc := metered.CoreV1().Events(namespace)
		p := launch(t, path, warmwatch.Options{})
		informer := p.informer(newListWatch(metered, mc.List, mc.Watch, nil), &corev1.Event{}, events, warmwatch.InformerOptions{Namespace: namespace})
		addDurable(t, informer, "events", durable)
		p.run()
		expect(informer)
		expectStart(t, informer, from, 1, 0)
		create(fmt.Sprintf("up-%d", life))
		if life == 1 {
			if err := c.Delete(t.Context(), "up-0", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		expect(informer)
		p.stop()
		if r := m.Requests(); r["list"]+r["watchlist"] == 0 {
			t.Errorf("life %d: requests %v, want a list", life, r)
		}
	}
}

// TestHasSynced (A6): HasSynced waits for what happened while the program was
// down, and for the server.
func TestHasSynced(t *testing.T) {
	client := newClient(t, shared.Config())
	namespace := newNamespace(t, client)
	for i := range 10 {
		putConfigMap(t, client, namespace, fmt.Sprint(i), nil)
	}
	l, err := link.To(shared.Config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Down)
	linked := newClient(t, l.Attach(shared.Config()))
	path := newPath(t)
	begin := func() (*program, *warmwatch.SharedIndexInformer) {
		p := launch(t, path, warmwatch.Options{})
		informer := p.informer(configMapsIn(linked, namespace), &corev1.ConfigMap{}, configMaps, warmwatch.InformerOptions{Namespace: namespace})
		p.run()
		return p, informer
	}
	p, informer := begin()
	awaitSync(t, informer)
	p.stop()

	// With events to catch up with, and without.
	for round, change := range []bool{true, false} {
		l.Down()
		if change {
			for i := range 10 {
				putConfigMap(t, client, namespace, fmt.Sprint(i), map[string]string{"round": fmt.Sprint(round)})
			}
			putConfigMap(t, client, namespace, fmt.Sprintf("new-%d", round), nil)
			deleteConfigMap(t, client, namespace, "0")
		}
		p, informer = begin()
		handler := newRecorder(t)
		registration := addHandler(t, informer, handler)
		awaitPhase(t, informer, warmwatch.PhaseDisconnected)
		if n := len(informer.GetStore().List()); n != 10 {
			t.Errorf("%d objects are served while the server is away, want 10", n)
		}
		if informer.HasSynced() || registration.HasSynced() {
			t.Error("HasSynced before the server was reached")
		}
		// The answer to the question comes well before the first event.
		if err := errors.Join(l.Up(), l.Latency(200)); err != nil {
			t.Fatal(err)
		}
		want := versionsOfList(t, listConfigMaps(t, client, namespace))
		awaitSync(t, informer)
		if err := difference(want, versionsOfStore(informer.GetStore())); err != nil {
			t.Errorf("HasSynced, but the cache does not equal the server %v", err)
		}
		awaitSync(t, registration)
		expectServer(t, listConfigMaps(t, client, namespace), informer.GetStore(), handler)
		expectStart(t, informer, "disk", 0, 1)
		p.stop()
		if err := l.Heal(); err != nil {
			t.Fatal(err)
		}
	}
}
