package indexer

import (
	"cmp"
	"errors"
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/persist"
)

// AddIndexers implements [cache.Indexer]. It reads all objects once, and writers
// wait meanwhile.
func (ix *Indexer) AddIndexers(added cache.Indexers) error {
	ix.writer.Lock()
	defer ix.writer.Unlock()
	old := *ix.indexers.Load()
	if both := sets.KeySet(old).Intersection(sets.KeySet(added)); len(both) > 0 {
		return fmt.Errorf("indexer conflict: %v", sets.List(both))
	}
	all := maps.Clone(old)
	maps.Copy(all, added)
	// If the program had this index before, the file may have old entries of it.
	var prefixes []string
	for name := range added {
		prefixes = append(prefixes, indexPrefix(name))
	}
	err := ix.buildLocked(added, prefixes...)
	var failed *IndexFuncError
	switch {
	case errors.As(err, &failed) && !ix.Hidden(): // As in client-go, see indexValues.
		panic(failed)
	case errors.As(err, &failed) || errors.Is(err, errLeftOut): // The object may not exist any more. A relist will show.
		next := ix.state
		next.doubt(err)
		if err := ix.storeLocked(next, func(*persist.Batch) {}); err != nil {
			return err
		}
		if failed != nil {
			partial := sets.KeySet(added)
			if others := ix.partial.Load(); others != nil {
				partial = partial.Union(*others)
			}
			ix.partial.Store(&partial)
		}
	case err != nil:
		return err
	}
	ix.indexers.Store(&all)
	return nil
}

// IndexErr is not nil if the index entries may be wrong, because something has damaged an object that a write
// replaced, an index function failed on a stored object, or [Indexer.RebuildIndices], which makes them right, did
// not come to its end. The file says so, too.
func (ix *Indexer) IndexErr() error {
	ix.writer.Lock()
	defer ix.writer.Unlock()
	if ix.state.IndexErr == "" {
		return nil
	}
	return errors.New(ix.state.IndexErr)
}

// RebuildIndices makes the index entries agree with the objects (I1), and counts the
// objects. Right entries stay visible meanwhile, and wrong entries are removed last;
// but if the index itself is damaged, all entries are removed first, and reads by an
// index fail until it is whole. The error is an [IndexFuncError] if an index function failed.
// If objects cannot be read, their entries stay, and so does IndexErr.
func (ix *Indexer) RebuildIndices() error {
	ix.writer.Lock()
	defer ix.writer.Unlock()
	next := ix.state
	next.IndexErr = cmp.Or(next.IndexErr, "the indices were not rebuilt to the end")
	// Entries may be left over in the file below ones that were put as new, which would be found right.
	if err := ix.storeLocked(next, func(b *persist.Batch) { b.NoneNew(ix.indexName) }); err != nil {
		return err
	}
	if err := ix.dropUnsoundLocked(); err != nil {
		return err
	}
	built := ix.buildLocked(*ix.indexers.Load(), "")
	next = ix.state
	var failed *IndexFuncError
	switch {
	case built == nil:
		next.IndexErr, next.Dropped = "", false
	case errors.As(built, &failed) || errors.Is(built, errLeftOut):
		next.doubt(built)
	default:
		return built
	}
	// Until here a count that is wrong says that entries may be, too, see noteUnreadLocked.
	var err error
	if next.tally, err = ix.tallyKeys(); err == nil {
		err = ix.storeLocked(next, func(*persist.Batch) { ix.objects.setCount(ix.owner, next.Count) })
	}
	if err != nil {
		return err
	}
	ix.counted = ix.unread
	if failed != nil {
		return failed
	}
	ix.partial.Store(nil)
	return nil
}

// storeLocked stores a state without a change of an object, in one batch with what more does.
func (ix *Indexer) storeLocked(next state, more func(*persist.Batch)) error {
	dropped := ix.drops.Load()%2 == 1
	if next.Dropped && !dropped {
		ix.drops.Add(1)
	}
	_, err := ix.update(func(b *persist.Batch) {
		b.Put(ix.storeName, stateKey, &next)
		more(b)
	})
	if err != nil {
		return err
	}
	ix.state = next
	ix.visible.Store(&next)
	if dropped && !next.Dropped {
		ix.drops.Add(1)
	}
	return nil
}
