package informers_test

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/informers"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/httpserver"
)

// agent is a process with factories.
type agent struct {
	t      *testing.T
	cache  *warmwatch.Cache
	config *rest.Config
	ctx    context.Context
	cancel context.CancelFunc
	ends   []func()
	// How often the log has said that something is client-go's own.
	warnings atomic.Int64
}

func newAgent(t *testing.T, path string, api *httpserver.Server, stale ...time.Duration) *agent {
	a := &agent{t: t, config: api.Config()}
	logger := funcr.New(func(_, line string) {
		if strings.Contains(line, "client-go's own") {
			a.warnings.Add(1)
		}
	}, funcr.Options{})
	c, err := warmwatch.Open(t.Context(), path, warmwatch.Options{ServeStaleAfter: append(stale, 0)[0], Logger: &logger})
	if err != nil {
		t.Fatal(err)
	}
	a.cache = c
	a.ctx, a.cancel = context.WithCancel(context.Background())
	t.Cleanup(a.stop)
	return a
}

// client returns one whose transport is not wrapped.
func (a *agent) client() kubernetes.Interface { return kubernetes.NewForConfigOrDie(a.config) }

// wrapped returns the configuration of a client whose transport is wrapped.
func (a *agent) wrapped() *rest.Config {
	config := rest.CopyConfig(a.config)
	config.Wrap(a.cache.WrapTransport)
	return config
}

func (a *agent) factory(opts ...informers.SharedInformerOption) informers.SharedInformerFactory {
	return informers.NewSharedInformerFactoryWithOptions(a.cache, a.client(), 0, opts...)
}

// byStart is what all factories have in common.
type byStart interface {
	Start(<-chan struct{})
	Shutdown()
}

// run starts a factory, and waits until informers have synced.
func (a *agent) run(factory byStart, informers ...cache.SharedIndexInformer) {
	a.t.Helper()
	factory.Start(a.ctx.Done())
	a.ends = append(a.ends, factory.Shutdown)
	for _, informer := range informers {
		<-informer.HasSyncedChecker().Done()
	}
}

func (a *agent) stop() {
	a.cancel()
	for _, end := range a.ends {
		end()
	}
	a.ends = nil
	if err := a.cache.Close(); err != nil {
		a.t.Error(err)
	}
}

func live(t *testing.T, informer cache.SharedIndexInformer) {
	t.Helper()
	s, ok := informers.Of(informer)
	if !ok {
		t.Fatal("the informer is not of the Cache")
	}
	for s.Status().Phase != warmwatch.PhaseLive {
		time.Sleep(time.Millisecond)
	}
	if err := s.Status().Err; err != nil {
		t.Error(err)
	}
}

func expectKeys(t *testing.T, informer cache.SharedIndexInformer, want ...string) {
	t.Helper()
	got := informer.GetStore().ListKeys()
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("the store has %v, expected %v", got, want)
	}
	if len(want) > 0 {
		if objs, err := informer.GetIndexer().ByIndex(cache.NamespaceIndex, "ns"); err != nil || len(objs) != len(want) {
			t.Errorf("%d by the index of client-go, %v", len(objs), err)
		}
	}
}

// each calls visit for each informer that a method of the factory leads to, such as
// Core.V1.Pods.
func each(factory informers.SharedInformerFactory, visit func(name string, informer cache.SharedIndexInformer, lister reflect.Value)) {
	var walk func(name string, v reflect.Value)
	walk = func(name string, v reflect.Value) {
		if v.MethodByName("Lister").IsValid() {
			informer := v.MethodByName("Informer").Call(nil)[0].Interface().(cache.SharedIndexInformer)
			visit(name, informer, v.MethodByName("Lister").Call(nil)[0])
			return
		}
		for method := range reflect.TypeOf(v.Interface()).Methods() {
			t := method.Type
			if t.NumIn() != 1 || t.NumOut() != 1 || t.Out(0).Kind() != reflect.Interface || !strings.Contains(t.Out(0).PkgPath(), "/informers/") {
				continue
			}
			walk(strings.TrimPrefix(name+"."+method.Name, "."), v.MethodByName(method.Name).Call(nil)[0])
		}
	}
	walk("", reflect.ValueOf(factory))
}

