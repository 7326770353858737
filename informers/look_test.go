package informers_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch/informers"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/httpserver"
)

// TestInformerFor takes what client-go's constructors, and a hand-made ListerWatcher, ask for.
func TestInformerFor(t *testing.T) {
	selects := func(o *metav1.ListOptions) { o.LabelSelector = "x=1" }
	for name, newFunc := range map[string]func(kubernetes.Interface, time.Duration) cache.SharedIndexInformer{
		"generated": func(client kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
			return coreinformers.NewFilteredPodInformer(client, "ns", resync, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}, selects)
		},
		"RESTClient": func(client kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
			lw := cache.NewFilteredListWatchFromClient(client.CoreV1().RESTClient(), "pods", "ns", selects)
			return cache.NewSharedIndexInformer(lw, &corev1.Pod{}, resync, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
		},
		"context dropped": func(client kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
			lw := cache.NewFilteredListWatchFromClient(client.CoreV1().RESTClient(), "pods", "ns", selects)
			return cache.NewSharedIndexInformer(&cache.ListWatch{
				ListWithContextFunc: func(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
					return lw.ListWithContext(context.Background(), o)
				},
				WatchFuncWithContext: func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
					return lw.WatchWithContext(context.Background(), o)
				},
			}, &corev1.Pod{}, resync, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
		},
	} {
		t.Run(name, func(t *testing.T) {
			api, path := httpserver.New(t, "one"), testsupport.Path(t)
			for _, want := range [][]string{{"LIST /api/v1/namespaces/ns/pods?labelSelector=x%3D1"}, nil} {
				a := newAgent(t, path, api)
				factory := a.factory()
				informer := factory.InformerFor(&corev1.Pod{}, newFunc)
				if again := factory.InformerFor(&corev1.Pod{}, newFunc); again != informer {
					t.Error("the type has another informer")
				}
				if s, ok := informers.Of(factory.Core().V1().Pods().Informer()); !ok || cache.SharedIndexInformer(s) != informer {
					t.Error("the group has another informer")
				}
				a.run(factory, informer)
				live(t, informer)
				expectKeys(t, informer, "ns/a")
				a.stop()
				if d := cmp.Diff(want, api.TakeLists()); d != "" {
					t.Errorf("lists (-want +got):\n%s", d)
				}
			}
		})
	}
}

// TestAnInformerThatStaysClientGosOwn is run as before, and looking at it sends nothing.
func TestAnInformerThatStaysClientGosOwn(t *testing.T) {
	type wrapper struct{ cache.SharedIndexInformer }
	wrapped := func(a *agent) kubernetes.Interface {
		config := rest.CopyConfig(a.config)
		config.Wrap(a.cache.WrapTransport)
		return kubernetes.NewForConfigOrDie(config)
	}
	pods := func(client kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
		return coreinformers.NewPodInformer(client, "ns", resync, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	}
	static := func(lists ...runtime.Object) func(kubernetes.Interface, time.Duration) cache.SharedIndexInformer {
		return func(_ kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
			var n atomic.Int64
			lw := &cache.ListWatch{
				ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
					if i := int(n.Add(1)) - 1; i < len(lists) {
						return lists[i], nil
					}
					return nil, errors.New("no list")
				},
				WatchFuncWithContext: func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
					if o.SendInitialEvents != nil {
						return nil, errors.New("no stream")
					}
					return watch.NewFake(), nil
				},
			}
			return cache.NewSharedIndexInformer(lw, &corev1.Pod{}, resync, cache.Indexers{})
		}
	}
	for name, c := range map[string]struct {
		newFunc func(*agent) func(kubernetes.Interface, time.Duration) cache.SharedIndexInformer
		runs    bool
	}{
		"other client": {func(a *agent) func(kubernetes.Interface, time.Duration) cache.SharedIndexInformer {
			other := a.client()
			return func(_ kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
				return pods(other, resync)
			}
		}, true},
		"other client, whose transport is wrapped": {func(a *agent) func(kubernetes.Interface, time.Duration) cache.SharedIndexInformer {
			client := wrapped(a)
			return func(_ kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
				return pods(client, resync)
			}
		}, true},
		"wrapper": {func(*agent) func(kubernetes.Interface, time.Duration) cache.SharedIndexInformer {
			return func(client kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
				return &wrapper{pods(client, resync)}
			}
		}, true},
		"without a client": {func(*agent) func(kubernetes.Interface, time.Duration) cache.SharedIndexInformer {
			return static(&corev1.PodList{})
		}, false},
		"without a list": {func(*agent) func(kubernetes.Interface, time.Duration) cache.SharedIndexInformer { return static() }, false},
	} {
		t.Run(name, func(t *testing.T) {
			api := httpserver.New(t, "one") // To which no connection is idle: by such a one a request may be sent.
			a := newAgent(t, testsupport.Path(t), api)
			factory := a.factory()
			begin := time.Now()
			informer := factory.InformerFor(&corev1.Pod{}, c.newFunc(a))
			if _, ours := informers.Of(informer); ours {
				t.Error("it is not client-go's own")
			}
			if took := time.Since(begin); took > 5*time.Second {
				t.Errorf("to find that out took %v", took)
			}
			if n := a.warnings.Load(); n != 1 {
				t.Errorf("the log says so %d times", n)
			}
			if got := api.TakeLists(); len(got) > 0 {
				t.Errorf("looking at it has sent %v", got)
			}
			if c.runs {
				a.run(factory, informer)
				expectKeys(t, informer, "ns/a")
			}
			a.stop()
		})
	}
	t.Run("other type", func(t *testing.T) {
		a := newAgent(t, testsupport.Path(t), httpserver.New(t, "one"))
		informer := a.factory().InformerFor(&metav1.PartialObjectMetadata{}, func(_ kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
			return cache.NewSharedIndexInformer(&cache.ListWatch{}, &metav1.PartialObjectMetadata{}, resync, cache.Indexers{})
		})
		if _, ours := informers.Of(informer); ours {
			t.Error("it is not client-go's own")
		}
	})
}

