package e2e

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/warmwatch/warmwatch"
)

// TestClusterID: the file of one cluster is not believed in another, even if both
// have the same namespace, the same names and similar resourceVersions.
func TestClusterID(t *testing.T) {
	t.Parallel()
	const namespace = "same-name"
	first, second := newClient(t, shared.Config()), newClient(t, borrow(t).Config())
	for _, client := range []kubernetes.Interface{first, second} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
		if _, err := client.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		putConfigMap(t, client, namespace, "both", nil)
	}
	putConfigMap(t, first, namespace, "first", nil)
	putConfigMap(t, second, namespace, "second", nil)

	path, durable := newPath(t), newRecorder(t)
	durable.rewound = true
	begin := func(client kubernetes.Interface) (*program, *warmwatch.SharedIndexInformer) {
		p := launch(t, path, warmwatch.Options{ClusterID: warmwatch.KubeSystemUID(client.CoreV1())})
		informer := p.informer(configMapsIn(client, namespace), &corev1.ConfigMap{}, configMaps, warmwatch.InformerOptions{Namespace: namespace})
		addDurable(t, informer, "handler", durable)
		p.run()
		awaitPhase(t, informer, warmwatch.PhaseLive)
		expectServer(t, listConfigMaps(t, client, namespace), informer.GetStore(), durable)
		return p, informer
	}

	p, informer := begin(first)
	expectStart(t, informer, "server", 1, 0)
	p.stop()
	p, informer = begin(first)
	expectStart(t, informer, "disk", 0, 1)
	p.stop()
	durable.take()

	p, informer = begin(second)
	if s := informer.Status(); s.Relists == 0 || s.Resumes != 0 { // By its UID, or by what it answers to the question.
		t.Errorf("status in another cluster: %+v, want a relist", s)
	}
	awaitAcknowledged(t, informer)
	kinds := map[string]string{}
	for _, e := range durable.take() {
		kinds[e.Key] += e.Kind
	}
	for name, want := range map[string]string{"both": "lostadd", "first": "lost", "second": "add"} {
		if got := kinds[namespace+"/"+name]; got != want {
			t.Errorf("of %s came: %q, want %q", name, got, want)
		}
	}
	putConfigMap(t, second, namespace, "new", nil)
	expectServer(t, listConfigMaps(t, second, namespace), informer.GetStore(), durable)
	p.stop()
	_, informer = begin(second)
	expectStart(t, informer, "disk", 0, 1)
}
