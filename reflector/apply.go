package reflector

import (
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/checkpoint"
	"github.com/warmwatch/warmwatch/indexer"
	"github.com/warmwatch/warmwatch/queue"
)

// applyLocked makes the store equal to the list, whose resourceVersion is rv.
func (r *relist) applyLocked(rv string) error {
	k := r.k
	a := &applier{relist: r, rv: rv, leftOutUIDs: map[types.UID]struct{}{}, kept: map[string]struct{}{}}
	for _, uid := range r.leftOut {
		if uid != "" {
			a.leftOutUIDs[uid] = struct{}{}
		}
	}
	if err := k.indexer.Keys(a.deleteUnseen); err != nil {
		return err
	}
	// Objects that a damaged file has lost may still be served from memory.
	if err := a.deleteUnseen(k.indexer.KeysInMemory()); err != nil {
		return err
	}
	return r.stage.each(a.set)
}

// applier applies a complete list in chunks. Callers of its methods hold Sink.mu.
type applier struct {
	*relist
	rv          string // The list's resourceVersion.
	leftOutUIDs map[types.UID]struct{}
	kept        map[string]struct{} // Keys of stored objects that the list has left out.
}

// batch collects the deltas of changes that are staged in w, and commits when there are
// enough of them.
type batch struct {
	a     *applier
	w     *indexer.Writer
	ds    []queue.Delta
	bytes int
}

// inBatches calls fn with a batch, and commits what fn leaves in it.
func (a *applier) inBatches(fn func(*batch) error) error {
	b := &batch{a: a, w: a.k.writer()}
	defer b.w.Close()
	if err := fn(b); err != nil {
		return err
	}
	return b.commit()
}

func (b *batch) add(d queue.Delta) error {
	b.ds = append(b.ds, d)
	b.bytes += d.SizeBytes
	return b.commitIfFull()
}

func (b *batch) commitIfFull() error {
	if max(len(b.ds), len(b.w.Changes())) < b.a.k.relistItems && b.bytes < relistBytes {
		return nil
	}
	return b.commit()
}

// set stages an object, and returns what handlers are told.
func (b *batch) set(it stagedItem) queue.Delta {
	c := b.w.Set(it.key, it.value, true)
	b.a.k.detector.AddObject(c.New)
	d := b.a.k.setDelta(c)
	if d.Type == cache.Sync {
		d.Type = cache.Updated // The version is the same, the content is not.
	}
	return d
}

// keep leaves an object as it is: an old version is better than a deletion that has not happened.
func (b *batch) keep(key string, obj any) error {
	b.a.kept[key] = struct{}{}
	if !b.a.how.Rewrite {
		return nil
	}
	value, err := indexer.Encode(key, obj)
	if err != nil {
		return b.delete(key)
	}
	b.bytes += b.w.Set(key, value, false).SizeBytes()
	return b.commitIfFull()
}

// delete stages the deletion of an object. If it cannot be read, handlers are told its key.
func (b *batch) delete(key string) error {
	c := b.w.Delete(key, true)
	if c == nil {
		return nil
	}
	return b.add(b.a.k.lostDelta(c))
}

// commit applies a chunk. The checkpoint keeps its resourceVersion, says that a relist is
// being applied, and names the version of the list.
func (b *batch) commit() error {
	if len(b.ds) == 0 && len(b.w.Changes()) == 0 {
		return nil
	}
	k := b.a.k
	ds := b.ds
	if k.filling {
		ds = nil // No handler was told of these objects.
	} else {
		k.trusted = false
		k.record.State, k.record.HighestVersion = checkpoint.StateRefreshing, b.a.rv
		if !k.complete {
			k.record.State = checkpoint.StateSyncing
		}
	}
	b.ds, b.bytes = nil, 0
	return k.writeLocked(b.w, ds)
}

// deleteUnseen deletes those of the objects that the list does not have.
func (a *applier) deleteUnseen(keys []string) error {
	return a.inBatches(func(b *batch) error {
		for _, key := range keys {
			_, seen := a.seen[key]
			if _, kept := a.kept[key]; seen || kept {
				continue
			}
			var err error
			if obj := a.leftOutObject(b.w, key); obj != nil {
				err = b.keep(key, obj)
			} else {
				err = b.delete(key)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// leftOutObject returns a stored object that the list has left out, nil if it did not. It has to
// be the same object, which the uid shows: a transform may have stored it under another name, and
// its own may be that of a new object by now. In another cluster nobody knows what a uid is of.
func (a *applier) leftOutObject(w *indexer.Writer, key string) any {
	if len(a.leftOut) == 0 || a.k.record.Rewound {
		return nil
	}
	stored, _, _ := w.Head(key)
	_, same := a.leftOutUIDs[stored]
	if sent, named := a.leftOut[key]; !same && (!named || isOther(stored, sent)) {
		return nil
	}
	return a.k.told(w.Sound(key))
}

// keyBytes is about how long a delta without objects is.
const keyBytes = 128

// lostDelta is the delta of a missed deletion. It has the last known object, if that can be read.
func (k *Sink) lostDelta(c *indexer.Change) queue.Delta {
	d := queue.Delta{Seq: c.Seq, Type: cache.Deleted, Key: c.Key, FinalStateUnknown: true, SizeBytes: keyBytes}
	if d.New = k.told(c.Old); d.New != nil {
		d.NewRecord = c.OldRecord
		d.SizeBytes += c.OldSizeBytes
	}
	return d
}

// set applies the staged objects.
func (a *applier) set(items []stagedItem) error {
	return a.inBatches(func(b *batch) error {
		for _, it := range items {
			if err := b.add(b.set(it)); err != nil {
				return err
			}
		}
		return nil
	})
}
