package indexer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/persist"
)

const (
	// verifyKeys are read, or verifyObjects decoded, at a time: some tenths of a
	// millisecond, because an event waits that long where processors are few.
	verifyObjects = 16
	// How many times longer verification pauses than it works. To decode all objects, and those of all index entries,
	// takes seconds of a processor, and makes garbage.
	verifyIndicesPause = 49
)

// VerifyIndices compares the objects with the index entries that they should have,
// and the entries with the objects, and reports damage to Options.OnCorrupt. If a page
// of an index is damaged, entries may be missing, or may not have been found when they
// were to be removed. VerifyIndices decodes every object, once for itself and once for
// each of its entries, and pauses longer than Verify.
func (ix *Indexer) VerifyIndices(ctx context.Context) {
	if len(*ix.indexers.Load()) > 0 && ix.verify(ctx, verifyIndicesPause, ix.compareChunk) {
		ix.verify(ctx, verifyIndicesPause, ix.compareIndex)
	}
}

// verify calls step until it is done, each time with the key at which it stopped,
// and reports whether it finished. It pauses so many times longer than step takes.
func (ix *Indexer) verify(ctx context.Context, pauses time.Duration, step func(from string) (next string, done bool, err error)) bool {
	for from, done := "", false; !done; {
		begin := time.Now()
		var err error
		from, done, err = step(from)
		if err != nil && !errors.Is(err, persist.ErrClosed) {
			ix.failed(err, "verify")
		}
		if err != nil || (!done && !pause(ctx, pauses*time.Since(begin))) {
			return false
		}
	}
	return true
}

// pause waits for d, and reports false if ctx is done.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// compareChunk compares some objects with their index entries. It locks out writers,
// because index functions are called by one goroutine at a time.
func (ix *Indexer) compareChunk(from string) (next string, done bool, err error) {
	ix.writer.Lock()
	defer ix.writer.Unlock()
	indexers, asOf := *ix.indexers.Load(), ix.state.Seq
	s, err := ix.db.Snapshot(ix.space)
	if err != nil {
		return "", false, err
	}
	defer s.Close()
	var buf buffers
	ls, next, done, err := ix.scanChunk(s, from, asOf, verifyObjects, &buf)
	if err != nil {
		return "", false, err
	}
	objects, good := ix.decode(ls, &buf, noMark)
	for i, obj := range objects {
		if err := ix.compareEntries(s, indexers, good[i].key, obj); err != nil {
			return "", false, err
		}
	}
	return next, done, nil
}

// compareIndex looks for the objects of some index entries, and locks out writers too.
func (ix *Indexer) compareIndex(from string) (next string, done bool, err error) {
	ix.writer.Lock()
	defer ix.writer.Unlock()
	indexers, asOf := *ix.indexers.Load(), ix.state.Seq
	s, err := ix.db.Snapshot(ix.space)
	if err != nil {
		return "", false, err
	}
	defer s.Close()
	entries := 0
	next, done = from, true
	err = s.Scan(indexBucket, from, func(it *persist.Item) (bool, error) {
		if entries == verifyObjects {
			done = false
			return false, nil
		}
		entries++
		next = it.Key + "\x00"
		return true, ix.compareEntry(s, indexers, it, asOf)
	})
	return next, done, err
}

// compareEntry returns an error if the object of an index entry does not have that value.
func (ix *Indexer) compareEntry(s *persist.Snapshot, indexers cache.Indexers, it *persist.Item, asOf uint64) error {
	name, prefix, err := entryIndex(it)
	if err != nil {
		return err
	}
	f := indexers[name]
	if f == nil {
		return nil // The entry is of an earlier program.
	}
	value, _, key, err := parseEntry(it, prefix)
	if err != nil {
		return err
	}
	var l lazyObject
	var buf buffers
	found, err := s.View(objectsBucket, key, func(it *persist.Item) error {
		l = ix.fetch(it, asOf, &buf)
		return nil
	})
	if err != nil {
		return err
	}
	if found {
		objects, _ := ix.decode([]lazyObject{l}, &buf, noMark)
		if len(objects) == 0 { // It cannot be read, which decode has reported.
			return nil
		}
		values, err := storedIndexValues(f, name, key, objects[0])
		if err != nil || slices.Contains(values, value) {
			return nil //nolint:nilerr // See compareEntries.
		}
	}
	return &persist.CorruptError{Bucket: ix.indexName, Key: key, Err: fmt.Errorf("index %q has an object that does not have the value %.40q", name, value)}
}

// compareEntries looks for the index entries that an object should have.
func (ix *Indexer) compareEntries(s *persist.Snapshot, indexers cache.Indexers, key string, obj any) error {
	for name, f := range indexers {
		values, err := storedIndexValues(f, name, key, obj)
		if err != nil { // Nobody knows which entries the object should have.
			// A relist shows whether the object still exists. There may be many such objects.
			ix.log.V(4).Info("Could not verify the index entries of a stored object", "err", err, "space", ix.space)
			continue
		}
		for _, v := range values {
			found, err := s.View(indexBucket, newIndexPut(name, v, key).key, func(*persist.Item) error { return nil })
			if err != nil {
				return err
			}
			if !found {
				return &persist.CorruptError{Bucket: ix.indexName, Key: key, Err: fmt.Errorf("index %q has no entry %q of it: either it is damaged, or the index function has changed under the same IndexVersion", name, v)}
			}
		}
	}
	return nil
}
