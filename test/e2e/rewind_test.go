package e2e

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/warmwatch/warmwatch"
)

// history writes ConfigMaps, whose versions may be used a second time.
type history struct {
	c    typedcorev1.ConfigMapInterface
	note string // What is written now.
	made int
}

func (h *history) put(t *testing.T, name string) *corev1.ConfigMap {
	t.Helper()
	h.made++
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"note": h.note, "number": fmt.Sprint(h.made)}}
	put, err := h.c.Update(t.Context(), object, metav1.UpdateOptions{})
	if err != nil {
		put, err = h.c.Create(t.Context(), object, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	return put
}

// putUntil writes until the object has a version, or has passed it because
// another object got that one.
func (h *history) putUntil(t *testing.T, name, resourceVersion string) *corev1.ConfigMap {
	t.Helper()
	for {
		object := h.put(t, name)
		order, err := resourceversion.CompareResourceVersion(object.ResourceVersion, resourceVersion)
		if err != nil {
			t.Fatal(err)
		}
		if order >= 0 {
			return object
		}
	}
}

func (h *history) delete(t *testing.T, name string) {
	t.Helper()
	if err := h.c.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestEtcdWasRestored from an older copy: the checkpoint is of the server's
// future, where kube-apiserver lets a watch begin, and is silent.
func TestEtcdWasRestored(t *testing.T) {
	t.Parallel()
	cp := borrow(t)
	client := newClient(t, cp.Config())
	namespace := newNamespace(t, client)
	h := &history{c: client.CoreV1().ConfigMaps(namespace), note: "before"}
	for i := range 5 {
		h.put(t, fmt.Sprintf("stays-%d", i))
	}
	for _, name := range []string{"reused", "goes", "returns"} {
		h.put(t, name)
	}
	if err := cp.SnapshotEtcd(); err != nil {
		t.Fatal(err)
	}
	path, durable := newPath(t), newRecorder(t)
	durable.rewound, durable.isNew = true, true
	begin := func(client kubernetes.Interface) (*program, *warmwatch.SharedIndexInformer) {
		p := launch(t, path, warmwatch.Options{})
		informer := p.informer(configMapsIn(client, namespace), &corev1.ConfigMap{}, configMaps, warmwatch.InformerOptions{Namespace: namespace})
		addDurable(t, informer, "handler", durable)
		p.run()
		return p, informer
	}

	// The future that will not have been.
	p, informer := begin(client)
	h.note = "future"
	var reused *corev1.ConfigMap
	for range 40 {
		reused = h.put(t, "reused")
	}
	h.put(t, "never")
	h.delete(t, "returns")
	for range 100 {
		h.put(t, "stays-0")
	}
	expectServer(t, listConfigMaps(t, client, namespace), informer.GetStore(), durable)
	p.stop()

	if err := cp.RestoreEtcd(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.note = "now"
	h.delete(t, "goes")
	again := h.putUntil(t, "reused", reused.ResourceVersion)
	t.Logf("the version of an object was used again, for other content: %t", again.ResourceVersion == reused.ResourceVersion)
	durable.take()
	p, informer = begin(client)
	awaitPhase(t, informer, warmwatch.PhaseLive)
	expectServer(t, listConfigMaps(t, client, namespace), informer.GetStore(), durable)
	expectStart(t, informer, "disk", 1, 0)
	awaitAcknowledged(t, informer)
	kinds := map[string]string{}
	for _, e := range durable.take() {
		kinds[e.Key] += e.Kind
	}
	for name, want := range map[string]string{
		"never": "lost", "goes": "lost", "returns": "add", "reused": "update", "stays-0": "update", "stays-1": "",
	} {
		if got := kinds[namespace+"/"+name]; got != want {
			t.Errorf("of %s came: %q, want %q", name, got, want)
		}
	}
	// The watch is not silent.
	h.put(t, "new")
	expectServer(t, listConfigMaps(t, client, namespace), informer.GetStore(), durable)
	p.stop()
}

// TestEtcdWasRestoredUnderARunningInformer, which must not go on with a watch from
// the future either.
func TestEtcdWasRestoredUnderARunningInformer(t *testing.T) {
	t.Parallel()
	cp := borrow(t)
	client := newClient(t, cp.Config())
	namespace := newNamespace(t, client)
	h := &history{c: client.CoreV1().ConfigMaps(namespace), note: "before"}
	h.put(t, "stays")
	h.put(t, "returns")
	if err := cp.SnapshotEtcd(); err != nil {
		t.Fatal(err)
	}
	p, durable := launch(t, newPath(t), warmwatch.Options{}), newRecorder(t)
	durable.rewound, durable.isNew = true, true
	informer := p.informer(configMapsIn(client, namespace), &corev1.ConfigMap{}, configMaps, warmwatch.InformerOptions{Namespace: namespace})
	addDurable(t, informer, "handler", durable)
	p.run()
	h.note = "future"
	h.put(t, "never")
	h.delete(t, "returns")
	for range 150 {
		h.put(t, "stays")
	}
	expectServer(t, listConfigMaps(t, client, namespace), informer.GetStore(), durable)
	if err := cp.RestoreEtcd(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.note = "now"
	h.put(t, "new")
	expectServer(t, listConfigMaps(t, client, namespace), informer.GetStore(), durable)
}

// TestEtcdWasRestoredAndHasGoneOn past the checkpoint before the program starts
// again: nothing contradicts the store, and the number of objects shows that it is not the server's.
func TestEtcdWasRestoredAndHasGoneOn(t *testing.T) {
	t.Parallel()
	cp := borrow(t)
	client := newClient(t, cp.Config())
	namespace, elsewhere := newNamespace(t, client), newNamespace(t, client)
	h := &history{c: client.CoreV1().ConfigMaps(namespace), note: "before"}
	for _, name := range []string{"a-stays", "goes", "returns", "last"} {
		h.put(t, name)
	}
	if err := cp.SnapshotEtcd(); err != nil {
		t.Fatal(err)
	}
	path, durable := newPath(t), newRecorder(t)
	durable.rewound, durable.isNew = true, true
	begin := func() (*program, *warmwatch.SharedIndexInformer) {
		p := launch(t, path, warmwatch.Options{})
		informer := p.informer(configMapsIn(client, namespace), &corev1.ConfigMap{}, configMaps, warmwatch.InformerOptions{Namespace: namespace})
		addDurable(t, informer, "handler", durable)
		p.run()
		return p, informer
	}
	p, informer := begin()
	h.note = "future"
	h.delete(t, "returns")
	h.put(t, "never")
	last := h.put(t, "last")
	for range 30 { // More than the server writes by itself when it starts again.
		last = h.put(t, "last")
	}
	expectServer(t, listConfigMaps(t, client, namespace), informer.GetStore(), durable)
	p.stop()

	if err := cp.RestoreEtcd(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.note = "now"
	h.delete(t, "goes")
	other := &history{c: client.CoreV1().ConfigMaps(elsewhere), note: "now"}
	passed := other.putUntil(t, "o", last.ResourceVersion)
	for range 10 {
		passed = other.put(t, "o")
	}
	t.Logf("the checkpoint is at %s, the server beyond %s", last.ResourceVersion, passed.ResourceVersion)
	durable.take()
	p, informer = begin()
	awaitPhase(t, informer, warmwatch.PhaseLive)
	expectServer(t, listConfigMaps(t, client, namespace), informer.GetStore(), durable)
	if s := informer.Status(); s.StartedFrom != "disk" || s.Relists != 1 {
		t.Errorf("status: %+v, want one relist", s)
	}
	t.Log(informer.Status().Cause, informer.Status().Reason)
	h.put(t, "new")
	expectServer(t, listConfigMaps(t, client, namespace), informer.GetStore(), durable)
	p.stop()
}
