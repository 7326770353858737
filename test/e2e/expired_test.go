package e2e

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/test/e2e/controlplane"
	"github.com/warmwatch/warmwatch/test/e2e/meter"
	"github.com/warmwatch/warmwatch/test/e2e/workload"
)

// wire writes down what is asked for of a resource, and counts the bytes that come.
type wire struct {
	meter.Meter
	mu    sync.Mutex
	lists map[string][]string // By resource.
}

// attach returns a copy of cfg whose requests are written down.
func (w *wire) attach(cfg *rest.Config) *rest.Config {
	cfg = w.Attach(cfg)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return wired{w, next} })
	return cfg
}

// take returns the lists of a resource since it was called last, sorted: "all" objects, "metadata",
// or the name of one object.
func (w *wire) take(resource string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	lists := w.lists[resource]
	delete(w.lists, resource)
	slices.Sort(lists)
	return lists
}

type wired struct {
	wire *wire
	http.RoundTripper
}

var oneName = regexp.MustCompile(`metadata\.name=([^,]+)`)

func (w wired) RoundTrip(r *http.Request) (*http.Response, error) {
	query := r.URL.Query()
	kind := meter.Kind(r)
	name := oneName.FindStringSubmatch(query.Get("fieldSelector"))
	what := ""
	switch {
	case kind != "list" && kind != "watchlist", query.Get("limit") == "1":
	case strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadataList"):
		what = "metadata"
	case name != nil:
		what = name[1]
	default:
		what = "all"
	}
	if what != "" {
		resource := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
		w.wire.mu.Lock()
		w.wire.lists[resource] = append(w.wire.lists[resource], what)
		w.wire.mu.Unlock()
	}
	return w.RoundTripper.RoundTrip(r)
}

// gone is a program with two informers, whose server loses its history.
type gone struct {
	*wire
	typed      kubernetes.Interface // Of the test.
	dynamic    dynamic.Interface
	namespace  string
	path       string
	configMaps *recorder // Durable handlers.
	widgets    *recorder
}

const goneObjects = 200

func newGone(t *testing.T, cp *controlplane.ControlPlane) *gone {
	t.Helper()
	g := &gone{
		wire: &wire{lists: map[string][]string{}}, typed: newClient(t, cp.Config()), path: newPath(t),
		dynamic:    newHTTPClient(t, cp.Config(), func(cfg *rest.Config) (dynamic.Interface, error) { return dynamic.NewForConfig(cfg) }),
		configMaps: newRecorder(t), widgets: newRecorder(t),
	}
	g.namespace = newNamespace(t, g.typed)
	createWidgets(t, g.dynamic)
	for i := range goneObjects {
		g.create(t, fmt.Sprintf("o%03d", i), i)
	}
	awaitSchema(t, g.typed, "apis/e2e.example.com/v1", "") // A second after widgets are served.
	return g
}

// life runs the program once.
func (g *gone) life(t *testing.T, cfg *rest.Config, during func(t *testing.T, configMaps, widgets *warmwatch.SharedIndexInformer)) {
	t.Helper()
	p := launch(t, g.path, warmwatch.Options{})
	cfg = g.attach(cfg)
	cfg.Wrap(p.cache.WrapTransport)
	typed := newClient(t, cfg)
	untyped := newHTTPClient(t, cfg, func(cfg *rest.Config) (dynamic.Interface, error) { return dynamic.NewForConfig(cfg) })
	example := &unstructured.Unstructured{}
	example.SetGroupVersionKind(widgets.GroupVersion().WithKind("Widget"))
	c := untyped.Resource(widgets).Namespace(g.namespace)
	cm := p.informer(configMapsIn(typed, g.namespace), &corev1.ConfigMap{}, configMaps, warmwatch.InformerOptions{Namespace: g.namespace})
	w := p.informer(newListWatch(untyped, c.List, c.Watch, nil), example, widgets, warmwatch.InformerOptions{Namespace: g.namespace})
	addDurable(t, cm, "handler", g.configMaps)
	addDurable(t, w, "handler", g.widgets)
	p.run()
	for _, informer := range p.all {
		awaitSync(t, informer)
		awaitPhase(t, informer, warmwatch.PhaseLive)
	}
	during(t, cm, w)
	for _, informer := range p.all {
		awaitAcknowledged(t, informer)
	}
	p.stop()
}

