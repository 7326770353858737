package informers

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/watchlist"

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
// argument of the factory's WithTweakListOptions, if that is used. If the clientset is a fake, the informer is
// client-go's own.
func Generated[Client any, List runtime.Object](c *warmwatch.Cache, example runtime.Object, resource resourceClient[List], tweak ...func(*metav1.ListOptions)) func(Client, time.Duration) cache.SharedIndexInformer {
	tweaked := func(o metav1.ListOptions) metav1.ListOptions {
		for _, f := range tweak {
			if f != nil {
				f(&o)
			}
		}
		return o
	}
	return func(client Client, resync time.Duration) cache.SharedIndexInformer {
		newInformer := c.NewInformer
		if watchlist.DoesClientNotSupportWatchListSemantics(client) { // A fake.
			newInformer = cache.NewSharedIndexInformer
		}
		lw := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return resource.List(ctx, tweaked(o))
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				return resource.Watch(ctx, tweaked(o))
			},
		}, client)
		return newInformer(lw, example, resync, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	}
}

// A resourceClient is a generated, dynamic or metadata client of one resource.
type resourceClient[List runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (List, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}
