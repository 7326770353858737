package informers_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	metadatafake "k8s.io/client-go/metadata/fake"
	"k8s.io/client-go/tools/cache"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/informers"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/httpserver"
)

// byResource is what factories for dynamic and metadata clients have in common.
type byResource interface {
	byStart
	ForResource(schema.GroupVersionResource) informers.GenericInformer
	WaitForCacheSync(<-chan struct{}) map[schema.GroupVersionResource]bool
}

func selectX(o *metav1.ListOptions) { o.LabelSelector = "x=1" }

func strip(obj any) (any, error) {
	obj.(*metav1.PartialObjectMetadata).Labels = nil
	return obj, nil
}

var configMaps = corev1.SchemeGroupVersion.WithResource("configmaps")

// TestFactoriesByResourceGoOnAfterARestart, with all that is asked for in their identity.
func TestFactoriesByResourceGoOnAfterARestart(t *testing.T) {
	for name, c := range map[string]struct {
		factory func(*agent) byResource
		list    string
		labels  map[string]string
	}{
		"dynamic": {func(a *agent) byResource {
			return informers.NewDynamicSharedInformerFactory(a.cache, dynamic.NewForConfigOrDie(a.wrapped()), 0)
		}, "LIST /api/v1/configmaps", map[string]string{"x": "1"}},
		"dynamic, filtered": {func(a *agent) byResource {
			return informers.NewFilteredDynamicSharedInformerFactory(a.cache, dynamic.NewForConfigOrDie(a.wrapped()), 0, "ns", selectX)
		}, "LIST /api/v1/namespaces/ns/configmaps?labelSelector=x%3D1", map[string]string{"x": "1"}},
		"metadata": {func(a *agent) byResource {
			return informers.NewMetadataSharedInformerFactory(a.cache, metadata.NewForConfigOrDie(a.wrapped()), 0)
		}, "LIST /api/v1/configmaps", map[string]string{"x": "1"}},
		"metadata, filtered": {func(a *agent) byResource {
			return informers.NewFilteredMetadataSharedInformerFactory(a.cache, metadata.NewForConfigOrDie(a.wrapped()), 0, "ns", selectX)
		}, "LIST /api/v1/namespaces/ns/configmaps?labelSelector=x%3D1", map[string]string{"x": "1"}},
		"metadata, with a transform": {func(a *agent) byResource {
			return informers.NewMetadataSharedInformerFactoryWithOptions(a.cache, metadata.NewForConfigOrDie(a.wrapped()), 0, informers.WithTransform(strip))
		}, "LIST /api/v1/configmaps", nil},
	} {
		t.Run(name, func(t *testing.T) {
			api, path := httpserver.New(t, "one"), testsupport.Path(t)
			for _, want := range [][]string{{c.list}, nil} {
				a := newAgent(t, path, api)
				factory := c.factory(a)
				generic := factory.ForResource(configMaps)
				if factory.ForResource(configMaps).Informer() != generic.Informer() {
					t.Error("the resource has another informer")
				}
				a.run(factory)
				if synced := factory.WaitForCacheSync(a.ctx.Done()); !synced[configMaps] {
					t.Error(synced)
				}
				live(t, generic.Informer())
				expectKeys(t, generic.Informer(), "ns/a")
				objs, err := generic.Lister().ByNamespace("ns").List(labels.Everything())
				if err != nil || len(objs) != 1 {
					t.Errorf("the lister has %v, %v", objs, err)
				} else if got := objs[0].(metav1.Object).GetLabels(); !cmp.Equal(got, c.labels) {
					t.Errorf("labels %v, expected %v", got, c.labels)
				}
				a.cancel()
				factory.Shutdown()
				secrets := corev1.SchemeGroupVersion.WithResource("secrets")
				factory.ForResource(secrets)
				factory.Start(a.ctx.Done())
				if _, started := factory.WaitForCacheSync(a.ctx.Done())[secrets]; started {
					t.Error("an informer was started after Shutdown")
				}
				a.stop()
				if d := cmp.Diff(want, api.TakeLists()); d != "" {
					t.Errorf("lists (-want +got):\n%s", d)
				}
			}
		})
	}
}

// TestFactoriesByResourceThatAskForDifferentThingsShareNothing.
func TestFactoriesByResourceThatAskForDifferentThingsShareNothing(t *testing.T) {
	a := newAgent(t, testsupport.Path(t), httpserver.New(t, "one"))
	dynamicClient, metadataClient := dynamic.NewForConfigOrDie(a.wrapped()), metadata.NewForConfigOrDie(a.wrapped())
	count := 0
	for _, tweak := range []func(*metav1.ListOptions){
		nil, selectX,
		func(o *metav1.ListOptions) { o.FieldSelector = "metadata.name=a" },
		func(o *metav1.ListOptions) { o.ShardSelector = "shardRange(object.metadata.uid, '0x0', '0x8')" },
	} {
		for _, namespace := range []string{"", "ns"} {
			for _, factory := range []byResource{
				informers.NewFilteredDynamicSharedInformerFactory(a.cache, dynamicClient, 0, namespace, tweak),
				informers.NewFilteredMetadataSharedInformerFactory(a.cache, metadataClient, 0, namespace, tweak),
			} {
				informer := factory.ForResource(configMaps).Informer()
				a.run(factory, informer)
				live(t, informer)
				count++
			}
		}
	}
	if st := a.cache.Status().Informers; len(st) != count {
		t.Errorf("%d informers have %d identities", count, len(st))
	}
}

