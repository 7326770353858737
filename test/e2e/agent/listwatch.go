package agent

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

// LoadConfig reads a kubeconfig, and takes its limits off.
func LoadConfig(kubeconfig, kubeContext string) (*rest.Config, error) {
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig},
		&clientcmd.ConfigOverrides{CurrentContext: kubeContext},
	).ClientConfig()
	if err != nil {
		return nil, err
	}
	cfg.QPS = -1 // The server may have a limit.
	cfg.WarningHandler = rest.NoWarnings{}
	return cfg, nil
}

// ListWatch is the ListerWatcher that client-go's own informers have: it lists and
// watches core objects with protobuf, others with a dynamic client, and both with
// WatchList.
func ListWatch(cfg *rest.Config, resource schema.GroupVersionResource, namespace string) (cache.ListerWatcher, error) {
	if resource.Group != "" {
		client, err := dynamic.NewForConfig(cfg)
		if err != nil {
			return nil, err
		}
		c := client.Resource(resource).Namespace(namespace)
		return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return c.List(ctx, o)
			},
			WatchFuncWithContext: c.Watch,
		}, client), nil
	}
	cfg = rest.CopyConfig(cfg)
	cfg.ContentType = runtime.ContentTypeProtobuf
	cfg.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	client, err := typedcorev1.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	lw := cache.NewListWatchFromClient(client.RESTClient(), resource.Resource, namespace, fields.Everything())
	return cache.ToListWatcherWithWatchListSemantics(lw, client), nil
}

// exampleOf is an object of the kind that an informer is for.
func exampleOf(gvk schema.GroupVersionKind) (runtime.Object, error) {
	if gvk.Group == "" {
		return scheme.Scheme.New(gvk)
	}
	example := &unstructured.Unstructured{}
	example.SetGroupVersionKind(gvk)
	return example, nil
}

// exactListLimit is the page size of lists that go to etcd.
const exactListLimit = 500

// tap is a ListerWatcher whose events are held back or stamped.
type tap struct {
	cache.ListerWatcher
	from   string        // The list is what there was at this resourceVersion, from etcd. Empty: as the informer asks.
	gate   chan struct{} // The watch begins when it is closed. nil: at once.
	begin  func()        // Closes gate, once. nil if gate is.
	stamps *stamps       // When each update left the decoder of client-go's watch. nil: nobody asks.
}

// IsWatchListSemanticsUnSupported makes client-go's reflector list.
func (p *tap) IsWatchListSemanticsUnSupported() bool { return true }

// ListWithContext implements cache.ListerWithContext.
func (p *tap) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	if p.from != "" && o.Continue == "" && (o.ResourceVersion == "" || o.ResourceVersion == "0") {
		o.ResourceVersion, o.ResourceVersionMatch = p.from, metav1.ResourceVersionMatchExact
		o.Limit = exactListLimit
	}
	return cache.ToListerWatcherWithContext(p.ListerWatcher).ListWithContext(ctx, o)
}

// WatchWithContext implements cache.WatcherWithContext.
func (p *tap) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	if p.gate != nil {
		if err := wait(ctx, p.gate); err != nil {
			return nil, err
		}
	}
	w, err := cache.ToListerWatcherWithContext(p.ListerWatcher).WatchWithContext(ctx, o)
	if err != nil || p.stamps == nil {
		return w, err
	}
	return watch.Filter(w, func(e watch.Event) (watch.Event, bool) {
		if object, err := meta.Accessor(e.Object); err == nil && e.Type == watch.Modified {
			p.stamps.put(object.GetResourceVersion(), time.Now())
		}
		return e, true
	}), nil
}

// stamps are times of events, by resourceVersion.
type stamps struct {
	mu    sync.Mutex
	times map[string]time.Time
}

func (s *stamps) put(resourceVersion string, t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.times[resourceVersion] = t
}

// take returns the time of an event, once.
func (s *stamps) take(resourceVersion string) (time.Time, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.times[resourceVersion]
	delete(s.times, resourceVersion)
	return t, ok
}

// wait is an error if the context ends first.
func wait(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
