package contract_test

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/httpserver"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/recorder"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

func TestAFakeControllerSourceWillDo(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := fcache.NewFakeControllerSource()
		defer f.Shutdown()
		cm := source.ConfigMap("a")
		f.Add(cm)
		informer := impl.new(t, f)
		r, _ := recorder.Add(t, informer)
		stop := bubble.Start(t, informer)
		f.Modify(cm.DeepCopy())
		f.Delete(cm.DeepCopy())
		synctest.Wait()
		r.Expect(t, "add ns/a@1 initial", "update ns/a@1→2", "delete ns/a@3")
		stop()
	})
}

func TestTypedInformersWrapIt(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := source.New(t, source.ConfigMap("a"))
		informer := cache.NewTypedSharedIndexInformer[*corev1.ConfigMap](impl.new(t, f))
		var names []string
		if _, err := informer.AddTypedEventHandler(cache.TypedResourceEventHandlerFuncs[*corev1.ConfigMap]{
			AddFunc: func(cm *corev1.ConfigMap) { names = append(names, cm.Name) },
		}); err != nil {
			t.Fatal(err)
		}
		bubble.Start(t, informer)
		if !slices.Equal(names, []string{"a"}) {
			t.Errorf("notified of %q", names)
		}
	})
}

// TestRequestsAreComparedWithTheIdentity, of each kind of client-go's ListerWatchers.
func TestRequestsAreComparedWithTheIdentity(t *testing.T) {
	tweak := func(o *metav1.ListOptions) { o.LabelSelector, o.FieldSelector = "x in (2, 1),!y", "metadata.name!=b" }
	asked := warmwatch.InformerOptions{Resource: process.ConfigMaps, Namespace: "ns", LabelSelector: "!y,x in (1,2)", FieldSelector: "metadata.name!=b"}
	for client, listerWatcher := range listerWatchers(tweak) {
		for name, c := range map[string]struct {
			change func(*warmwatch.InformerOptions)
			want   string // In the error. Empty: nothing is wrong.
		}{
			"the same":          {func(*warmwatch.InformerOptions) {}, ""},
			"another resource":  {func(o *warmwatch.InformerOptions) { o.Resource.Resource = "configs" }, "Resource=configs"},
			"another group":     {func(o *warmwatch.InformerOptions) { o.Resource.Group = "g" }, "g/v1"},
			"no namespace":      {func(o *warmwatch.InformerOptions) { o.Namespace = "" }, `namespace ""`},
			"other labels":      {func(o *warmwatch.InformerOptions) { o.LabelSelector = "x" }, `labels "x"`},
			"no field selector": {func(o *warmwatch.InformerOptions) { o.FieldSelector = "" }, `fields ""`},
		} {
			if name == "another group" && client != "metadata" {
				continue // The constructor knows that it is not the example's.
			}
			t.Run(client+": "+name, func(t *testing.T) {
				o := asked
				c.change(&o)
				checkRequests(t, listerWatcher, o, c.want)
			})
		}
	}
}

// listerWatchers are those of each kind of client, of the ConfigMaps in ns.
func listerWatchers(tweak func(*metav1.ListOptions)) map[string]func(*rest.Config) (cache.ListerWatcher, runtime.Object) {
	example := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap"}}
	return map[string]func(*rest.Config) (cache.ListerWatcher, runtime.Object){
		"typed": func(c *rest.Config) (cache.ListerWatcher, runtime.Object) {
			client := kubernetes.NewForConfigOrDie(c)
			return cache.NewFilteredListWatchFromClient(client.CoreV1().RESTClient(), "configmaps", "ns", tweak), &corev1.ConfigMap{}
		},
		"dynamic": func(c *rest.Config) (cache.ListerWatcher, runtime.Object) {
			client := dynamic.NewForConfigOrDie(c).Resource(process.ConfigMaps).Namespace("ns")
			return listWatch(client.List, client.Watch, tweak), example
		},
		"metadata": func(c *rest.Config) (cache.ListerWatcher, runtime.Object) {
			client := metadata.NewForConfigOrDie(c).Resource(process.ConfigMaps).Namespace("ns")
			return listWatch(client.List, client.Watch, tweak), &metav1.PartialObjectMetadata{}
		},
	}
}

