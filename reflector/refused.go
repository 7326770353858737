package reflector

import (
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/warmwatch/warmwatch/checkpoint"
)

// A refusedError says that an object cannot be stored, because the transform has failed
// on it, it has no key or one that is too long, it cannot be encoded, or it is of another type. The object is left out, as
// by client-go.
type refusedError struct {
	key string
	err error
}

func (e *refusedError) Error() string {
	return fmt.Sprintf("warmwatch: object %s cannot be stored: %v", e.key, e.err)
}

func (e *refusedError) Unwrap() error { return e.err }

// unexpected returns why an item of a list, or the object of an event, is none of the informer's objects, nil if
// it is one.
func (k *Sink) unexpected(obj runtime.Object) *refusedError {
	if obj == nil { // So meta.EachListItem passes on a raw item of a v1.List.
		obj = &runtime.Unknown{}
	}
	if got, want := reflect.TypeOf(obj), reflect.TypeOf(k.example); got != want {
		return &refusedError{versionOf(obj).Key(), fmt.Errorf("its type is %v, expected %v", got, want)}
	}
	if u, ok := obj.(*unstructured.Unstructured); ok {
		if err := k.unexpectedKind(u.GroupVersionKind()); err != nil {
			return &refusedError{versionOf(obj).Key(), err}
		}
	}
	return nil
}

// unexpectedKind is unexpected for the kind of an unstructured object. client-go compares
// kinds in a watch only (go, handleAnyWatch).
func (k *Sink) unexpectedKind(got schema.GroupVersionKind) error {
	if want := k.example.GetObjectKind().GroupVersionKind(); !want.Empty() && got != want {
		return fmt.Errorf("its kind is %v, expected %v", got, want)
	}
	if got.Kind == "Table" && (got.GroupVersion() == metav1.SchemeGroupVersion || got.GroupVersion() == metav1beta1.SchemeGroupVersion) {
		return fmt.Errorf("its kind is %v, which is not supported", got)
	}
	return nil
}

// versionOf returns what identifies an object, which a transform may change.
func versionOf(obj any) checkpoint.ObjectVersion {
	m, err := meta.Accessor(obj)
	if err != nil {
		return checkpoint.ObjectVersion{}
	}
	return checkpoint.VersionOf(m)
}

// leaveOut leaves an object out of the list. As with an event, the list or the store keeps the
// version that it has, and the next process relists. What has no metadata fails the list, as in
// client-go: it could be any object.
func (r *relist) leaveOut(obj runtime.Object, sent checkpoint.ObjectVersion, err *refusedError) error {
	if _, noMetadata := meta.Accessor(obj); noMetadata != nil {
		return err
	}
	r.leftOut[sent.Key()] = sent.UID
	r.refused, r.refusedKey, r.k.refused = err, sent.Key(), true
	return nil
}

// logLeftOut logs what the list has left out, in one line: there may be many objects.
func (r *relist) logLeftOut() {
	if n := len(r.leftOut); n > 0 {
		r.k.logger.Error(r.refused, "Left objects out of the cache", "objects", n, "one", r.refusedKey)
	}
}