// expectServer waits until the program has what the server has.
func (g *gone) expectServer(t *testing.T, configMaps, objects *warmwatch.SharedIndexInformer) {
	t.Helper()
	expectServer(t, listConfigMaps(t, g.typed, g.namespace), configMaps.GetStore(), g.configMaps)
	list, err := g.dynamic.Resource(widgets).Namespace(g.namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	expectServer(t, list, objects.GetStore(), g.widgets)
}

// change updates, deletes, replaces and creates objects. It returns the names of those that there
// are then.
func (g *gone) change(t *testing.T, round int) (changed []string) {
	t.Helper()
	name := func(i int) string { return fmt.Sprintf("o%03d", round*10+i) }
	cm, w := g.typed.CoreV1().ConfigMaps(g.namespace), g.dynamic.Resource(widgets).Namespace(g.namespace)
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2 {
		must(cm.Patch(t.Context(), name(i), "application/merge-patch+json", []byte(`{"data":{"new":"data"}}`), metav1.PatchOptions{}))
		must(w.Patch(t.Context(), name(i), "application/merge-patch+json", []byte(`{"spec":{"number":77}}`), metav1.PatchOptions{}))
	}
	for i := 2; i < 4; i++ {
		must(nil, cm.Delete(t.Context(), name(i), metav1.DeleteOptions{}))
		must(nil, w.Delete(t.Context(), name(i), metav1.DeleteOptions{}))
	}
	added := fmt.Sprintf("new%d", round)
	for _, n := range []string{name(3), added} {
		g.create(t, n, 99)
	}
	return []string{added, name(0), name(1), name(3)}
}

func (g *gone) create(t *testing.T, name string, i int) {
	t.Helper()
	object := workload.ConfigMap(i)
	object.Name = name
	if _, err := g.typed.CoreV1().ConfigMaps(g.namespace).Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w := widget(name, int64(i))
	if strings.HasPrefix(name, "new") { // These are the first of a list, and the last that are changed.
		if err := unstructured.SetNestedField(w.Object, "red", "spec", "color"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := g.dynamic.Resource(widgets).Namespace(g.namespace).Create(t.Context(), w, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// expectLists compares the lists since the last time. One that comes slowly is asked for twice.
func (g *gone) expectLists(t *testing.T, resource string, want ...string) {
	t.Helper()
	slices.Sort(want)
	if diff := cmp.Diff(want, slices.Compact(g.take(resource))); diff != "" {
		t.Errorf("lists of %s (-want +got):\n%s", resource, diff)
	}
}

func TestWhenHistoryIsGoneOnlyWhatChangedIsAskedFor(t *testing.T) {
	t.Parallel()
	cp := newControlPlane(t)
	g := newGone(t, cp)
	restart := func() {
		t.Helper()
		if err := cp.RestartAPIServer(context.WithoutCancel(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	g.life(t, cp.Config(), g.expectServer)
	whole := g.BytesReceived()
	g.expectLists(t, "configmaps", "all")
	g.expectLists(t, "widgets", "all")

	changed := g.change(t, 1)
	restart()
	g.life(t, cp.Config(), func(t *testing.T, cm, w *warmwatch.SharedIndexInformer) {
		g.expectServer(t, cm, w)
		expectStart(t, cm, "disk", 1, 0)
		expectStart(t, w, "disk", 1, 0)
		t.Logf("%d bytes at first, then %d", whole, g.BytesReceived()-whole)
		g.expectLists(t, "configmaps", append([]string{"metadata", "o000"}, changed...)...)
		g.expectLists(t, "widgets", append([]string{"metadata", "o000"}, changed...)...)

		// The server comes back under a running informer.
		restart()
		eventuallyTrue(t, "the relists", func() bool { return cm.Status().Relists == 2 && w.Status().Relists == 2 })
		changed, unchanged := g.change(t, 2), changed[0]
		g.expectServer(t, cm, w)
		for _, resource := range []string{"configmaps", "widgets"} {
			for _, what := range g.take(resource) { // What was changed before the watch was open again was got by its name.
				if what != "metadata" && what != unchanged && !slices.Contains(changed, what) {
					t.Errorf("%s: %s was listed", resource, what)
				}
			}
		}
	})

	// A default changes what the server says of widgets, and not their versions. The objects that
	// are looked at before a watch is resumed have a color already.
	before := schemaOf(t, g.typed, "apis/e2e.example.com/v1")
	addDefault(t, g.dynamic)
	awaitSchema(t, g.typed, "apis/e2e.example.com/v1", before)
	changed = g.change(t, 3)
	restart()
	g.life(t, cp.Config(), func(t *testing.T, cm, w *warmwatch.SharedIndexInformer) {
		g.expectServer(t, cm, w)
		g.expectLists(t, "configmaps", append([]string{"metadata", "new1"}, changed...)...)
		g.expectLists(t, "widgets", "all")
	})

	// From then on the new schema is that of the objects.
	changed = g.change(t, 4)
	restart()
	g.life(t, cp.Config(), func(t *testing.T, cm, w *warmwatch.SharedIndexInformer) {
		g.expectServer(t, cm, w)
		g.expectLists(t, "configmaps", append([]string{"metadata", "new1"}, changed...)...)
		g.expectLists(t, "widgets", append([]string{"metadata", "new1"}, changed...)...)
	})

	// Where much has changed, more than a sixteenth, all is listed.
	for round := 5; round <= 8; round++ {
		g.change(t, round)
	}
	restart()
	g.life(t, cp.Config(), func(t *testing.T, cm, w *warmwatch.SharedIndexInformer) {
		g.expectServer(t, cm, w)
		expectStart(t, cm, "disk", 1, 0)
		g.expectLists(t, "configmaps", "all", "metadata")
		g.expectLists(t, "widgets", "all", "metadata")
	})
	if requests := g.Requests(); requests["watchlist"] > 0 {
		t.Errorf("requests %v", requests)
	}
}

// schemaOf returns where the server has its schema of a group version; its hash is part of it.
func schemaOf(t *testing.T, client kubernetes.Interface, groupVersion string) string {
	t.Helper()
	paths, err := client.Discovery().OpenAPIV3().Paths()
	if err != nil {
		t.Fatal(err)
	}
	if gv := paths[groupVersion]; gv != nil {
		return gv.ServerRelativeURL()
	}
	return ""
}

// awaitSchema waits until the server has another schema than before.
func awaitSchema(t *testing.T, client kubernetes.Interface, groupVersion, before string) {
	t.Helper()
	eventuallyTrue(t, "the schema of "+groupVersion, func() bool { return schemaOf(t, client, groupVersion) != before })
}
