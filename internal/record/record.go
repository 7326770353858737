package record

import (
	"bytes"
	"fmt"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// A Record is an object as stored: an envelope that can be read on its own, and
// the encoded object. It is a msgpack array of the fields in this order.
type Record struct {
	Seq             uint64    // Chosen by the writer, to distinguish versions of one object.
	ResourceVersion string    // Empty for objects without metadata.
	UID             types.UID // Likewise.
	Codec           Codec
	TypeName        string // Go type of the object: import path and name.
	APIVersion      string // Empty unless the object carried it.
	Kind            string // Likewise.
	Body            []byte // The object, encoded by Codec.

	raw []byte // All of it.
}

// recordFields is the length of the array.
const recordFields = 8

// appendHead appends everything before the body, with 0 as the body's length. Writing to a bytes.Buffer does not fail,
// so neither do these methods of the encoder.
func appendHead(buf *bytes.Buffer, g *goType, obj any) {
	var resourceVersion, uid string
	if m := objectMeta(obj); m != nil {
		resourceVersion, uid = m.GetResourceVersion(), string(m.GetUID())
	}
	apiVersion, kind := typeMeta(obj)
	enc := msgpack.GetEncoder()
	defer msgpack.PutEncoder(enc)
	enc.Reset(buf)
	_ = enc.EncodeArrayLen(recordFields)
	_ = enc.EncodeUint64(0) // Unlike EncodeUint it always takes nine bytes.
	_ = enc.EncodeString(resourceVersion)
	_ = enc.EncodeString(uid)
	_ = enc.EncodeUint(uint64(g.codec))
	_ = enc.EncodeString(g.name)
	_ = enc.EncodeString(apiVersion)
	_ = enc.EncodeString(kind)
	buf.Write([]byte{msgpcode.Bin32, 0, 0, 0, 0})
}

// Parse reads the envelope of payload. The body is not decoded or
// copied: Body is valid as long as payload is. Any payload is safe to parse;
// an error wraps [ErrBadRecord].
func Parse(payload []byte) (Record, error) {
	in := msgpackReader{rest: payload}
	if n := in.arrayLen(); n != recordFields {
		in.fail("array of %d fields, want %d", n, recordFields)
	}
	rec := Record{
		raw:             payload,
		Seq:             in.uint(),
		ResourceVersion: in.string(),
		UID:             types.UID(in.string()),
	}
	codec := in.uint()
	rec.Codec = Codec(codec)
	if uint64(rec.Codec) != codec {
		in.fail("codec %d", codec)
	}
	rec.TypeName = in.string()
	rec.APIVersion = in.string()
	rec.Kind = in.string()
	rec.Body = in.bytes()
	if err := in.end(); err != nil {
		return Record{}, fmt.Errorf("%w: envelope: %w", ErrBadRecord, err)
	}
	return rec, nil
}

// Copy returns a copy of the record, with so many bytes of room behind it.
func (r Record) Copy(room int) []byte { return append(make([]byte, 0, len(r.raw)+room), r.raw...) }

// SizeBytes is the length of the record.
func (r Record) SizeBytes() int { return len(r.raw) }

// Decode decodes the body into the object that newObject returns: a new one,
// of the expected type. The object shares no memory with the body. For
// unstructured content newObject may be nil.
//
// An error wraps [ErrTypeMismatch] if the record holds another Go type than
// newObject returns, and [ErrBadRecord] if the body cannot be decoded.
func (r Record) Decode(newObject func() any) (any, error) { return r.DecodeNear(newObject, nil) }

// DecodeNear is Decode beside base, another version of the object, or a similar object. Parts whose encodings are equal
// are not decoded, but shared with the base object: neither object may be changed. base may be nil.
func (r Record) DecodeNear(newObject func() any, base *Object) (any, error) {
	var target any
	if newObject != nil {
		target = newObject()
	} else if r.Codec == CodecUnstructured {
		target = &unstructured.Unstructured{}
	}
	g := goTypeOf(target)
	switch {
	case g == nil || isNilPointer(target):
		return nil, fmt.Errorf("%w: found %s, want none", ErrTypeMismatch, r.TypeName)
	case g.name != r.TypeName:
		return nil, fmt.Errorf("%w: found %s, want %s", ErrTypeMismatch, r.TypeName, g.name)
	case g.codec != r.Codec && r.Codec != CodecJSON:
		// The type has protobuf methods in only one of two builds of the program. A body in JSON is no problem: every
		// typed object has a JSON form.
		return nil, fmt.Errorf("%w: found %s in another encoding", ErrTypeMismatch, r.TypeName)
	}
	if r.Codec == CodecProtobuf && base != nil && goTypeOf(base.Object) == g {
		if decodeWithBase(target, base.Object, r.Body, base.body) {
			return r.withTypeMeta(target), nil
		}
		target = newObject()
	}
	obj, err := decodeBody(r.Codec, r.Body, target)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrBadRecord, r.TypeName, err)
	}
	return r.withTypeMeta(obj), nil
}

