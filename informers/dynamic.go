package informers

import (
	"context"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/dynamic/dynamiclister"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/metadata/metadatalister"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/watchlist"

	"github.com/warmwatch/warmwatch"
)

// NewDynamicSharedInformerFactory makes a factory like client-go's package dynamicinformer, for all namespaces. Its
// informers live in c. If the client is a fake, the factory is client-go's own. Unlike a typed client, a dynamic one hides
// its transport: call config.Wrap(c.WrapTransport) before the client is made. Else the informers work from memory.
func NewDynamicSharedInformerFactory(c *warmwatch.Cache, client dynamic.Interface, defaultResync time.Duration) dynamicinformer.DynamicSharedInformerFactory {
	return NewFilteredDynamicSharedInformerFactory(c, client, defaultResync, metav1.NamespaceAll, nil)
}

// NewFilteredDynamicSharedInformerFactory is NewDynamicSharedInformerFactory for a namespace, with
// a custom filter.
func NewFilteredDynamicSharedInformerFactory(c *warmwatch.Cache, client dynamic.Interface, defaultResync time.Duration, namespace string, tweak func(*metav1.ListOptions)) dynamicinformer.DynamicSharedInformerFactory {
	if watchlist.DoesClientNotSupportWatchListSemantics(client) { // A fake.
		return dynamicinformer.NewFilteredDynamicSharedInformerFactory(client, defaultResync, namespace, tweak)
	}
	return newResourceFactory(func(r schema.GroupVersionResource) GenericInformer {
		lw := listWatch(client.Resource(r).Namespace(namespace), tweak)
		informer := c.NewInformer(lw, &unstructured.Unstructured{}, defaultResync, byNamespace())
		return listed{informer, dynamiclister.NewRuntimeObjectShim(dynamiclister.New(informer.GetIndexer(), r))}
	})
}

// NewMetadataSharedInformerFactory makes a factory like client-go's package metadatainformer, for all namespaces. Its
// informers live in c. For the client see [NewDynamicSharedInformerFactory].
func NewMetadataSharedInformerFactory(c *warmwatch.Cache, client metadata.Interface, defaultResync time.Duration) metadatainformer.SharedInformerFactory {
	return NewFilteredMetadataSharedInformerFactory(c, client, defaultResync, metav1.NamespaceAll, nil)
}

// NewFilteredMetadataSharedInformerFactory is NewMetadataSharedInformerFactory for a namespace,
// with a custom filter.
func NewFilteredMetadataSharedInformerFactory(c *warmwatch.Cache, client metadata.Interface, defaultResync time.Duration, namespace string, tweak func(*metav1.ListOptions)) metadatainformer.SharedInformerFactory {
	return NewMetadataSharedInformerFactoryWithOptions(c, client, defaultResync, WithNamespace(namespace), WithTweakListOptions(tweak))
}

// NewMetadataSharedInformerFactoryWithOptions is NewMetadataSharedInformerFactory with options. Only WithNamespace,
// WithTweakListOptions and WithTransform count.
func NewMetadataSharedInformerFactoryWithOptions(c *warmwatch.Cache, client metadata.Interface, defaultResync time.Duration, opts ...SharedInformerOption) metadatainformer.SharedInformerFactory {
	o := optionsOf(opts)
	fake := watchlist.DoesClientNotSupportWatchListSemantics(client)
	return newResourceFactory(func(r schema.GroupVersionResource) GenericInformer {
		var generic GenericInformer
		if fake {
			generic = metadatainformer.NewFilteredMetadataInformer(client, r, o.namespace, defaultResync, byNamespace(), metadatainformer.TweakListOptionsFunc(o.tweak))
		} else {
			lw := listWatch(client.Resource(r).Namespace(o.namespace), o.tweak)
			informer := c.NewInformer(lw, &metav1.PartialObjectMetadata{}, defaultResync, byNamespace())
			generic = listed{informer, metadatalister.NewRuntimeObjectShim(metadatalister.New(informer.GetIndexer(), r))}
		}
		_ = generic.Informer().SetTransform(o.transform) // It fails only after the start.
		return generic
	})
}

func byNamespace() cache.Indexers {
	return cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
}

// listed is an informer and its lister.
type listed struct {
	informer cache.SharedIndexInformer
	lister   cache.GenericLister
}

// Informer implements [GenericInformer].
func (l listed) Informer() cache.SharedIndexInformer { return l.informer }

// Lister implements [GenericInformer].
func (l listed) Lister() cache.GenericLister { return l.lister }

// A resourceFactory has an informer for each resource that it was asked for. It does what
// client-go's factories for dynamic and metadata clients do.
type resourceFactory struct {
	newInformer func(schema.GroupVersionResource) GenericInformer
	running     sync.WaitGroup

	mu           sync.Mutex
	informers    map[schema.GroupVersionResource]GenericInformer
	started      map[schema.GroupVersionResource]cache.SharedIndexInformer
	shuttingDown bool
}

func newResourceFactory(newInformer func(schema.GroupVersionResource) GenericInformer) *resourceFactory {
	return &resourceFactory{
		newInformer: newInformer,
		informers:   map[schema.GroupVersionResource]GenericInformer{},
		started:     map[schema.GroupVersionResource]cache.SharedIndexInformer{},
	}
}

// ForResource gives generic access to a shared informer of the matching type.
func (f *resourceFactory) ForResource(r schema.GroupVersionResource) GenericInformer {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.informers[r] == nil {
		f.informers[r] = f.newInformer(r)
	}
	return f.informers[r]
}

// Start initializes all requested informers. They run until the stop channel gets closed.
func (f *resourceFactory) Start(stopCh <-chan struct{}) {
	f.StartWithContext(wait.ContextForChannel(stopCh))
}

// StartWithContext initializes all requested informers. They run until ctx is done.
func (f *resourceFactory) StartWithContext(ctx context.Context) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.shuttingDown {
		return
	}
	for r, generic := range f.informers {
		if f.started[r] == nil {
			informer := generic.Informer()
			f.started[r] = informer
			f.running.Go(func() { informer.RunWithContext(ctx) })
		}
	}
}

// WaitForCacheSync waits until all started informers have synced, or the stop channel is closed.
func (f *resourceFactory) WaitForCacheSync(stopCh <-chan struct{}) map[schema.GroupVersionResource]bool {
	f.mu.Lock()
	checkers := map[schema.GroupVersionResource]cache.DoneChecker{}
	for r, informer := range f.started {
		checkers[r] = informer.HasSyncedChecker()
	}
	f.mu.Unlock()
	synced := map[schema.GroupVersionResource]bool{}
	for r, checker := range checkers {
		synced[r] = cache.WaitFor(wait.ContextForChannel(stopCh), "", checker)
	}
	return synced
}

// Shutdown waits until the informers have ended; close their stop channel first. None can be started any more.
func (f *resourceFactory) Shutdown() {
	f.mu.Lock()
	f.shuttingDown = true
	f.mu.Unlock()
	f.running.Wait()
}
