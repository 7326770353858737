package reflector

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/warmwatch/warmwatch/checkpoint"
)

// A History is what a Store knows of the past of its server. The answers of a
// server are compared with it: one that was restored from a backup, or is another
// one, may be beyond the store's resourceVersion, and would go on from there with
// a past that the store does not have.
type History interface {
	// Empty reports that nothing was ever stored.
	Empty() bool
	// Misses reports that the store ought to have this very version of an object,
	// which is not newer than the store, and has another one or none. It is
	// false where that is not certain. It may change obj.
	Misses(obj runtime.Object) bool
	// Differs reports that the store has this very version of an object with other
	// content, and that this is a reason to compare all of them now. It may change obj.
	Differs(obj runtime.Object) bool
	// Last returns the object that was added or changed last; it may have been
	// deleted since. False if it is not known, or must not be asked for by name.
	Last() (checkpoint.ObjectVersion, bool)
	// Listed tells of the newest object of a list, before Relist.Finish. The
	// zero value means that it is not known.
	Listed(newest checkpoint.ObjectVersion)
}

// compare compares two resourceVersions, unless one of them says nothing.
func compare(a, b string) (order int, ok bool) {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return order, err == nil
}

// judgedItems is how many objects of an answer are compared. One was asked for, but
// some servers and ListerWatchers do not heed a limit.
const judgedItems = 100

// judge compares an answer of the server with what the store has at rv. It
// returns how to relist if they are not of one history.
func (r *Resumer) judge(list runtime.Object, rv string) (*Relisting, error) {
	m, err := meta.ListAccessor(list)
	if err != nil {
		return nil, fmt.Errorf("understand list %T: %w", list, err)
	}
	version := m.GetResourceVersion()
	if order, ok := compare(version, rv); ok && order < 0 {
		return anotherHistory("the server answered at version %s, below resourceVersion %s", version, rv), nil
	}
	var how *Relisting
	left := judgedItems
	err = meta.EachListItem(list, func(obj runtime.Object) error {
		o, err := meta.Accessor(obj)
		if left--; err != nil || left < 0 || r.history == nil {
			return nil // Not an object that the store could have, or enough of them.
		}
		v := checkpoint.VersionOf(o)
		if order, ok := compare(v.ResourceVersion, rv); !ok || order > 0 || how != nil {
			return nil
		}
		switch {
		case r.contradicts(v, obj):
			how = anotherHistory("the store does not have %s as the server does, at version %s", v.Key(), v.ResourceVersion)
		case r.history.Differs(obj):
			// Perhaps another history, and perhaps only another way to say the same: a
			// list will tell, and what the store has is not disbelieved before.
			how = &Relisting{
				Reason:  fmt.Sprintf("the server has other content than the store for %s at version %s", v.Key(), v.ResourceVersion),
				Differs: true,
			}
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

// askForLast asks for the object that was changed last before rv, if the server
// says that it has gone on since. A server whose history is another one has it
// otherwise. No answer, or one about something else, says nothing: a
// ListerWatcher may have put another field selector in place of ours, a server
// may not know it.
func (r *Resumer) askForLast(ctx context.Context, serverVersion, rv string) (*Relisting, error) {
	if r.history == nil {
		return nil, nil
	}
	last, known := r.history.Last()
	if order, ok := compare(serverVersion, rv); !known || !ok || order <= 0 {
		return nil, nil
	}
	selector := fields.OneTermEqualSelector("metadata.name", last.Name)
	if last.Namespace != "" {
		selector = fields.AndSelectors(selector, fields.OneTermEqualSelector("metadata.namespace", last.Namespace))
	}
	patient, cancel := withPatience(ctx)
	defer cancel()
	list, err := r.lw.ListWithContext(patient, metav1.ListOptions{
		FieldSelector: selector.String(), Limit: 1,
		ResourceVersion: rv, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	})
	if err == nil {
		var how *Relisting
		if how, err = r.judge(list, rv); how != nil {
			return how, nil
		}
	}
	if err != nil {
		r.log.V(4).Info("No answer about the object that was changed last", "object", last.Key(), "err", err)
	}
	return nil, ctx.Err()
}

// newest finds the newest object of a list.
type newest struct {
	version checkpoint.ObjectVersion
	unknown bool // Not all versions say something.
}

func (n *newest) see(obj runtime.Object) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return // It cannot be stored either.
	}
	rv := m.GetResourceVersion()
	if n.version.ResourceVersion == "" {
		_, ok := compare(rv, rv)
		n.version, n.unknown = checkpoint.VersionOf(m), n.unknown || !ok
		return
	}
	order, ok := compare(rv, n.version.ResourceVersion)
	if n.unknown = n.unknown || !ok; order > 0 {
		n.version = checkpoint.VersionOf(m)
	}
}

// gone is told of a deletion.
func (n *newest) gone(obj runtime.Object) {
	if m, err := meta.Accessor(obj); err == nil && checkpoint.VersionOf(m).Key() == n.version.Key() {
		n.unknown = true
	}
}

func (n *newest) known() checkpoint.ObjectVersion {
	if n.unknown {
		return checkpoint.ObjectVersion{}
	}
	return n.version
}