// TestTheClusterIsKnownToFactoriesByResource, by the namespace kube-system.
func TestTheClusterIsKnownToFactoriesByResource(t *testing.T) {
	type process struct {
		uid  string
		list bool
	}
	for name, c := range map[string]struct {
		api       *httpserver.Server
		processes []process
	}{
		"plain":  {httpserver.New(t, "one"), []process{{"one", true}, {"one", false}, {"two", true}, {"", false}}},
		"secure": {httpserver.NewTLS(t, "one"), []process{{"", true}, {"", false}}},
	} {
		for kind, newFactory := range map[string]func(*agent) byResource{
			"dynamic": func(a *agent) byResource {
				return informers.NewDynamicSharedInformerFactory(a.cache, dynamic.NewForConfigOrDie(a.wrapped()), 0)
			},
			"metadata": func(a *agent) byResource {
				return informers.NewMetadataSharedInformerFactory(a.cache, metadata.NewForConfigOrDie(a.wrapped()), 0)
			},
		} {
			path := testsupport.Path(t)
			for i, p := range c.processes {
				c.api.SetUID(p.uid)
				a := newAgent(t, path, c.api)
				factory := newFactory(a)
				informer := factory.ForResource(configMaps).Informer()
				a.run(factory, informer)
				live(t, informer)
				a.stop()
				if got := len(c.api.TakeLists()) > 0; got != p.list {
					t.Errorf("%s, %s: process %d lists %v, expected %v", name, kind, i, got, p.list)
				}
			}
		}
	}
}

// TestAFactoryByResourceMovesToAnotherCluster: what the file has of one cluster is not served behind another one's
// server, and is while the server is away.
func TestAFactoryByResourceMovesToAnotherCluster(t *testing.T) {
	one, two, path := httpserver.New(t, "one"), httpserver.New(t, "two"), testsupport.Path(t)
	two.Change(func(w *httpserver.World) { w.Put("b", "uid-b", "") })
	for i, p := range []struct {
		api       *httpserver.Server
		away      bool
		delivered string
	}{{one, false, "ns/a"}, {two, false, "ns/b"}, {one, false, "ns/a"}, {one, false, "ns/a"}, {one, true, "ns/a"}} {
		if p.away {
			p.api.Close()
		}
		stale := time.Duration(0)
		if p.away {
			stale = -1
		}
		a := newAgent(t, path, p.api, stale)
		factory := informers.NewDynamicSharedInformerFactory(a.cache, dynamic.NewForConfigOrDie(a.wrapped()), 0)
		informer := factory.ForResource(configMaps).Informer()
		delivered := make(chan string, 10)
		handler, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) {
			key, _ := cache.MetaNamespaceKeyFunc(obj)
			delivered <- key
		}})
		if err != nil {
			t.Fatal(err)
		}
		a.run(factory, informer)
		if !p.away {
			live(t, informer)
		}
		<-handler.HasSyncedChecker().Done()
		expectKeys(t, informer, p.delivered)
		a.stop()
		if first := <-delivered; first != p.delivered || len(delivered) > 0 {
			t.Errorf("process %d: the handler got %s first, expected %s alone", i, first, p.delivered)
		}
	}
}

// TestADynamicClientThatIsNotWrappedIsServedFromMemory, and Status says why.
func TestADynamicClientThatIsNotWrappedIsServedFromMemory(t *testing.T) {
	a := newAgent(t, testsupport.Path(t), httpserver.New(t, "one"))
	factory := informers.NewDynamicSharedInformerFactory(a.cache, dynamic.NewForConfigOrDie(a.config), 0)
	informer := factory.ForResource(configMaps).Informer()
	a.run(factory, informer)
	expectKeys(t, informer, "ns/a")
	s, _ := informers.Of(informer)
	if problems := s.Status().Problems; len(problems) != 1 || problems[0].Code != warmwatch.CodeFromMemory {
		t.Errorf("problems %v", problems)
	}
}

// TestFakeDynamicAndMetadataClientsHaveClientGosOwnInformers.
func TestFakeDynamicAndMetadataClientsHaveClientGosOwnInformers(t *testing.T) {
	a := newAgent(t, testsupport.Path(t), httpserver.New(t, "one"))
	meta := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(meta); err != nil {
		t.Fatal(err)
	}
	typeMeta, objectMeta := metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, metav1.ObjectMeta{Namespace: "ns", Name: "a", Labels: map[string]string{"x": "1"}}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&corev1.ConfigMap{TypeMeta: typeMeta, ObjectMeta: objectMeta})
	if err != nil {
		t.Fatal(err)
	}
	for name, factory := range map[string]byResource{
		"dynamic": informers.NewDynamicSharedInformerFactory(a.cache,
			dynamicfake.NewSimpleDynamicClient(scheme.Scheme, &unstructured.Unstructured{Object: content}), 0),
		"metadata": informers.NewMetadataSharedInformerFactoryWithOptions(a.cache,
			metadatafake.NewSimpleMetadataClient(meta, &metav1.PartialObjectMetadata{TypeMeta: typeMeta, ObjectMeta: objectMeta}), 0, informers.WithTransform(strip)),
	} {
		t.Run(name, func(t *testing.T) {
			informer := factory.ForResource(configMaps).Informer()
			if _, ours := informers.Of(informer); ours {
				t.Error("it is not client-go's own")
			}
			a.run(factory, informer)
			expectKeys(t, informer, "ns/a")
		})
	}
}
