package reflector

import (
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/warmwatch/warmwatch/internal/checkpoint"
)

// A History is what a Store has. The Resumer compares the server's answers with it.
type History interface {
	// Empty reports whether nothing was ever stored.
	Empty() bool
	// Contradicts reports whether the store should have this very version of an object, which is not newer
	// than the store, and has another one or none. It returns false where that is not certain.
	Contradicts(v checkpoint.ObjectVersion) bool
	// Stored returns how many objects the store has.
	Stored() int
	// Counts reports whether the store has so many objects, or may have others because it has refused some.
	Counts(objects int64) bool
	// Comparable reports whether each object of the store is what the server has of it if uid and
	// resourceVersion are the same: the contents of all were compared when the
	// server's schema was this one.
	Comparable(schema string) bool
}

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
