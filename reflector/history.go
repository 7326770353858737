package reflector

import (
	"github.com/warmwatch/warmwatch/checkpoint"
	"github.com/warmwatch/warmwatch/internal/request"
)

// empty reports whether nothing was ever stored. Then no handler knows an object either.
func (k *Sink) empty() bool {
	return k.indexer.Seq() == 0 && k.indexer.Len() == 0 && !k.queue.HasKnown()
}

// contradicts is called with a version of an object that is not newer than the store. It reports whether the store has
// another version or none. It returns false where that is not certain: a transform may have stored the object under
// another name, or without its version.
func (k *Sink) contradicts(v request.Item) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	w := k.indexer.Writer()
	defer w.Close()
	uid, rv, exists := w.Head(keyOf(v))
	if !exists {
		return k.transform == nil && k.record.State == checkpoint.StateComplete
	}
	return isOther(uid, v.UID) || rv != "" && rv != v.ResourceVersion
}

// counts reports whether the store has so many objects. It also returns true if the store has refused some.
func (k *Sink) counts(objects int64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.record.State != checkpoint.StateComplete || int64(k.indexer.Len()) == objects
}

// comparable reports whether an object of the store equals the server's if uid and resourceVersion are the same. That
// holds if the contents of all objects were compared when the server's schema was this one.
func (k *Sink) comparable(schema string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	whole := k.record.ResourceVersion != "" && k.record.Identity == k.want.Identity && !k.record.Rewrite
	return whole && schema != "" && schema == k.record.ServerSchema
}

// at returns the version of the last applied event, bookmark or list. Unlike resourceVersion it does not wait for an
// event that is being applied.
func (k *Sink) at() string { return k.indexer.LastStoreSyncResourceVersion() }

// resourceVersion returns the version at which a watch may begin: the store has everything up to it. It is empty if the
// version is not known.
func (k *Sink) resourceVersion() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.record.ResourceVersion
}

// lastVersion returns the highest resourceVersion that the store has seen, whether or not
// a watch can be resumed there. It is empty if no server would understand it.
func (k *Sink) lastVersion() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !checkpoint.HasOrder(k.record.HighestVersion) {
		return ""
	}
	return k.record.HighestVersion
}
