package record

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
)

// An Object is an object and its record.
type Object struct {
	Object any
	record []byte // Behind it there is room for a checksum.
	body   []byte // The end of record.
}

const (
	envelopeBytes  = 128     // About the length of a record without its body.
	usualBodyBytes = 2048    // The first room for a body in another encoding than protobuf.
	maxBodyBytes   = 1 << 29 // Two of them fit into a value of the file.
	checksumRoom   = 8
	seqAt, seqEnd  = 2, 10 // In the record. The sequence number is the first field, and its length is fixed.
)

// Encode makes the record of an object, which must not change from now on. Its Seq is 0. The error wraps
// [ErrNotEncodable].
//
// Encode makes the resource.Quantity fields of obj cache their text. So encode an object before it is shared with other
// goroutines. A second Encode only reads it. Objects from [Record.Decode] can be shared at once.
//
// The result of [Record.Decode] equals obj by apimachinery's equality.Semantic, and
// by reflect.DeepEqual if it is unstructured. A typed object keeps its API form.
// The API form lacks the difference between an empty and a nil slice, fractions of a
// second in a metav1.Time, and a RawExtension that has an Object instead of Raw. For
// a type without generated protobuf it also lacks fields that encoding/json skips.
func Encode(obj any) (o *Object, err error) {
	g := goTypeOf(obj)
	if g == nil || isNilPointer(obj) {
		return nil, fmt.Errorf("%w: it is nil (%T)", ErrNotEncodable, obj)
	}
	defer func() {
		// The object's methods may be the caller's and panic. Generated code panics if somebody changes the object
		// meanwhile, which is not allowed. Neither may end the process.
		if p := recover(); p != nil {
			o, err = nil, fmt.Errorf("%w: %s: panic: %v", ErrNotEncodable, g.name, p)
		}
	}()
	size := usualBodyBytes
	if g.codec == CodecProtobuf {
		size = obj.(protobufObject).Size()
	}
	buf := bytes.NewBuffer(make([]byte, 0, envelopeBytes+len(g.name)+size+checksumRoom)) // Not Grow, which copies.
	appendHead(buf, g, obj)
	head := buf.Len()
	if err := g.appendBody(buf, obj, size); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrNotEncodable, g.name, err)
	}
	o = &Object{Object: obj, record: buf.Bytes()}
	if o.body = o.record[head:]; len(o.body) > maxBodyBytes {
		return nil, fmt.Errorf("%w: %s: %d bytes", ErrNotEncodable, g.name, len(o.body))
	}
	binary.BigEndian.PutUint32(o.record[head-4:], uint32(len(o.body)))
	return o, nil
}

// StoredObject returns obj, which was decoded from r and must not change from now on, with a copy of its record.
func StoredObject(obj any, r Record) *Object {
	o := &Object{Object: obj, record: r.Copy(checksumRoom)}
	o.body = o.record[len(r.raw)-len(r.Body):]
	return o
}

// BaseObject returns a base for [Record.DecodeNear]: obj, which was decoded from r. It is valid as
// long as r's body is.
func BaseObject(obj any, r Record) *Object { return &Object{Object: obj, body: r.Body} }

// SetSeq sets the Seq of the record. It is not called once the record is in a batch.
func (o *Object) SetSeq(seq uint64) { binary.BigEndian.PutUint64(o.record[seqAt:seqEnd], seq) }

// Record returns the record, which must not change. There is room for a checksum behind it.
func (o *Object) Record() []byte { return o.record }

// SizeBytes is the length of the record.
func (o *Object) SizeBytes() int { return len(o.record) }

// Head returns the uid and resourceVersion of an object. Both are empty if it
// has no metadata.
func Head(obj any) (uid types.UID, resourceVersion string) {
	if m := objectMeta(obj); m != nil {
		return m.GetUID(), m.GetResourceVersion()
	}
	return "", ""
}
