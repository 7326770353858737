package record

import (
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// sameContent is reflect.DeepEqual, but compares the bits of floats: NaN
// equals itself, and -0 is not 0.
func sameContent(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) || (a == nil) != (b == nil) {
			return false
		}
		for key, value := range a {
			other, ok := b[key]
			if !ok || !sameContent(value, other) {
				return false
			}
		}
		return true
	case []any:
		b, ok := b.([]any)
		if !ok || len(a) != len(b) || (a == nil) != (b == nil) {
			return false
		}
		for i := range a {
			if !sameContent(a[i], b[i]) {
				return false
			}
		}
		return true
	case float64:
		b, ok := b.(float64)
		return ok && math.Float64bits(a) == math.Float64bits(b)
	default:
		return reflect.DeepEqual(a, b)
	}
}

func TestUnstructuredRoundTrip(t *testing.T) {
	wide := map[string]any{}
	for i := range 70_000 {
		wide[strconv.Itoa(i)] = int64(i)
	}
	deep := any("bottom")
	for range (maxContentDepth - 1) / 2 {
		deep = map[string]any{"a": []any{deep}}
	}
	for _, tc := range []struct {
		name  string
		value any
	}{
		{"nil", nil},
		{"a nil map", map[string]any(nil)},
		{"an empty map", map[string]any{}},
		{"a nil slice", []any(nil)},
		{"an empty slice", []any{}},
		{"nils within", []any{nil, []any(nil), map[string]any(nil), map[string]any{"a": nil}}},
		{"booleans", []any{true, false}},
		{"whole floats stay floats", []any{0.0, 1.0, -1.0, 1e18}},
		{"unusual floats", []any{math.NaN(), math.Copysign(0, -1), math.Inf(1), math.Inf(-1), math.MaxFloat64, math.SmallestNonzeroFloat64}},
		{"integers at the border of each width", []any{
			int64(0), int64(-1), int64(-32), int64(-33), int64(127), int64(128), int64(-128), int64(-129), int64(255), int64(256),
			int64(math.MaxInt16), int64(math.MinInt16), int64(math.MinInt16 - 1), int64(math.MaxUint16), int64(math.MaxUint16 + 1),
			int64(math.MaxInt32), int64(math.MinInt32), int64(math.MinInt32 - 1), int64(math.MaxUint32), int64(math.MaxUint32 + 1),
			int64(math.MaxInt64), int64(math.MinInt64),
		}},
		{"strings of each length", []any{"", strings.Repeat("a", 31), strings.Repeat("a", 32), strings.Repeat("a", 255), strings.Repeat("a", 256), strings.Repeat("a", 70_000)}},
		{"text that is not UTF-8", "\xff\x00\xfe"},
		{"an empty key", map[string]any{"": "a"}},
		{"slices of each length", []any{make([]any, 15), make([]any, 16), make([]any, 70_000)}},
		{"a map of 16 bit length", map[string]any{"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0, "e": 1.0, "f": 1.0, "g": 1.0, "h": 1.0, "i": 1.0, "j": 1.0, "k": 1.0, "l": 1.0, "m": 1.0, "n": 1.0, "o": 1.0, "p": 1.0, "q": 1.0}},
		{"a map of 32 bit length", wide},
		{"deep nesting", deep},
	} {
		t.Run(tc.name, func(t *testing.T) {
			u := &unstructured.Unstructured{Object: map[string]any{"value": tc.value}}
			got := roundTrip(t, u, nil).(*unstructured.Unstructured)
			if !sameContent(u.Object, got.Object) {
				t.Errorf("the content changed")
			}
			if got.Object["value"] == nil && tc.value != nil {
				t.Errorf("got nil for %#v", tc.value)
			}
		})
	}
}

func TestUnstructuredRoundTripOfObjectsWithoutContent(t *testing.T) {
	for _, u := range []*unstructured.Unstructured{{}, {Object: map[string]any{}}} {
		if got := roundTrip(t, u, nil); !reflect.DeepEqual(u, got) {
			t.Errorf("got %#v, want %#v", got, u)
		}
	}
}

func TestUnstructuredRefusesForeignTypes(t *testing.T) {
	for _, value := range []any{
		int(1), int32(1), uint64(1), float32(1), json.Number("1"), []byte("a"), []string{"a"}, []int64{1},
		[]map[string]any{{}}, map[string]string{"a": "b"}, map[any]any{}, struct{}{}, new(int64), func() {},
	} {
		u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"list": []any{"a", value}}}}
		_, err := appendRecord(nil, 1, u)
		if !errors.Is(err, ErrNotEncodable) {
			t.Errorf("%T: err = %v, want ErrNotEncodable", value, err)
			continue
		}
		if where := ".spec.list[1]"; !strings.Contains(err.Error(), where) || !strings.Contains(err.Error(), reflect.TypeOf(value).String()) {
			t.Errorf("%q names not both %s and %T", err, where, value)
		}
	}
}

