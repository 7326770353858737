package reflector

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/warmwatch/warmwatch/internal/checkpoint"
	"github.com/warmwatch/warmwatch/internal/request"
)

// A History is what a Store knows of the past of its server. The Resumer compares the
// server's answers with it, because a server that was restored from a backup, or is
// another one, may be beyond the store's resourceVersion: a watch would then go on
// there, after events that the store does not have.
type History interface {
	// Empty reports whether nothing was ever stored.
	Empty() bool
	// Misses reports whether the store should have this very version of an object,
	// which is not newer than the store, and has another one or none. It returns
	// false where that is not certain. It may change obj.
	Misses(obj runtime.Object) bool
	// Stored returns how many objects the store has.
	Stored() int
	// Comparable reports whether each object of the store is what the server has of it if uid and
	// resourceVersion are the same: the contents of all were compared when the
	// server's schema was this one.
	Comparable(schema string) bool
	// Last returns the object that was added or changed last; it may have been
	// deleted since. False if it is not known, or must not be asked for by name.
	Last() (checkpoint.ObjectVersion, bool)
	// Listed is called with the newest object of a list, before Relist.Finish. The
	// zero value means that it is not known.
	Listed(newest checkpoint.ObjectVersion)
}

// maxCheckedItems is how many objects of an answer are compared. One was asked for, but
// some servers and ListerWatchers ignore a limit.
const maxCheckedItems = 100

// checkAnswer compares an answer of the server with the store, which is at rv. It
// returns how to relist if they may not be of one history.
func (r *Resumer) checkAnswer(list runtime.Object, rv string) (*Relisting, error) {
	if r.hasNoOrder() { // Any answer is possible. A server that is behind rv refuses to answer.
		return nil, nil
	}
	m, err := meta.ListAccessor(list)
	if err != nil {
		return nil, fmt.Errorf("understand list %T: %w", list, err)
	}
	version := m.GetResourceVersion()
	if order, ok := checkpoint.CompareVersions(version, rv); ok && order < 0 {
		return anotherHistory("the server answered at version %s, below resourceVersion %s", version, rv), nil
	}
	var how *Relisting
	left := maxCheckedItems
	err = meta.EachListItem(list, func(obj runtime.Object) error {
		o, err := meta.Accessor(obj)
		if left--; err != nil || left < 0 || r.history == nil {
			return nil // Not an object that the store could have, or enough of them.
		}
		v := checkpoint.VersionOf(o)
		if order, ok := checkpoint.CompareVersions(v.ResourceVersion, rv); !ok || order > 0 || how != nil {
			return nil
		}
		if r.contradicts(v, obj) {
			how = anotherHistory("the store does not have %s as the server does, at version %s", v.Key(), v.ResourceVersion)
		}
		return nil
	})
	return how, err
}

// contradicts reports whether the server cannot have this object, unless the
// store has the same.
func (r *Resumer) contradicts(v checkpoint.ObjectVersion, obj runtime.Object) bool {
	if last, ok := r.history.Last(); ok && last.Key() == v.Key() && last != v {
		return true
	}
	return r.history.Misses(obj)
}

func anotherHistory(format string, args ...any) *Relisting {
	return &Relisting{Reason: "another history: " + fmt.Sprintf(format, args...), Rewrite: true, Rewound: true}
}

// askForLast asks for the object that was changed last before rv, if the server's
// version is above rv. A server with another history has another version of that
// object. No answer, or one about other objects, proves nothing: a ListerWatcher may
// replace the field selector, and a server may not know it.
func (r *Resumer) askForLast(ctx context.Context, serverVersion, rv string) (*Relisting, error) {
	if r.history == nil {
		return nil, nil
	}
	last, known := r.history.Last()
	if order, ok := checkpoint.CompareVersions(serverVersion, rv); !known || !ok || order <= 0 {
		return nil, nil
	}
	selector := fields.OneTermEqualSelector("metadata.name", last.Name)
	if last.Namespace != "" {
		selector = fields.AndSelectors(selector, fields.OneTermEqualSelector("metadata.namespace", last.Namespace))
	}
	patient, cancel := withPatience(request.WithoutCheck(ctx)) // It asks for one object of the list only.
	defer cancel()
	list, err := r.lw.ListWithContext(patient, metav1.ListOptions{
		FieldSelector: selector.String(), Limit: 1,
		ResourceVersion: rv, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	})
	if err == nil {
		var how *Relisting
		if how, err = r.checkAnswer(list, rv); how != nil {
			return how, nil
		}
	}
	if err == nil {
		r.noteAnswer() // It is not below rv.
	}
	if err != nil {
		r.log.V(4).Info("No answer about the object that was changed last", "object", last.Key(), "err", err)
	}
	return nil, ctx.Err()
}

// newestObject finds the newest object of a list.
type newestObject struct {
	version checkpoint.ObjectVersion
	unknown bool // A version is not comparable, or the newest object is gone.
	// beyond: an object is newer than the list or page that has it. kube-apiserver has no such
	// list, so these versions have no common order.
	beyond bool
}

// see is called for each object of a list, with the version of the list or page that has
// it. In a stream that is not known before the end, see checkOrder.
func (n *newestObject) see(obj runtime.Object, listed string) {
	if m, err := meta.Accessor(obj); err == nil { // Else it cannot be stored either.
		n.seeVersion(checkpoint.VersionOf(m), listed)
	}
}

func (n *newestObject) seeVersion(v checkpoint.ObjectVersion, listed string) {
	rv := v.ResourceVersion
	if !checkpoint.HasOrder(n.version.ResourceVersion) { // It is the first one, or the first one has none.
		n.version, n.unknown = v, n.unknown || !checkpoint.HasOrder(rv)
		n.checkOrder(listed)
		return
	}
	order, ok := checkpoint.CompareVersions(rv, n.version.ResourceVersion)
	if n.unknown = n.unknown || !ok; order > 0 {
		n.version = v
		n.checkOrder(listed)
	}
}

// merge is see for the objects that other has seen.
func (n *newestObject) merge(other newestObject) {
	if other.version.ResourceVersion != "" {
		n.seeVersion(other.version, "")
	}
	n.unknown = n.unknown || other.unknown
}

// checkOrder compares the newest object with the version of its list.
func (n *newestObject) checkOrder(listed string) {
	order, ok := checkpoint.CompareVersions(n.version.ResourceVersion, listed)
	n.beyond = n.beyond || ok && order > 0
}

// gone is called for a deletion in the stream. If it is that of the newest object, it
// is not known which is the newest one left.
func (n *newestObject) gone(obj runtime.Object) {
	if m, err := meta.Accessor(obj); err == nil && checkpoint.VersionOf(m).Key() == n.version.Key() {
		n.unknown = true
	}
}

func (n *newestObject) known() checkpoint.ObjectVersion {
	if n.unknown || n.beyond {
		return checkpoint.ObjectVersion{}
	}
	return n.version
}