// TestEachTypedInformerGoesOnAfterARestart: all of client-go's groups, with one factory, whose
// client's transport is not wrapped. The second process asks for no list, but for Events.
func TestEachTypedInformerGoesOnAfterARestart(t *testing.T) {
	api, path := httpserver.New(t, "one"), testsupport.Path(t)
	var first []string
	for process := range 2 {
		a := newAgent(t, path, api)
		factory := a.factory(informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			seconds := int64(70)
			o.TimeoutSeconds = &seconds
		}))
		all := map[string]cache.SharedIndexInformer{}
		listers := map[string]reflect.Value{}
		each(factory, func(name string, informer cache.SharedIndexInformer, lister reflect.Value) {
			all[name], listers[name] = informer, lister
		})
		if len(all) < 60 {
			t.Fatalf("only %d informers were found", len(all))
		}
		a.run(factory)
		if err := factory.WaitForCacheSyncWithContext(a.ctx).Err; err != nil {
			t.Fatal(err)
		}
		for name, informer := range all {
			live(t, informer)
			expectKeys(t, informer, "ns/a")
			out := listers[name].MethodByName("List").Call([]reflect.Value{reflect.ValueOf(labels.Everything())})
			if out[0].Len() != 1 || !out[1].IsNil() {
				t.Errorf("%s: the lister has %v, %v", name, out[0], out[1])
			}
		}
		if n := len(a.cache.Status().Informers); n != len(all) {
			t.Errorf("%d informers have %d identities", len(all), n)
		}
		a.stop()
		got := api.TakeLists()
		for i, list := range got {
			var tweaked bool
			if got[i], tweaked = strings.CutSuffix(list, "?timeout=1m10s&timeoutSeconds=70"); !tweaked {
				t.Errorf("not tweaked: %s", list)
			}
		}
		if process == 0 {
			first = got
			if len(first) != len(all) {
				t.Errorf("%d informers have listed %d times: %v", len(all), len(first), first)
			}
			continue
		}
		want := slices.DeleteFunc(first, func(s string) bool { return !strings.HasSuffix(s, "/events") })
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("lists (-want +got):\n%s", d)
		}
	}
	accepts := api.Accepts()
	maps.DeleteFunc(accepts, func(accept string, _ bool) bool { return strings.Contains(accept, "PartialObjectMetadataList") }) // The question.
	if want := map[string]bool{"application/vnd.kubernetes.protobuf,application/json": true}; !maps.Equal(accepts, want) {
		t.Errorf("accepts %v, client-go's clients %v", accepts, want)
	}
}

// TestForResourceReturnsTheInformersOfTheGroups, and client-go's errors.
func TestForResourceReturnsTheInformersOfTheGroups(t *testing.T) {
	a := newAgent(t, testsupport.Path(t), httpserver.New(t, "one"))
	factory := a.factory()
	for gvr, want := range map[schema.GroupVersionResource]cache.SharedIndexInformer{
		corev1.SchemeGroupVersion.WithResource("pods"):                     factory.Core().V1().Pods().Informer(),
		corev1.SchemeGroupVersion.WithResource("endpoints"):                factory.Core().V1().Endpoints().Informer(),
		{Group: "apps", Version: "v1", Resource: "deployments"}:            factory.Apps().V1().Deployments().Informer(),
		{Group: "networking.k8s.io", Version: "v1", Resource: "ingresses"}: factory.Networking().V1().Ingresses().Informer(),
	} {
		generic, err := factory.ForResource(gvr)
		if err != nil {
			t.Fatal(err)
		}
		if s, ok := informers.Of(want); !ok || generic.Informer() != cache.SharedIndexInformer(s) {
			t.Errorf("%v has another informer", gvr)
		}
	}
	configMaps, err := factory.ForResource(corev1.SchemeGroupVersion.WithResource("configmaps"))
	if err != nil {
		t.Fatal(err)
	}
	a.run(factory, configMaps.Informer())
	live(t, configMaps.Informer())
	obj, err := configMaps.Lister().ByNamespace("ns").Get("a")
	if _, ok := obj.(*corev1.ConfigMap); !ok || err != nil {
		t.Errorf("the lister has a %T, %v", obj, err)
	}
	if _, err := factory.ForResource(corev1.SchemeGroupVersion.WithResource("nonsense")); err == nil || err.Error() != "no informer found for /v1, Resource=nonsense" {
		t.Error(err)
	}
}

