package record

import (
	"bytes"
	"errors"
	"flag"
	"hash/fnv"
	"math/rand"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/randfill"
)

var codecSeed = flag.Int64("codecseed", time.Now().UnixNano(), "seed of the objects that codec tests make up")

// newObjectFiller makes up valid objects. The seed is mixed with name, so that
// one type can be run alone and meets the same objects.
func newObjectFiller(name string) *randfill.Filler {
	h := fnv.New64a()
	h.Write([]byte(name))
	src := rand.NewSource(*codecSeed ^ int64(h.Sum64()))
	managedFields := func(serializer.CodecFactory) []any {
		return []any{func(f *metav1.FieldsV1, c randfill.Continue) {
			f.SetRawString(`{"f:` + strings.ToValidUTF8(strings.Map(jsonSafe, c.String(20)), "") + `":{}}`)
		}, func(e *metav1.ManagedFieldsEntry, c randfill.Continue) {
			c.FillNoCustom(e) // The stock function drops FieldsV1.
		}}
	}
	return fuzzer.FuzzerFor(fuzzer.MergeFuzzerFuncs(metafuzzer.Funcs, managedFields), src,
		serializer.NewCodecFactory(scheme.Scheme)).NilChance(.3).NumElements(0, 2)
}

func jsonSafe(r rune) rune {
	if r < ' ' || r == '"' || r == '\\' {
		return '_'
	}
	return r
}

func objectDiff(want, got any) string {
	return cmp.Diff(want, got, cmp.Exporter(func(reflect.Type) bool { return true }))
}

// roundTrip encodes, parses and decodes obj. The bytes it was decoded from are
// overwritten before it returns, so that what aliases them is found.
func roundTrip(tb testing.TB, obj any, newObject func() any) any {
	tb.Helper()
	prefix := []byte("prefix")
	payload, err := appendRecord(prefix, 7, obj)
	if err != nil {
		tb.Fatalf("Append: %v", err)
	}
	if !bytes.HasPrefix(payload, prefix) {
		tb.Fatal("Append did not append")
	}
	payload = payload[len(prefix):]
	rec, err := Parse(payload)
	if err != nil {
		tb.Fatalf("Parse: %v", err)
	}
	if rec.Seq != 7 {
		tb.Errorf("Seq = %d, want 7", rec.Seq)
	}
	if m := objectMeta(obj); m != nil && (rec.ResourceVersion != m.GetResourceVersion() || rec.UID != m.GetUID()) {
		tb.Errorf("envelope says %q, %q; object says %q, %q", rec.ResourceVersion, rec.UID, m.GetResourceVersion(), m.GetUID())
	}
	got, err := rec.Decode(newObject)
	if err != nil {
		tb.Fatalf("Decode: %v", err)
	}
	clear(payload)
	return got
}

// TestCodecRoundTripOfEveryTypeInScheme covers what client-go knows, through
// each of the codecs.
func TestCodecRoundTripOfEveryTypeInScheme(t *testing.T) {
	rounds := 8
	if testing.Short() {
		rounds = 2
	}
	tested := 0
	for gvk, goType := range scheme.Scheme.AllKnownTypes() {
		object := func() any { return reflect.New(goType).Interface() }
		_, hasMeta := object().(metav1.Object)
		if !hasMeta || gvk.Version == runtime.APIVersionInternal {
			continue // Lists and options.
		}
		tested++
		name := strings.Join([]string{gvk.Group, gvk.Version, gvk.Kind}, "/")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("repeat with -codecseed=%d", *codecSeed)
				}
			})
			filler := newObjectFiller(name)
			for range rounds {
				obj := object()
				filler.Fill(obj)
				if c := goTypeOf(obj).codec; c != CodecProtobuf {
					t.Errorf("codec = %v, want protobuf", c)
				}
				checkRoundTrip(t, gvk, obj, object)
			}
		})
	}
	if tested < 100 {
		t.Errorf("%d types tested, expected more in the scheme", tested)
	}
}