// TestAnInformerOfTheCacheIsTaken as it is.
func TestAnInformerOfTheCacheIsTaken(t *testing.T) {
	a := newAgent(t, testsupport.Path(t), httpserver.New(t, "one"))
	var made cache.SharedIndexInformer
	calls := 0
	got := a.factory().InformerFor(&corev1.Pod{}, func(client kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
		calls++
		made = a.cache.NewInformer(cache.NewFilteredListWatchFromClient(client.CoreV1().RESTClient(), "pods", "", func(*metav1.ListOptions) {}), &corev1.Pod{}, resync, nil)
		return made
	})
	if got != made || calls != 1 || a.warnings.Load() != 0 {
		t.Errorf("another informer, after %d calls, %d warnings", calls, a.warnings.Load())
	}
}

// TestAFakeClientsetHasClientGosOwnFactory.
func TestAFakeClientsetHasClientGosOwnFactory(t *testing.T) {
	a := newAgent(t, testsupport.Path(t), httpserver.New(t, "one"))
	client := fake.NewClientset(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}})
	factory := informers.NewSharedInformerFactory(a.cache, client, 0)
	pods := factory.Core().V1().Pods().Informer()
	if _, ours := informers.Of(pods); ours {
		t.Error("it is not client-go's own")
	}
	added := make(chan any, 1)
	_, err := informers.AddDurableEventHandler(pods, "name", cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) { added <- obj }})
	if err != nil {
		t.Fatal(err)
	}
	a.run(factory, pods)
	expectKeys(t, pods, "ns/a")
	<-added
	if n, warnings := len(a.cache.Status().Informers), a.warnings.Load(); n != 0 || warnings != 0 {
		t.Errorf("the Cache has %d informers, and %d warnings", n, warnings)
	}
}

// TestAClientWithoutARESTClientHasClientGosOwnFactory, and the log says so.
func TestAClientWithoutARESTClientHasClientGosOwnFactory(t *testing.T) {
	a := newAgent(t, testsupport.Path(t), httpserver.New(t, "one"))
	factory := informers.NewSharedInformerFactory(a.cache, hidden{a.client()}, 0)
	pods := factory.Core().V1().Pods().Informer()
	if _, ours := informers.Of(pods); ours || a.warnings.Load() != 1 {
		t.Errorf("of the Cache: %v, %d warnings", ours, a.warnings.Load())
	}
	a.run(factory, pods)
	expectKeys(t, pods, "ns/a")
}

// hidden is a client that shows no RESTClient of core/v1.
type hidden struct{ kubernetes.Interface }

func (h hidden) CoreV1() typedcorev1.CoreV1Interface { return hiddenCore{h.Interface.CoreV1()} }

type hiddenCore struct{ typedcorev1.CoreV1Interface }

func (hiddenCore) RESTClient() rest.Interface { return nil }
