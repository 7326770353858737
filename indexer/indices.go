package indexer

import (
	"errors"
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
)

// AddIndexers implements [cache.Indexer]. It reads all objects, and writers wait meanwhile. Reads by an index wait
// while entries are made, see [Indexer.RebuildIndices].
func (ix *Indexer) AddIndexers(added cache.Indexers) error {
	ix.writer.Lock()
	defer ix.writer.Unlock()
	old := *ix.indexers.Load()
	if both := sets.KeySet(old).Intersection(sets.KeySet(added)); len(both) > 0 {
		return fmt.Errorf("indexer conflict: %v", sets.List(both))
	}
	all := maps.Clone(old)
	maps.Copy(all, added)
	if err := ix.rebuildLocked(all); err != nil {
		if failed, isFailed := errors.AsType[*IndexFuncError](err); !isFailed {
			return err
		} else if !ix.Hidden() { // As in client-go, see indexValues.
			panic(failed)
		} // Else the object may not exist any more. A relist will show that.
	}
	ix.indexers.Store(&all)
	return nil
}

// IndexErr is not nil if the index entries may be wrong: the file has other entries than were written, a write has
// replaced a damaged object, an index function failed on a stored object, or [Indexer.RebuildIndices] did not come to
// its end. RebuildIndices makes the entries right. The file also has this error.
func (ix *Indexer) IndexErr() error {
	if doubt := ix.visible.Load().IndexErr; doubt != "" {
		return errors.New(doubt)
	}
	return nil
}
