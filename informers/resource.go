package informers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/request"
)

// A resourceClient is a dynamic or metadata client of one resource.
type resourceClient[O, L runtime.Object] interface {
	Get(ctx context.Context, name string, o metav1.GetOptions, subresources ...string) (O, error)
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// A resourceListerWatcher is that of client-go's factories for dynamic and metadata clients. It
// shows its requests to whoever made their context, also if the client's transport is not wrapped:
// such a client hides its transport, but what it asks for is known.
type resourceListerWatcher[O, L runtime.Object] struct {
	client    resourceClient[O, L]
	tweak     func(*metav1.ListOptions)
	path      string // Of the list.
	accept    string
	transport request.Transport
}

func newResourceListerWatcher[O, L runtime.Object](c *warmwatch.Cache, r schema.GroupVersionResource, namespace string, tweak func(*metav1.ListOptions), client, namespaces resourceClient[O, L]) *resourceListerWatcher[O, L] {
	if tweak == nil {
		tweak = func(*metav1.ListOptions) {}
	}
	segments := []string{"/apis", r.Group, r.Version}
	if r.Group == "" {
		segments = []string{"/api", r.Version}
	}
	if namespace != metav1.NamespaceAll {
		segments = append(segments, "namespaces", namespace)
	}
	listed := path.Join(append(segments, r.Resource)...)
	transport := c.WrapTransport(objectTransport[O, L]{client, namespaces, listed}).(request.Transport)
	return &resourceListerWatcher[O, L]{client: client, tweak: tweak, path: listed, transport: transport}
}

// acceptMetadata is what [request.Of] reads in the requests of metadata clients.
const acceptMetadata = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

// ListWithContext implements [cache.ListerWithContext].
func (lw *resourceListerWatcher[O, L]) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	lw.tweak(&o)
	if err := lw.show(ctx, o); err != nil {
		return nil, err
	}
	return lw.client.List(ctx, o)
}

// WatchWithContext implements [cache.WatcherWithContext].
func (lw *resourceListerWatcher[O, L]) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	lw.tweak(&o)
	if request.IsLook(ctx) { // A transport that is wrapped comes first: it knows the path of the server. One that is not may hang.
		looking, cancel := context.WithTimeout(ctx, lookPatience)
		defer cancel()
		if w, err := lw.client.Watch(looking, o); err == nil {
			w.Stop()
		}
	}
	if err := lw.show(ctx, o); err != nil {
		return nil, err
	}
	return lw.client.Watch(ctx, o)
}

// lookPatience is how long the server may take to open a watch whose client's transport may be hidden.
const lookPatience = 5 * time.Second

// List implements [cache.Lister].
func (lw *resourceListerWatcher[O, L]) List(o metav1.ListOptions) (runtime.Object, error) {
	return lw.ListWithContext(context.Background(), o)
}

// Watch implements [cache.Watcher].
func (lw *resourceListerWatcher[O, L]) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return lw.WatchWithContext(context.Background(), o)
}

var _ cache.ListerWatcherWithContext = (*resourceListerWatcher[runtime.Object, runtime.Object])(nil)

func (lw *resourceListerWatcher[O, L]) show(ctx context.Context, o metav1.ListOptions) error {
	query := url.Values{"labelSelector": {o.LabelSelector}, "fieldSelector": {o.FieldSelector}, "shardSelector": {o.ShardSelector}}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, request.HiddenServer+lw.path+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	r.Header.Set("Accept", lw.accept)
	return lw.transport.Show(r)
}

var namespaces = corev1.SchemeGroupVersion.WithResource("namespaces")

// An objectTransport answers requests for a namespace, and for one object of the list, by clients whose transport
// is hidden.
type objectTransport[O, L runtime.Object] struct {
	client, namespaces resourceClient[O, L]
	path               string // Of the list.
}

// RoundTrip implements [http.RoundTripper].
func (t objectTransport[O, L]) RoundTrip(r *http.Request) (*http.Response, error) {
	response := &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r}
	var obj runtime.Object
	var err error
	switch query := r.URL.Query(); {
	case strings.HasSuffix(path.Dir(r.URL.Path), "/"+namespaces.Resource):
		obj, err = t.namespaces.Get(r.Context(), path.Base(r.URL.Path), metav1.GetOptions{})
	case r.URL.Path == t.path && query.Get("limit") == "1":
		obj, err = t.client.List(r.Context(), metav1.ListOptions{
			LabelSelector: query.Get("labelSelector"), FieldSelector: query.Get("fieldSelector"), ShardSelector: query.Get("shardSelector"), Limit: 1,
		})
	default:
		response.StatusCode, response.Status = http.StatusNotFound, r.URL.Path+" cannot be had by this client"
		return response, nil
	}
	var refused apierrors.APIStatus
	switch {
	case errors.As(err, &refused):
		response.StatusCode = int(refused.Status().Code)
		response.Status = err.Error()
		return response, nil
	case err != nil:
		return nil, err
	}
	body, err := json.Marshal(obj)
	response.Header = http.Header{"Content-Type": {runtime.ContentTypeJSON}}
	response.Body = io.NopCloser(bytes.NewReader(body))
	return response, err
}
