package queue

import (
	"bytes"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/record"
	"github.com/warmwatch/warmwatch/persist"
)

// ledger records what the log has in the DB, so that deltas and cursors that the file
// has lost, or that cannot be read, are noticed. Guarded by q.mu.
type ledger struct {
	// total counts all stored deltas. A commit stores it when it has changed.
	total total
	// writtenState is what was stored last, nil if that is not known.
	writtenState *logState
	// runs has the Seqs of all stored deltas but those in the tail. If the DB does not
	// have the delta of one, it is lost.
	runs          runs
	storedCursors map[string]cursor // Cursors that the file has, or will with the next commit.
}

// total identifies a set of deltas by their number and a digest.
type total struct {
	Count  uint64 `json:"count"`
	Digest uint64 `json:"digest"` // XOR of mix(Seq) of each.
	// Last is the greatest Seq that was ever stored.
	Last uint64 `json:"last"`
}

func (t *total) add(seq uint64) {
	t.Count++
	t.Digest ^= mix(seq)
	t.Last = max(t.Last, seq)
}

func (t *total) remove(seq uint64) {
	t.Count--
	t.Digest ^= mix(seq)
}

// mix spreads a number over all bits (splitmix64).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// logState is the persist.Value with which load notices lost deltas and cursors.
type logState struct {
	total
	Cursors [][]byte `json:"cursors,omitempty"` // The keys of the cursors, sorted.
}

func (s *logState) SizeBytes() int { return 128 + 32*len(s.Cursors) }

func (s *logState) AppendTo(dst []byte) ([]byte, error) { return persist.AppendJSON(dst, s) }

// storeStateLocked puts the state into the batch if it has changed.
func (q *Log) storeStateLocked(b *persist.Batch) {
	s := &logState{total: q.total, Cursors: make([][]byte, 0, len(q.storedCursors))}
	for key := range q.storedCursors {
		s.Cursors = append(s.Cursors, []byte(key))
	}
	slices.SortFunc(s.Cursors, bytes.Compare)
	if old := q.writtenState; old != nil && old.total == s.total && slices.EqualFunc(old.Cursors, s.Cursors, bytes.Equal) {
		return
	}
	if q.writtenState == nil && s.Last == 0 && len(s.Cursors) == 0 {
		return // Nothing was ever stored.
	}
	q.writtenState = s
	b.Put(q.state, stateKey, s)
}

func (q *Log) storeDeltaLocked(b *persist.Batch, d *Delta) {
	d.stored = true
	stored := *d
	b.PutNew(q.deltas, deltaKey(d.Seq), deltaValue{&stored})
	q.total.add(d.Seq)
	if d.Type == cache.Deleted {
		b.PutNew(q.tombstones, deltaKey(d.Seq), newTombstone(d))
	}
}

// removeDeltaLocked removes a stored delta, and the tombstone of a deletion. The caller
// removes the Seq from runs.
func (q *Log) removeDeltaLocked(b *persist.Batch, seq uint64, deletion bool) {
	b.Delete(q.deltas, deltaKey(seq))
	q.total.remove(seq)
	if deletion {
		b.Delete(q.tombstones, deltaKey(seq))
	}
}

// lostLocked returns the first lost Seq above after and up to upTo: it is in runs, and ds,
// which was read from the DB, does not have its delta or has one that could not be read.
func (q *Log) lostLocked(ds []Delta, after, upTo uint64) (seq uint64, lost bool) {
	i := 0
	for r := range q.runs.after(after) {
		for seq := r.from; seq <= min(r.to, upTo); seq++ {
			for i < len(ds) && ds[i].Seq < seq {
				i++
			}
			if i == len(ds) || ds[i].Seq != seq || ds[i].Type == "" {
				return seq, true
			}
		}
		if r.to >= upTo {
			break
		}
	}
	return 0, false
}

// tombstone identifies a deleted object, for handlers if the delta is lost.
type tombstone struct {
	Key             string    `json:"key"`
	Namespace       string    `json:"namespace,omitempty"`
	Name            string    `json:"name,omitempty"`
	UID             types.UID `json:"uid,omitempty"`
	ResourceVersion string    `json:"resourceVersion,omitempty"`
	APIVersion      string    `json:"apiVersion,omitempty"`
	Kind            string    `json:"kind,omitempty"`
	Type            string    `json:"type,omitempty"` // The Go type of the object.
	Replaced        bool      `json:"replaced,omitempty"`
}

func newTombstone(d *Delta) *tombstone {
	t := &tombstone{Key: d.Key, Type: record.TypeName(d.New), Replaced: d.Replaced}
	if m, err := meta.Accessor(d.New); err == nil {
		t.Namespace, t.Name, t.UID, t.ResourceVersion = m.GetNamespace(), m.GetName(), m.GetUID(), m.GetResourceVersion()
	}
	if o, ok := d.New.(runtime.Object); ok {
		t.APIVersion, t.Kind = o.GetObjectKind().GroupVersionKind().ToAPIVersionAndKind()
	}
	return t
}

func (t *tombstone) SizeBytes() int {
	return 96 + len(t.Key) + len(t.Namespace) + len(t.Name) + len(t.UID) + len(t.ResourceVersion) + len(t.APIVersion) + len(t.Kind) + len(t.Type)
}

func (t *tombstone) AppendTo(dst []byte) ([]byte, error) { return persist.AppendJSON(dst, t) }

// delta returns the deletion, with an object that has only what the tombstone has, and with none
// if nobody could read the object, or it was of another Go type.
func (t *tombstone) delta(seq uint64, newObject func() any) Delta {
	d := Delta{Seq: seq, Type: cache.Deleted, Key: t.Key, FinalStateUnknown: true, Replaced: t.Replaced}
	if newObject == nil || *t == (tombstone{Key: t.Key, Replaced: t.Replaced}) {
		return d
	}
	obj := newObject()
	if t.Type != "" && t.Type != record.TypeName(obj) {
		return d
	}
	d.New = obj
	if o, ok := d.New.(runtime.Object); ok && (t.APIVersion != "" || t.Kind != "") {
		o.GetObjectKind().SetGroupVersionKind(schema.FromAPIVersionAndKind(t.APIVersion, t.Kind))
	}
	if m, ok := d.New.(metav1.Object); ok {
		m.SetNamespace(t.Namespace)
		m.SetName(t.Name)
		m.SetUID(t.UID)
		m.SetResourceVersion(t.ResourceVersion)
	}
	return d
}
