package record

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "sigs.k8s.io/json"
)

var (
	// ErrNotEncodable says that an object cannot be encoded so that decoding returns the same object: unstructured
	// content holds a Go type that no decoder of Kubernetes produces, the type has no JSON form, or its own marshaller
	// failed.
	ErrNotEncodable = errors.New("record: object cannot be encoded")

	// ErrTypeMismatch says that a record holds an object of another Go type
	// than was asked for. The record itself is sound.
	ErrTypeMismatch = errors.New("record: record holds an object of another type")

	// ErrBadRecord says that bytes are not a record, or that the body of one
	// cannot be decoded.
	ErrBadRecord = errors.New("record: malformed record")
)

// A Codec is an encoding of a record's body. The numbers are part of the file
// format.
type Codec uint8

// The codecs of format 1.
const (
	CodecProtobuf     Codec = 1 // Types with generated protobuf methods.
	CodecUnstructured Codec = 2 // *unstructured.Unstructured, as msgpack.
	CodecJSON         Codec = 3 // Any other type. The JSON form of the object is kept.
)

// protobufObject has the methods that Kubernetes generates for its protobuf
// types. MarshalToSizedBuffer writes into the end of the caller's buffer.
type protobufObject interface {
	Size() int
	MarshalToSizedBuffer([]byte) (int, error)
	Unmarshal([]byte) error
}

// goType has the properties of a Go type that are needed to encode its values.
type goType struct {
	name  string // Import path and name, with a star for a pointer.
	codec Codec
}

// goTypes caches a *goType for each reflect.Type. It is bounded by the types
// in the program.
var goTypes sync.Map

// goTypeOf returns nil for a nil interface.
func goTypeOf(obj any) *goType {
	t := reflect.TypeOf(obj)
	if t == nil {
		return nil
	}
	if known, ok := goTypes.Load(t); ok {
		return known.(*goType)
	}
	known, _ := goTypes.LoadOrStore(t, &goType{name: typeName(t), codec: codecFor(t)})
	return known.(*goType)
}

func typeName(t reflect.Type) string {
	star := ""
	if t.Kind() == reflect.Pointer {
		star, t = "*", t.Elem()
	}
	if t.Name() == "" || t.PkgPath() == "" {
		return star + t.String()
	}
	return star + t.PkgPath() + "." + t.Name()
}

func codecFor(t reflect.Type) Codec {
	switch {
	case t == reflect.TypeFor[*unstructured.Unstructured]():
		return CodecUnstructured
	case t.Implements(reflect.TypeFor[protobufObject]()) && !methodsMayBePromoted(t):
		return CodecProtobuf
	default:
		return CodecJSON
	}
}

// methodsMayBePromoted reports whether t may have its protobuf methods from an
// embedded field. They would encode that field and silently drop all others:
// struct{ metav1.ObjectMeta; Node string } is such a type, and so is a custom
// resource that embeds a Pod.
//
// Reflection does not distinguish a promoted method from a declared one, but the
// rules of promotion do. t has declared the method itself in two cases: no embedded
// field has it, or two embedded fields have it at the same depth, so that neither is
// promoted. Generated types are the first case or, with TypeMeta and ObjectMeta, the
// second. A false alarm costs only speed.
func methodsMayBePromoted(t reflect.Type) bool {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return false
	}
	lenders, atDepthOne := 0, 0
	for f := range t.Fields() {
		if !f.Anonymous {
			continue
		}
		ft := f.Type
		if ft.Kind() == reflect.Struct {
			ft = reflect.PointerTo(ft)
		}
		if !ft.Implements(reflect.TypeFor[protobufObject]()) {
			continue
		}
		lenders++
		if !embeds(ft) {
			atDepthOne++
		}
	}
	return lenders > 0 && atDepthOne < 2
}

// embeds reports whether the struct that ptr points to has an embedded field.
func embeds(ptr reflect.Type) bool {
	if ptr.Kind() != reflect.Pointer || ptr.Elem().Kind() != reflect.Struct {
		return false
	}
	for f := range ptr.Elem().Fields() {
		if f.Anonymous {
			return true
		}
	}
	return false
}

