package reflector

import (
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"

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
	if got, want := reflect.TypeOf(obj), reflect.TypeOf(k.example); got != want {
		return &refusedError{versionOf(obj).Key(), fmt.Errorf("its type is %v, expected %v", got, want)}
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
