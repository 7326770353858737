package sink

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/checkpoint"
	"github.com/warmwatch/warmwatch/internal/indexer"
	"github.com/warmwatch/warmwatch/internal/reflector"
)

var _ reflector.History = (*Sink)(nil)

// Empty implements [reflector.History]. If it is true, no handler knows an object either.
func (k *Sink) Empty() bool {
	return k.indexer.Seq() == 0 && k.indexer.Len() == 0 && !k.log.HasKnown()
}

// Misses implements [reflector.History].
func (k *Sink) Misses(obj runtime.Object) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.unexpected(obj, true) != nil || !k.missesLocked(obj) {
		return false
	}
	if k.transform == nil {
		return true
	}
	// The store has the transformed object, if the transform did not refuse it.
	transformed, _, err := k.transformLocked(obj)
	return err == nil && k.missesLocked(transformed)
}

// Stored implements [reflector.History].
func (k *Sink) Stored() int { return k.indexer.Len() }

// Comparable implements [reflector.History].
func (k *Sink) Comparable(schema string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	whole := k.complete && k.trusted && !k.distrusted && !k.filling && !k.record.Rewrite && !k.record.Rewound
	return whole && schema != "" && schema == k.record.ServerSchema
}

// missesLocked reports whether the store has another version of obj, or none.
func (k *Sink) missesLocked(obj any) bool {
	m, err := meta.Accessor(obj)
	if err != nil {
		return false
	}
	key, err := k.indexer.Key(obj)
	if err != nil {
		return false
	}
	w := k.indexer.Writer()
	defer w.Close()
	uid, rv, exists := w.Head(key)
	if exists && uid == "" && rv == "" {
		return false // The stored object cannot be read.
	}
	return !exists || uid != m.GetUID() || rv != m.GetResourceVersion()
}

// Last implements [reflector.History].
func (k *Sink) Last() (checkpoint.ObjectVersion, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	last := k.record.Last
	// To ask for one object by name takes a field selector, which would replace the informer's.
	return last, last.Name != "" && !k.fieldSelected
}

// Listed implements [reflector.History].
func (k *Sink) Listed(newest checkpoint.ObjectVersion) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.record.Last = newest
}

// changedLocked notes the object that an event added or updated, as the server sent it.
// A deletion leaves the note: if the server is asked for an object that was deleted
// since, it must not have it at any version up to the checkpoint.
func (k *Sink) changedLocked(obj any) {
	if m, err := meta.Accessor(obj); err == nil {
		k.record.Last = checkpoint.VersionOf(m)
	}
}

// resumption is a resumed watch, and the watches after it until the next list.
type resumption struct {
	open bool
	at   string // The resourceVersion that the watch was resumed at.
}

// Resumed notes that a watch was resumed at rv.
func (k *Sink) Resumed(rv string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.resumption = resumption{open: true, at: rv}
}

// Relisting notes that a relist begins.
func (k *Sink) Relisting() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.resumption, k.refused = resumption{}, false
}

// checkHistoryLocked checks an event of a resumed watch. rv is its version before the
// transform, and c the change that it makes, nil if it makes none. If the event cannot be the
// next one in the history of the store, the server's history is another: then a relist by
// content is due, in this process or the next one. It is called before the event is committed.
//
// This holds with selectors too: an object that enters them is added, and one that
// leaves them is deleted. Whoever changes the store by hand may cause such a relist,
// but only one, because after it no watch counts as resumed.
func (k *Sink) checkHistoryLocked(typ cache.DeltaType, rv string, obj any, c *indexer.Change) {
	if !k.resumption.open {
		return
	}
	order, ok := checkpoint.CompareVersions(rv, k.resumption.at)
	if !ok {
		return
	}
	why := ""
	fresh, existed := order > 0, c != nil && c.Existed
	switch {
	case typ == cache.Deleted && fresh && c == nil && !k.refused && !k.doubted:
		why = "deletes what the store does not have"
	case typ == cache.Updated && fresh && !existed && !k.refused && !k.doubted:
		why = "changes what the store does not have"
	case typ != cache.Added && fresh && existed && isOther(uidOf(c.Old), uidOf(obj)) && !k.refused && !k.doubted:
		why = "is of an object that the store has with another uid"
	case typ == cache.Added && fresh && existed && isBefore(resourceVersionOf(c.Old), resourceVersionOf(obj)):
		why = "adds what the store has"
	case typ != cache.Deleted && !fresh:
		why = "is older than the watch"
	default:
		return
	}
	// A ListerWatcher that filters often sends changes of objects that the store lacks.
	// One such event is enough.
	k.doubted = true
	k.forceRelistLocked(fmt.Sprintf("another history: the event of %s at version %s %s, so it cannot be the next in the history of the store", keyOf(obj), rv, why))
}

// forceRelistLocked schedules a relist by content.
func (k *Sink) forceRelistLocked(reason string) {
	k.resumption = resumption{}
	k.record.Rewrite, k.record.Rewound = true, true
	k.logger.Info("Relisting", "reason", reason)
	k.informer.ForceRelist(reflector.Relisting{Reason: reason, Rewrite: true, Rewound: true})
}

func keyOf(obj any) string {
	key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj)
	if err != nil {
		return fmt.Sprintf("a %T", obj)
	}
	return key
}
