package e2e

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/test/e2e/workload"
)

var (
	definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	widgets     = schema.GroupVersionResource{Group: "e2e.example.com", Version: "v1", Resource: "widgets"}
)

// createWidgets makes the API server serve widgets, whose spec may be anything.
func createWidgets(t *testing.T, client dynamic.Interface) {
	t.Helper()
	_, err := client.Resource(definitions).Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "widgets.e2e.example.com"},
		"spec": map[string]any{
			"group": "e2e.example.com", "scope": "Namespaced",
			"names": map[string]any{"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{
					"type": "object",
					"properties": map[string]any{
						"spec": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true},
					},
				}},
			}},
		},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "widgets to be served", func() error {
		_, err := client.Resource(widgets).List(t.Context(), metav1.ListOptions{})
		return err
	})
}

func widget(name string, number int64) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "e2e.example.com/v1", "kind": "Widget",
		"metadata": map[string]any{"name": name, "labels": map[string]any{"number": fmt.Sprint(number)}},
		"spec": map[string]any{
			"number": number, "most": int64(math.MaxInt64), "least": int64(math.MinInt64), "exact": int64(1<<53 + 1),
			"small": int64(-1), "zero": int64(0), "whole": 3.0, "tenth": 0.1, "huge": 1e300, "tiny": -1e-300,
			"yes": true, "no": false, "nothing": nil, "text": "Grüße\u0000\"<>&", "noText": "",
			"none": []any{}, "empty": map[string]any{},
			"nested": map[string]any{
				"list": []any{int64(1), 1.5, "x", nil, []any{}, map[string]any{"a": []any{map[string]any{"b": int64(2)}}}},
			},
		},
	}}
}