// withTypeMeta restores apiVersion and kind, the only fields that protobuf drops.
func (r Record) withTypeMeta(obj any) any {
	if r.Codec == CodecProtobuf && (r.APIVersion != "" || r.Kind != "") {
		setTypeMeta(obj, r.APIVersion, r.Kind)
	}
	return obj
}

// A msgpackReader takes msgpack values off a byte slice, one after the other.
// It keeps the first error, and returns zero values after it.
//
// The decoder of the msgpack library reads from an io.Reader, so it cannot
// lend a part of its input, and takes twice as long for an envelope. It is
// also more lenient than a file format should be: it reads a nil as a string
// and a float as an integer.
type msgpackReader struct {
	rest []byte
	err  error
	// elements is how many more elements of maps and slices there can be.
	// Each takes at least a byte of its own, so lengths that add up to more
	// than the input are false, and nothing is allocated for them.
	elements int
}

func (r *msgpackReader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
	}
	r.rest = nil
}

// end returns the first error, or one if something is left to read.
func (r *msgpackReader) end() error {
	if len(r.rest) > 0 {
		r.fail("%d bytes left over", len(r.rest))
	}
	return r.err
}

func (r *msgpackReader) take(n uint64) []byte {
	if n > uint64(len(r.rest)) {
		r.fail("%d bytes missing", n-uint64(len(r.rest)))
		return nil
	}
	b := r.rest[:n:n]
	r.rest = r.rest[n:]
	return b
}

func (r *msgpackReader) code() byte {
	if len(r.rest) == 0 {
		r.fail("cut short")
		return 0
	}
	c := r.rest[0]
	r.rest = r.rest[1:]
	return c
}

func (r *msgpackReader) bigEndian(width uint64) (n uint64) {
	for _, b := range r.take(width) {
		n = n<<8 | uint64(b)
	}
	return n
}

func (r *msgpackReader) uint() uint64 {
	switch c := r.code(); {
	case c <= msgpcode.PosFixedNumHigh:
		return uint64(c)
	case c >= msgpcode.Uint8 && c <= msgpcode.Uint64:
		return r.bigEndian(1 << (c - msgpcode.Uint8))
	default:
		r.fail("code %#x where an unsigned integer belongs", c)
		return 0
	}
}

func (r *msgpackReader) arrayLen() uint64 {
	c := r.code()
	if !msgpcode.IsFixedArray(c) {
		r.fail("code %#x where a short array belongs", c)
		return 0
	}
	return uint64(c & msgpcode.FixedArrayMask)
}

func (r *msgpackReader) bytes() []byte {
	if c := r.code(); c != msgpcode.Bin32 {
		r.fail("code %#x where bytes belong", c)
		return nil
	}
	return r.take(r.bigEndian(4))
}

func (r *msgpackReader) string() string { return r.stringOf(r.code()) }

func (r *msgpackReader) stringOf(code byte) string {
	switch {
	case msgpcode.IsFixedString(code):
		return string(r.take(uint64(code & msgpcode.FixedStrMask)))
	case code >= msgpcode.Str8 && code <= msgpcode.Str32:
		return string(r.take(r.bigEndian(1 << (code - msgpcode.Str8))))
	default:
		r.fail("code %#x where a string belongs", code)
		return ""
	}
}