func TestUnstructuredRefusesContentWithoutEnd(t *testing.T) {
	loop := map[string]any{}
	loop["self"] = loop
	u := &unstructured.Unstructured{Object: loop}
	_, err := appendRecord(nil, 1, u)
	if !errors.Is(err, ErrNotEncodable) {
		t.Fatalf("err = %v, want ErrNotEncodable", err)
	}
	if len(err.Error()) > 1000 {
		t.Errorf("the message has %d bytes", len(err.Error()))
	}
}

func TestUnstructuredRefusesBodiesItDidNotWrite(t *testing.T) {
	for name, body := range map[string]string{
		"nothing":                        "",
		"not a map":                      "\x90",
		"nil":                            "\xc0",
		"a nil slice":                    "\xc7\x00\x02",
		"a key that is not a string":     "\x81\x01\x01",
		"a repeated key":                 "\x82\xa1k\xc0\xa1k\xc0",
		"a key without a value":          "\x81\xa1k",
		"an integer that overflows":      "\x81\xa1k\xcf\x80\x00\x00\x00\x00\x00\x00\x00",
		"a float of 32 bits":             "\x81\xa1k\xca\x00\x00\x00\x00",
		"bytes":                          "\x81\xa1k\xc4\x01a",
		"another extension":              "\x81\xa1k\xc7\x00\x03",
		"an extension with data":         "\x81\xa1k\xc7\x01\x01\x00",
		"a code that msgpack never uses": "\x81\xa1k\xc1",
		"one byte too many":              "\x80\x00",
	} {
		rec := Record{Codec: CodecUnstructured, TypeName: goTypeOf(&unstructured.Unstructured{}).name, Body: []byte(body)}
		if _, err := rec.Decode(nil); !errors.Is(err, ErrBadRecord) {
			t.Errorf("%s: err = %v, want ErrBadRecord", name, err)
		}
	}
}

// contentFrom makes up content as the fuzzer's input says.
func contentFrom(in *[]byte, depth int) any {
	next := func() byte {
		if len(*in) == 0 {
			return 0
		}
		b := (*in)[0]
		*in = (*in)[1:]
		return b
	}
	text := func() string {
		n := min(int(next()), len(*in))
		s := string((*in)[:n])
		*in = (*in)[n:]
		return s
	}
	word := func() (n uint64) {
		for range next() % 9 {
			n = n<<8 | uint64(next())
		}
		return n
	}
	kind := next() % 12
	if depth > 20 {
		kind %= 8
	}
	switch kind {
	case 1:
		return true
	case 2:
		return false
	case 3:
		return int64(word())
	case 4:
		return math.Float64frombits(word())
	case 5:
		return text()
	case 6:
		return map[string]any(nil)
	case 7:
		return []any(nil)
	case 8, 9:
		m := map[string]any{}
		for range next() % 20 {
			m[text()] = contentFrom(in, depth+1)
		}
		return m
	case 10, 11:
		s := []any{}
		for range next() % 20 {
			s = append(s, contentFrom(in, depth+1))
		}
		return s
	}
	return nil
}

func FuzzUnstructuredRoundTrip(f *testing.F) {
	f.Add([]byte{8, 2, 1, 'a', 3, 1, 200, 1, 'b', 10, 3, 4, 8, 0x7f, 0xf8, 0, 0, 0, 0, 0, 1, 6, 7})
	f.Add([]byte("some bytes to start with"))
	f.Fuzz(func(t *testing.T, in []byte) {
		u := &unstructured.Unstructured{Object: map[string]any{"a": contentFrom(&in, 0), "b": contentFrom(&in, 0)}}
		got := roundTrip(t, u, nil).(*unstructured.Unstructured)
		if !sameContent(u.Object, got.Object) {
			t.Fatalf("got %#v, want %#v", got.Object, u.Object)
		}
	})
}
