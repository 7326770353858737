package e2e

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/test/e2e/workload"
)

// selection is an informer over a part of the ConfigMaps, and its handler.
type selection struct {
	client    kubernetes.Interface
	namespace string
	options   warmwatch.InformerOptions
	durable   *recorder
	informer  *warmwatch.SharedIndexInformer
}

func (s *selection) tweak(o *metav1.ListOptions) {
	o.LabelSelector, o.FieldSelector = s.options.LabelSelector, s.options.FieldSelector
}

func (s *selection) join(t *testing.T, p *program) {
	t.Helper()
	c := s.client.CoreV1().ConfigMaps(s.namespace)
	s.options.Namespace = s.namespace
	s.informer = p.informer(newListWatch(s.client, c.List, c.Watch, s.tweak), &corev1.ConfigMap{}, configMaps, s.options)
	addDurable(t, s.informer, "handler", s.durable)
}

func (s *selection) expect(t *testing.T, count int) {
	t.Helper()
	o := metav1.ListOptions{}
	s.tweak(&o)
	list, err := s.client.CoreV1().ConfigMaps(s.namespace).List(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != count {
		t.Fatalf("%d ConfigMaps match %+v, want %d", len(list.Items), s.options, count)
	}
	expectServer(t, list, s.informer.GetStore(), s.durable)
}

// TestInformersOfOneFileDoNotMix: same type, other selectors and namespaces.
func TestInformersOfOneFileDoNotMix(t *testing.T) {
	t.Parallel()
	client := newClient(t, shared.Config())
	here, there := newNamespace(t, client), newNamespace(t, client)
	selections := map[string]*selection{
		"red":     {namespace: here, options: warmwatch.InformerOptions{LabelSelector: "color=red"}},
		"blue":    {namespace: here, options: warmwatch.InformerOptions{LabelSelector: "color in (blue)"}},
		"one":     {namespace: here, options: warmwatch.InformerOptions{FieldSelector: "metadata.name=a"}},
		"both":    {namespace: here, options: warmwatch.InformerOptions{LabelSelector: "color=red", FieldSelector: "metadata.name!=a"}},
		"all":     {namespace: here},
		"another": {namespace: here, options: warmwatch.InformerOptions{Name: "another"}},
		"there":   {namespace: there},
	}
	for _, s := range selections {
		s.client, s.durable = client, newRecorder(t)
	}
	path := newPath(t)
	begin := func() *program {
		p := launch(t, path, warmwatch.Options{})
		for _, s := range selections {
			s.join(t, p)
		}
		p.run()
		for _, s := range selections {
			awaitSync(t, s.informer)
		}
		return p
	}
	expect := func(counts map[string]int) {
		t.Helper()
		for name, s := range selections {
			s.expect(t, counts[name])
		}
	}
	put := func(namespace, name, color string) {
		t.Helper()
		putConfigMap(t, client, namespace, name, map[string]string{"color": color})
	}

	for _, name := range []string{"a", "b", "c"} {
		put(here, name, "red")
		put(there, name, "red")
	}
	put(here, "d", "blue")
	p := begin()
	expect(map[string]int{"red": 3, "blue": 1, "one": 1, "both": 2, "all": 4, "another": 4, "there": 3})
	put(here, "a", "blue") // Leaves a selection, and enters another.
	put(here, "e", "red")
	put(there, "b", "green")
	expect(map[string]int{"red": 3, "blue": 2, "one": 1, "both": 3, "all": 5, "another": 5, "there": 3})
	if _, err := p.cache.NewSharedIndexInformer(configMapsIn(client, here), &corev1.ConfigMap{}, warmwatch.InformerOptions{
		Resource: configMaps, Namespace: here, LabelSelector: "color=red",
	}); !errors.Is(err, warmwatch.ErrInUse) {
		t.Errorf("a second informer of the same identity: %v, want ErrInUse", err)
	}
	p.stop()

	// The same while nobody watches.
	for _, s := range selections {
		s.durable.take()
	}
	put(here, "a", "red")
	put(here, "b", "blue")
	deleteConfigMap(t, client, here, "d")
	begin()
	for _, s := range selections {
		expectStart(t, s.informer, "disk", 0, 1)
	}
	expect(map[string]int{"red": 3, "blue": 1, "one": 1, "both": 2, "all": 4, "another": 4, "there": 3})
	for name, want := range map[string]int{
		"red":     2, // a comes, b goes.
		"blue":    3, // a goes, b comes, d is deleted.
		"one":     1, // a changes.
		"both":    1, // b goes.
		"all":     3,
		"another": 3,
		"there":   0,
	} {
		awaitAcknowledged(t, selections[name].informer)
		if got := selections[name].durable.take(); len(got) != want {
			t.Errorf("%s was notified of %v, want %d notifications", name, got, want)
		}
	}
}

func putConfigMap(t *testing.T, client kubernetes.Interface, namespace, name string, labels map[string]string) *corev1.ConfigMap {
	t.Helper()
	c := client.CoreV1().ConfigMaps(namespace)
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	put, err := c.Create(t.Context(), object, metav1.CreateOptions{})
	if err != nil {
		put, err = c.Update(t.Context(), object, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	return put
}

func deleteConfigMap(t *testing.T, client kubernetes.Interface, namespace, name string) {
	t.Helper()
	if err := client.CoreV1().ConfigMaps(namespace).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func listConfigMaps(t *testing.T, client kubernetes.Interface, namespace string) *corev1.ConfigMapList {
	t.Helper()
	list, err := client.CoreV1().ConfigMaps(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestPodsOfANode is what every agent on a node does.
func TestPodsOfANode(t *testing.T) {
	t.Parallel()
	client := newClient(t, shared.Config())
	namespace := newNamespace(t, client)
	c := client.CoreV1().Pods(namespace)
	const selector = "spec.nodeName=node-1"
	create := func(number int, node string) *corev1.Pod {
		t.Helper()
		pod := workload.Pod(number)
		pod.Spec.NodeName = node
		pod, err := c.Create(t.Context(), pod, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return pod
	}
	bind := func(number int, node string) {
		t.Helper()
		err := c.Bind(t.Context(), &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: workload.Pod(number).Name}, Target: corev1.ObjectReference{Kind: "Node", Name: node},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	path, durable := newPath(t), newRecorder(t)
	begin := func() (*program, *warmwatch.SharedIndexInformer) {
		p := launch(t, path, warmwatch.Options{})
		lw := newListWatch(client, c.List, c.Watch, func(o *metav1.ListOptions) { o.FieldSelector = selector })
		informer := p.informer(lw, &corev1.Pod{}, pods, warmwatch.InformerOptions{
			Namespace: namespace, FieldSelector: selector,
			Indexers: cache.Indexers{"app": func(obj any) ([]string, error) { return []string{obj.(*corev1.Pod).Labels["app"]}, nil }},
		})
		addDurable(t, informer, "kubelet", durable)
		p.run()
		return p, informer
	}
	expect := func(informer *warmwatch.SharedIndexInformer, count int) {
		t.Helper()
		list, err := c.List(t.Context(), metav1.ListOptions{FieldSelector: selector})
		if err != nil {
			t.Fatal(err)
		}
		if len(list.Items) != count {
			t.Fatalf("%d Pods, want %d", len(list.Items), count)
		}
		expectServer(t, list, informer.GetStore(), durable)
		indexed, err := informer.GetIndexer().ByIndex("app", workload.Pod(0).Labels["app"])
		if err != nil || len(indexed) != count {
			t.Errorf("%d Pods are indexed, want %d (%v)", len(indexed), count, err)
		}
	}

	create(0, "node-1")
	create(1, "node-2")
	create(2, "")
	p, informer := begin()
	awaitSync(t, informer)
	expect(informer, 1)
	bind(2, "node-1")
	expect(informer, 2)
	p.stop()
	create(3, "")
	bind(3, "node-1")
	create(4, "node-2")
	if err := c.Delete(t.Context(), workload.Pod(0).Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
		t.Fatal(err)
	}
	_, informer = begin()
	expect(informer, 2)
	expectStart(t, informer, "disk", 0, 1)
}