// appendBody appends the body of the record of obj. size is the length of a body in protobuf. A body does not share
// memory with obj.
func (g *goType) appendBody(buf *bytes.Buffer, obj any, size int) error {
	switch g.codec {
	case CodecProtobuf:
		return appendProtobuf(buf, obj.(protobufObject), size)
	case CodecUnstructured:
		return appendUnstructured(buf, obj.(*unstructured.Unstructured))
	default:
		return appendJSON(buf, obj)
	}
}

func appendProtobuf(buf *bytes.Buffer, obj protobufObject, size int) error {
	buf.Grow(size + checksumRoom)
	body := buf.AvailableBuffer()[:size]
	if n, err := obj.MarshalToSizedBuffer(body); err != nil || n != size {
		return cmp.Or(err, fmt.Errorf("protobuf of %d bytes, expected %d", n, size))
	}
	buf.Write(body)
	return nil
}

func appendJSON(buf *bytes.Buffer, obj any) error {
	enc := json.NewEncoder(buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(obj); err != nil {
		return err
	}
	buf.Truncate(buf.Len() - 1) // Encode ends with a newline.
	return nil
}

// decodeBody decodes body into target, a new object, and returns it.
func decodeBody(codec Codec, body []byte, target any) (obj any, err error) {
	defer func() {
		// Generated code may panic on a body that other code has written, and custom types have code of their own.
		if p := recover(); p != nil {
			obj, err = nil, fmt.Errorf("panic: %v", p)
		}
	}()
	switch codec {
	case CodecUnstructured:
		return decodeUnstructured(body)
	case CodecProtobuf:
		m := target.(protobufObject)
		if err := m.Unmarshal(body); err != nil {
			return nil, err
		}
		quantityPlanOf(reflect.TypeOf(m)).cacheText(reflect.ValueOf(m)) // See [Encode].
		return m, nil
	case CodecJSON:
		// The unmarshallers of custom types get slices of the body, and some keep them.
		return decodeJSON(bytes.Clone(body), target)
	default:
		return nil, errors.New("unknown codec")
	}
}

// decodeJSON decodes into the type of target. That may be a struct and no pointer: a transform may have put a struct
// into the store.
func decodeJSON(body []byte, target any) (any, error) {
	t := reflect.TypeOf(target)
	if t.Kind() == reflect.Pointer {
		return target, kjson.UnmarshalCaseSensitivePreserveInts(body, target)
	}
	ptr := reflect.New(t)
	err := kjson.UnmarshalCaseSensitivePreserveInts(body, ptr.Interface())
	return ptr.Elem().Interface(), err
}

func isNilPointer(obj any) bool {
	v := reflect.ValueOf(obj)
	return v.Kind() == reflect.Pointer && v.IsNil()
}

// objectMeta returns nil for objects without metadata, which a transform may
// produce.
func objectMeta(obj any) metav1.Object {
	switch o := obj.(type) {
	case metav1.Object:
		return o
	case metav1.ObjectMetaAccessor:
		return o.GetObjectMeta()
	}
	return nil
}

type kinded interface{ GetObjectKind() schema.ObjectKind }

// typeMeta returns the apiVersion and kind that obj carries. Typed objects seldom
// do, because client-go's decoders clear them.
func typeMeta(obj any) (apiVersion, kind string) {
	o, ok := obj.(kinded)
	if !ok {
		return "", ""
	}
	switch k := o.GetObjectKind().(type) {
	case nil:
		return "", ""
	case *metav1.TypeMeta: // Read as it is: GroupVersionKind may lose part of it.
		return k.APIVersion, k.Kind
	default:
		return k.GroupVersionKind().ToAPIVersionAndKind()
	}
}

func setTypeMeta(obj any, apiVersion, kind string) {
	o, ok := obj.(kinded)
	if !ok {
		return
	}
	switch k := o.GetObjectKind().(type) {
	case nil:
	case *metav1.TypeMeta:
		k.APIVersion, k.Kind = apiVersion, kind
	default:
		k.SetGroupVersionKind(schema.FromAPIVersionAndKind(apiVersion, kind))
	}
}
