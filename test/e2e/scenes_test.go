package e2e

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/test/e2e/controlplane"
	"github.com/warmwatch/warmwatch/test/e2e/link"
	"github.com/warmwatch/warmwatch/test/e2e/meter"
	"github.com/warmwatch/warmwatch/test/e2e/workload"
)

const (
	scenePods = 700
	// idleBytes is what a restart may receive when nothing has changed. The
	// list would be 2.3 MB.
	idleBytes = 35_000
)

// theatre is where the scenes play, one after the other, on the same file.
type theatre struct {
	cp        *controlplane.ControlPlane
	client    kubernetes.Interface
	namespace string
	path      string
	durable   *recorder
	next      int // Number of the next Pod to change.
}

// act is one life of the program.
type act struct {
	*program
	pods  *warmwatch.SharedIndexInformer
	plain *recorder
	meter meter.Meter
}

func (th *theatre) act(t *testing.T, cfg *rest.Config) *act {
	t.Helper()
	a := &act{program: launch(t, th.path, warmwatch.Options{})}
	client := newClient(t, a.meter.Attach(cfg))
	a.pods = a.informer(podsIn(client, th.namespace), &corev1.Pod{}, pods, warmwatch.InformerOptions{Namespace: th.namespace})
	addDurable(t, a.pods, "scenes", th.durable)
	a.plain = newRecorder(t)
	addHandler(t, a.pods, a.plain)
	a.run()
	return a
}

