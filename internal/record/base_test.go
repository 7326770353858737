package record

import (
	"fmt"
	"math/rand"
	"reflect"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
)

func encoded(tb testing.TB, obj any) *Object {
	tb.Helper()
	o, err := Encode(obj)
	if err != nil {
		tb.Fatal(err)
	}
	return o
}

// appendRecord appends the record of obj.
func appendRecord(dst []byte, seq uint64, obj any) ([]byte, error) {
	o, err := Encode(obj)
	if err != nil {
		return dst, err
	}
	o.SetSeq(seq)
	return append(dst, o.Record()...), nil
}

func recordOf(tb testing.TB, obj any) Record {
	tb.Helper()
	payload, err := appendRecord(nil, 1, obj)
	if err != nil {
		tb.Fatal(err)
	}
	rec, err := Parse(payload)
	if err != nil {
		tb.Fatal(err)
	}
	return rec
}

// mix takes parts of the object that from holds into the one that v holds, at
// every depth: what an update may look like.
func mix(random *rand.Rand, v, from reflect.Value) {
	switch {
	case random.Intn(4) == 0:
		v.Set(from)
	case v.Kind() == reflect.Struct && v.Type() != quantityType && strings.HasPrefix(v.Type().PkgPath(), "k8s.io/"):
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				mix(random, v.Field(i), from.Field(i))
			}
		}
	case v.Kind() == reflect.Slice:
		for i := range min(v.Len(), from.Len()) {
			mix(random, v.Index(i), from.Index(i))
		}
		switch n := v.Len(); {
		case n > 0 && random.Intn(4) == 0:
			v.Set(v.Slice(0, n-1))
		case from.Len() > 0 && random.Intn(4) == 0:
			v.Set(reflect.Append(v, from.Index(0)))
		}
	}
}

// TestDecodeNearIsDecode, for every type that client-go knows, and all sorts of
// differences between two versions of an object.
func TestDecodeNearIsDecode(t *testing.T) {
	rounds := 20
	if testing.Short() {
		rounds = 4
	}
	for gvk, goType := range scheme.Scheme.AllKnownTypes() {
		object := func() any { return reflect.New(goType).Interface() }
		if _, hasMeta := object().(metav1.Object); !hasMeta || gvk.Version == runtime.APIVersionInternal {
			continue
		}
		name := strings.Join([]string{gvk.Group, gvk.Version, gvk.Kind}, "/")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			filler, random := newObjectFiller(name), rand.New(rand.NewSource(*codecSeed))
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("repeat with -codecseed=%d", *codecSeed)
				}
			})
			for round := range rounds {
				older, other := object(), object()
				filler.Fill(older)
				filler.Fill(other)
				newer := older.(runtime.Object).DeepCopyObject()
				switch round {
				case 0: // The same.
				case 1:
					newer = object().(runtime.Object)
				default:
					mix(random, reflect.ValueOf(newer).Elem(), reflect.ValueOf(other.(runtime.Object).DeepCopyObject()).Elem())
				}
				if round%2 == 0 {
					newer.GetObjectKind().SetGroupVersionKind(gvk)
				}
				checkDecodeNear(t, older, newer, object)
			}
		})
	}
}

func checkDecodeNear(t *testing.T, older any, newer runtime.Object, object func() any) {
	t.Helper()
	rec, near := recordOf(t, older), encoded(t, newer)
	untouched := newer.DeepCopyObject()
	want, err := rec.Decode(object)
	if err != nil {
		t.Fatal(err)
	}
	if !decodeWithBase(object(), newer, rec.Body, near.body) {
		t.Error("could not be decoded beside the other")
	}
	got, err := rec.DecodeNear(object, near)
	if err != nil {
		t.Fatal(err)
	}
	clear(rec.Body)
	clear(near.body)
	if !apiequality.Semantic.DeepEqual(want, got) {
		t.Errorf("-want +got:\n%s", objectDiff(want, got))
	}
	if !apiequality.Semantic.DeepEqual(untouched, newer) {
		t.Errorf("the newer object has changed: -want +got:\n%s", objectDiff(untouched, newer))
	}
}

