package record

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Unstructured content is made of map[string]any, []any, string, int64,
// float64, bool and nil, and code that reads it asserts just these types.
// msgpack has a form for each, if integers are read as int64 whatever their
// width. Typed nils, which msgpack lacks, are extensions without data.
const (
	extNilMap   int8 = 1
	extNilSlice int8 = 2
)

// maxContentDepth is how deep content may be nested, as in encoding/json. Go
// cannot recover from a stack overflow.
const maxContentDepth = 10000

func appendUnstructured(buf *bytes.Buffer, u *unstructured.Unstructured) error {
	return encodeContent(msgpack.NewEncoder(buf), u.Object, 0)
}

// encodeContent never falls back on the encoder's reflection, which would
// silently change the types it meets.
func encodeContent(enc *msgpack.Encoder, value any, depth int) error {
	if depth > maxContentDepth {
		return errTooDeep
	}
	switch v := value.(type) {
	case string:
		return enc.EncodeString(v)
	case map[string]any:
		if v == nil {
			return enc.EncodeExtHeader(extNilMap, 0)
		}
		if err := enc.EncodeMapLen(len(v)); err != nil {
			return err
		}
		// Keys are sorted, so that equal content has equal bytes: a relist compares them.
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if err := enc.EncodeString(key); err != nil {
				return err
			}
			if err := encodeContent(enc, v[key], depth+1); err != nil {
				return within("."+key, err)
			}
		}
		return nil
	case []any:
		if v == nil {
			return enc.EncodeExtHeader(extNilSlice, 0)
		}
		if err := enc.EncodeArrayLen(len(v)); err != nil {
			return err
		}
		for i, child := range v {
			if err := encodeContent(enc, child, depth+1); err != nil {
				return within(fmt.Sprintf("[%d]", i), err)
			}
		}
		return nil
	case int64:
		return enc.EncodeInt(v)
	case float64:
		return enc.EncodeFloat64(v)
	case bool:
		return enc.EncodeBool(v)
	case nil:
		return enc.EncodeNil()
	default:
		return fmt.Errorf(": Go type %T is not allowed in unstructured content", v)
	}
}

var errTooDeep = errors.New(": nested too deep")

// within says where in unstructured content something is wrong, outermost part first.
func within(part string, err error) error {
	if errors.Is(err, errTooDeep) {
		return err // Its path is long.
	}
	return fmt.Errorf("%s%w", part, err)
}

func decodeUnstructured(body []byte) (*unstructured.Unstructured, error) {
	in := msgpackReader{rest: body, elements: len(body)}
	content, ok := in.content(0).(map[string]any)
	if !ok {
		in.fail("not a map")
	}
	if err := in.end(); err != nil {
		return nil, err
	}
	return &unstructured.Unstructured{Object: content}, nil
}

// content reads a value that encodeContent wrote.
func (r *msgpackReader) content(depth int) any {
	if depth > maxContentDepth {
		r.fail("nested too deep")
		return nil
	}
	switch c := r.code(); {
	case msgpcode.IsString(c):
		return r.stringOf(c)
	case msgpcode.IsFixedMap(c):
		return r.contentMap(uint64(c&msgpcode.FixedMapMask), depth)
	case c == msgpcode.Map16 || c == msgpcode.Map32:
		return r.contentMap(r.bigEndian(2<<(c-msgpcode.Map16)), depth)
	case msgpcode.IsFixedArray(c):
		return r.contentSlice(uint64(c&msgpcode.FixedArrayMask), depth)
	case c == msgpcode.Array16 || c == msgpcode.Array32:
		return r.contentSlice(r.bigEndian(2<<(c-msgpcode.Array16)), depth)
	case msgpcode.IsFixedNum(c):
		return int64(int8(c))
	case c >= msgpcode.Uint8 && c <= msgpcode.Uint64:
		n := r.bigEndian(1 << (c - msgpcode.Uint8))
		if n > math.MaxInt64 {
			r.fail("integer %d overflows int64", n)
		}
		return int64(n)
	case c >= msgpcode.Int8 && c <= msgpcode.Int64:
		width := uint64(1) << (c - msgpcode.Int8)
		unused := 64 - 8*width
		return int64(r.bigEndian(width)<<unused) >> unused // Extends the sign.
	case c == msgpcode.Double:
		return math.Float64frombits(r.bigEndian(8))
	case c == msgpcode.False || c == msgpcode.True:
		return c == msgpcode.True
	case c == msgpcode.Nil:
		return nil
	case c == msgpcode.Ext8:
		return r.contentNil()
	default:
		r.fail("code %#x", c)
		return nil
	}
}

func (r *msgpackReader) contentNil() any {
	size, ext := r.code(), int8(r.code())
	switch {
	case size == 0 && ext == extNilMap:
		return map[string]any(nil)
	case size == 0 && ext == extNilSlice:
		return []any(nil)
	}
	r.fail("extension %d of %d bytes", ext, size)
	return nil
}

func (r *msgpackReader) claim(elements uint64) bool {
	if elements > uint64(r.elements) {
		r.fail("more elements than bytes")
		return false
	}
	r.elements -= int(elements)
	return true
}

func (r *msgpackReader) contentMap(n uint64, depth int) any {
	if !r.claim(2 * n) { // A key and a value.
		return nil
	}
	m := make(map[string]any, n)
	for range n {
		key := r.string()
		m[key] = r.content(depth + 1)
		if r.err != nil {
			return nil
		}
	}
	if uint64(len(m)) != n {
		r.fail("repeated key")
	}
	return m
}

func (r *msgpackReader) contentSlice(n uint64, depth int) any {
	if !r.claim(n) {
		return nil
	}
	s := make([]any, n)
	for i := range s {
		s[i] = r.content(depth + 1)
		if r.err != nil {
			return nil
		}
	}
	return s
}
