package source

import (
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// ByContent indexes ConfigMaps by what is in them.
func ByContent(obj any) ([]string, error) {
	var values []string
	for _, v := range obj.(*corev1.ConfigMap).Data {
		values = append(values, v)
	}
	return values, nil
}

// Names are the sorted names of objects, or the error.
func Names[T any](objs []T, err error) []string {
	if err != nil {
		return []string{err.Error()}
	}
	ns := make([]string, 0, len(objs))
	for _, obj := range objs {
		ns = append(ns, Meta(obj).GetName())
	}
	slices.Sort(ns)
	return ns
}

// At returns an object of this version, as a server with another history has it.
func At(rv, uid, name, content string) *corev1.ConfigMap {
	cm := ConfigMap(name, content)
	cm.ResourceVersion, cm.UID = rv, types.UID(uid)
	return cm
}

// ConfigMap returns an object with some content.
func ConfigMap(name string, content ...string) *corev1.ConfigMap {
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	if len(content) > 0 {
		cm.Data = map[string]string{"v": content[0]}
	}
	return cm
}

// Meta returns the metadata of an object.
func Meta(obj any) metav1.Object {
	m, err := meta.Accessor(obj)
	if err != nil {
		panic(err)
	}
	return m
}

// Key returns the key of an object, or of a tombstone.
func Key(obj any) string {
	key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj)
	if err != nil {
		panic(err)
	}
	return key
}

// Versions are objects as key@resourceVersion, sorted.
func Versions[T any](objects []T) []string {
	vs := make([]string, 0, len(objects))
	for _, obj := range objects {
		vs = append(vs, Version(obj))
	}
	slices.Sort(vs)
	return vs
}

// Version is an object as key@resourceVersion.
func Version(obj any) string { return Key(obj) + "@" + Meta(obj).GetResourceVersion() }

// VersionNumber is the resourceVersion of an object.
func VersionNumber(obj any) int64 {
	n, _ := strconv.ParseInt(Meta(obj).GetResourceVersion(), 10, 64)
	return n
}
