package checkpoint

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// An ObjectVersion identifies one state of one object on the server, whatever a
// transform changes, and whether or not the object is stored.
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

// Key returns namespace/name.
func (v ObjectVersion) Key() string {
	if v.Namespace == "" {
		return v.Name
	}
	return v.Namespace + "/" + v.Name
}
