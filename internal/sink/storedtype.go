package sink

import (
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/warmwatch/warmwatch/internal/checkpoint"
)

// ExampleOf returns an empty object of the Go type of obj, nil if the store takes none of that type.
func ExampleOf(obj any) runtime.Object {
	o, ok := obj.(runtime.Object)
	if !ok || reflect.TypeOf(obj).Kind() != reflect.Pointer || reflect.ValueOf(obj).IsNil() {
		return nil
	}
	return reflect.New(reflect.TypeOf(o).Elem()).Interface().(runtime.Object)
}

// adoptable returns an example of what the transform has returned if its Go type may become that of
// the store, and nil if it is one of several that the transform returns.
func (k *Sink) adoptable(obj any) runtime.Object {
	if k.typeShown || k.adopt == nil {
		return nil
	}
	return ExampleOf(obj)
}

func otherTypeError(obj any, expected reflect.Type) error {
	return fmt.Errorf("warmwatch: the transform returned a %T, expected a %v; set InformerOptions.Transformed", obj, expected)
}

// checkTypeLocked returns an error unless the store takes an object of an event. The first one decides what
// an empty store has. Where the store has objects of another Go type, which could not be read beside it, all
// are listed, and written anew when the list is complete.
func (k *Sink) checkTypeLocked(obj any) error {
	if reflect.TypeOf(obj) == k.storedType {
		k.typeShown = true
		return nil
	}
	example := k.adoptable(obj)
	if example == nil || k.indexer.Len() > 0 {
		if example != nil && (!k.record.Rewrite || !k.record.Rewound) { // Else a list is due already.
			k.relistTypeLocked(obj)
		}
		return otherTypeError(obj, k.storedType)
	}
	k.adoptLocked(example)
	k.record.Type, k.record.SchemaVersion = k.want.Type, k.want.SchemaVersion
	return nil
}

// relistTypeLocked has all objects listed, and written anew. The next process serves none of them before that.
func (k *Sink) relistTypeLocked(obj any) {
	k.forceRelistLocked(fmt.Sprintf("the transform returned a %T, the store has objects of type %v", obj, k.storedType))
	if err := k.storeLocked(); err != nil {
		k.logger.Error(err, "Could not note that the transform returns another type")
	}
}

// adoptLocked makes the Go type of example that of the store. Objects of another type in the file cannot
// be read from then on.
func (k *Sink) adoptLocked(example runtime.Object) {
	k.want.Type = k.adopt(example)
	k.storedType, k.want.SchemaVersion = reflect.TypeOf(example), checkpoint.SchemaVersion(example)
	k.typeShown = true
}

// checkTypeLocked returns an error unless the list takes what the transform has returned. All objects of a
// list are of the Go type of the first. That is adopted when the list is complete, because what is served must be
// readable until then; in the first list, where nothing is served, at once.
func (r *relist) checkTypeLocked(obj any) error {
	k, expected := r.k, r.k.storedType
	if r.adopts != nil {
		expected = reflect.TypeOf(r.adopts)
	}
	if reflect.TypeOf(obj) == expected {
		r.typeShown = true
		return nil
	}
	example := k.adoptable(obj)
	if r.typeShown || example == nil {
		return otherTypeError(obj, expected)
	}
	if k.filling { // Nobody reads the store, or knows an object of it.
		r.typeShown = true
		k.adoptLocked(example)
		return nil
	}
	if k.indexer.Len() > 0 && !r.how.Rewrite {
		k.relistTypeLocked(obj)
		return otherTypeError(obj, expected)
	}
	r.typeShown = true
	r.adopts = example
	r.stage.newObject = func() any { return ExampleOf(example) }
	return nil
}

// adoptTypeLocked adopts the Go type of the list, which is applied now. Until that is done, the store has
// objects of both, which the next process could not read.
func (r *relist) adoptTypeLocked() {
	k := r.k
	k.typeShown = k.typeShown || r.typeShown
	if r.adopts == nil {
		return
	}
	before := k.storedType
	k.indexer.AlsoReads(func() any { return reflect.New(before.Elem()).Interface() })
	k.record.Rewrite, k.record.Rewound = true, true
	k.adoptLocked(r.adopts)
}

// told returns the old object of a change, nil if handlers are not told it because it is of another Go type
// than the store has now.
func (k *Sink) told(old any) any {
	if reflect.TypeOf(old) != k.storedType {
		return nil
	}
	return old
}
