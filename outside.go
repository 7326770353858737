package warmwatch

import (
	"fmt"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/warmwatch/warmwatch/internal/checkpoint"
)

// checkKind returns an error if it is certain that the example is no object of the resource: it is
// of another group or version, or the resource is that of another kind that client-go knows.
func checkKind(example runtime.Object, r schema.GroupVersionResource) error {
	kinds := kindsOf(example)
	possible := func(kind schema.GroupVersionKind) bool {
		return kind.GroupVersion() == r.GroupVersion() && !isOfAnotherKind(kind, r)
	}
	if len(kinds) == 0 || slices.ContainsFunc(kinds, possible) {
		return nil
	}
	return fmt.Errorf("the example is a %s of %s, which is no object of %s", kinds[0].Kind, kinds[0].GroupVersion(), r)
}

// kindsOf returns the kinds that an example may be of, none if that is not known.
func kindsOf(example runtime.Object) []schema.GroupVersionKind {
	switch example.(type) {
	case *unstructured.Unstructured, *metav1.PartialObjectMetadata:
		kind := example.GetObjectKind().GroupVersionKind()
		if kind.Kind == "" || kind.Version == "" || kind.Group == metav1.GroupName {
			return nil
		}
		return []schema.GroupVersionKind{kind}
	}
	kinds, _, err := scheme.Scheme.ObjectKinds(example)
	if err != nil {
		return nil
	}
	return kinds
}

// isOfAnotherKind reports whether client-go knows another kind of the group and version, but
// not this one, that has the resource.
func isOfAnotherKind(kind schema.GroupVersionKind, r schema.GroupVersionResource) bool {
	if plural, _ := meta.UnsafeGuessKindToResource(kind); plural == r {
		return false
	}
	for other := range scheme.Scheme.KnownTypes(kind.GroupVersion()) {
		if plural, _ := meta.UnsafeGuessKindToResource(kind.GroupVersion().WithKind(other)); plural == r {
			return true
		}
	}
	return false
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

// insideWatch ends a watch with an error event at the first object that is outside. Of an object
// that is deleted nothing is checked: it may be that it is deleted because it is outside now.
type insideWatch struct {
	from    watch.Interface
	check   func(runtime.Object) error
	events  chan watch.Event
	stopped chan struct{}
	stop    sync.Once
}

func newInsideWatch(from watch.Interface, check func(runtime.Object) error) *insideWatch {
	w := &insideWatch{from: from, check: check, events: make(chan watch.Event), stopped: make(chan struct{})}
	go w.run()
	return w
}

// Stop implements [watch.Interface].
func (w *insideWatch) Stop() {
	w.stop.Do(func() {
		close(w.stopped)
		w.from.Stop()
	})
}

// ResultChan implements [watch.Interface].
func (w *insideWatch) ResultChan() <-chan watch.Event { return w.events }

func (w *insideWatch) run() {
	defer close(w.events)
	for e := range w.from.ResultChan() {
		var err error
		if e.Type == watch.Added || e.Type == watch.Modified {
			err = w.check(e.Object)
		}
		if err != nil {
			status := apierrors.NewInternalError(err).ErrStatus
			e = watch.Event{Type: watch.Error, Object: &status}
		}
		select {
		case w.events <- e:
		case <-w.stopped:
			return
		}
		if err != nil {
			w.Stop()
			return
		}
	}
}