func (th *theatre) server(t *testing.T) *corev1.PodList {
	t.Helper()
	list, err := th.client.CoreV1().Pods(th.namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func (th *theatre) pod(t *testing.T) *corev1.Pod {
	t.Helper()
	pod, err := th.client.CoreV1().Pods(th.namespace).Get(t.Context(), workload.Pod(th.next).Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	th.next++
	return pod
}

// The next three change a Pod each and say how that is delivered.

func (th *theatre) update(t *testing.T) string {
	t.Helper()
	before := th.pod(t)
	pod := before.DeepCopy()
	workload.Touch(pod)
	pod, err := th.client.CoreV1().Pods(th.namespace).Update(t.Context(), pod, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return deliveryOfUpdate(before, pod).String()
}

func (th *theatre) create(t *testing.T, number int) string {
	t.Helper()
	pod, err := th.client.CoreV1().Pods(th.namespace).Create(t.Context(), workload.Pod(number), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return deliveryOfAdd(pod, false).String()
}

// delete deletes at once: a Pod without a node needs no grace.
func (th *theatre) delete(t *testing.T) string {
	t.Helper()
	pod := th.pod(t)
	err := th.client.CoreV1().Pods(th.namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
	if err != nil {
		t.Fatal(err)
	}
	return deliveryOfDelete(pod).String()
}

// expectNoMore wants the durable handler to have got nothing since the last
// look at it, and that nothing waits for it.
func (th *theatre) expectNoMore(t *testing.T, a *act) {
	t.Helper()
	awaitAcknowledged(t, a.pods)
	th.durable.expect(t)
}

// TestScenes plays what cmd/demo shows.
func TestScenes(t *testing.T) {
	t.Parallel()
	cp := borrow(t)
	th := &theatre{cp: cp, client: newClient(t, cp.Config()), path: newPath(t), durable: newRecorder(t)}
	th.namespace = newNamespace(t, th.client)
	if err := workload.FillPods(t.Context(), cp.Config(), th.namespace, scenePods, nil); err != nil {
		t.Fatal(err)
	}
	for _, scene := range []struct {
		name string
		play func(*theatre, *testing.T)
	}{
		{"cold start lists", (*theatre).coldStart},
		{"restart with nothing changed", (*theatre).nothingChanged},
		{"six changes while down", (*theatre).sixChanges},
		{"restart with the server unreachable", (*theatre).unreachable},
		{"restart with the history gone", (*theatre).historyGone},
	} {
		if !t.Run(scene.name, func(t *testing.T) { scene.play(th, t) }) {
			t.FailNow()
		}
	}
}

func (th *theatre) coldStart(t *testing.T) {
	a := th.act(t, th.cp.Config())
	awaitSync(t, a.pods)
	expectServer(t, th.server(t), a.pods.GetStore(), th.durable, a.plain)
	expectStart(t, a.pods, "server", 1, 0)
	for _, e := range th.durable.take() {
		if e.Kind != "initial" {
			t.Errorf("notified of %v, want initial additions only", e)
		}
	}
	if got := a.meter.BytesReceived(); got < 2*idleBytes { // The list is compressed.
		t.Errorf("%d bytes received: that cannot be all Pods", got)
	}
}

func (th *theatre) nothingChanged(t *testing.T) {
	a := th.act(t, th.cp.Config())
	awaitSync(t, a.pods)
	awaitPhase(t, a.pods, warmwatch.PhaseLive)
	expectServer(t, th.server(t), a.pods.GetStore(), th.durable, a.plain)
	expectStart(t, a.pods, "disk", 0, 1)
	th.expectNoMore(t, a)
	a.stop()
	// The list is the question: one object.
	requests := a.meter.Requests()
	if lists := requests["list"]; requests["watch"] != 1 || lists < 1 || lists > 2 || len(requests) != 2 {
		t.Errorf("requests: %v", requests)
	}
	if got := a.meter.BytesReceived(); got >= idleBytes {
		t.Errorf("%d bytes received, want less than %d", got, idleBytes)
	}
}

func (th *theatre) sixChanges(t *testing.T) {
	want := []string{th.update(t), th.update(t), th.update(t), th.create(t, scenePods), th.delete(t), th.delete(t)}
	a := th.act(t, th.cp.Config())
	th.durable.expect(t, want...)
	expectServer(t, th.server(t), a.pods.GetStore(), th.durable, a.plain)
	expectStart(t, a.pods, "disk", 0, 1)
	th.expectNoMore(t, a)
}

func (th *theatre) unreachable(t *testing.T) {
	before := th.server(t)
	l, err := link.To(th.cp.Config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Down)
	l.Down()
	a := th.act(t, l.Attach(th.cp.Config()))
	expectServer(t, before, a.pods.GetStore()) // Readers have the disk, and nobody is called (A6).
	awaitPhase(t, a.pods, warmwatch.PhaseDisconnected)
	expectStart(t, a.pods, "disk", 0, 0)
	if got := a.plain.take(); a.pods.HasSynced() || len(got) > 0 {
		t.Errorf("synced without the server: %v, notified of %v", a.pods.HasSynced(), got)
	}

	want := []string{th.update(t), th.delete(t)}
	if err := l.Up(); err != nil {
		t.Fatal(err)
	}
	th.durable.expect(t, want...)
	awaitPhase(t, a.pods, warmwatch.PhaseLive)
	expectServer(t, th.server(t), a.pods.GetStore(), th.durable, a.plain)
	expectStart(t, a.pods, "disk", 0, 1)

	// And the same while it runs.
	l.Down()
	awaitPhase(t, a.pods, warmwatch.PhaseDisconnected)
	want = []string{th.update(t), th.create(t, scenePods+1), th.delete(t)}
	if err := l.Up(); err != nil {
		t.Fatal(err)
	}
	th.durable.expect(t, want...)
	expectServer(t, th.server(t), a.pods.GetStore(), th.durable, a.plain)
	if s := a.pods.Status(); s.Relists != 0 {
		t.Errorf("relisted: %+v", s)
	}
}

func (th *theatre) historyGone(t *testing.T) {
	want := []string{th.update(t), th.update(t), th.create(t, scenePods+2), th.delete(t)}
	th.forgetHistory(t)
	a := th.act(t, th.cp.Config())
	awaitSync(t, a.pods)
	th.durable.expectInAnyOrder(t, want...)
	expectServer(t, th.server(t), a.pods.GetStore(), th.durable, a.plain)
	expectStart(t, a.pods, "disk", 1, 0)
	th.expectNoMore(t, a)
}

// forgetHistory makes every resourceVersion from before too old.
func (th *theatre) forgetHistory(t *testing.T) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	if err := th.cp.StopAPIServer(); err != nil {
		t.Fatal(err)
	}
	if err := th.cp.CompactEtcd(ctx); err != nil {
		t.Fatal(err)
	}
	if err := th.cp.StartAPIServer(ctx); err != nil {
		t.Fatal(err)
	}
}
