package informers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/internalinterfaces"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/warmwatch/warmwatch/internal/request"
)

// An asked is what client-go's own informer asks for.
type asked struct {
	path                                        string
	labelSelector, fieldSelector, shardSelector string
	protobuf                                    bool // Whether it prefers protobuf.
}

// A tap is the transport of a client that has no server. It takes the first request for a list.
type tap struct {
	cancel func() // Of the run in which the request is made.

	mu    sync.Mutex
	asked *asked
}

var (
	errTapped = errors.New("the request is only looked at")
	errNoList = errors.New("it does not list by the client that it is given")
)

// RoundTrip implements [http.RoundTripper].
func (t *tap) RoundTrip(r *http.Request) (*http.Response, error) {
	if _, err := request.Of(r); err == nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.asked == nil {
			query := r.URL.Query()
			t.asked = &asked{
				path:          r.URL.Path,
				labelSelector: query.Get("labelSelector"), fieldSelector: query.Get("fieldSelector"), shardSelector: query.Get("shardSelector"),
				protobuf: strings.Contains(r.Header.Get("Accept"), "protobuf"),
			}
		}
	}
	t.cancel()
	return nil, errTapped
}

// client returns a client whose requests come to the tap.
func (t *tap) client() kubernetes.Interface {
	client, err := kubernetes.NewForConfigAndClient(&rest.Config{Host: "http://localhost", QPS: -1}, &http.Client{Transport: t})
	if err != nil {
		panic(fmt.Sprintf("warmwatch: a client without a server: %v", err)) // Nothing of it depends on the caller.
	}
	return client
}

// lookPatience is much longer than it takes to look.
const lookPatience = 10 * time.Second

// look returns what the informer of newFunc asks for. It runs one for an instant, with a client
// whose requests go nowhere.
func look(ctx context.Context, newFunc internalinterfaces.NewInformerFunc) (asked, error) {
	ctx, cancel := context.WithTimeout(klog.NewContext(ctx, logr.Discard()), lookPatience)
	defer cancel()
	// If it makes requests by another client, those are not sent either, unless by an idle connection.
	var taken *asked
	_, err := request.Look(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		t := &tap{cancel: cancel}
		informer := newFunc(t.client(), 0)
		err := informer.SetWatchErrorHandlerWithContext(func(context.Context, *cache.Reflector, error) { cancel() })
		if err != nil {
			return err
		}
		go func() { // If it gets a list, the request did not come to the tap.
			select {
			case <-informer.HasSyncedChecker().Done():
				cancel()
			case <-ctx.Done():
			}
		}()
		informer.RunWithContext(ctx)
		t.mu.Lock()
		defer t.mu.Unlock()
		taken = t.asked
		return nil
	})
	switch {
	case taken != nil:
		return *taken, nil
	case ctx.Err() != nil:
		return asked{}, ctx.Err()
	case err != nil && !errors.Is(err, request.ErrNotSeen):
		return asked{}, err
	}
	return asked{}, errNoList
}

// checkReplaceable returns why an informer that newFunc has made cannot be replaced by one of a
// Cache. It makes no request.
func checkReplaceable(obj runtime.Object, own cache.SharedIndexInformer, newFunc internalinterfaces.NewInformerFunc) error {
	if _, _, err := scheme.Scheme.ObjectKinds(obj); err != nil {
		return err
	}
	if t := reflect.TypeOf(own); t.Kind() != reflect.Pointer || t.Elem().PkgPath() != clientGoCache {
		return fmt.Errorf("a %v is not client-go's", t)
	}
	_, err := look(context.Background(), newFunc)
	return err
}

var clientGoCache = reflect.TypeFor[cache.ListWatch]().PkgPath()

// clientGoForResource returns the informer of client-go's ForResource.
func (f *factory) clientGoForResource(client kubernetes.Interface, resync time.Duration, resource schema.GroupVersionResource) (cache.SharedIndexInformer, error) {
	generic, err := informers.NewSharedInformerFactoryWithOptions(client, resync, informers.WithNamespace(f.namespace)).ForResource(resource)
	if err != nil {
		return nil, err
	}
	return generic.Informer(), nil
}

// exampleOf returns an object of a resource. client-go's factory names the type once it has
// started an informer of it, with a context that has ended.
func (f *factory) exampleOf(resource schema.GroupVersionResource) (runtime.Object, error) {
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), logr.Discard()))
	cancel()
	t := &tap{cancel: cancel}
	clientGo := informers.NewSharedInformerFactory(t.client(), 0)
	if _, err := clientGo.ForResource(resource); err != nil {
		return nil, err
	}
	clientGo.StartWithContext(ctx)
	defer clientGo.Shutdown()
	for started := range clientGo.WaitForCacheSyncWithContext(ctx).Synced {
		if obj, ok := reflect.TypeAssert[runtime.Object](reflect.New(started.Elem())); ok {
			return obj, nil
		}
	}
	return nil, fmt.Errorf("no type found for %v", resource)
}