func checkRoundTrip(t *testing.T, gvk schema.GroupVersionKind, obj any, object func() any) {
	t.Helper()
	compare := func(how string, got any) {
		t.Helper()
		if !apiequality.Semantic.DeepEqual(obj, got) {
			t.Errorf("%s (-want +got):\n%s", how, objectDiff(obj, got))
		}
	}
	compare("protobuf", roundTrip(t, obj, object))

	obj.(runtime.Object).GetObjectKind().SetGroupVersionKind(gvk)
	compare("protobuf with TypeMeta", roundTrip(t, obj, object))

	var buf bytes.Buffer
	if err := appendJSON(&buf, obj); err != nil {
		t.Fatal(err)
	}
	got, err := Record{Codec: CodecJSON, TypeName: goTypeOf(obj).name, Body: buf.Bytes()}.Decode(object)
	if err != nil {
		t.Fatalf("JSON: %v", err)
	}
	compare("JSON", got)

	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{Object: content}
	if got := roundTrip(t, u, nil); !reflect.DeepEqual(u, got) {
		t.Errorf("unstructured (-want +got):\n%s", objectDiff(u, got))
	}
}

// customResource is a typical type that is generated for a CRD.
type customResource struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Size      resource.Quantity     `json:"size"`
	MaxSize   *resource.Quantity    `json:"maxSize,omitempty"`
	Port      intstr.IntOrString    `json:"port"`
	Since     metav1.Time           `json:"since"`
	Until     *metav1.MicroTime     `json:"until,omitempty"`
	Every     metav1.Duration       `json:"every"`
	Raw       runtime.RawExtension  `json:"raw"`
	Fields    *metav1.FieldsV1      `json:"fields,omitempty"`
	Blob      []byte                `json:"blob,omitempty"`
	Template  corev1.PodSpec        `json:"template"`
	Values    map[string]any        `json:"values,omitempty"`
	Resources corev1.ResourceList   `json:"resources,omitempty"`
	Selector  *metav1.LabelSelector `json:"selector,omitempty"`
}

func (c *customResource) DeepCopyObject() runtime.Object { panic("not needed") }

func newCustomResource() *customResource {
	maxSize := resource.MustParse("1500Gi")
	until := metav1.NewMicroTime(time.Date(2026, 3, 1, 9, 30, 10, 123456000, time.UTC))
	return &customResource{
		TypeMeta:   metav1.TypeMeta{APIVersion: "example.com/v1", Kind: "CustomResource"},
		ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "b", UID: "u-1", ResourceVersion: "12"},
		Size:       resource.MustParse("1.5"),
		MaxSize:    &maxSize,
		Port:       intstr.FromString("http"),
		Since:      metav1.NewTime(time.Date(2026, 3, 1, 9, 30, 10, 0, time.UTC)),
		Until:      &until,
		Every:      metav1.Duration{Duration: 90 * time.Second},
		Raw:        runtime.RawExtension{Raw: []byte(`{"a":[1,2.5,"<&>"]}`)},
		Fields:     metav1.NewFieldsV1(`{"f:spec":{}}`),
		Blob:       []byte{0, 255},
		Template:   corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "c"}}},
		Values:     map[string]any{"int": int64(1 << 60), "float": 1.5, "nil": nil, "list": []any{"x", true}},
		Resources:  corev1.ResourceList{"cpu": resource.MustParse("250m")},
	}
}

// Types of which one embedded field has protobuf methods: Go promotes them,
// and they know nothing of the other fields.
type (
	embedsObjectMeta struct {
		metav1.ObjectMeta
		Node string
	}
	embedsPod struct {
		corev1.Pod
		Node string
	}
	embedsAtTwoDepths struct {
		metav1.ObjectMeta `json:"metadata"`
		embedsObjectMeta  `json:"inner"`
		Node              string
	}
	embedsPointer struct {
		*corev1.Pod
		Node string
	}
	noMetadata struct {
		Name  string
		Ports []int
	}
)

