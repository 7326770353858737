package informers

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/internalinterfaces"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/watchlist"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/request"
)

// SharedInformerFactory is client-go's.
type SharedInformerFactory = informers.SharedInformerFactory

// GenericInformer is client-go's.
type GenericInformer = informers.GenericInformer

// SharedInformerOption is an option of [NewSharedInformerFactoryWithOptions].
type SharedInformerOption func(*options)

type options struct {
	namespace string
	tweak     internalinterfaces.TweakListOptionsFunc
	transform cache.TransformFunc
	clientGo  []informers.SharedInformerOption
}

func optionsOf(opts []SharedInformerOption) options {
	o := options{namespace: metav1.NamespaceAll}
	for _, option := range opts {
		option(&o)
	}
	return o
}

// WithCustomResyncConfig sets a custom resync period for the specified informer types.
func WithCustomResyncConfig(resyncConfig map[metav1.Object]time.Duration) SharedInformerOption {
	return func(o *options) {
		o.clientGo = append(o.clientGo, informers.WithCustomResyncConfig(resyncConfig))
	}
}

// WithTweakListOptions sets a custom filter on all listers of the configured SharedInformerFactory. It is called when
// the informers run. Its selectors are part of the identity of the data: with others, an informer begins with nothing.
func WithTweakListOptions(tweak func(*metav1.ListOptions)) SharedInformerOption {
	return func(o *options) {
		o.tweak = tweak
		o.clientGo = append(o.clientGo, informers.WithTweakListOptions(tweak))
	}
}

// WithNamespace limits the SharedInformerFactory to the specified namespace.
func WithNamespace(namespace string) SharedInformerOption {
	return func(o *options) {
		o.namespace = namespace
		o.clientGo = append(o.clientGo, informers.WithNamespace(namespace))
	}
}

// WithTransform sets a transform on all informers. warmwatch.Options.TransformVersion is its
// version.
func WithTransform(transform cache.TransformFunc) SharedInformerOption {
	return func(o *options) {
		o.transform = transform
		o.clientGo = append(o.clientGo, informers.WithTransform(transform))
	}
}

// WithInformerName sets the InformerName for informer identity used in metrics. Only client-go's own informers publish
// them; the others have a Status.
func WithInformerName(name *cache.InformerName) SharedInformerOption {
	return func(o *options) { o.clientGo = append(o.clientGo, informers.WithInformerName(name)) }
}

// NewSharedInformerFactory makes a factory like client-go's, for all namespaces. Its informers live in c.
func NewSharedInformerFactory(c *warmwatch.Cache, client kubernetes.Interface, defaultResync time.Duration) SharedInformerFactory {
	return NewSharedInformerFactoryWithOptions(c, client, defaultResync)
}

// NewSharedInformerFactoryWithOptions makes a factory like client-go's, with options of the same names. Its informers
// live in c. If client is not a [kubernetes.Clientset], but a fake or a wrapper that may answer otherwise, the factory
// is client-go's own.
func NewSharedInformerFactoryWithOptions(c *warmwatch.Cache, client kubernetes.Interface, defaultResync time.Duration, opts ...SharedInformerOption) SharedInformerFactory {
	o := optionsOf(opts)
	clientGo := informers.NewSharedInformerFactoryWithOptions(client, defaultResync, o.clientGo...)
	clientset, ok := client.(*kubernetes.Clientset)
	if !ok {
		if !watchlist.DoesClientNotSupportWatchListSemantics(client) { // It is no fake.
			c.NotPersisted(fmt.Sprintf("every informer of a factory whose client is a %T, not a Clientset", client))
		}
		return clientGo
	}
	restClient := clientset.CoreV1().RESTClient().(*rest.RESTClient)
	transport := c.WrapTransport(transportOf(restClient)).(request.Transport)
	return &factory{clientGo, o, c, restClient, transport}
}

// A factory makes client-go's own factory make and run the Cache's informers. Only what makes
// informers is its own, so that what client-go adds to the interface is there too.
type factory struct {
	informers.SharedInformerFactory
	options
	cache     *warmwatch.Cache
	client    *rest.RESTClient // Of core/v1.
	transport request.Transport
}

// InformerFor returns the SharedIndexInformer for obj. As in client-go, newFunc makes it on the first call. It lives in
// the Cache if newFunc returns an informer of [warmwatch.Cache.NewInformer].
func (f *factory) InformerFor(obj runtime.Object, newFunc internalinterfaces.NewInformerFunc) cache.SharedIndexInformer {
	return f.SharedInformerFactory.InformerFor(obj, func(client kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
		informer := newFunc(client, resync)
		if _, ours := Of(informer); !ours {
			f.cache.NotPersisted(fmt.Sprintf("%T", obj))
		}
		return informer
	})
}

// generated is the factory as client-go's generated code sees it. What its InformerFor is given
// makes an informer that lists one resource, and does nothing else.
type generated struct{ *factory }

// InformerFor implements internalinterfaces.SharedInformerFactory. The informer is one of the
// Cache, that asks for what the informer of newFunc asks for, and has its indexers.
func (g generated) InformerFor(obj runtime.Object, newFunc internalinterfaces.NewInformerFunc) cache.SharedIndexInformer {
	return g.SharedInformerFactory.InformerFor(obj, func(client kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
		lw := &listerWatcher{client: g.client, transport: g.transport, example: obj, newFunc: newFunc, tweak: g.tweak}
		return g.cache.NewInformer(lw, obj, resync, newFunc(client, resync).GetIndexer().GetIndexers())
	})
}

// InformerName returns none, because client-go's own informers do not run.
func (g generated) InformerName() *cache.InformerName { return nil }

// ForResource gives generic access to a shared informer of the matching type.
func (f *factory) ForResource(resource schema.GroupVersionResource) (GenericInformer, error) {
	newFunc := func(client kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
		clientGo := informers.NewSharedInformerFactoryWithOptions(client, resync, informers.WithNamespace(f.namespace))
		generic, _ := clientGo.ForResource(resource) // exampleOf has not failed.
		return generic.Informer()
	}
	obj, err := exampleOf(resource)
	if err != nil {
		return nil, err
	}
	informer := generated{f}.InformerFor(obj, newFunc)
	return listed{informer, resource.GroupResource()}, nil
}
