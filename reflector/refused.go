package reflector

import (
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/request"
)

// refusal says why an object cannot be stored: the transform has failed on it, it has no key or too long a key,
// it cannot be encoded, or it is of another type. The object is left out, as in client-go.
func refusal(key string, err error) error {
	return fmt.Errorf("warmwatch: object %.200s cannot be stored: %w", key, err)
}

// unexpected returns an error if an item of a list, or the object of an event, is not of the informer's type.
func (k *Sink) unexpected(obj runtime.Object) error {
	if got, want := reflect.TypeOf(obj), reflect.TypeOf(k.example); got != want {
		return refusal(keyOf(request.ItemOf(obj)), fmt.Errorf("its type is %v, expected %v", got, want))
	}
	return nil
}

// keyOf returns the key of an object that no transform has renamed.
func keyOf(i request.Item) string { return cache.NewObjectName(i.Namespace, i.Name).String() }