func TestCodecRoundTrip(t *testing.T) {
	partial := &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
		ObjectMeta: newTestPod(t).ObjectMeta,
	}
	odd := newTestPod(t)
	odd.APIVersion, odd.Kind = "a/b/c", "" // Never valid, but it is what was put in.

	for _, tc := range []struct {
		name  string
		obj   any
		codec Codec
	}{
		{"a typed object", newTestPod(t), CodecProtobuf},
		{"a typed object with an odd TypeMeta", odd, CodecProtobuf},
		{"metadata only, where TypeMeta says of what", partial, CodecProtobuf},
		{"a custom resource", newCustomResource(), CodecJSON},
		{"a zero custom resource", &customResource{}, CodecJSON},
		{"a type that has protobuf methods only from its ObjectMeta", &embedsObjectMeta{metav1.ObjectMeta{Name: "a", ResourceVersion: "3"}, "n"}, CodecJSON},
		{"a type that has protobuf methods only from a Pod", &embedsPod{*newTestPod(t), "n"}, CodecJSON},
		{"a type that has protobuf methods from the shallower of two", &embedsAtTwoDepths{metav1.ObjectMeta{Name: "a"}, embedsObjectMeta{Node: "m"}, "n"}, CodecJSON},
		{"a type that has protobuf methods only from a pointer", &embedsPointer{newTestPod(t), "n"}, CodecJSON},
		{"a struct without metadata", &noMetadata{"a", []int{1, 2}}, CodecJSON},
		{"a struct that is not a pointer", noMetadata{"a", []int{1, 2}}, CodecJSON},
		{"a string", "a", CodecJSON},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if c := goTypeOf(tc.obj).codec; c != tc.codec {
				t.Errorf("codec = %v, want %v", c, tc.codec)
			}
			newObject := func() any {
				if typ := reflect.TypeOf(tc.obj); typ.Kind() == reflect.Pointer {
					return reflect.New(typ.Elem()).Interface()
				}
				return reflect.Zero(reflect.TypeOf(tc.obj)).Interface()
			}
			got := roundTrip(t, tc.obj, newObject)
			if !apiequality.Semantic.DeepEqual(tc.obj, got) {
				t.Errorf("-want +got:\n%s", objectDiff(tc.obj, got))
			}
		})
	}
}

func TestCodecDecodeRefusesAnotherType(t *testing.T) {
	pod := recordOf(t, newTestPod(t))
	noLongerProtobuf := recordOf(t, newCustomResource())
	noLongerProtobuf.Codec = CodecProtobuf

	for _, tc := range []struct {
		name      string
		rec       Record
		newObject func() any
		want      error
	}{
		{"another kind whose protobuf would decode", pod, func() any { return &corev1.Node{} }, ErrTypeMismatch},
		{"metadata only", pod, func() any { return &metav1.PartialObjectMetadata{} }, ErrTypeMismatch},
		{"unstructured", pod, func() any { return &unstructured.Unstructured{} }, ErrTypeMismatch},
		{"a value instead of a pointer", pod, func() any { return corev1.Pod{} }, ErrTypeMismatch},
		{"no type at all", pod, nil, ErrTypeMismatch},
		{"nil", pod, func() any { return nil }, ErrTypeMismatch},
		{"a nil pointer", pod, func() any { return (*corev1.Pod)(nil) }, ErrTypeMismatch},
		{"unstructured read as typed", recordOf(t, &unstructured.Unstructured{}), func() any { return &corev1.Pod{} }, ErrTypeMismatch},
		{"a type that had protobuf when it was written", noLongerProtobuf, func() any { return &customResource{} }, ErrTypeMismatch},
		{"an unknown codec", Record{Codec: 99, TypeName: pod.TypeName}, func() any { return &corev1.Pod{} }, ErrTypeMismatch},
		{"a body that is cut short", Record{Codec: CodecProtobuf, TypeName: pod.TypeName, Body: pod.Body[:100]}, func() any { return &corev1.Pod{} }, ErrBadRecord},
	} {
		t.Run(tc.name, func(t *testing.T) {
			obj, err := tc.rec.Decode(tc.newObject)
			if !errors.Is(err, tc.want) {
				t.Errorf("err = %v, want %v", err, tc.want)
			}
			if obj != nil {
				t.Errorf("got an object with the error: %v", obj)
			}
		})
	}
}

