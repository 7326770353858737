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
func Generated[Client any, List runtime.Object](c *warmwatch.Cache, example runtime.Object, resource resourceClient[List], tweak ...func(*metav1.ListOptions)) func(Client, time.Duration) cache.SharedIndexInformer {
	lw := listWatch(resource, func(o *metav1.ListOptions) {
		for _, f := range tweak {
			f(o)
		}
	})
	return func(_ Client, resync time.Duration) cache.SharedIndexInformer {
		return c.NewInformer(lw, example, resync, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	}
}

// A resourceClient is a generated, dynamic or metadata client of one resource.
type resourceClient[List runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (List, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// listWatch returns the ListerWatcher of a client-go factory whose tweak may be nil.
func listWatch[List runtime.Object](client resourceClient[List], tweak func(*metav1.ListOptions)) cache.ListerWatcher {
	tweaked := func(o metav1.ListOptions) metav1.ListOptions {
		if tweak != nil {
			tweak(&o)
		}
		return o
	}
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return client.List(ctx, tweaked(o))
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return client.Watch(ctx, tweaked(o))
		},
	}, client)
}
