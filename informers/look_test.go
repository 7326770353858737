package informers_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/informers"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/httpserver"
)

// TestTheInformerThatInformerForIsGivenStays: what its ListFunc does, nobody but it can know, so
// the factory calls nothing of it before the start, and asks for nothing itself.
func TestTheInformerThatInformerForIsGivenStays(t *testing.T) {
	type list = func(context.Context, kubernetes.Interface, metav1.ListOptions) (*corev1.PodList, error)
	in := func(namespace string) list {
		return func(ctx context.Context, client kubernetes.Interface, o metav1.ListOptions) (*corev1.PodList, error) {
			return client.CoreV1().Pods(namespace).List(ctx, o)
		}
	}
	for name, c := range map[string]struct {
		list  list
		lists []string
		want  []string
	}{
		"two namespaces": {func(ctx context.Context, client kubernetes.Interface, o metav1.ListOptions) (*corev1.PodList, error) {
			one, err := in("ns")(ctx, client, o)
			if err != nil {
				return nil, err
			}
			two, err := in("other")(ctx, client, o)
			if err != nil {
				return nil, err
			}
			for _, pod := range two.Items {
				pod.Namespace = "other" // The server has one object for all.
				one.Items = append(one.Items, pod)
			}
			return one, nil
		}, []string{"LIST /api/v1/namespaces/ns/pods", "LIST /api/v1/namespaces/other/pods"}, []string{"ns/a", "other/a"}},
		"a filter": {func(ctx context.Context, client kubernetes.Interface, o metav1.ListOptions) (*corev1.PodList, error) {
			pods, err := in("ns")(ctx, client, o)
			if err == nil {
				pods.Items = slices.DeleteFunc(pods.Items, func(pod corev1.Pod) bool { return pod.Name == "a" })
			}
			return pods, err
		}, []string{"LIST /api/v1/namespaces/ns/pods"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			api := httpserver.New(t, "one")
			a := newAgent(t, testsupport.Path(t), api)
			factory := a.factory()
			var started atomic.Bool
			informer := factory.InformerFor(&corev1.Pod{}, func(client kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
				lw := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "pods", "ns", fields.Everything())
				lw.ListWithContextFunc = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
					if !started.Load() {
						t.Error("it is asked for a list before the start")
					}
					_ = factory.Core().V1().Nodes().Lister() // The factory's lock is free.
					return c.list(ctx, client, o)
				}
				return cache.NewSharedIndexInformer(lw, &corev1.Pod{}, resync, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
			})
			if _, ours := informers.Of(informer); ours || a.warnings.Load() != 1 {
				t.Errorf("of the Cache: %v, %d warnings", ours, a.warnings.Load())
			}
			if problems := a.cache.Status().Informers["*v1.Pod"].Problems; len(problems) != 1 || problems[0].Code != warmwatch.CodeFromMemory {
				t.Errorf("the Status has %+v", problems)
			}
			if of := factory.Core().V1().Pods().Informer(); of.GetStore() != informer.GetStore() {
				t.Error("the group has another informer")
			}
			started.Store(true)
			a.run(factory, informer)
			keys := informer.GetStore().ListKeys()
			slices.Sort(keys)
			if d := cmp.Diff(c.want, keys, cmpopts.EquateEmpty()); d != "" {
				t.Errorf("the store (-want +got):\n%s", d)
			}
			if d := cmp.Diff(c.lists, api.TakeLists()); d != "" {
				t.Errorf("lists (-want +got):\n%s", d)
			}
		})
	}
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
	_, err := informers.AddDurableEventHandler(pods, "name", cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) { added <- obj }}, warmwatch.DurableOptions{})
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

// TestAClientThatReplacesAPartHasClientGosOwnFactory, and the log says so: the part may be what an
// informer would ask.
func TestAClientThatReplacesAPartHasClientGosOwnFactory(t *testing.T) {
	api := httpserver.New(t, "one")
	a := newAgent(t, testsupport.Path(t), api)
	factory := informers.NewSharedInformerFactory(a.cache, inNamespace{a.client()}, 0)
	pods := factory.Core().V1().Pods().Informer()
	if _, ours := informers.Of(pods); ours || a.warnings.Load() != 1 {
		t.Errorf("of the Cache: %v, %d warnings", ours, a.warnings.Load())
	}
	a.run(factory, pods)
	expectKeys(t, pods, "ns/a")
	if d := cmp.Diff([]string{"LIST /api/v1/namespaces/ns/pods"}, api.TakeLists()); d != "" {
		t.Errorf("lists (-want +got):\n%s", d)
	}
}

// inNamespace is a client whose Pods are always those of ns.
type inNamespace struct{ kubernetes.Interface }

func (c inNamespace) CoreV1() typedcorev1.CoreV1Interface {
	return coreInNamespace{c.Interface.CoreV1()}
}

type coreInNamespace struct{ typedcorev1.CoreV1Interface }

func (c coreInNamespace) Pods(string) typedcorev1.PodInterface {
	return c.CoreV1Interface.Pods("ns")
}
