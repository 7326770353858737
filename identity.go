package warmwatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/watchlist"

	"github.com/warmwatch/warmwatch/internal/checkpoint"
	"github.com/warmwatch/warmwatch/internal/reflector"
	"github.com/warmwatch/warmwatch/internal/request"
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

// storedType returns an example of the stored Go type.
func (s *SharedIndexInformer) storedType() runtime.Object {
	if s.opts.Transformed != nil {
		return s.opts.Transformed
	}
	return s.example
}

func (s *SharedIndexInformer) newObject() any {
	return reflect.New(reflect.TypeOf(s.storedType()).Elem()).Interface()
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

func resourceOf(id checkpoint.Identity) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: id.Group, Version: id.Version, Resource: id.Resource}
}

// checkRequest compares what a List or a watch asks for with what the informer was made for. It
// refuses what differs, because its objects would be served as what they are not. Where nobody has
// said what the informer is for, and only its first request has shown it, another one shows
// that it is not known: the request is made, as client-go does, and the data are not used again.
func (s *SharedIndexInformer) checkRequest(got request.Asked) (err error) {
	p := s.parts.Load()
	if p.fromMemory() {
		return nil
	}
	if got != p.asked && s.deferred {
		s.asksForMore(p, got)
		return nil
	}
	if got != p.asked {
		err = fmt.Errorf("warmwatch: the ListerWatcher asks for %v, expected %v, as its informer was made for", got, p.asked)
	}
	if s.progress.set(CodeOtherRequest, err) {
		p.logger.Error(err, "Refusing the requests of the ListerWatcher")
	}
	return err
}

// asksForMore makes the next process begin with a list, and this one, if it has not done so.
func (s *SharedIndexInformer) asksForMore(p *parts, got request.Asked) {
	err := fmt.Errorf("the ListerWatcher asks for %v, and for %v", p.asked, got)
	if !p.sink.Distrust() {
		return
	}
	s.progress.set(CodeFromMemory, workingFromMemory(err))
	p.logger.Error(err, "What this informer stores is not used again, the next process begins with a list")
	if r := s.resumer.Load(); r != nil {
		r.ForceRelist(reflector.Relisting{Cause: CauseOtherRequest, Reason: err.Error(), Rewrite: true})
	}
}

// checkedListerWatcher has the requests of its calls checked, and where they cannot be seen, the
// objects that come.
type checkedListerWatcher struct {
	cache.ListerWatcherWithContext
	check             func(request.Asked) error
	checkObject       func(runtime.Object) error // Nil if there is nothing to check.
	withoutWatchLists bool
}

func (s *SharedIndexInformer) checked(id checkpoint.Identity) checkedListerWatcher {
	lw := checkedListerWatcher{
		ListerWatcherWithContext: cache.ToListerWatcherWithContext(s.lw), check: s.checkRequest,
		withoutWatchLists: watchlist.DoesClientNotSupportWatchListSemantics(s.lw),
	}
	if inside := insideOf(id); inside != nil {
		lw.checkObject = func(obj runtime.Object) error {
			err := inside(obj)
			if err != nil && s.progress.set(CodeOutsideObjects, err) {
				s.parts.Load().logger.Error(err, "Refusing what the ListerWatcher returns")
			}
			return err
		}
	}
	return lw
}

// seeing returns a context by which a request is seen, and whether it was.
func (lw checkedListerWatcher) seeing(ctx context.Context) (_ context.Context, seen *atomic.Bool) {
	seen = new(atomic.Bool)
	return request.WithCheck(ctx, func(a request.Asked) error {
		seen.Store(true)
		return lw.check(a)
	}), seen
}

// ListWithContext implements [cache.ListerWithContext].
func (lw checkedListerWatcher) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	ctx, seen := lw.seeing(ctx)
	list, err := lw.ListerWatcherWithContext.ListWithContext(ctx, o)
	if err != nil || lw.checkObject == nil || seen.Load() {
		return list, err
	}
	if err := meta.EachListItem(list, lw.checkObject); err != nil {
		if _, outside := errors.AsType[*outsideError](err); outside {
			return nil, err
		}
	}
	return list, nil
}

// WatchWithContext implements [cache.WatcherWithContext].
func (lw checkedListerWatcher) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	ctx, seen := lw.seeing(ctx)
	w, err := lw.ListerWatcherWithContext.WatchWithContext(ctx, o)
	if err != nil || w == nil || lw.checkObject == nil || seen.Load() {
		return w, err
	}
	return newInsideWatch(w, lw.checkObject), nil
}

// IsWatchListSemanticsUnSupported is that of the ListerWatcher, see k8s.io/client-go/util/watchlist.
func (lw checkedListerWatcher) IsWatchListSemanticsUnSupported() bool {
	return lw.withoutWatchLists
}

// want returns what a checkpoint must match.
func (s *SharedIndexInformer) want(clusterID string) checkpoint.Want {
	id := s.parts.Load().identity
	return checkpoint.Want{
		Identity:         id,
		ClusterID:        clusterID,
		SchemaVersion:    checkpoint.SchemaVersion(s.storedType()),
		NeverResume:      s.opts.NeverResume || isEvents(resourceOf(id)),
		IndexVersion:     s.indexVersion(),
		TransformVersion: s.transformVersion(),
	}
}

// unknownTransform is the version of a function that has none. It does not change with the
// binary: then each rollout would list everything.
const unknownTransform = "(not set)"

// transformVersion is that of the transform, empty if there is none. A transform that returns another Go type is
// another one.
func (s *SharedIndexInformer) transformVersion() string {
	if s.transform == nil {
		return ""
	}
	version := cmp.Or(s.opts.TransformVersion, unknownTransform)
	if s.opts.Transformed != nil {
		version += fmt.Sprintf(" %T", s.opts.Transformed)
	}
	return version
}

// indexVersion identifies the index functions. When it changes, the indices are rebuilt.
func (s *SharedIndexInformer) indexVersion() string {
	indexers := s.store.GetIndexers()
	if len(indexers) == 0 {
		return ""
	}
	version := s.opts.IndexVersion
	if version == "" {
		version = checkpoint.BinaryVersion()
	}
	return version + " " + strings.Join(slices.Sorted(maps.Keys(indexers)), " ")
}

const eventsResource = "events"

// isEvents reports whether r is Events. The API server keeps no watch cache for them,
// and answers an old version with a watch that closes at once (kubernetes#104171).
func isEvents(r schema.GroupVersionResource) bool {
	return r.Resource == eventsResource && (r.Group == "" || r.Group == "events.k8s.io")
}
