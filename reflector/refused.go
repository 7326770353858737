package reflector

import (
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/warmwatch/warmwatch/checkpoint"
)

// A refusedError says why an object cannot be stored: the transform has failed on it, it has no key or too long a key,
// it cannot be encoded, or it is of another type. The object is left out, as in client-go.
type refusedError struct {
	key string
	err error
}

func (e *refusedError) Error() string {
	return fmt.Sprintf("warmwatch: object %s cannot be stored: %v", e.key, e.err)
}

func (e *refusedError) Unwrap() error { return e.err }

// unexpected returns an error if an item of a list, or the object of an event, is not of the informer's type.
func (k *Sink) unexpected(obj runtime.Object) *refusedError {
	if got, want := reflect.TypeOf(obj), reflect.TypeOf(k.example); got != want {
		return &refusedError{versionOf(obj).Key(), fmt.Errorf("its type is %v, expected %v", got, want)}
	}
	return nil
}

// versionOf returns the version of an object. A transform may change it.
func versionOf(obj any) checkpoint.ObjectVersion {
	m, err := meta.Accessor(obj)
	if err != nil {
		return checkpoint.ObjectVersion{}
	}
	return checkpoint.VersionOf(m)
}
