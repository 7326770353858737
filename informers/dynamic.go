package informers

import (
	"maps"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
)

// NewDynamicSharedInformerFactory makes a factory like client-go's package dynamicinformer, for all namespaces. Its
// informers live in c. If the client is a fake, they are client-go's own. Unlike a typed client, a dynamic one hides
// its transport: call config.Wrap(c.WrapTransport) before the client is made. Else the informers work from memory.
func NewDynamicSharedInformerFactory(c *warmwatch.Cache, client dynamic.Interface, defaultResync time.Duration) dynamicinformer.DynamicSharedInformerFactory {
	return NewFilteredDynamicSharedInformerFactory(c, client, defaultResync, metav1.NamespaceAll, nil)
}

// NewFilteredDynamicSharedInformerFactory is NewDynamicSharedInformerFactory for a namespace, with
// a custom filter.
func NewFilteredDynamicSharedInformerFactory(c *warmwatch.Cache, client dynamic.Interface, defaultResync time.Duration, namespace string, tweak func(*metav1.ListOptions)) dynamicinformer.DynamicSharedInformerFactory {
	return newResourceFactory(func(r schema.GroupVersionResource) cache.SharedIndexInformer {
		resource := client.Resource(r).Namespace(namespace)
		return Generated[dynamic.Interface](c, &unstructured.Unstructured{}, resource, tweak)(client, defaultResync)
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
	return newResourceFactory(func(r schema.GroupVersionResource) cache.SharedIndexInformer {
		resource := client.Resource(r).Namespace(o.namespace)
		informer := Generated[metadata.Interface](c, &metav1.PartialObjectMetadata{}, resource, o.tweak)(client, defaultResync)
		_ = informer.SetTransform(o.transform) // It fails only after the start.
		return informer
	})
}

// listed is an informer of a resource.
type listed struct {
	informer cache.SharedIndexInformer
	resource schema.GroupResource
}

// Informer implements [GenericInformer].
func (l listed) Informer() cache.SharedIndexInformer { return l.informer }

// Lister implements [GenericInformer].
func (l listed) Lister() cache.GenericLister {
	return cache.NewGenericLister(l.informer.GetIndexer(), l.resource)
}

// A resourceFactory has an informer for each resource that it was asked for. It does what
// client-go's factories for dynamic and metadata clients do.
type resourceFactory struct {
	newInformer func(schema.GroupVersionResource) cache.SharedIndexInformer
	running     sync.WaitGroup

	mu           sync.Mutex
	informers    map[schema.GroupVersionResource]GenericInformer
	started      map[schema.GroupVersionResource]cache.SharedIndexInformer
	shuttingDown bool
}

func newResourceFactory(newInformer func(schema.GroupVersionResource) cache.SharedIndexInformer) *resourceFactory {
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
		f.informers[r] = listed{f.newInformer(r), r.GroupResource()}
	}
	return f.informers[r]
}

// Start initializes all requested informers. They run until the stop channel gets closed.
func (f *resourceFactory) Start(stopCh <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.shuttingDown {
		return
	}
	for r, generic := range f.informers {
		if f.started[r] == nil {
			informer := generic.Informer()
			f.started[r] = informer
			f.running.Go(func() { informer.Run(stopCh) })
		}
	}
}

// WaitForCacheSync waits until all started informers have synced, or the stop channel is closed.
func (f *resourceFactory) WaitForCacheSync(stopCh <-chan struct{}) map[schema.GroupVersionResource]bool {
	f.mu.Lock()
	started := maps.Clone(f.started)
	f.mu.Unlock()
	synced := map[schema.GroupVersionResource]bool{}
	for r, informer := range started {
		synced[r] = cache.WaitFor(wait.ContextForChannel(stopCh), "", informer.HasSyncedChecker())
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
