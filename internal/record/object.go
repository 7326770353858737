package record

import (
	"bytes"
	"encoding/binary"
)

// An Object is a persist.Value that holds one Kubernetes object.
type Object struct {
	Seq       uint64 // Distinguishes the versions of an object, see [Record].
	Object    any
	sizeBytes int
	ahead     *Body // The encoding, made ahead of the commit. Once put, the committer's alone.
	keepsBody bool  // Same keeps the encoding it makes, for the commit. See NewObject.
}

// NewObject wraps obj, which must not change from now on; Seq may be set until it is put.
// If it is likely to be written soon, objects of protobuf types are encoded at once: this
// takes little longer than to estimate their size, and makes the estimate unnecessary.
func NewObject(obj any, soon bool) *Object {
	if g := goTypeOf(obj); g != nil && g.codec == CodecProtobuf && !isNilPointer(obj) && soon {
		if b, err := g.encode(obj, 0); err == nil { // Else the committer will get the error, too.
			return &Object{Object: obj, sizeBytes: envelopeBytes + len(b.bytes), ahead: b, keepsBody: true}
		}
	}
	return &Object{Object: obj, sizeBytes: EstimateSize(obj), keepsBody: soon}
}

// StoredObject wraps obj, which was decoded from r and must not change from now on.
// If it is likely to be written soon, and obj would be encoded by r's codec, the first
// commit attempt writes a copy of r's body. Otherwise, and in later attempts, obj is
// encoded.
func StoredObject(obj any, r Record, soon bool) *Object {
	o := &Object{Seq: r.Seq, Object: obj, sizeBytes: r.SizeBytes()}
	if g := goTypeOf(obj); g != nil && g.codec == r.Codec && soon {
		o.ahead = newBody(len(r.Body))
		copy(o.ahead.bytes, r.Body)
	}
	return o
}

// AppendTo implements persist.Value.
func (o *Object) AppendTo(dst []byte) ([]byte, error) {
	dst, err := appendRecord(dst, o.Seq, o.Object, o.sizeBytes, o.ahead)
	if b := o.ahead; b != nil {
		o.ahead = nil
		b.Release()
	}
	return dst, err
}

// TakeRecord returns the record in the memory of the body that was encoded ahead, with
// room for TailBytes behind it, and that body. The caller releases the body when the
// record is not used any more. Nil: there is no body, or it has to be copied. head is
// scratch memory.
func (o *Object) TakeRecord(head *[]byte) (record []byte, inMemoryOf *Body) {
	b := o.ahead
	if b == nil {
		return nil, nil
	}
	defer func() {
		if recover() != nil { // AppendTo will return it as an error.
			record, inMemoryOf = nil, nil
		}
	}()
	buf := bytes.NewBuffer((*head)[:0])
	appendHead(buf, goTypeOf(o.Object), o.Seq, o.Object)
	*head = buf.Bytes()
	binary.BigEndian.PutUint32((*head)[len(*head)-bodyLenBytes:], uint32(len(b.bytes)))
	if record = b.record(*head); record == nil {
		return nil, nil
	}
	o.ahead = nil
	return record, b
}

// AppendShared is AppendTo for a value that contains this Object. It keeps the
// encoding for the Object itself, which is written later in the same commit.
// Only the committer may call it.
func (o *Object) AppendShared(dst []byte) ([]byte, error) {
	if g := goTypeOf(o.Object); o.ahead == nil && g != nil && !isNilPointer(o.Object) {
		if b, err := g.encode(o.Object, o.sizeBytes); err == nil {
			o.ahead = b
		}
	}
	return appendRecord(dst, o.Seq, o.Object, o.sizeBytes, o.ahead)
}

// SizeBytes implements persist.Value.
func (o *Object) SizeBytes() int { return o.sizeBytes }