// TestTheOptionsOfAFactory: what is asked for, and by it the identity. The tweak also sets what is
// no selector, and is called when the informers run.
func TestTheOptionsOfAFactory(t *testing.T) {
	api, path := httpserver.New(t, "one"), testsupport.Path(t)
	for _, want := range [][]string{{"LIST /api/v1/namespaces/ns/pods?fieldSelector=spec.nodeName%3Dn&labelSelector=x&timeout=7s&timeoutSeconds=7",
		"LIST /api/v1/namespaces/ns/services?fieldSelector=spec.nodeName%3Dn&labelSelector=x&timeout=7s&timeoutSeconds=7"}, nil} {
		a := newAgent(t, path, api)
		node := "not known yet"
		factory := a.factory(
			informers.WithNamespace("ns"),
			informers.WithTweakListOptions(func(o *metav1.ListOptions) {
				o.LabelSelector, o.FieldSelector = "x", "spec.nodeName="+node
				seconds := int64(7)
				o.TimeoutSeconds = &seconds
			}),
			informers.WithTransform(func(obj any) (any, error) {
				obj.(metav1.Object).SetLabels(nil)
				return obj, nil
			}),
		)
		pods := factory.Core().V1().Pods().Informer()
		services, err := factory.ForResource(corev1.SchemeGroupVersion.WithResource("services"))
		if err != nil {
			t.Fatal(err)
		}
		node = "n"
		a.run(factory, pods, services.Informer())
		live(t, pods)
		live(t, services.Informer())
		expectKeys(t, pods, "ns/a")
		if obj, err := factory.Core().V1().Pods().Lister().Pods("ns").Get("a"); err != nil || obj.Labels != nil {
			t.Errorf("transformed: %v, %v", obj, err)
		}
		a.stop()
		if d := cmp.Diff(want, api.TakeLists()); d != "" {
			t.Errorf("lists (-want +got):\n%s", d)
		}
	}
}

// TestResyncPeriodsOfAFactory: the default, and that of one type.
func TestResyncPeriodsOfAFactory(t *testing.T) {
	a := newAgent(t, testsupport.Path(t), httpserver.New(t, "one"))
	factory := informers.NewSharedInformerFactoryWithOptions(a.cache, a.client(), 0,
		informers.WithCustomResyncConfig(map[metav1.Object]time.Duration{&corev1.Pod{}: time.Second}))
	resynced, other := make(chan struct{}), atomic.Bool{}
	add := func(informer cache.SharedIndexInformer, update func()) {
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{UpdateFunc: func(_, _ any) { update() }}); err != nil {
			t.Fatal(err)
		}
	}
	pods, nodes := factory.Core().V1().Pods().Informer(), factory.Core().V1().Nodes().Informer()
	add(pods, func() {
		select {
		case resynced <- struct{}{}:
		default:
		}
	})
	add(nodes, func() { other.Store(true) })
	a.run(factory, pods, nodes)
	<-resynced
	if other.Load() {
		t.Error("an informer without a resync period resyncs")
	}
}

// TestTheNameOfAFactory is free after its Shutdown, as client-go's.
func TestTheNameOfAFactory(t *testing.T) {
	a := newAgent(t, testsupport.Path(t), httpserver.New(t, "one"))
	name, err := cache.NewInformerName("name")
	if err != nil {
		t.Fatal(err)
	}
	factory := a.factory(informers.WithInformerName(name))
	a.run(factory, factory.Core().V1().Pods().Informer())
	if got := factory.InformerName(); got != name {
		t.Error(got)
	}
	a.stop()
	if name, err = cache.NewInformerName("name"); err != nil {
		t.Fatal(err)
	}
	name.Release()
}

// TestDurableHandlersOfAFactory go on in the next process.
func TestDurableHandlersOfAFactory(t *testing.T) {
	api, path := httpserver.New(t, "one"), testsupport.Path(t)
	for process := range 2 {
		a := newAgent(t, path, api)
		factory := a.factory()
		pods := factory.Core().V1().Pods()
		var delivered [2]atomic.Int64
		var registrations []cache.ResourceEventHandlerRegistration
		add := func(r cache.ResourceEventHandlerRegistration, err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
			registrations = append(registrations, r)
		}
		add(informers.AddDurableEventHandler(pods.Informer(), "durable", cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { delivered[0].Add(1) },
		}, warmwatch.DurableOptions{}))
		add(cache.NewTypedSharedIndexInformer[*corev1.Pod](pods.Informer()).AddTypedEventHandler(coreinformers.PodHandlerFuncs{
			AddFunc: func(*corev1.Pod) { delivered[1].Add(1) },
		}))
		a.run(factory, pods.Informer())
		for _, r := range registrations {
			<-r.HasSyncedChecker().Done()
		}
		typed, err := coreinformers.ToTypedPodInformer(pods).TypedInformer().GetTypedIndexer().ByTypedIndex(cache.NamespaceIndex, "ns")
		if err != nil || len(typed) != 1 {
			t.Errorf("%d by the typed index, %v", len(typed), err)
		}
		a.stop()
		want := [][2]int64{{1, 1}, {0, 1}}[process]
		if got := [2]int64{delivered[0].Load(), delivered[1].Load()}; got != want {
			t.Errorf("process %d: notified of %v additions, expected %v", process, got, want)
		}
	}
}

