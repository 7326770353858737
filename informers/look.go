package informers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"sync/atomic"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/internalinterfaces"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/warmwatch/warmwatch/internal/request"
)

// An asked is what client-go's own informer asks for, but for the selectors.
type asked struct {
	path     string
	protobuf bool // Whether it prefers protobuf.
}

// A tap is the transport of a client that has no server. It takes the first request for a list.
type tap struct {
	cancel func() // Of the run in which the request is made.
	asked  atomic.Pointer[asked]
}

var (
	errTapped = errors.New("the request is only looked at")
	errNoList = errors.New("client-go's informer does not list")
)

// RoundTrip implements [http.RoundTripper].
func (t *tap) RoundTrip(r *http.Request) (*http.Response, error) {
	if _, err := request.Of(r); err == nil {
		t.asked.CompareAndSwap(nil, &asked{path: r.URL.Path, protobuf: strings.Contains(r.Header.Get("Accept"), "protobuf")})
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

// look returns what the informer of newFunc, which is generated, asks for. It runs one until its
// first request, with a client whose requests go nowhere.
func look(ctx context.Context, newFunc internalinterfaces.NewInformerFunc) (*asked, error) {
	running, cancel := context.WithCancel(klog.NewContext(ctx, logr.Discard()))
	defer cancel()
	t := &tap{cancel: cancel}
	newFunc(t.client(), 0).RunWithContext(running)
	if a := t.asked.Load(); a != nil {
		return a, nil
	}
	return nil, cmp.Or(ctx.Err(), errNoList)
}

// exampleOf returns an object of a resource. client-go's factory names the type once it has
// started an informer of it, with a context that has ended.
func exampleOf(resource schema.GroupVersionResource) (runtime.Object, error) {
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), logr.Discard()))
	cancel()
	clientGo := informers.NewSharedInformerFactory(nil, 0) // It makes no request.
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
