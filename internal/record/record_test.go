package record

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vmihailenco/msgpack/v5"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kruntime "k8s.io/apimachinery/pkg/runtime"
)

func TestRecordEnvelope(t *testing.T) {
	cm := &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "u-1", ResourceVersion: "42"},
	}
	for _, seq := range []uint64{0, 1, 127, 128, 255, 256, math.MaxUint16 + 1, math.MaxUint32 + 1, math.MaxUint64} {
		payload, err := appendRecord(nil, seq, cm)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Parse(payload)
		if err != nil {
			t.Fatal(err)
		}
		body, err := cm.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		want := Record{
			Seq: seq, ResourceVersion: "42", UID: "u-1", Codec: CodecProtobuf,
			TypeName: "*k8s.io/api/core/v1.ConfigMap", APIVersion: "v1", Kind: "ConfigMap", Body: body,
		}
		if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Record{})); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		if &got.Body[0] != &payload[len(payload)-len(body)] {
			t.Error("the body was copied")
		}
	}
}

// TestRecordIsMsgpack reads a record with nothing of ours, as another program
// would.
func TestRecordIsMsgpack(t *testing.T) {
	pod := newTestPod(t)
	payload, err := appendRecord(nil, 300, pod)
	if err != nil {
		t.Fatal(err)
	}
	var got []any
	if err := msgpack.Unmarshal(payload, &got); err != nil {
		t.Fatal(err)
	}
	body, err := pod.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	want := []any{uint64(300), pod.ResourceVersion, string(pod.UID), int8(1), "*k8s.io/api/core/v1.Pod", "", "", body}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Record{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestRecordFormatIsStable fails if files of earlier versions would become
// unreadable. Do not change the bytes: change the format version.
func TestRecordFormatIsStable(t *testing.T) {
	for _, tc := range []struct {
		obj       any
		newObject func() any
		payload   string
	}{
		{
			&corev1.ConfigMap{
				TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
				ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "u-1", ResourceVersion: "42"},
			},
			func() any { return &corev1.ConfigMap{} },
			"98cf0000000000000009a23432a3752d3101bd2a6b38732e696f2f6170692f636f72652f76312e436f6e6669674d6170a27631a9436f6e666967" +
				"4d6170c6000000180a160a016112001a0022002a03752d313202343238004200",
		},
		{
			&unstructured.Unstructured{Object: map[string]any{"spec": []any{
				nil, true, false, int64(1), int64(-1), int64(-200), int64(math.MaxInt64), 0.5, "a",
				map[string]any{}, []any{}, map[string]any(nil), []any(nil),
			}}},
			nil,
			"98cf0000000000000009a0a002d93f2a6b38732e696f2f6170696d616368696e6572792f706b672f617069732f6d6574612f76312f756e737472" +
				"756374757265642e556e73747275637475726564a0a0c60000002b81a4737065639dc0c3c201ffd1ff38cf7fffffffffffff" +
				"ffcb3fe0000000000000a1618090c70001c70002",
		},
		{
			&noMetadata{Name: "a", Ports: []int{80}},
			func() any { return &noMetadata{} },
			"98cf0000000000000009a0a003d93a2a6769746875622e636f6d2f7761726d77617463682f7761726d77617463682f696e7465726e616c2f7265" +
				"636f72642e6e6f4d65746164617461a0a0c6000000197b224e616d65223a2261222c22506f727473223a5b38305d7d",
		},
	} {
		payload, err := appendRecord(nil, 9, tc.obj)
		if err != nil {
			t.Fatal(err)
		}
		if got := hex.EncodeToString(payload); got != tc.payload {
			t.Errorf("%T is written as\n%s, want\n%s", tc.obj, got, tc.payload)
		}
		old, err := hex.DecodeString(tc.payload)
		if err != nil {
			t.Fatal(err)
		}
		rec, err := Parse(old)
		if err != nil {
			t.Fatal(err)
		}
		got, err := rec.Decode(tc.newObject)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tc.obj, got); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
}

func TestRecordParseRefusesEveryPrefixAndEveryLongerInput(t *testing.T) {
	payload, err := appendRecord(nil, 1, newTestPod(t))
	if err != nil {
		t.Fatal(err)
	}
	for n := range payload {
		if _, err := Parse(payload[:n]); !errors.Is(err, ErrBadRecord) {
			t.Fatalf("the first %d bytes: %v, want ErrBadRecord", n, err)
		}
	}
	if _, err := Parse(append(payload, 0)); !errors.Is(err, ErrBadRecord) {
		t.Errorf("with one byte more: %v, want ErrBadRecord", err)
	}
}

// TestRecordHostileBodiesAllocateLittle feeds lengths that promise more than
// follows, alone and nested so that the promises multiply.
func TestRecordHostileBodiesAllocateLittle(t *testing.T) {
	const size = 64 << 10
	pad := func(head ...byte) []byte { return append(head, make([]byte, size-len(head))...) }
	nest := func(head ...byte) []byte { return bytes.Repeat(head, size/len(head)) }
	length := func(code byte, n uint32) []byte { return binary.BigEndian.AppendUint32([]byte{code}, n) }

	for name, body := range map[string][]byte{
		"huge map":               pad(length(0xdf, math.MaxUint32)...),
		"huge array":             pad(length(0xdd, math.MaxUint32)...),
		"huge string":            pad(length(0xdb, math.MaxUint32)...),
		"huge extension":         pad(length(0xc9, math.MaxUint32)...),
		"arrays that each fit":   nest(length(0xdd, size/2)...),
		"maps that each fit":     nest(append([]byte{0xdf, 0, 0, size / 4 >> 8, 0}, 0xa1, 'k')...),
		"arrays nested too deep": append(append([]byte{0x81, 0xa0}, nest(0x91)...), 0xc0),
		"maps nested too deep":   append(nest(0x81, 0xa0), 0xc0),
	} {
		t.Run(name, func(t *testing.T) {
			rec := Record{Codec: CodecUnstructured, TypeName: goTypeOf(&unstructured.Unstructured{}).name, Body: body}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := rec.Decode(nil)
			runtime.ReadMemStats(&after)
			if !errors.Is(err, ErrBadRecord) {
				t.Errorf("err = %v, want ErrBadRecord", err)
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > 100*size {
				t.Errorf("%d bytes allocated for a body of %d", n, size)
			}
		})
	}
}

func FuzzParseRecord(f *testing.F) {
	newObjects := map[string]func() any{}
	for _, newObject := range []func() any{
		func() any { return &corev1.Pod{} },
		func() any { return &metav1.PartialObjectMetadata{} },
		func() any { return &customResource{} },
		func() any { return noMetadata{} },
	} {
		newObjects[goTypeOf(newObject()).name] = newObject
	}
	for _, obj := range []any{
		newTestPod(f),
		&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "a"}},
		newCustomResource(),
		noMetadata{Name: "a"},
		&unstructured.Unstructured{Object: map[string]any{"a": []any{int64(-300), 1.5, nil, "s", map[string]any(nil)}}},
	} {
		payload, err := appendRecord(nil, 1, obj)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(payload)
		f.Add(payload[:len(payload)/2])
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		rec, err := Parse(payload)
		if err != nil {
			if !errors.Is(err, ErrBadRecord) {
				t.Fatalf("%v does not wrap ErrBadRecord", err)
			}
			return
		}
		obj, err := rec.Decode(newObjects[rec.TypeName])
		if err != nil {
			if !errors.Is(err, ErrBadRecord) && !errors.Is(err, ErrTypeMismatch) {
				t.Fatalf("%v wraps no sentinel", err)
			}
			return
		}
		// What was read can be written and read again.
		again, err := appendRecord(nil, rec.Seq, obj)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Parse(again); err != nil {
			t.Fatal(err)
		}
	})
}

