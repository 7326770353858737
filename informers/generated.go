package informers

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
)

// Generated returns the function for InformerFor of a factory that informer-gen has made, for example for a
// CustomResourceDefinition. The factory's informer of example then lives in c. Client is the interface of the generated
// clientset, and resource its client of the resource, in the namespace of the factory:
//
//	factory.InformerFor(&v1.Widget{}, informers.Generated[versioned.Interface](c, &v1.Widget{}, client.ExampleV1().Widgets("")))
//
// Call it before the factory makes that informer, and wrap the transport of the clientset by
// [warmwatch.Cache.WrapTransport]. The informer has the index by namespace, as a generated one has. tweak is the
// argument of the factory's WithTweakListOptions, if that is used.
func Generated[Client any, List runtime.Object](c *warmwatch.Cache, example runtime.Object, resource interface {
	List(context.Context, metav1.ListOptions) (List, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}, tweak ...func(*metav1.ListOptions)) func(Client, time.Duration) cache.SharedIndexInformer {
	tweaked := func(o metav1.ListOptions) metav1.ListOptions {
		for _, f := range tweak {
			f(&o)
		}
		return o
	}
	lw := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return resource.List(ctx, tweaked(o))
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return resource.Watch(ctx, tweaked(o))
		},
	}, resource)
	return func(_ Client, resync time.Duration) cache.SharedIndexInformer {
		return c.NewInformer(lw, example, resync, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	}
}
