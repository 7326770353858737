package record

import (
	"bytes"
	"reflect"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
)

// Head returns the uid and resourceVersion of the object. Both are empty if it
// has no metadata.
func (o *Object) Head() (uid types.UID, resourceVersion string) {
	if m := objectMeta(o.Object); m != nil {
		return m.GetUID(), m.GetResourceVersion()
	}
	return "", ""
}

// Same reports whether the record r holds the object o: the same Go type, uid,
// resourceVersion and content. apiVersion and kind of typed objects do not count,
// because it depends on the request whether the server sends them.
//
// It compares the encodings, which are equal for equal content if this version of
// the program has written r. Only if they differ, it decodes r. It must not be called
// once o was put.
func (o *Object) Same(r Record, newObject func() any) bool {
	g := goTypeOf(o.Object)
	if uid, rv := o.Head(); g == nil || g.name != r.TypeName || uid != r.UID || rv != r.ResourceVersion {
		return false
	}
	body := o.body
	if body == nil {
		var err error
		if body, err = g.encode(o.Object); err != nil {
			return false
		}
		o.sizeBytes = envelopeBytes + len(body)
		if o.keepsBody {
			o.body = body
		}
	}
	if g.codec == r.Codec && bytes.Equal(body, r.Body) {
		return true
	}
	stored, err := r.Decode(newObject)
	return err == nil && equalContent(stored, o.Object)
}

// IsEncodedAs reports whether this is the encoding of the object in protobuf. It is false if
// the object has not been encoded.
func (o *Object) IsEncodedAs(protobuf []byte) bool {
	g := goTypeOf(o.Object)
	return g != nil && g.codec == CodecProtobuf && o.body != nil && bytes.Equal(o.body, protobuf)
}

// IsEncodedAs reports whether this is the encoding of the object in protobuf.
func (r Record) IsEncodedAs(protobuf []byte) bool {
	return r.Codec == CodecProtobuf && bytes.Equal(r.Body, protobuf)
}

// SameObject is [Object.Same] for a stored object that is decoded in memory.
func (o *Object) SameObject(stored any) bool {
	uid, rv := o.Head()
	storedUID, storedRV := (&Object{Object: stored}).Head()
	return uid == storedUID && rv == storedRV && goTypeOf(o.Object) == goTypeOf(stored) && equalContent(stored, o.Object)
}

// equalContent compares two objects of one Go type.
func equalContent(stored, obj any) bool {
	if v := reflect.ValueOf(stored); goTypeOf(stored).codec != CodecUnstructured && v.Kind() == reflect.Pointer && !v.IsNil() {
		apiVersion, kind := typeMeta(obj)
		shallow := reflect.New(v.Type().Elem()) // Others may be reading stored.
		shallow.Elem().Set(v.Elem())
		stored = shallow.Interface()
		setTypeMeta(stored, apiVersion, kind)
	}
	return apiequality.Semantic.DeepEqual(stored, obj)
}