func listWatch[L runtime.Object](
	list func(context.Context, metav1.ListOptions) (L, error), open func(context.Context, metav1.ListOptions) (watch.Interface, error), tweak func(*metav1.ListOptions),
) cache.ListerWatcher {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			tweak(&o)
			return list(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			tweak(&o)
			return open(ctx, o)
		},
	}
}

func checkRequests(t *testing.T, listerWatcher func(*rest.Config) (cache.ListerWatcher, runtime.Object), o warmwatch.InformerOptions, want string) {
	api := httpserver.New(t, "")
	config := api.Config()
	c, err := warmwatch.Open(t.Context(), testsupport.Path(t), warmwatch.Options{Logger: &testsupport.Quiet})
	if err != nil {
		t.Fatal(err)
	}
	config.Wrap(c.WrapTransport)
	lw, example := listerWatcher(config)
	informer, err := c.NewSharedIndexInformer(lw, example, o)
	if err != nil {
		t.Fatal(err)
	}
	failed := make(chan struct{}, 1)
	err = informer.SetWatchErrorHandlerWithContext(func(context.Context, *cache.Reflector, error) {
		select {
		case failed <- struct{}{}:
		default:
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { informer.RunWithContext(ctx) })
	defer func() {
		stop()
		wg.Wait()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	if want == "" {
		<-informer.HasSyncedChecker().Done()
		if n := len(informer.GetStore().List()); n != 1 || informer.Status().Err != nil {
			t.Errorf("%d objects, %v", n, informer.Status().Err)
		}
		return
	}
	<-failed
	if err := informer.Status().Err; err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `namespace "ns"`) {
		t.Errorf("the error is %v, expected %s and what is asked for", err, want)
	}
	if n := len(api.Take()); n > 0 || informer.HasSynced() {
		t.Errorf("%d requests, synced %v", n, informer.HasSynced())
	}
}

func TestASelectorThatCannotBeParsedIsRefused(t *testing.T) {
	c, err := warmwatch.Open(t.Context(), testsupport.Path(t), warmwatch.Options{Logger: &testsupport.Quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, o := range []warmwatch.InformerOptions{
		{Resource: process.ConfigMaps, LabelSelector: "a in ("}, {Resource: process.ConfigMaps, FieldSelector: "~~"},
	} {
		_, err := c.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.ConfigMap{}, o)
		if err == nil || !strings.Contains(err.Error(), cmp.Or(o.LabelSelector, o.FieldSelector)) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// TestOtherRequestsOfAListerWatcherPass: it may ask for something else before it lists, with the
// same context.
func TestOtherRequestsOfAListerWatcherPass(t *testing.T) {
	api := httpserver.New(t, "")
	a := process.NewAgent(t, testsupport.Path(t), api)
	client, lw := kubernetes.NewForConfigOrDie(a.Config), cache.ToListerWatcherWithContext(a.ConfigMaps("ns", process.NoTweak))
	asks := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			for _, err := range []error{
				client.CoreV1().RESTClient().Post().AbsPath("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews").Do(ctx).Error(),
				client.CoreV1().RESTClient().Get().AbsPath("/version").Do(ctx).Error(),
			} {
				if err != nil {
					return nil, err
				}
			}
			return lw.ListWithContext(ctx, o)
		},
		WatchFuncWithContext: lw.WatchWithContext,
	}
	informer := a.Make(asks, &corev1.ConfigMap{})
	a.Run(informer)
	process.ExpectOne(t, informer)
	other, err := a.Cache.NewSharedIndexInformer(asks, &corev1.ConfigMap{}, warmwatch.InformerOptions{Resource: process.ConfigMaps, Namespace: "ns", Name: "other"})
	if err != nil {
		t.Fatal(err)
	}
	a.Run(other)
	for _, st := range a.Cache.Status().Informers {
		if st.Err != nil || st.Objects != 1 {
			t.Errorf("%+v", st)
		}
	}
}
