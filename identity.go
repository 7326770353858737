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

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/watchlist"

	"github.com/warmwatch/warmwatch/checkpoint"
	"github.com/warmwatch/warmwatch/internal/request"
	"github.com/warmwatch/warmwatch/reflector"
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

// checkRequest compares what a List or a watch asks for with what the informer was made for. It
// refuses what differs, because its objects would be served as what they are not. Where nobody has
// said what the informer is for, and only its first request has shown it, another one shows
// that it is not known: the request is made, as client-go does, and the data are not used again.
func (s *SharedIndexInformer) checkRequest(got request.Asked) (err error) {
	p := s.parts.Load()
	if p.fromMemory() {
		return nil
	}
	if got != p.asked && s.opts.learns() {
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
	s.forceRelist(reflector.Relisting{Cause: CauseOtherRequest, Reason: err.Error(), Rewrite: true})
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
				s.place.Load().logger.Error(err, "Refusing what the ListerWatcher returns")
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
	id := s.place.Load().identity
	return checkpoint.Want{
		Identity:         id,
		ClusterID:        clusterID,
		SchemaVersion:    checkpoint.SchemaVersion(s.storedType()),
		NeverResume:      s.opts.NeverResume || isEvents(id),
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

// isEvents reports whether the resource is Events. The API server keeps no watch cache for them,
// and answers an old version with a watch that closes at once (kubernetes#104171).
func isEvents(id checkpoint.Identity) bool {
	return id.Resource == eventsResource && (id.Group == "" || id.Group == "events.k8s.io")
}

// An outsideError says that an object is outside what an informer was made for.
type outsideError struct{ what string }

func (e *outsideError) Error() string {
	return "warmwatch: the ListerWatcher returns " + e.what + ", as which its informer was made"
}

// insideOf returns the check of objects that come, whose request could not be seen: whether they
// are in the namespace and have the labels of an identity. It is nil if there is nothing to check.
// Nobody but the server can evaluate field selectors.
func insideOf(id checkpoint.Identity) func(runtime.Object) error {
	selector, err := labels.Parse(id.LabelSelector)
	if err != nil || id.Namespace == "" && selector.Empty() {
		return nil
	}
	return func(obj runtime.Object) error {
		m, err := meta.Accessor(obj)
		switch {
		case err != nil: // It is dealt with elsewhere.
			return nil
		case id.Namespace != "" && m.GetNamespace() != id.Namespace:
			return &outsideError{fmt.Sprintf("%s/%s, expected objects of namespace %q only", m.GetNamespace(), m.GetName(), id.Namespace)}
		case !selector.Matches(labels.Set(m.GetLabels())):
			return &outsideError{fmt.Sprintf("%s/%s with labels %v, expected objects that %q selects only", m.GetNamespace(), m.GetName(), m.GetLabels(), id.LabelSelector)}
		}
		return nil
	}
}

// newInsideWatch returns a watch that ends with an error event at the first object that is outside. Of an object
// that is deleted nothing is checked: it may be that it is deleted because it is outside now.
func newInsideWatch(from watch.Interface, check func(runtime.Object) error) watch.Interface {
	return insideWatch{watch.Filter(from, func(e watch.Event) (watch.Event, bool) {
		if e.Type == watch.Added || e.Type == watch.Modified {
			if err := check(e.Object); err != nil {
				status := apierrors.NewInternalError(err).ErrStatus
				e = watch.Event{Type: watch.Error, Object: &status}
			}
		}
		return e, true
	})}
}

type insideWatch struct{ watch.Interface }

// Stop implements [watch.Interface]. The goroutine of a filter may have an event that nobody takes any more.
func (w insideWatch) Stop() {
	w.Interface.Stop()
	go func() {
		for range w.ResultChan() {
		}
	}()
}
