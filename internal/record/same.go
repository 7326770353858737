package record

import (
	"bytes"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
)

// Same reports whether the record r holds the object o: the same Go type, uid,
// resourceVersion and content. apiVersion and kind of typed objects do not count:
// the server sends them only for some requests.
//
// It compares the encodings first. They are equal for equal content if this version of the program has written r. If
// they differ, it decodes r.
func (o *Object) Same(r Record, newObject func() any) bool {
	g := goTypeOf(o.Object)
	if uid, rv := Head(o.Object); g.name != r.TypeName || uid != r.UID || rv != r.ResourceVersion {
		return false
	}
	if g.codec == r.Codec && bytes.Equal(o.body, r.Body) {
		return true
	}
	stored, err := r.Decode(newObject)
	if err != nil {
		return false
	}
	if g.codec != CodecUnstructured {
		apiVersion, kind := typeMeta(o.Object)
		setTypeMeta(stored, apiVersion, kind)
	}
	return apiequality.Semantic.DeepEqual(stored, o.Object)
}

// IsEncodedAs reports whether this is the encoding of the object in protobuf.
func (r Record) IsEncodedAs(protobuf []byte) bool {
	return r.Codec == CodecProtobuf && bytes.Equal(r.Body, protobuf)
}
