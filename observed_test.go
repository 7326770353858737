package warmwatch_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/httpserver"
)

// unstreamed is a ListerWatcher whose lists cannot be streamed: its watches bring something else.
type unstreamed struct{ *cache.ListWatch }

func (unstreamed) IsWatchListSemanticsUnSupported() bool { return true }

// TestANewInformerThatAsksForMoreThanOneThing has all of it, and the next process begins with a list.
func TestANewInformerThatAsksForMoreThanOneThing(t *testing.T) {
	api, path := httpserver.New(t, "one"), testsupport.Path(t)
	for range 2 {
		a := newAgent(t, path, api)
		client := kubernetes.NewForConfigOrDie(a.config).CoreV1()
		informer := a.make(unstreamed{&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				list, err := client.ConfigMaps("ns").List(ctx, o)
				if err != nil {
					return nil, err
				}
				more, err := client.ConfigMaps("other").List(ctx, o)
				if err != nil {
					return nil, err
				}
				for _, cm := range more.Items {
					cm.Namespace = "other" // The server has one object for all.
					list.Items = append(list.Items, cm)
				}
				return list, nil
			},
			WatchFuncWithContext: client.ConfigMaps("ns").Watch,
		}}, &corev1.ConfigMap{})
		a.run(informer)
		until(func() bool { return informer.Status().Phase == warmwatch.PhaseLive })
		if got := versions(informer.GetStore().List()); !slices.Equal(got, []string{"ns/a@4", "other/a@4"}) {
			t.Errorf("the store has %v", got)
		}
		if err := informer.Status().Err; err == nil || !strings.Contains(err.Error(), `"ns"`) || !strings.Contains(err.Error(), `"other"`) {
			t.Errorf("the error is %v", err)
		}
		a.stop()
		want := []string{"LIST /api/v1/namespaces/ns/configmaps", "LIST /api/v1/namespaces/other/configmaps"}
		if d := cmp.Diff(want, slices.Compact(api.TakeLists())); d != "" {
			t.Errorf("lists (-want +got):\n%s", d)
		}
	}
}

// TestANewInformerThatConvertsToMetadata asks for whole objects, and that is what it is for.
func TestANewInformerThatConvertsToMetadata(t *testing.T) {
	api, path := httpserver.New(t, "one"), testsupport.Path(t)
	for process, want := range []int{1, 0} {
		a := newAgent(t, path, api)
		client := kubernetes.NewForConfigOrDie(a.config).CoreV1().ConfigMaps("ns")
		informer := a.make(unstreamed{&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				list, err := client.List(ctx, o)
				if err != nil {
					return nil, err
				}
				metadata := &metav1.PartialObjectMetadataList{ListMeta: list.ListMeta}
				for _, cm := range list.Items {
					metadata.Items = append(metadata.Items, metav1.PartialObjectMetadata{ObjectMeta: cm.ObjectMeta})
				}
				return metadata, nil
			},
			WatchFuncWithContext: client.Watch,
		}}, &metav1.PartialObjectMetadata{})
		a.run(informer)
		expectOne(t, informer)
		if err := informer.Status().Err; err != nil {
			t.Error(err)
		}
		a.stop()
		if n := len(api.TakeLists()); n != want {
			t.Errorf("process %d asks for %d lists, expected %d", process, n, want)
		}
	}
}

// TestANewInformerWhoseTransformReturnsAnotherType, which nobody has told it: from the file, and from
// memory.
func TestANewInformerWhoseTransformReturnsAnotherType(t *testing.T) {
	for name, c := range map[string]struct {
		config    func(*agent, *httpserver.Server) *rest.Config
		lists     []int // Of each process.
		transform cache.TransformFunc
	}{
		"file":   {func(a *agent, _ *httpserver.Server) *rest.Config { return a.config }, []int{1, 0}, toMetadata},
		"memory": {func(_ *agent, api *httpserver.Server) *rest.Config { return api.Config() }, []int{1, 1}, toMetadata},
		"file, the same type, fails on an empty object": {func(a *agent, _ *httpserver.Server) *rest.Config { return a.config }, []int{1, 0}, func(obj any) (any, error) {
			_ = []byte(accessor(obj).GetName())[0]
			return obj, nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			api, path := httpserver.New(t, "one"), testsupport.Path(t)
			for process, want := range c.lists {
				a := newAgent(t, path, api)
				client := kubernetes.NewForConfigOrDie(c.config(a, api)).CoreV1().RESTClient()
				informer := a.make(cache.NewFilteredListWatchFromClient(client, "configmaps", "ns", noTweak), &corev1.ConfigMap{})
				if err := informer.SetTransform(c.transform); err != nil {
					t.Fatal(err)
				}
				a.run(informer)
				until(func() bool { return informer.Status().Phase == warmwatch.PhaseLive })
				expectOne(t, informer)
				expected, err := c.transform(configMap("a"))
				if err != nil {
					t.Fatal(err)
				}
				for _, obj := range informer.GetStore().List() {
					if got, want := reflect.TypeOf(obj), reflect.TypeOf(expected); got != want {
						t.Errorf("process %d has a %v, expected a %v", process, got, want)
					}
				}
				a.stop()
				if n := len(api.TakeLists()); n != want {
					t.Errorf("process %d asks for %d lists, expected %d", process, n, want)
				}
			}
		})
	}
}

