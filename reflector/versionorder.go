package reflector

import (
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/warmwatch/warmwatch/checkpoint"
)

// A versionOrder finds out whether the versions of a list and of its objects have a common order. kube-apiserver has
// no list with an object that is newer than the list.
type versionOrder struct {
	newest string // Of the objects.
	beyond bool   // An object is newer than the list or page that has it.
}

// see is called for each object of a list, with the version of the list or page that has it. In a stream that is
// not known before the end, see check.
func (o *versionOrder) see(resourceVersion, listed string) {
	if newest := checkpoint.Later(o.newest, resourceVersion); newest != o.newest {
		o.newest = newest
		o.check(listed)
	}
}

func (o *versionOrder) seeObject(obj runtime.Object, listed string) {
	if m, err := meta.Accessor(obj); err == nil { // Else it cannot be stored either.
		o.see(m.GetResourceVersion(), listed)
	}
}

// check compares the newest object with the version of its list.
func (o *versionOrder) check(listed string) {
	order, ok := checkpoint.CompareVersions(o.newest, listed)
	o.beyond = o.beyond || ok && order > 0
}