// panicky stands for custom marshallers that panic on unexpected input.
type panicky struct{}

func (panicky) MarshalJSON() ([]byte, error) { panic("marshal") }
func (*panicky) UnmarshalJSON([]byte) error  { panic("unmarshal") }

func TestCodecSurvivesPanics(t *testing.T) {
	dst := []byte("kept")
	out, err := appendRecord(dst, 1, &panicky{})
	if !errors.Is(err, ErrNotEncodable) || string(out) != "kept" {
		t.Errorf("Append = %q, %v; want dst and ErrNotEncodable", out, err)
	}
	rec := Record{Codec: CodecJSON, TypeName: goTypeOf(&panicky{}).name, Body: []byte("{}")}
	if _, err := rec.Decode(func() any { return &panicky{} }); !errors.Is(err, ErrBadRecord) {
		t.Errorf("Decode: %v, want ErrBadRecord", err)
	}
}

func TestCodecRefusesWhatItCannotWrite(t *testing.T) {
	for name, obj := range map[string]any{
		"nil":                         nil,
		"a nil Pod":                   (*corev1.Pod)(nil),
		"a nil Unstructured":          (*unstructured.Unstructured)(nil),
		"a type that JSON cannot do":  &struct{ C chan int }{},
		"an embedded pointer, if nil": &embedsPointer{},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := appendRecord([]byte("kept"), 1, obj)
			if !errors.Is(err, ErrNotEncodable) || string(out) != "kept" {
				t.Errorf("Append = %q, %v; want dst and ErrNotEncodable", out, err)
			}
		})
	}
}

// TestCodecOnlyReadsSharedObjects fails under the race detector if encoding
// writes to an object that handlers are reading: a Quantity caches its text
// when it is first marshalled.
func TestCodecOnlyReadsSharedObjects(t *testing.T) {
	pod := newTestPod(t) // Has a limit of 512Mi, and parsing that does not fill the cache.
	encoded(t, pod)
	decoded := roundTrip(t, newTestPod(t), func() any { return &corev1.Pod{} }).(*corev1.Pod)
	custom := newCustomResource()
	custom.MaxSize = resource.NewQuantity(512<<20, resource.BinarySI)

	for _, tc := range []struct {
		obj  any
		read func()
	}{
		{pod, func() { pod.DeepCopy() }},
		{decoded, func() { decoded.DeepCopy() }},
		{custom, func() { custom.MaxSize.DeepCopy() }},
	} {
		var wg sync.WaitGroup
		wg.Go(tc.read)
		wg.Go(func() {
			if _, err := appendRecord(nil, 1, tc.obj); err != nil {
				t.Error(err)
			}
		})
		wg.Wait()
	}
}

// keeper keeps the slice that it was decoded from, as some custom types do.
type keeper struct{ raw []byte }

func (k *keeper) UnmarshalJSON(b []byte) error { k.raw = b; return nil }
func (k keeper) MarshalJSON() ([]byte, error)  { return k.raw, nil }

// TestWhatACustomTypeKeepsStaysAsItIs, although the bytes of a record are only lent.
func TestWhatACustomTypeKeepsStaysAsItIs(t *testing.T) {
	type custom struct {
		metav1.ObjectMeta `json:"metadata"`
		Spec              keeper `json:"spec"`
	}
	want := &custom{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: keeper{[]byte(`{"a":[1,2,3]}`)}}
	got := roundTrip(t, want, func() any { return new(custom) }).(*custom)
	if !bytes.Equal(got.Spec.raw, want.Spec.raw) {
		t.Errorf("spec is %q, want %q", got.Spec.raw, want.Spec.raw)
	}
}