func toMetadata(obj any) (any, error) {
	if cm, ok := obj.(*corev1.ConfigMap); ok {
		return &metav1.PartialObjectMetadata{ObjectMeta: cm.ObjectMeta}, nil
	}
	return obj, nil
}

// TestATypeThatWasNotToldIsInStatus: an informer that is told what it stores does not adopt a type.
func TestATypeThatWasNotToldIsInStatus(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := launch(t, testsupport.Path(t), newSource(t, configMap("a")), nil)
		if err := p.informer.SetTransform(toMetadata); err != nil {
			t.Fatal(err)
		}
		p.run()
		settle()
		if err := p.informer.Status().Err; err == nil || !strings.Contains(err.Error(), "InformerOptions.Transformed") {
			t.Error(err)
		}
	})
}

// TestCredentialsThatComeOverHTTP do not hide the request: a RoundTripper may get them with the
// context of the request, by another client.
func TestCredentialsThatComeOverHTTP(t *testing.T) {
	api, path := httpserver.New(t, "one"), testsupport.Path(t)
	tokens := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(tokens.Close)
	for process, want := range []int{1, 0} {
		a := newAgent(t, path, api)
		a.config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return credentials{rt, tokens.URL} })
		informer := a.make(a.configMaps("ns", noTweak), &corev1.ConfigMap{})
		a.run(informer)
		expectOne(t, informer)
		if err := informer.Status().Err; err != nil {
			t.Error(err)
		}
		a.stop()
		if n := len(api.TakeLists()); n != want {
			t.Errorf("process %d asks for %d lists, expected %d", process, n, want)
		}
	}
}

// credentials gets a token for each request.
type credentials struct {
	http.RoundTripper
	url string
}

func (c credentials) RoundTrip(r *http.Request) (*http.Response, error) {
	get, err := http.NewRequestWithContext(r.Context(), http.MethodGet, c.url, nil)
	if err != nil {
		return nil, err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(get)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return c.RoundTripper.RoundTrip(r)
}

// TestATransformThatReturnsAnotherTypeThanTheFileHas: the store becomes that of the new type, and durable
// handlers hear of deletions.
func TestATransformThatReturnsAnotherTypeThanTheFileHas(t *testing.T) {
	same := func(obj any) (any, error) { return obj, nil }
	refuse := func(obj any) (any, error) { // An empty object.
		_ = accessor(obj).GetName()[0]
		return toMetadata(obj)
	}
	checkpoint, objects := []string{"checkpoint"}, []string{"checkpoint", "objects", "store", "index"}
	all := append([]string{"cursors", "queue", "deltas", "tombstones"}, objects...)
	for name, c := range map[string]struct {
		before, now cache.TransformFunc
		lost        []string // Buckets.
		damaged     bool     // Something else is damaged.
		forgets     bool     // Nobody can know of the deletion.
		served      bool     // A process serves what the file has, and refuses the new type.
	}{
		"the type cannot be learnt":                   {before: refuse, now: refuse},
		"checkpoint lost":                             {before: toMetadata, now: toMetadata, lost: checkpoint},
		"checkpoint lost, cannot be learnt":           {before: refuse, now: refuse, lost: checkpoint},
		"objects lost":                                {before: toMetadata, now: toMetadata, lost: objects, forgets: true},
		"all lost, file damaged":                      {before: toMetadata, now: toMetadata, lost: all, damaged: true, forgets: true},
		"all lost, file damaged, cannot be learnt":    {before: refuse, now: refuse, lost: all, damaged: true, forgets: true},
		"a new transform returns another type":        {before: same, now: toMetadata, served: true},
		"a new transform, the type cannot be learnt":  {before: same, now: refuse, served: true},
		"a new transform returns the type as it came": {before: toMetadata, now: same},
		"there was no transform":                      {now: toMetadata},
		"there is no transform any more":              {before: toMetadata},
	} {
		for _, durable := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/durable=%t", name, durable), func(t *testing.T) {
				api, path := httpserver.New(t, "one"), testsupport.Path(t)
				api.Change(func(w *httpserver.World) { w.Put("a", "1", ""); w.Put("b", "2", "") })
				r, stop := newTypeOf(t, path, api, c.before, &typeChecker{t: t}, durable, "ns/a@1", "ns/b@2")
				until(func() bool { return r.heard("add ns/a@1") && r.heard("add ns/b@2") })
				stop()
				loseBuckets(t, path, c.lost...)
				if c.damaged {
					testsupport.DamageFreelist(t, path)
				}
				api.Change(func(w *httpserver.World) { w.Delete("b"); w.Put("a", "1", "changed") })
				if c.served {
					refusesNewType(t, path, api, c.now, "ns/a@1", "ns/b@2")
				}
				r, stop = newTypeOf(t, path, api, c.now, &typeChecker{t: t}, durable, "ns/a@4")
				defer stop()
				if durable && !c.forgets {
					until(func() bool { return r.heard("lost ns/b") })
				}
				until(func() bool { return r.heard("ns/a@4") || r.heard("→4") })
			})
		}
	}
}

