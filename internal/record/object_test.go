package record

import (
	"bytes"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

func configMap(name string, sizeBytes int) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"data": strings.Repeat(name, sizeBytes)}}
}

// TestWhatIsEncodedAhead: objects of protobuf types, whatever their size, if they will be
// written soon. Of others it is cheaper to estimate the size.
func TestWhatIsEncodedAhead(t *testing.T) {
	for _, size := range []int{0, 1, 400, 600, 1000, 5000, 1 << 20} {
		obj := configMap("x", size)
		o := NewObject(obj, true)
		if o.body == nil {
			t.Errorf("%d bytes are not encoded ahead", size)
		}
		want, err := Append(nil, 0, obj)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(want); o.SizeBytes() < n-100 || o.SizeBytes() > n+100 {
			t.Errorf("the size is %d, the record has %d", o.SizeBytes(), n)
		}
	}
	for name, obj := range map[string]any{
		"unstructured":  &unstructured.Unstructured{Object: map[string]any{"a": "b"}},
		"JSON":          &customResource{},
		"a nil pointer": (*corev1.Pod)(nil),
		"nil":           nil,
		"panics":        &panicky{},
	} {
		if o := NewObject(obj, true); o.body != nil || o.SizeBytes() <= 0 {
			t.Errorf("%s: encoded as %v, %d bytes", name, o.body, o.SizeBytes())
		}
	}
	if o := NewObject(newTestPod(t), false); o.body != nil || o.SizeBytes() <= 0 {
		t.Errorf("not to be written soon: encoded as %v, %d bytes", o.body, o.SizeBytes())
	}
	if _, err := goTypeOf(&panicky{}).encode(&panicky{}); err == nil {
		t.Error("what panics was encoded")
	}
}

// TestAStoredObjectIsWrittenAsItWasRead: a body that differs from the encoded object
// shows that the object was not encoded.
func TestAStoredObjectIsWrittenAsItWasRead(t *testing.T) {
	asJSON := recordOf(t, configMap("read", 10))
	asJSON.Codec = CodecJSON
	u := func(name string) any { return &unstructured.Unstructured{Object: map[string]any{"name": name}} }
	for _, c := range []struct {
		name    string
		soon    bool
		read    Record
		obj     any
		asItWas bool
		anew    Record
	}{
		{"protobuf", true, recordOf(t, configMap("read", 5000)), configMap("decoded", 5000), true, recordOf(t, configMap("decoded", 5000))},
		{"an empty body", true, recordOf(t, &corev1.ConfigMap{}), &corev1.ConfigMap{}, true, recordOf(t, &corev1.ConfigMap{})},
		{"unstructured", true, recordOf(t, u("read")), u("decoded"), true, recordOf(t, u("decoded"))},
		{"another codec than the type has now", true, asJSON, configMap("decoded", 10), false, recordOf(t, configMap("decoded", 10))},
		{"not to be written soon", false, recordOf(t, configMap("read", 10)), configMap("decoded", 10), false, recordOf(t, configMap("decoded", 10))},
	} {
		o := StoredObject(c.obj, c.read, c.soon)
		want := bytes.Clone(c.read.Body)
		for i := range c.read.Body { // What was read is not valid any more.
			c.read.Body[i] = 0xff
		}
		if !c.asItWas {
			want = c.anew.Body
		}
		for range 2 { // A commit that has failed is tried again.
			b, err := o.AppendTo(nil)
			if err != nil {
				t.Fatal(err)
			}
			got, err := Parse(b)
			if err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			if !bytes.Equal(got.Body, want) || got.Seq != c.read.Seq || got.Codec != goTypeOf(c.obj).codec {
				t.Errorf("%s: seq %d, codec %v, body %q, expected %q", c.name, got.Seq, got.Codec, got.Body, want)
			}
		}
	}
}