func TestCustomResourcesKeepTheirNumbers(t *testing.T) {
	t.Parallel()
	client := newHTTPClient(t, shared.Config(), func(cfg *rest.Config) (dynamic.Interface, error) { return dynamic.NewForConfig(cfg) })
	namespace := newNamespace(t, newClient(t, shared.Config()))
	createWidgets(t, client)
	c := client.Resource(widgets).Namespace(namespace)
	create := func(names ...string) {
		t.Helper()
		for i, name := range names {
			if _, err := c.Create(t.Context(), widget(name, int64(i)), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	update := func(name string) {
		t.Helper()
		object, err := c.Get(t.Context(), name, metav1.GetOptions{})
		if err == nil {
			if err = unstructured.SetNestedField(object.Object, int64(1<<60), "spec", "number"); err == nil {
				_, err = c.Update(t.Context(), object, metav1.UpdateOptions{})
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	path, durable := newPath(t), newRecorder(t)
	begin := func() (*program, *warmwatch.SharedIndexInformer) {
		// With so little memory everything is read from the file.
		p := launch(t, path, warmwatch.Options{MemoryBudget: 1})
		example := &unstructured.Unstructured{}
		example.SetGroupVersionKind(widgets.GroupVersion().WithKind("Widget"))
		informer := p.informer(newListWatch(client, c.List, c.Watch, nil), example, widgets, warmwatch.InformerOptions{Namespace: namespace})
		addDurable(t, informer, "widgets", durable)
		p.run()
		awaitSync(t, informer)
		return p, informer
	}
	expect := func(informer *warmwatch.SharedIndexInformer) {
		t.Helper()
		list, err := c.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		expectServer(t, list, informer.GetStore(), durable)
		for _, obj := range informer.GetStore().List() {
			stored := obj.(*unstructured.Unstructured)
			want, err := c.Get(t.Context(), stored.GetName(), metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			// As the client returned it: int64 is not float64.
			if diff := cmp.Diff(want.Object, stored.DeepCopy().Object); diff != "" {
				t.Errorf("%s (-server +store):\n%s", stored.GetName(), diff)
			}
			if most := stored.Object["spec"].(map[string]any)["most"]; most != int64(math.MaxInt64) {
				t.Errorf("the greatest number is %T %v", most, most)
			}
		}
	}

	create("a", "b", "c")
	p, informer := begin()
	expect(informer)
	create("d")
	update("a")
	expect(informer)
	p.stop()
	create("e")
	update("b")
	if err := c.Delete(t.Context(), "c", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	_, informer = begin()
	expect(informer)
	expectStart(t, informer, "disk", 0, 1)

	// A default changes what the server says of an object, and not its version.
	addDefault(t, client)
	eventuallyTrue(t, "the default to be served", func() bool {
		object, err := c.Get(t.Context(), "a", metav1.GetOptions{})
		color, _, _ := unstructured.NestedString(object.Object, "spec", "color")
		return err == nil && color == "blue"
	})
	if err := informer.Relist(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect(informer)
}

// addDefault gives widgets a color.
func addDefault(t *testing.T, client dynamic.Interface) {
	t.Helper()
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		definition, err := client.Resource(definitions).Get(t.Context(), "widgets.e2e.example.com", metav1.GetOptions{})
		if err != nil {
			return err
		}
		versions, _, _ := unstructured.NestedSlice(definition.Object, "spec", "versions")
		color := map[string]any{"type": "string", "default": "blue"}
		path := []string{"schema", "openAPIV3Schema", "properties", "spec", "properties", "color"}
		if err := unstructured.SetNestedMap(versions[0].(map[string]any), color, path...); err != nil {
			return err
		}
		if err := unstructured.SetNestedSlice(definition.Object, versions, "spec", "versions"); err != nil {
			return err
		}
		_, err = client.Resource(definitions).Update(t.Context(), definition, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestMetadataOnly(t *testing.T) {
	t.Parallel()
	client := newClient(t, shared.Config())
	namespace := newNamespace(t, client)
	c := newHTTPClient(t, metadata.ConfigFor(shared.Config()), metadata.NewForConfig).Resource(pods).Namespace(namespace)
	if err := workload.FillPods(t.Context(), shared.Config(), namespace, 20, nil); err != nil {
		t.Fatal(err)
	}
	path, durable, full := newPath(t), newRecorder(t), newRecorder(t)
	begin := func() (*program, *warmwatch.SharedIndexInformer, *warmwatch.SharedIndexInformer) {
		p := launch(t, path, warmwatch.Options{})
		lw := newListWatch(c, c.List, c.Watch, nil)
		// The same resource, in another form, in the same file.
		o := warmwatch.InformerOptions{Namespace: namespace}
		informer := p.informer(lw, &metav1.PartialObjectMetadata{}, pods, o)
		typed := p.informer(podsIn(client, namespace), &corev1.Pod{}, pods, o)
		addDurable(t, informer, "handler", durable)
		addDurable(t, typed, "handler", full)
		p.run()
		awaitSync(t, informer)
		return p, informer, typed
	}
	expect := func(informer, typed *warmwatch.SharedIndexInformer, count int) {
		t.Helper()
		list, err := c.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(list.Items) != count {
			t.Fatalf("%d Pods, want %d", len(list.Items), count)
		}
		expectServer(t, list, informer.GetStore(), durable)
		podList, err := client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		expectServer(t, podList, typed.GetStore(), full)
	}
	change := func(number int) {
		t.Helper()
		patch := []byte(`{"metadata":{"annotations":{"changed":"yes"}}}`)
		if _, err := c.Patch(t.Context(), workload.Pod(number).Name, "application/merge-patch+json", patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := c.Delete(t.Context(), workload.Pod(number+1).Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
			t.Fatal(err)
		}
	}

	p, informer, typed := begin()
	expect(informer, typed, 20)
	change(0)
	expect(informer, typed, 19)
	p.stop()
	change(2)
	_, informer, typed = begin()
	expect(informer, typed, 18)
	expectStart(t, informer, "disk", 0, 1)
	expectStart(t, typed, "disk", 0, 1)
}

// TestObjectsOfOneMebibyte are as large as ConfigMaps can be.
func TestObjectsOfOneMebibyte(t *testing.T) {
	t.Parallel()
	const count = 8
	client := newClient(t, shared.Config())
	namespace := newNamespace(t, client)
	c := client.CoreV1().ConfigMaps(namespace)
	object := func(i int, letter string) *corev1.ConfigMap {
		return &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("large-%d", i)},
			Data:       map[string]string{"filling": strings.Repeat(letter, 1<<20)},
		}
	}
	create := func(ctx context.Context, i int) error {
		_, err := c.Create(ctx, object(i, "a"), metav1.CreateOptions{})
		return err
	}
	if err := workload.Parallel(t.Context(), count, nil, create); err != nil {
		t.Fatal(err)
	}
	path, durable := newPath(t), newRecorder(t)
	begin := func() (*program, *warmwatch.SharedIndexInformer) {
		p := launch(t, path, warmwatch.Options{MemoryBudget: 2 << 20, MaxPendingBytes: 1 << 20})
		informer := p.informer(configMapsIn(client, namespace), &corev1.ConfigMap{}, configMaps, warmwatch.InformerOptions{Namespace: namespace})
		addDurable(t, informer, "large", durable)
		p.run()
		awaitSync(t, informer)
		return p, informer
	}
	update := func(ctx context.Context, i int) error {
		_, err := c.Update(ctx, object(i, "b"), metav1.UpdateOptions{})
		return err
	}

	p, informer := begin()
	expectServer(t, listConfigMaps(t, client, namespace), informer.GetStore(), durable)
	if err := workload.Parallel(t.Context(), count/4, nil, update); err != nil {
		t.Fatal(err)
	}
	expectServer(t, listConfigMaps(t, client, namespace), informer.GetStore(), durable)
	p.stop()
	if err := workload.Parallel(t.Context(), count/2, nil, update); err != nil {
		t.Fatal(err)
	}
	deleteConfigMap(t, client, namespace, "large-0")
	_, informer = begin()
	expectServer(t, listConfigMaps(t, client, namespace), informer.GetStore(), durable)
	expectStart(t, informer, "disk", 0, 1)
}

func TestSecretsAreForTheirOwnerOnly(t *testing.T) {
	t.Parallel()
	client := newClient(t, shared.Config())
	namespace := newNamespace(t, client)
	c := client.CoreV1().Secrets(namespace)
	create := func(name string) {
		t.Helper()
		_, err := c.Create(t.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string][]byte{"password": {0, 255, 'x', '\n'}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	path, durable := newPath(t), newRecorder(t)
	for _, name := range []string{"first", "second"} {
		create(name)
		p := launch(t, path, warmwatch.Options{})
		informer := p.informer(newListWatch(client, c.List, c.Watch, nil), &corev1.Secret{}, secrets, warmwatch.InformerOptions{Namespace: namespace})
		addDurable(t, informer, "secrets", durable)
		p.run()
		awaitSync(t, informer)
		list, err := c.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		expectServer(t, list, informer.GetStore(), durable)
		p.stop()
	}
	files, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("files: %v %v", files, err)
	}
	for _, file := range files {
		if mode := fileMode(t, file); mode != 0o600 {
			t.Errorf("%s has mode %v, want 0600", filepath.Base(file), mode)
		}
	}
	if mode := fileMode(t, filepath.Dir(path)); mode != 0o700 {
		t.Errorf("the directory has mode %v, want 0700", mode)
	}
}
