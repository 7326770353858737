package checkpoint

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// An ObjectVersion identifies one state of one object on the server. It does not depend on the transform, nor on
// whether the object is stored.
type ObjectVersion struct {
	Namespace       string    `json:"namespace,omitempty"`
	Name            string    `json:"name,omitempty"`
	UID             types.UID `json:"uid,omitempty"`
	ResourceVersion string    `json:"resourceVersion,omitempty"`
}

// VersionOf returns the version of an object.
func VersionOf(m metav1.Object) ObjectVersion {
	return ObjectVersion{m.GetNamespace(), m.GetName(), m.GetUID(), m.GetResourceVersion()}
}

// CompareVersions compares two resourceVersions. ok is false if one of them is no number: then they have no order
// (KEP-5504).
func CompareVersions(a, b string) (order int, ok bool) {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return order, err == nil
}

// HasOrder reports whether a resourceVersion can be compared with others.
func HasOrder(resourceVersion string) bool {
	_, ok := CompareVersions(resourceVersion, resourceVersion)
	return ok
}

// Later returns the later of two resourceVersions. If only one of them has an order, it returns that one.
func Later(a, b string) string {
	if order, ok := CompareVersions(a, b); ok && order < 0 || !HasOrder(a) {
		return b
	}
	return a
}

// Key returns namespace/name.
func (v ObjectVersion) Key() string {
	if v.Namespace == "" {
		return v.Name
	}
	return v.Namespace + "/" + v.Name
}