// TestTheClusterIsKnownToAFactory, though its client's transport is not wrapped: by the namespace
// kube-system. A refusal proves nothing.
func TestTheClusterIsKnownToAFactory(t *testing.T) {
	path, plain, secure := testsupport.Path(t), httpserver.New(t, "one"), httpserver.NewTLS(t, "one")
	for i, c := range []struct {
		api  *httpserver.Server
		uid  string
		list bool
	}{
		{plain, "one", true}, {plain, "one", false}, {plain, "two", true}, {plain, "two", false}, {plain, "", false},
		{secure, "", false}, {secure, "two", false}, {plain, "", false},
	} {
		c.api.SetUID(c.uid)
		a := newAgent(t, path, c.api)
		factory := a.factory()
		pods := factory.Core().V1().Pods().Informer()
		a.run(factory, pods)
		live(t, pods)
		a.stop()
		if got := len(c.api.TakeLists()) > 0; got != c.list {
			t.Errorf("process %d: lists %v, expected %v", i, got, c.list)
		}
	}
}

// TestATweakThatChangesItsMindIsFollowed, as in client-go. The next process begins with a list, because
// nobody knows what the stored objects are.
func TestATweakThatChangesItsMindIsFollowed(t *testing.T) {
	for name, newFactory := range map[string]func(*agent, func(*metav1.ListOptions)) (byStart, func() cache.SharedIndexInformer){
		"typed": func(a *agent, tweak func(*metav1.ListOptions)) (byStart, func() cache.SharedIndexInformer) {
			factory := a.factory(informers.WithTweakListOptions(tweak))
			return factory, factory.Core().V1().ConfigMaps().Informer
		},
		"dynamic": func(a *agent, tweak func(*metav1.ListOptions)) (byStart, func() cache.SharedIndexInformer) {
			factory := informers.NewFilteredDynamicSharedInformerFactory(a.cache, dynamic.NewForConfigOrDie(a.wrapped()), 0, "", tweak)
			return factory, factory.ForResource(configMaps).Informer
		},
	} {
		t.Run(name, func(t *testing.T) {
			api, path := httpserver.New(t, "one"), testsupport.Path(t)
			a := newAgent(t, path, api)
			identified := atomic.Bool{}
			factory, informer := newFactory(a, func(o *metav1.ListOptions) {
				o.LabelSelector = "x=1"
				if identified.Load() {
					o.LabelSelector = "x=2"
				}
			})
			s, _ := informers.Of(informer())
			if err := s.SetTransform(func(obj any) (any, error) {
				identified.Store(true) // The list is here, the watch comes.
				return obj, nil
			}); err != nil {
				t.Fatal(err)
			}
			a.run(factory)
			for s.Status().Err == nil {
				time.Sleep(time.Millisecond)
			}
			if err := s.Status().Err; !strings.Contains(err.Error(), `labels "x=2"`) {
				t.Error(err)
			}
			a.stop()
			api.Take()

			a = newAgent(t, path, api)
			factory, informer = newFactory(a, func(o *metav1.ListOptions) { o.LabelSelector = "x=1" })
			again := informer()
			a.run(factory, again)
			if lists := api.TakeLists(); len(lists) != 1 {
				t.Errorf("the next process asks for %v", lists)
			}
		})
	}
}

// TestAFactoryWithoutAServerServesFromTheFile, and without credentials.
func TestAFactoryWithoutAServerServesFromTheFile(t *testing.T) {
	api, path := httpserver.New(t, "one"), testsupport.Path(t)
	a := newAgent(t, path, api)
	factory := a.factory()
	a.run(factory, factory.Core().V1().Pods().Informer())
	a.stop()
	api.Close()

	a = newAgent(t, path, api, -1)
	a.config.Wrap(func(http.RoundTripper) http.RoundTripper { return noCredentials{} })
	factory = a.factory()
	pods := factory.Core().V1().Pods().Informer()
	a.run(factory, pods)
	expectKeys(t, pods, "ns/a")
}

type noCredentials struct{}

func (noCredentials) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, errors.New("no credentials")
}