// newTypeOf runs an informer until it has objects of the type that the transform returns.
func newTypeOf(t *testing.T, path string, api *httpserver.Server, transform cache.TransformFunc, handler *typeChecker, durable bool, want ...string) (*recorder, func()) {
	t.Helper()
	a, r := newAgent(t, path, api), &recorder{}
	informer := a.make(a.configMaps("ns", noTweak), &corev1.ConfigMap{})
	expected := reflect.TypeFor[*corev1.ConfigMap]()
	if transform != nil {
		if err := informer.SetTransform(transform); err != nil {
			t.Fatal(err)
		}
		transformed, _ := transform(configMap("a"))
		expected = reflect.TypeOf(transformed)
	}
	handler.recorder, handler.expected = r, expected
	add := func() (err error) { _, err = informer.AddEventHandler(handler); return err }
	if durable {
		add = func() (err error) { _, err = informer.AddDurableEventHandler("d", handler); return err }
	}
	if err := add(); err != nil {
		t.Fatal(err)
	}
	a.run(informer)
	until(func() bool {
		list := informer.GetStore().List()
		isOther := func(obj any) bool { return reflect.TypeOf(obj) != expected }
		return slices.Equal(versions(list), want) && !slices.ContainsFunc(list, isOther) && informer.Status().Phase == warmwatch.PhaseLive
	})
	if byIndex, err := informer.GetIndexer().ByIndex("namespace", "ns"); err != nil || !slices.Equal(versions(byIndex), want) {
		t.Errorf("by index %v (%v)", versions(byIndex), err)
	}
	return r, a.stop
}

// refusesNewType runs an informer until its transform's type was refused. All that it serves stays.
func refusesNewType(t *testing.T, path string, api *httpserver.Server, transform cache.TransformFunc, want ...string) {
	t.Helper()
	a := newAgent(t, path, api)
	defer a.stop()
	informer := a.make(a.configMaps("ns", noTweak), &corev1.ConfigMap{})
	if err := informer.SetTransform(transform); err != nil {
		t.Fatal(err)
	}
	a.run(informer)
	until(func() bool {
		err := informer.Status().Err
		return err != nil && strings.Contains(err.Error(), "InformerOptions.Transformed")
	})
	if got := versions(informer.GetStore().List()); !slices.Equal(got, want) {
		t.Errorf("the store has %v, expected %v", got, want)
	}
}

// heard reports whether it was told of an event with this in it.
func (r *recorder) heard(what string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.events, func(event string) bool { return strings.Contains(event, what) })
}

// typeChecker is a handler that looks at the Go type of what it is given.
type typeChecker struct {
	*recorder
	t        *testing.T
	expected reflect.Type
}

func (c *typeChecker) check(event string, obj any) {
	if lost, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = lost.Obj
	}
	if got := reflect.TypeOf(obj); obj != nil && got != c.expected {
		c.t.Errorf("%s is given a %v, expected a %v", event, got, c.expected)
	}
}

func (c *typeChecker) OnAdd(obj any, initial bool) {
	c.check("OnAdd", obj)
	c.recorder.OnAdd(obj, initial)
}

func (c *typeChecker) OnUpdate(old, obj any) {
	c.check("OnUpdate", old)
	c.check("OnUpdate", obj)
	c.recorder.OnUpdate(old, obj)
}

func (c *typeChecker) OnDelete(obj any) { c.check("OnDelete", obj); c.recorder.OnDelete(obj) }
