package reflector

import (
	"github.com/warmwatch/warmwatch/checkpoint"
)

// Empty implements [Store]. If it is true, no handler knows an object either.
func (k *Sink) Empty() bool {
	return k.indexer.Seq() == 0 && k.indexer.Len() == 0 && !k.log.HasKnown()
}

// Contradicts implements [Store]. A transform may have stored the object under another name, or without
// its version.
func (k *Sink) Contradicts(v checkpoint.ObjectVersion) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	w := k.indexer.Writer()
	defer w.Close()
	uid, rv, exists := w.Head(v.Key())
	if !exists {
		return k.transform == nil && !k.refused
	}
	return isOther(uid, v.UID) || rv != "" && rv != v.ResourceVersion
}

// Stored implements [Store].
func (k *Sink) Stored() int { return k.indexer.Len() }

// Counts implements [Store].
func (k *Sink) Counts(objects int64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.refused || int64(k.indexer.Len()) == objects
}

// Comparable implements [Store].
func (k *Sink) Comparable(schema string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	whole := k.complete && k.trusted && !k.distrusted && !k.filling && !k.record.Rewrite
	return whole && schema != "" && schema == k.record.ServerSchema
}