// TestDecodeNearSharesWhatIsAlike: fields that are encoded alike are shared, not decoded.
func TestDecodeNearSharesWhatIsAlike(t *testing.T) {
	older := newTestPod(t)
	older.ManagedFields = []metav1.ManagedFieldsEntry{
		{Manager: "kubelet", FieldsV1: metav1.NewFieldsV1(`{"f:status":{}}`)},
		{Manager: "kubectl", FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{}}`)},
	}
	older.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady}, {Type: corev1.PodScheduled}}
	older.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app"}}
	newer := older.DeepCopy()
	newer.ResourceVersion += "0"
	newer.Labels = map[string]string{"other": "label"}
	newer.ManagedFields[1].Manager = "helm"
	newer.Status.Conditions[0].Message = "changed"

	object := func() any { return &corev1.Pod{} }
	got, err := recordOf(t, older).DecodeNear(object, encoded(t, newer))
	if err != nil {
		t.Fatal(err)
	}
	pod := got.(*corev1.Pod)
	if !apiequality.Semantic.DeepEqual(older, pod) {
		t.Errorf("-want +got:\n%s", objectDiff(older, pod))
	}
	for what, shared := range map[string]bool{
		"the containers":                &pod.Spec.Containers[0] == &newer.Spec.Containers[0],
		"a managed field":               pod.ManagedFields[0].FieldsV1 == newer.ManagedFields[0].FieldsV1,
		"a part of the other":           pod.ManagedFields[1].FieldsV1 == newer.ManagedFields[1].FieldsV1,
		"the statuses of the container": &pod.Status.ContainerStatuses[0] == &newer.Status.ContainerStatuses[0],
	} {
		if !shared {
			t.Errorf("%s is not shared", what)
		}
	}
}

// TestDecodeNearOfAnotherType decodes as if there were no base object.
func TestDecodeNearOfAnotherType(t *testing.T) {
	older := newTestPod(t)
	for name, near := range map[string]*Object{
		"nothing near":         nil,
		"without a body":       {Object: newTestPod(t)},
		"of another type":      encoded(t, &corev1.ConfigMap{ObjectMeta: older.ObjectMeta}),
		"with another message": {Object: newTestPod(t), body: []byte("\xff")},
	} {
		got, err := recordOf(t, older).DecodeNear(func() any { return &corev1.Pod{} }, near)
		if err != nil || !apiequality.Semantic.DeepEqual(older, got) {
			t.Errorf("%s: %v, -want +got:\n%s", name, err, objectDiff(older, got))
		}
	}
}

// FuzzDecodeNear: for any bytes, also of the base object, DecodeNear returns the same object or error
// as Decode.
func FuzzDecodeNear(f *testing.F) {
	pod := newTestPod(f)
	near := encoded(f, pod)
	f.Add(near.body, near.body)
	for _, change := range []func(*corev1.Pod){
		func(p *corev1.Pod) { p.Labels["fuzz"] = "ed" },
		func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed },
		func(p *corev1.Pod) { p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "more"}) },
		func(p *corev1.Pod) { p.ManagedFields = []metav1.ManagedFieldsEntry{{}} },
	} {
		changed := pod.DeepCopy()
		change(changed)
		body, err := changed.Marshal()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(near.body, body)
		f.Add(near.body, append(slices.Clone(body), body...))
		f.Add(append(slices.Clone(body), near.body...), body)
	}
	object := func() any { return &corev1.Pod{} }
	f.Fuzz(func(t *testing.T, baseBody, body []byte) {
		rec := Record{Codec: CodecProtobuf, TypeName: goTypeOf(pod).name, Body: body}
		baseRecord := rec
		baseRecord.Body = baseBody
		base, err := baseRecord.Decode(object)
		if err != nil {
			return
		}
		want, wantErr := rec.Decode(object)
		got, err := rec.DecodeNear(object, BaseObject(base, baseRecord))
		if fmt.Sprint(err) != fmt.Sprint(wantErr) || (err == nil && !apiequality.Semantic.DeepEqual(want, got)) {
			t.Errorf("%v, expected %v; -want +got:\n%s", err, wantErr, objectDiff(want, got))
		}
	})
}

// The types below have methods that generators of protobuf write, in ways that those
// of k8s.io/api do not need.

// part is a message with one string.
type part struct {
	Text string `protobuf:"bytes,1,opt,name=text"`
}

func (p *part) Size() int { return len(p.encode()) }
func (p *part) encode() []byte {
	return protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), p.Text)
}
func (p *part) MarshalToSizedBuffer(b []byte) (int, error) { return fromTheEnd(b, p.encode()) }
func (p *part) Unmarshal(b []byte) error {
	return eachField(b, func(_ protowire.Number, v []byte) error { p.Text = string(v); return nil })
}

// parts is a list in a message of its own (+protobuf.nullable).
type parts []part

func (ps *parts) Size() int { return len(ps.encode()) }
func (ps *parts) encode() (b []byte) {
	for _, p := range *ps {
		b = protowire.AppendBytes(protowire.AppendTag(b, 1, protowire.BytesType), p.encode())
	}
	return b
}
func (ps *parts) MarshalToSizedBuffer(b []byte) (int, error) { return fromTheEnd(b, ps.encode()) }
func (ps *parts) Unmarshal(b []byte) error {
	return eachField(b, func(_ protowire.Number, v []byte) error {
		*ps = append(*ps, part{})
		return (&(*ps)[len(*ps)-1]).Unmarshal(v)
	})
}

// whole has parts, and empties itself before it is decoded.
type whole struct {
	One  part   `protobuf:"bytes,1,opt,name=one"`
	Many []part `protobuf:"bytes,2,rep,name=many"`
	List parts  `protobuf:"bytes,3,rep,name=list"`
	Name string `protobuf:"bytes,4,opt,name=name"`
}

func (w *whole) Size() int { return len(w.encode()) }
func (w *whole) encode() []byte {
	b := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), w.One.encode())
	for _, p := range w.Many {
		b = protowire.AppendBytes(protowire.AppendTag(b, 2, protowire.BytesType), p.encode())
	}
	b = protowire.AppendBytes(protowire.AppendTag(b, 3, protowire.BytesType), w.List.encode())
	return protowire.AppendString(protowire.AppendTag(b, 4, protowire.BytesType), w.Name)
}
func (w *whole) MarshalToSizedBuffer(b []byte) (int, error) { return fromTheEnd(b, w.encode()) }
func (w *whole) Unmarshal(b []byte) error {
	*w = whole{}
	return eachField(b, func(number protowire.Number, v []byte) error {
		switch number {
		case 1:
			return w.One.Unmarshal(v)
		case 2:
			w.Many = append(w.Many, part{})
			return (&w.Many[len(w.Many)-1]).Unmarshal(v)
		case 3:
			return w.List.Unmarshal(v)
		default:
			w.Name = string(v)
			return nil
		}
	})
}

func fromTheEnd(b, encoded []byte) (int, error) { return copy(b[len(b)-len(encoded):], encoded), nil }

func eachField(b []byte, do func(protowire.Number, []byte) error) error {
	for len(b) > 0 {
		number, _, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		v, size := protowire.ConsumeBytes(b[n:])
		if size < 0 {
			return protowire.ParseError(size)
		}
		if err := do(number, v); err != nil {
			return err
		}
		b = b[n+size:]
	}
	return nil
}

func TestDecodeNearOfUnusualTypes(t *testing.T) {
	texts := func(s ...string) (ps []part) {
		for _, text := range s {
			ps = append(ps, part{text})
		}
		return ps
	}
	all := []*whole{
		{}, {Name: "name"}, {One: part{"one"}, Name: "name"}, {One: part{"one"}, Name: "other"},
		{Many: texts("a", "b"), List: texts("a", "b")}, {Many: texts("a", "c"), List: texts("a", "c")},
		{Many: texts("a"), List: texts("a", "b", "c"), Name: "name"},
	}
	for _, older := range all {
		for _, newer := range all {
			got, err := recordOf(t, older).DecodeNear(func() any { return &whole{} }, encoded(t, newer))
			if err != nil || !apiequality.Semantic.DeepEqual(older, got) {
				t.Errorf("beside %+v: %v, %+v, expected %+v", newer, err, got, older)
			}
		}
	}
}

// TestAppendingToWhatIsSharedCopies: appending to a list of the old object, and to the
// same list of the new one, gives two lists.
func TestAppendingToWhatIsSharedCopies(t *testing.T) {
	older := newTestPod(t)
	older.Finalizers = append(make([]string, 0, 8), "a", "b", "c")
	newer := older.DeepCopy()
	newer.Finalizers = append(make([]string, 0, 8), "a", "b", "c")
	newer.ResourceVersion += "0"
	got, err := recordOf(t, older).DecodeNear(func() any { return &corev1.Pod{} }, encoded(t, newer))
	if err != nil {
		t.Fatal(err)
	}
	one := append(got.(*corev1.Pod).Finalizers, "old")
	other := append(newer.Finalizers, "new")
	if one[3] != "old" || other[3] != "new" {
		t.Errorf("%v, %v", one, other)
	}
}
