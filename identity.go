package warmwatch

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/watchlist"
	"k8s.io/klog/v2"

	"github.com/warmwatch/warmwatch/checkpoint"
	"github.com/warmwatch/warmwatch/internal/request"
	"github.com/warmwatch/warmwatch/persist"
)

func formOf(example runtime.Object) checkpoint.Form {
	switch example.(type) {
	case *unstructured.Unstructured:
		return checkpoint.FormUnstructured
	case *metav1.PartialObjectMetadata:
		return checkpoint.FormMetadata
	}
	return checkpoint.FormTyped
}

// ownExample copies an unstructured example, because the caller may change it: a program may create the very object
// with which it has asked controller-runtime for an informer. Of a typed example only the Go type is read.
func ownExample(example runtime.Object) runtime.Object {
	u, ok := example.(*unstructured.Unstructured)
	if !ok || u == nil {
		return example
	}
	own := &unstructured.Unstructured{}
	own.SetGroupVersionKind(u.GroupVersionKind())
	return own
}

// askedBy returns what the List of an informer with these options must ask for.
func askedBy(example runtime.Object, o InformerOptions) (request.Asked, error) {
	labelSelector, err := request.Labels(o.LabelSelector)
	if err != nil {
		return request.Asked{}, err
	}
	fieldSelector, err := request.Fields(o.FieldSelector)
	return request.Asked{
		Resource: o.Resource, Namespace: o.Namespace,
		LabelSelector: labelSelector, FieldSelector: fieldSelector, ShardSelector: o.ShardSelector,
		Metadata: formOf(example) == checkpoint.FormMetadata,
	}, err
}

// identityOf returns the identity of the objects that a request asks for.
func identityOf(example runtime.Object, a request.Asked) checkpoint.Identity {
	return checkpoint.Identity{
		Group: a.Resource.Group, Version: a.Resource.Version, Resource: a.Resource.Resource,
		Namespace: a.Namespace, LabelSelector: a.LabelSelector, FieldSelector: a.FieldSelector, ShardSelector: a.ShardSelector,
		Form: formOf(example),
	}
}

const eventsResource = "events"

// isEvents reports whether the resource is Events. The API server keeps no watch cache for them,
// and answers an old version with a watch that closes at once (kubernetes#104171).
func isEvents(id checkpoint.Identity) bool {
	return id.Resource == eventsResource && (id.Group == "" || id.Group == "events.k8s.io")
}

// A place names an informer's space and what the informer asks for. It does not change. An informer of NewInformer gets
// another place when its first request was seen.
type place struct {
	identity checkpoint.Identity // Or unseenIdentity.
	asked    request.Asked       // What its requests must ask for. Zero: that is not known.
	space    string
	logger   klog.Logger
}

// newPlace returns the place of an identity in the file, or, if nobody knows what the informer asks for, in memory.
func newPlace(id checkpoint.Identity, asked request.Asked, logger klog.Logger) *place {
	p := &place{identity: id, asked: asked, space: id.Space()}
	if p.fromMemory() {
		p.space = id.Name
	}
	p.logger = klog.LoggerWithValues(logger, "informer", p.name())
	return p
}

// unusedBucket has a time for each space without an informer, see Options.DropUnusedAfter.
var unusedBucket = persist.Bucket{Space: "unused", Name: "since"}

// fromMemory reports whether the informer has no space in the file.
func (p *place) fromMemory() bool { return p.asked == request.Asked{} }

// name of the informer in Status and in the log.
func (p *place) name() string {
	if p.fromMemory() {
		return p.space
	}
	return p.identity.String()
}

// unseenIdentity is the identity of an informer whose request cannot be seen.
func unseenIdentity(example runtime.Object, name string) checkpoint.Identity {
	id := checkpoint.Identity{Resource: "unknown", Name: name, Form: formOf(example)}
	switch example.(type) {
	case *corev1.Event, *eventsv1.Event:
		id.Resource = eventsResource
	}
	return id
}

// look returns the request that a watch of a ListerWatcher would make: unlike a List it takes no token of the client's
// rate limiter. A call that hangs is left behind when ctx is done.
func look(ctx context.Context, lw cache.ListerWatcher) (*request.Seen, error) {
	type result struct {
		seen *request.Seen
		err  error
	}
	looked := make(chan result, 1)
	go func() {
		lw := cache.ToListerWatcherWithContext(lw)
		seen, err := request.Look(ctx, func(ctx context.Context) error {
			w, err := lw.WatchWithContext(ctx, metav1.ListOptions{ResourceVersion: "1", AllowWatchBookmarks: true, TimeoutSeconds: new(int64(1))})
			if err == nil && w != nil { // The request was sent, because it cannot be seen.
				w.Stop()
			}
			if answer := apierrors.APIStatus(nil); errors.As(err, &answer) { // It was sent, too.
				return nil
			}
			return err
		})
		looked <- result{seen, err}
	}()
	select {
	case r := <-looked:
		return r.seen, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// The requests of a checkedListerWatcher are checked if they come to the wrapped transport.
type checkedListerWatcher struct {
	cache.ListerWatcherWithContext
	check             func(request.Asked) error
	withoutWatchLists bool
}

func checked(lw cache.ListerWatcher, check func(request.Asked) error) checkedListerWatcher {
	return checkedListerWatcher{cache.ToListerWatcherWithContext(lw), check, watchlist.DoesClientNotSupportWatchListSemantics(lw)}
}

// ListWithContext implements [cache.ListerWithContext].
func (lw checkedListerWatcher) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	return lw.ListerWatcherWithContext.ListWithContext(request.WithCheck(ctx, lw.check), o)
}

// WatchWithContext implements [cache.WatcherWithContext].
func (lw checkedListerWatcher) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return lw.ListerWatcherWithContext.WatchWithContext(request.WithCheck(ctx, lw.check), o)
}

// IsWatchListSemanticsUnSupported returns the ListerWatcher's own answer, see k8s.io/client-go/util/watchlist.
func (lw checkedListerWatcher) IsWatchListSemanticsUnSupported() bool {
	return lw.withoutWatchLists
}
