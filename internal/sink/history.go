package sink

import (
	"github.com/warmwatch/warmwatch/internal/checkpoint"
	"github.com/warmwatch/warmwatch/internal/reflector"
)

var _ reflector.History = (*Sink)(nil)

// Empty implements [reflector.History]. If it is true, no handler knows an object either.
func (k *Sink) Empty() bool {
	return k.indexer.Seq() == 0 && k.indexer.Len() == 0 && !k.log.HasKnown()
}

// Contradicts implements [reflector.History]. A transform may have stored the object under another name, or without
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

// Stored implements [reflector.History].
func (k *Sink) Stored() int { return k.indexer.Len() }

// Counts implements [reflector.History].
func (k *Sink) Counts(objects int64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.refused || int64(k.indexer.Len()) == objects
}

// Comparable implements [reflector.History].
func (k *Sink) Comparable(schema string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	whole := k.complete && k.trusted && !k.distrusted && !k.filling && !k.record.Rewrite
	return whole && schema != "" && schema == k.record.ServerSchema
}

// Relisting notes that a relist begins.
func (k *Sink) Relisting() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refused = false
}