func benchmarkObjects(b *testing.B) map[string]any {
	pod := newTestPod(b)
	content, err := kruntime.DefaultUnstructuredConverter.ToUnstructured(pod)
	if err != nil {
		b.Fatal(err)
	}
	return map[string]any{"typed": pod, "unstructured": &unstructured.Unstructured{Object: content}}
}

func BenchmarkRecord(b *testing.B) {
	objects := benchmarkObjects(b)
	newPod := func() any { return &corev1.Pod{} }
	for _, form := range []string{"typed", "unstructured"} {
		obj := objects[form]
		newObject := map[string]func() any{"typed": newPod}[form]
		payload, err := appendRecord(nil, 1, obj)
		if err != nil {
			b.Fatal(err)
		}
		b.Run("op=encode/form="+form, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(payload)))
			dst := make([]byte, 0, 2*len(payload))
			for b.Loop() {
				if _, err := appendRecord(dst, 1, obj); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("op=parse/form="+form, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Parse(payload); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("op=decode/form="+form, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(payload)))
			rec, err := Parse(payload)
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if _, err := rec.Decode(newObject); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	// What the generated code takes by itself, to compare with.
	b.Run("op=encode/form=plain-protobuf", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := objects["typed"].(*corev1.Pod).Marshal(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("op=decode/form=plain-protobuf", func(b *testing.B) {
		b.ReportAllocs()
		body, err := objects["typed"].(*corev1.Pod).Marshal()
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			if err := new(corev1.Pod).Unmarshal(body); err != nil {
				b.Fatal(err)
			}
		}
	})
}
