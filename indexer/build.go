package indexer

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/persist"
)

// errLeftOut means that objects cannot be read: nobody knows their index entries.
var errLeftOut = errors.New("objects could not be read")

// RebuildIndices makes the index entries agree with the objects (A5), and counts the
// objects. If they agree already, it only reads. Otherwise all entries are made anew, and reads by
// an index wait until that is done. The error is an [IndexFuncError] if an index function failed.
// If objects cannot be read, IndexErr stays.
func (ix *Indexer) RebuildIndices() error {
	ix.writer.Lock()
	defer ix.writer.Unlock()
	return ix.rebuildLocked(*ix.indexers.Load())
}

// rebuildLocked is RebuildIndices with these indexers: the present ones, and added ones.
func (ix *Indexer) rebuildLocked(indexers cache.Indexers) error {
	built := ix.makeEntriesLocked(indexers)
	next := ix.state
	_, failed := errors.AsType[*IndexFuncError](built)
	switch {
	case built == nil:
		next.IndexErr, next.Dropped = "", false
	case failed || errors.Is(built, errLeftOut): // The entries are as they were. An added index has none.
		next.doubt(built)
		next.Dropped = next.Dropped || len(indexers) > len(*ix.indexers.Load())
	default:
		return built
	}
	var err error
	if next.tally, err = ix.tallyOf(ObjectsBucket, anyItem); err == nil {
		err = ix.storeLocked(next, func(*persist.Batch) { ix.objects.apply(ix.owner, nil, next.Count) })
	}
	if failed {
		err = cmp.Or(err, built)
	}
	return err
}

// makeEntriesLocked makes all entries anew, unless they are right.
func (ix *Indexer) makeEntriesLocked(indexers cache.Indexers) error {
	want, err := ix.wantedEntries(indexers)
	if err != nil {
		return err
	}
	have, err := ix.tallyOf(IndexBucket, soundItem)
	if err != nil && !isDamage(err) {
		return err
	}
	if err == nil && have == want && ix.state.Index == want && ix.state.IndexErr == "" {
		return nil
	}
	next := ix.state
	next.Index, next.Dropped = tally{}, true
	next.IndexErr = "the indices were not rebuilt to the end"
	if err := ix.storeLocked(next, func(b *persist.Batch) { b.Drop(ix.indexName) }); err != nil {
		return err
	}
	return ix.eachEntry(indexers, func(puts []indexPut) error {
		next := ix.state
		for i := range puts {
			next.Index.add(puts[i].key)
		}
		return ix.storeLocked(next, func(b *persist.Batch) {
			for _, p := range puts {
				b.Put(ix.indexName, p.key, p.value)
			}
		})
	})
}

func (ix *Indexer) wantedEntries(indexers cache.Indexers) (want tally, err error) {
	err = ix.eachEntry(indexers, func(puts []indexPut) error {
		for i := range puts {
			want.add(puts[i].key)
		}
		return nil
	})
	return want, err
}

// eachEntry calls fn with the entries that the objects should have, for some objects at a time.
func (ix *Indexer) eachEntry(indexers cache.Indexers, fn func([]indexPut) error) error {
	names := slices.Sorted(maps.Keys(indexers))
	for from, done := "", len(names) == 0; !done; {
		c, err := ix.Chunk(from, false)
		if err != nil {
			return err
		}
		if c.LeftOut != nil {
			return fmt.Errorf("%w: %w", errLeftOut, c.LeftOut)
		}
		var puts []indexPut
		for i, obj := range c.Objects {
			for _, name := range names {
				values, err := storedIndexValues(indexers[name], name, c.Keys[i], obj)
				if err != nil {
					return err
				}
				for v := range sets.New(values...) {
					puts = append(puts, newIndexPut(name, v, c.Keys[i]))
				}
			}
		}
		if len(puts) > 0 {
			if err := fn(puts); err != nil {
				return err
			}
		}
		from, done = c.Next, c.Done
	}
	return nil
}

// storeLocked stores a state without a change of an object. more adds to the same batch.
func (ix *Indexer) storeLocked(next state, more func(*persist.Batch)) error {
	dropped := ix.drops.Load()%2 == 1
	if next.Dropped && !dropped {
		ix.drops.Add(1)
	}
	stored := persist.JSON(next)
	err := ix.update(func(b *persist.Batch) {
		b.Put(ix.storeName, stateKey, stored)
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
