package workqueue

import (
	"fmt"

	"k8s.io/client-go/tools/cache"
)

// A Codec writes items as strings. Different items have different strings. The next version of the program must read
// them, too. An item whose string has more than [MaxKeyBytes] is not kept.
type Codec[T comparable] interface {
	Encode(item T) string
	// Decode is the inverse of Encode. It returns an error for a string that Encode does not return.
	Decode(key string) (T, error)
}

// Strings is the Codec of strings, such as the keys of client-go's stores.
type Strings struct{}

// Encode implements [Codec].
func (Strings) Encode(item string) string { return item }

// Decode implements [Codec].
func (Strings) Decode(key string) (string, error) { return key, nil }

// ObjectNames is the Codec of [cache.ObjectName].
type ObjectNames struct{}

// Encode implements [Codec].
func (ObjectNames) Encode(item cache.ObjectName) string { return item.String() }

// Decode implements [Codec].
func (ObjectNames) Decode(key string) (cache.ObjectName, error) { return cache.ParseObjectName(key) }

// codecOf returns the Codec of types that need none in Options.
func codecOf[T comparable]() (Codec[T], error) {
	for _, codec := range []any{Strings{}, ObjectNames{}} {
		if c, ok := codec.(Codec[T]); ok {
			return c, nil
		}
	}
	return nil, fmt.Errorf("workqueue: Options.Codec is required for items of type %T", *new(T))
}
