package record

import (
	"bytes"
	"errors"
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

// TestEncode: the record has room for a checksum behind it, and another one does not change it.
func TestEncode(t *testing.T) {
	for _, size := range []int{0, 1, 400, 600, 1000, 5000, 1 << 20} {
		o := encoded(t, configMap("x", size))
		o.SetSeq(1 << 60)
		r, err := Parse(o.Record())
		if err != nil || r.Seq != 1<<60 || o.SizeBytes() != len(o.Record()) {
			t.Errorf("seq %d, %v", r.Seq, err)
		}
		if room := cap(o.Record()) - len(o.Record()); room < 4 {
			t.Errorf("%d bytes: there is room for %d", size, room)
		}
	}
	for name, obj := range map[string]any{
		"a nil pointer": (*corev1.Pod)(nil),
		"nil":           nil,
		"panics":        &panicky{},
	} {
		if o, err := Encode(obj); !errors.Is(err, ErrNotEncodable) {
			t.Errorf("%s: encoded as %v, %v", name, o, err)
		}
	}
}

// TestAStoredObjectIsWrittenAsItWasRead: a body that differs from the encoded object
// shows that the object was not encoded.
func TestAStoredObjectIsWrittenAsItWasRead(t *testing.T) {
	u := func(name string) any { return &unstructured.Unstructured{Object: map[string]any{"name": name}} }
	for name, c := range map[string]struct{ read, obj any }{
		"protobuf":      {configMap("read", 5000), configMap("decoded", 5000)},
		"an empty body": {&corev1.ConfigMap{}, configMap("decoded", 1)},
		"unstructured":  {u("read"), u("decoded")},
	} {
		read := recordOf(t, c.read)
		want := bytes.Clone(read.raw)
		o := StoredObject(c.obj, read)
		for i := range read.raw { // What was read is not valid any more.
			read.raw[i] = 0xff
		}
		if r, err := Parse(o.Record()); err != nil || !bytes.Equal(o.Record(), want) || !bytes.Equal(r.Body, o.body) {
			t.Errorf("%s: %q, expected %q (%v)", name, o.Record(), want, err)
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
			payload, err := appendRecord(nil, 1, c.stored)
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
			if got := encoded(t, c.now).Same(r, newObject); got != c.same {
				t.Errorf("the record: %v, expected %v", got, c.same)
			}
			if body, ok := c.now.(*corev1.ConfigMap); ok && body.Kind == "" { // In protobuf.
				bytes, err := body.Marshal()
				if got := r.IsEncodedAs(bytes); got != c.same || err != nil {
					t.Errorf("its bytes: %v, expected %v (%v)", got, c.same, err)
				}
			}
		})
	}
}

func TestTheSameContentHasTheSameBytes(t *testing.T) {
	content := map[string]any{}
	for _, key := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		content[key] = map[string]any{"x": int64(1), "y": "z", key: nil}
	}
	encode := func() string {
		b, err := appendRecord(nil, 1, &unstructured.Unstructured{Object: content})
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