func TestTheSameVersionIsTheSameObjectOnlyWithTheSameContent(t *testing.T) {
	typed := func(change func(*corev1.ConfigMap)) runtime.Object {
		cm := &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: "1", ResourceVersion: "5"},
			Data:       map[string]string{"a": "1", "b": "2", "c": "3"},
		}
		change(cm)
		return cm
	}
	custom := func(change func(map[string]any)) runtime.Object {
		content := map[string]any{
			"metadata": map[string]any{"namespace": "ns", "name": "a", "uid": "1", "resourceVersion": "5"},
			"spec":     map[string]any{"a": int64(1), "b": []any{"x"}, "c": map[string]any{"d": nil}},
		}
		change(content)
		return &unstructured.Unstructured{Object: content}
	}
	for _, c := range []struct {
		name        string
		stored, now runtime.Object
		same        bool
	}{
		{"equal", typed(func(*corev1.ConfigMap) {}), typed(func(*corev1.ConfigMap) {}), true},
		{"other content", typed(func(*corev1.ConfigMap) {}), typed(func(cm *corev1.ConfigMap) { cm.Data["c"] = "4" }), false},
		{"other uid", typed(func(*corev1.ConfigMap) {}), typed(func(cm *corev1.ConfigMap) { cm.UID = "2" }), false},
		{"other version", typed(func(*corev1.ConfigMap) {}), typed(func(cm *corev1.ConfigMap) { cm.ResourceVersion = "6" }), false},
		{"with and without kind", typed(func(*corev1.ConfigMap) {}), typed(func(cm *corev1.ConfigMap) { cm.Kind, cm.APIVersion = "ConfigMap", "v1" }), true},
		{"other Go type", typed(func(*corev1.ConfigMap) {}), custom(func(map[string]any) {}), false},
		{"custom: equal", custom(func(map[string]any) {}), custom(func(map[string]any) {}), true},
		{"custom: a default was added", custom(func(map[string]any) {}), custom(func(u map[string]any) { u["spec"].(map[string]any)["mode"] = "auto" }), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			payload, err := Append(nil, 1, c.stored)
			if err != nil {
				t.Fatal(err)
			}
			r, err := Parse(payload)
			if err != nil {
				t.Fatal(err)
			}
			newObject := func() any { return c.stored.DeepCopyObject() }
			if _, ok := c.stored.(*corev1.ConfigMap); ok {
				newObject = func() any { return &corev1.ConfigMap{} }
			}
			if got := NewObject(c.now, false).Same(r, newObject); got != c.same {
				t.Errorf("the record: %v, expected %v", got, c.same)
			}
			if body, ok := c.now.(*corev1.ConfigMap); ok && body.Kind == "" { // In protobuf.
				encoded, err := body.Marshal()
				if got := r.IsEncodedAs(encoded); got != c.same || err != nil {
					t.Errorf("its bytes: %v, expected %v (%v)", got, c.same, err)
				}
				if got := NewObject(c.stored, true).IsEncodedAs(encoded); got != c.same {
					t.Errorf("the bytes in memory: %v, expected %v", got, c.same)
				}
			}
			if got := NewObject(c.now, false).SameObject(c.stored); got != c.same {
				t.Errorf("in memory: %v, expected %v", got, c.same)
			}
		})
	}
}

// TestNoEncodingIsKeptWhereNothingCanBeWritten: the object may stay in memory for long.
func TestNoEncodingIsKeptWhereNothingCanBeWritten(t *testing.T) {
	obj := &unstructured.Unstructured{Object: map[string]any{"a": "b"}}
	b, err := Append(nil, 1, obj)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	newObject := func() any { return new(unstructured.Unstructured) }
	for _, soon := range []bool{true, false} {
		o := NewObject(obj, soon)
		if same := o.Same(r, newObject); !same || (o.body != nil) != soon {
			t.Errorf("the same: %v, its encoding is kept: %v, expected %v", same, o.body != nil, soon)
		}
	}
}

func TestTheSameContentHasTheSameBytes(t *testing.T) {
	content := map[string]any{}
	for _, key := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		content[key] = map[string]any{"x": int64(1), "y": "z", key: nil}
	}
	encode := func() string {
		b, err := Append(nil, 1, &unstructured.Unstructured{Object: content})
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	first := encode()
	for range 20 {
		if encode() != first {
			t.Fatal("the bytes differ")
		}
	}
}
