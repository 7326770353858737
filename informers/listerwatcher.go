package informers

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers/internalinterfaces"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/request"
)

// A listerWatcher asks for what client-go's own informer asks for. It shows its requests to
// whoever made their context, as if its client's transport were wrapped.
type listerWatcher struct {
	client    *rest.RESTClient // Of core/v1. It decodes each kind of client-go's scheme.
	transport request.Transport
	example   runtime.Object // What is listed.
	newFunc   internalinterfaces.NewInformerFunc
	tweak     func(*metav1.ListOptions) // Sets the selectors, as in client-go. May be nil.
	asked     atomic.Pointer[asked]     // What newFunc's informer asks for, nil until the first request.
}

var _ cache.ListerWatcherWithContext = (*listerWatcher)(nil)

// ListWithContext implements [cache.ListerWithContext].
func (lw *listerWatcher) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	r, err := lw.request(ctx, o)
	if err != nil {
		return nil, err
	}
	list, err := lw.newList()
	if err != nil {
		return nil, err
	}
	return list, r.Do(ctx).Into(list) // The server need not say its kind.
}

// newList returns an empty list of the objects that are asked for.
func (lw *listerWatcher) newList() (runtime.Object, error) {
	kinds, _, err := scheme.Scheme.ObjectKinds(lw.example)
	if err != nil {
		return nil, err
	}
	return scheme.Scheme.New(kinds[0].GroupVersion().WithKind(kinds[0].Kind + "List"))
}

// WatchWithContext implements [cache.WatcherWithContext].
func (lw *listerWatcher) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	r, err := lw.request(ctx, o)
	if err != nil {
		return nil, err
	}
	return r.Watch(ctx)
}

// List implements [cache.Lister].
func (lw *listerWatcher) List(o metav1.ListOptions) (runtime.Object, error) {
	return lw.ListWithContext(context.Background(), o)
}

// Watch implements [cache.Watcher].
func (lw *listerWatcher) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return lw.WatchWithContext(context.Background(), o)
}

// request returns a request like that of client-go's typed clients, see
// k8s.io/client-go/gentype.
func (lw *listerWatcher) request(ctx context.Context, o metav1.ListOptions) (*rest.Request, error) {
	asks, err := lw.asks(ctx)
	if err != nil {
		return nil, err
	}
	if lw.tweak != nil {
		lw.tweak(&o)
	}
	var timeout time.Duration
	if o.TimeoutSeconds != nil {
		timeout = time.Duration(*o.TimeoutSeconds) * time.Second
	}
	r := lw.client.Get().
		UseProtobufAsDefaultIfPreferred(asks.protobuf).
		AbsPath(asks.path).
		VersionedParams(&o, scheme.ParameterCodec).
		Timeout(timeout)
	shown, err := http.NewRequestWithContext(ctx, http.MethodGet, r.URL().String(), nil)
	if err != nil {
		return nil, err
	}
	return r, lw.transport.Show(shown)
}

func (lw *listerWatcher) asks(ctx context.Context) (*asked, error) {
	if a := lw.asked.Load(); a != nil {
		return a, nil
	}
	a, err := look(ctx, lw.newFunc)
	if err == nil {
		lw.asked.Store(a)
	}
	return a, err
}

// transportOf returns what a client's requests go through, with its credentials.
func transportOf(client *rest.RESTClient) http.RoundTripper {
	if client.Client == nil || client.Client.Transport == nil {
		return http.DefaultTransport
	}
	return client.Client.Transport
}
