package reflector

import (
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/indexer"
	"github.com/warmwatch/warmwatch/queue"
)

// applyLocked makes the store equal to the list, whose resourceVersion is rv: deletions first.
func (r *relist) applyLocked(rv string) error {
	deleteUnseen := func(keys []string) error {
		return r.inBatches(rv, func(b *batch) error {
			for _, key := range keys {
				if _, seen := r.seen[key]; seen {
					continue
				}
				if c := b.w.Delete(key, true); c != nil {
					if err := b.add(r.k.lostDelta(c)); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
	if err := r.k.indexer.Keys(deleteUnseen); err != nil {
		return err
	}
	// Objects that a damaged file has lost may still be served from memory.
	if err := deleteUnseen(r.k.indexer.KeysInMemory()); err != nil {
		return err
	}
	return r.stage.each(func(items []item) error {
		return r.inBatches(rv, func(b *batch) error {
			for _, it := range items {
				d := r.k.setDelta(b.w.Set(it.key, it.value, true))
				r.k.detector.AddObject(it.value.Object)
				if d.Type == cache.Sync {
					d.Type = cache.Updated // The version is the same, the content is not.
				}
				if err := b.add(d); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// batch collects the deltas of changes that are staged in w, and writes them when there are enough.
type batch struct {
	r     *relist
	rv    string // The list's resourceVersion.
	w     *indexer.Writer
	ds    []queue.Delta
	bytes int
}

// inBatches calls fn with a batch, and writes what fn leaves in it. Its caller holds Sink.mu.
func (r *relist) inBatches(rv string, fn func(*batch) error) error {
	b := &batch{r: r, rv: rv, w: r.k.writer()}
	defer b.w.Close()
	if err := fn(b); err != nil {
		return err
	}
	return b.write()
}

func (b *batch) add(d queue.Delta) error {
	switch found := &b.r.found; d.Type {
	case cache.Added:
		found.Added++
	case cache.Deleted:
		found.Deleted++
	default:
		found.Updated++
	}
	b.ds = append(b.ds, d)
	if b.bytes += d.SizeBytes; len(b.ds) < relistItems && b.bytes < b.r.k.batchBytes {
		return nil
	}
	return b.write()
}

// write applies a chunk. The checkpoint keeps its resourceVersion, says that a relist is
// being applied, and names the version of the list.
func (b *batch) write() error {
	if len(b.ds) == 0 {
		return nil
	}
	k, ds := b.r.k, b.ds
	if k.filling {
		ds = nil // No handler knows these objects.
	} else {
		k.leaveVersionLocked(b.rv)
		k.doubtLocked()
	}
	b.ds, b.bytes = nil, 0
	return k.writeLocked(b.w, ds)
}
