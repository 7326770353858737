package persist

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

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
			payload, err := AppendObject(nil, 1, c.stored)
			if err != nil {
				t.Fatal(err)
			}
			r, err := ParseRecord(payload)
			if err != nil {
				t.Fatal(err)
			}
			newObject := func() any { return c.stored.DeepCopyObject() }
			if _, ok := c.stored.(*corev1.ConfigMap); ok {
				newObject = func() any { return &corev1.ConfigMap{} }
			}
			if got := NewObject(0, c.now).Same(r, newObject); got != c.same {
				t.Errorf("the record: %v, expected %v", got, c.same)
			}
			if got := NewObject(0, c.now).SameObject(c.stored); got != c.same {
				t.Errorf("in memory: %v, expected %v", got, c.same)
			}
		})
	}
}

// TestNoEncodingIsKeptWhereNothingCanBeWritten: the object may stay in memory for long.
func TestNoEncodingIsKeptWhereNothingCanBeWritten(t *testing.T) {
	obj := &unstructured.Unstructured{Object: map[string]any{"a": "b"}}
	b, err := AppendObject(nil, 1, obj)
	if err != nil {
		t.Fatal(err)
	}
	r, err := ParseRecord(b)
	if err != nil {
		t.Fatal(err)
	}
	newObject := func() any { return new(unstructured.Unstructured) }
	db := open(t, tempPath(t), manual)
	for _, keeps := range []bool{true, false} {
		db.mu.Lock()
		if !keeps {
			db.commitErr = errors.New("no space left on device")
		}
		db.mu.Unlock()
		o := db.NewObject(obj)
		if same := o.Same(r, newObject); !same || (o.ahead != nil) != keeps {
			t.Errorf("the same: %v, its encoding is kept: %v, expected %v", same, o.ahead != nil, keeps)
		}
	}
	db.mu.Lock()
	db.commitErr = nil
	db.mu.Unlock()
}

func TestTheSameContentHasTheSameBytes(t *testing.T) {
	content := map[string]any{}
	for _, key := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		content[key] = map[string]any{"x": int64(1), "y": "z", key: nil}
	}
	encode := func() string {
		b, err := AppendObject(nil, 1, &unstructured.Unstructured{Object: content})
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
