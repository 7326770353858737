package indexer

import (
	"bytes"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/persist"
)

// sweptKeys is how many keys are read in one transaction.
const sweptKeys = 4096

// A builder makes the entries of some indexers agree with the objects. It leaves right
// entries alone, so that readers always find them. The Indexer's writer is locked.
type builder struct {
	ix       *Indexer
	indexers cache.Indexers
	names    []string
	// right has a hash of the key of each entry that should exist, because hashes take
	// less memory than keys. A wrong entry with the hash of a right one stays: among a
	// million of each, one time in ten million.
	right sets.Set[uint64]
	seed  maphash.Seed
	// leftOut has the keys of the objects that could not be read. Their entries stay: who reads by one of them learns
	// that the object is damaged.
	leftOut sets.Set[string]
}

// errLeftOut is the end of a build that has left out objects.
var errLeftOut = errors.New("objects could not be read")

// buildLocked adds the missing entries of some indexers, and then removes all entries
// that begin with one of the prefixes and should not exist.
func (ix *Indexer) buildLocked(indexers cache.Indexers, prefixes ...string) error {
	b := &builder{
		ix: ix, indexers: indexers, names: slices.Sorted(maps.Keys(indexers)),
		right: sets.Set[uint64]{}, seed: maphash.MakeSeed(), leftOut: sets.Set[string]{},
	}
	if err := b.fill(); err != nil {
		return err
	}
	for _, prefix := range prefixes {
		if err := b.sweep(prefix); err != nil {
			return err
		}
	}
	if len(b.leftOut) > 0 {
		return fmt.Errorf("%w: %d, among them %.100q", errLeftOut, len(b.leftOut), slices.Min(b.leftOut.UnsortedList()))
	}
	return nil
}

// dropUnsoundLocked removes all index entries if one of them is damaged.
func (ix *Indexer) dropUnsoundLocked() error {
	err := ix.db.Read(ix.space, func(s *persist.Snapshot) error {
		return s.Scan(indexBucket, "", func(it *persist.Item) (bool, error) {
			if it.Value != nil {
				return true, nil
			}
			_, err := it.Payload()
			return true, err
		})
	})
	if !errors.Is(err, persist.ErrCorrupt) {
		return err
	}
	next := ix.state
	next.Dropped = true
	return ix.storeLocked(next, func(b *persist.Batch) { b.Drop(ix.indexName) })
}

// fill adds the entries that are missing.
func (b *builder) fill() error {
	for from, done := "", len(b.names) == 0; !done; {
		c, err := b.ix.Chunk(from, false)
		if err != nil {
			return err
		}
		puts, err := b.entries(c)
		if err != nil {
			return err
		}
		var missing []indexPut
		err = b.ix.db.Read(b.ix.space, func(s *persist.Snapshot) (err error) {
			missing, err = missingOf(puts, s)
			return err
		})
		if err != nil {
			return err
		}
		if len(missing) > 0 {
			_, err = b.ix.update(func(batch *persist.Batch) {
				for _, p := range missing {
					batch.Put(b.ix.indexName, p.key, p.value)
				}
			})
		}
		if err != nil {
			return err
		}
		from, done = c.Next, c.Done
	}
	return nil
}

// entries returns the entries that the objects of a chunk should have, and adds them to right.
func (b *builder) entries(c Chunk) ([]indexPut, error) {
	b.leftOut.Insert(c.LeftOut...)
	var puts []indexPut
	for i, obj := range c.Objects {
		for _, name := range b.names {
			values, err := storedIndexValues(b.indexers[name], name, c.Keys[i], obj)
			if err != nil {
				return nil, err
			}
			for v := range sets.New(values...) {
				p := newIndexPut(name, v, c.Keys[i])
				b.right.Insert(b.hash(p.key))
				puts = append(puts, p)
			}
		}
	}
	return puts, nil
}

func (b *builder) hash(key string) uint64 { return maphash.String(b.seed, key) }

// missingOf returns the entries that are not in the snapshot as they should be.
func missingOf(puts []indexPut, s *persist.Snapshot) (missing []indexPut, err error) {
	for _, p := range puts {
		same := false
		_, err := s.View(indexBucket, p.key, func(it *persist.Item) error {
			v, err := it.Payload()
			same = err == nil && bytes.Equal(v, p.value)
			return nil // A damaged entry is written anew.
		})
		if err != nil {
			return nil, err
		}
		if !same {
			missing = append(missing, p)
		}
	}
	return missing, nil
}

// isOfLeftOut reports whether an entry is one of an object that could not be read.
func (b *builder) isOfLeftOut(it *persist.Item) bool {
	if len(b.leftOut) == 0 {
		return false
	}
	_, prefix, err := entryIndex(it)
	if err != nil {
		return false
	}
	_, _, key, err := parseEntry(it, prefix)
	return err == nil && b.leftOut.Has(key)
}

// sweep removes the entries with a prefix that are not among right.
func (b *builder) sweep(prefix string) error {
	for from, done := prefix, false; !done; {
		var wrong []string
		next := ""
		err := b.ix.db.Read(b.ix.space, func(s *persist.Snapshot) error {
			keys := 0
			wrong, done = nil, true
			return s.Scan(indexBucket, from, func(it *persist.Item) (bool, error) {
				if !strings.HasPrefix(it.Key, prefix) {
					return false, nil // Damaged or not, nothing behind it has the prefix.
				}
				if keys == sweptKeys {
					done = false
					return false, nil
				}
				keys++
				next = it.Key + "\x00"
				if !b.right.Has(b.hash(it.Key)) && !b.isOfLeftOut(it) {
					wrong = append(wrong, it.Key)
				}
				return true, nil
			})
		})
		if err != nil {
			return err
		}
		if len(wrong) > 0 {
			_, err = b.ix.update(func(batch *persist.Batch) {
				for _, key := range wrong {
					batch.Delete(b.ix.indexName, key)
				}
			})
		}
		if err != nil {
			return err
		}
		from = next
	}
	return nil
}
