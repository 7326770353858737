package indexer

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/warmwatch/warmwatch/internal/record"
	"github.com/warmwatch/warmwatch/persist"
)

// A Change is what a Writer did to one key.
type Change struct {
	Key string
	// Old is the object before the change, New the object after it. Each is nil if there is none. Old is only set if
	// the caller wanted it or an index needed it. It is also nil if it could not be read.
	Old, New any
	// OldSizeBytes is the length of the record of Old.
	OldSizeBytes int
	// OldRecord is a copy of the record of Old. It is set only if the caller wanted Old and called
	// [Writer.KeepOldRecords], and Old was not in memory.
	OldRecord []byte
	// Existed reports whether there was an object before, readable or not.
	Existed bool
	// Seq numbers the write. An object read back has the Seq that it was
	// written with.
	Seq uint64

	value      *record.Object
	puts, dels []indexPut
	// unread: nobody knows whether there was an object before. Existed is true then: no deletion is left out. The
	// object is counted as not stored before: if the number is too high, List does not take the objects in memory for
	// all. newEntries: the store has none of puts.
	unread, newEntries bool
	isFirst            bool // See [Objects.apply].
}

// Record returns the record of New.
func (c *Change) Record() []byte { return c.value.Record() }

// SizeBytes returns how long the record of New is.
func (c *Change) SizeBytes() int {
	if c.value == nil {
		return 0
	}
	return c.value.SizeBytes()
}

// A Writer collects changes and applies them in one batch. It excludes other
// writers until Close. Between two commits a key changes once at most.
type Writer struct {
	ix      *Indexer
	next    state
	changes []Change
	one     [1]Change // The memory of the first change: most batches have one.
	keepOld bool
	oldRoom int
}

// Writer begins to write. Close must be called. Before that no other method of the Indexer that writes may be called.
func (ix *Indexer) Writer() *Writer {
	ix.writer.Lock()
	w := &Writer{ix: ix, next: ix.state}
	w.changes = w.one[:0]
	return w
}

// Close ends the Writer, and forgets changes that were not committed.
func (w *Writer) Close() { w.ix.writer.Unlock() }

// KeepOldRecords makes changes fill [Change.OldRecord] until Close, for a caller that stores the old objects elsewhere:
// to copy a record is cheaper than to encode it again. Behind the record there is room for the key, for the record of
// New, and for room bytes.
func (w *Writer) KeepOldRecords(room int) { w.keepOld, w.oldRoom = true, room }

// NextSeq returns a number for something that is not a change of an object.
func (w *Writer) NextSeq() uint64 {
	w.next.Seq++
	return w.next.Seq
}

// SetResourceVersion sets the result of LastStoreSyncResourceVersion.
func (w *Writer) SetResourceVersion(rv string) { w.next.ResourceVersion = rv }

// Head returns uid and resourceVersion of the stored object, without decoding
// it. An object that cannot be read exists and has neither.
func (w *Writer) Head(key string) (uid types.UID, resourceVersion string, exists bool) {
	exists = w.view(key, func(r record.Record) { uid, resourceVersion = r.UID, r.ResourceVersion })
	return uid, resourceVersion, exists
}

// view calls fn with the stored record of a key, if it can be read, and reports whether there is one.
func (w *Writer) view(key string, fn func(record.Record)) (exists bool) {
	exists, err := w.ix.db.View(w.ix.objectsName, key, func(it *persist.Item) error {
		r, err := parse(it)
		if err == nil {
			fn(r)
		}
		return err
	})
	if err != nil {
		w.ix.failed(err, key)
		return true
	}
	return exists
}

// Holds reports whether the store has this object: the same uid, resourceVersion and
// content, see [record.Object.Same]. It is false if the stored object cannot be read, and
// ignores staged changes.
func (w *Writer) Holds(key string, value *record.Object) (same bool) {
	w.view(key, func(r record.Record) { same = value.Same(r, w.ix.opts.NewObject) })
	return same
}

// HoldsEncoded reports whether the store has the object with this encoding in protobuf, without
// decoding anything. It may be false for equal objects, and ignores staged changes.
func (w *Writer) HoldsEncoded(key string, encoded []byte) (same bool) {
	w.view(key, func(r record.Record) { same = r.IsEncodedAs(encoded) })
	return same
}

// Sound returns the stored object of a key that has no staged change, for a caller that keeps it. It is nil if the
// object cannot be read, or if an index function fails on it, so that it could be in no index.
func (w *Writer) Sound(key string) any {
	obj, _, exists, err := w.ix.get(key, nil, nil)
	if err != nil {
		w.ix.failed(err, key)
	}
	if err != nil || !exists {
		return nil
	}
	for name, f := range *w.ix.indexers.Load() {
		if _, err := storedIndexValues(f, name, key, obj); err != nil {
			w.ix.logger.Error(err, "Could not index a stored object", "space", w.ix.space)
			return nil
		}
	}
	return obj
}

// SetComplete says that no object is missing once the changes are committed. A lost number of objects is known again.
func (w *Writer) SetComplete() { w.next.Uncounted = false }

func parse(it *persist.Item) (record.Record, error) {
	payload, err := it.Payload()
	if err != nil {
		return record.Record{}, err
	}
	return record.Parse(payload)
}

// MaxKeyBytes is the length of the longest key of an object. It leaves
// room for the index name and value before it in the key of an index entry.
const MaxKeyBytes = persist.MaxKeyBytes - 4096

// Encode encodes an object for [Writer.Set]. From now on the object must not change. The error says that it cannot be
// stored.
func Encode(key string, obj any) (*record.Object, error) {
	if len(key) > MaxKeyBytes {
		return nil, fmt.Errorf("indexer: a key of %d bytes is too long, at most %d are allowed; it begins with %.40q", len(key), MaxKeyBytes, key)
	}
	return record.Encode(obj)
}

// Set stages a new object and returns the change, which is valid until the next call. [Encode] has encoded the object
// for this key. If wantOld, Set reads the old object.
func (w *Writer) Set(key string, value *record.Object, wantOld bool) *Change {
	c := w.change(key, value, wantOld)
	c.New, c.value = value.Object, value
	value.SetSeq(c.Seq)
	if !c.Existed || c.unread {
		w.next.add(key)
	}
	return w.stage(c)
}

// SetNew is Set for a key that was never stored. It does not look whether the key exists. It keeps the object in memory
// only while less than half of the budget is used.
func (w *Writer) SetNew(key string, value *record.Object) *Change {
	c := Change{Key: key, Seq: w.NextSeq(), New: value.Object, value: value, isFirst: true}
	value.SetSeq(c.Seq)
	w.next.add(key)
	return w.stage(c)
}

// Delete stages a deletion and returns the change, or nil if there is no such
// object.
func (w *Writer) Delete(key string, wantOld bool) *Change {
	c := w.change(key, nil, wantOld)
	if !c.Existed {
		return nil
	}
	if !c.unread {
		w.next.remove(key)
	}
	return w.stage(c)
}

// change reads the old object of a key. That object may share memory with base, the new one.
func (w *Writer) change(key string, base *record.Object, wantOld bool) (c Change) {
	c.Key = key
	c.Seq = w.NextSeq()
	if wantOld || len(*w.ix.indexers.Load()) > 0 {
		var fromDB func(any, record.Record)
		if wantOld && w.keepOld {
			fromDB = func(_ any, r record.Record) {
				room := len(key) + w.oldRoom
				if base != nil {
					room += base.SizeBytes()
				}
				c.OldRecord = r.Copy(room)
			}
		}
		var err error
		c.Old, c.OldSizeBytes, c.Existed, err = w.ix.get(key, base, fromDB)
		if err != nil {
			c.Old = nil
			w.couldNotRead(&c, err)
		}
		return c
	}
	// An object in memory exists, even if the file has lost it.
	if _, c.Existed = w.ix.objects.get(objectKey{w.ix.owner, key}, newest); c.Existed {
		return c
	}
	var err error
	c.Existed, err = w.ix.db.View(w.ix.objectsName, key, func(*persist.Item) error { return nil })
	if err != nil {
		w.couldNotRead(&c, err)
	}
	return c
}

// couldNotRead notes that the old object of a change is not known: its index entries, if any, stay.
func (w *Writer) couldNotRead(c *Change, err error) {
	w.ix.failed(err, c.Key)
	w.next.doubt(err)
	c.unread, c.Existed = !c.Existed, true
	w.next.Uncounted = w.next.Uncounted || c.unread
}

func (w *Writer) stage(c Change) *Change {
	w.diffIndices(&c)
	c.newEntries = !c.Existed || c.Old != nil && w.next.IndexErr == ""
	w.changes = append(w.changes, c)
	return &w.changes[len(w.changes)-1]
}

// diffIndices computes which entries a change adds and removes.
func (w *Writer) diffIndices(c *Change) {
	for name, f := range *w.ix.indexers.Load() {
		var before, now []string
		if c.Old != nil {
			var err error
			if before, err = storedIndexValues(f, name, c.Key, c.Old); err != nil {
				w.next.doubt(err) // The entries of the old object, if any, are left over.
			}
		}
		if c.New != nil {
			now = indexValues(f, name, c.Key, c.New)
		}
		if len(before) == 1 && len(now) == 1 && before[0] == now[0] {
			continue // The common case.
		}
		c.dels = appendEntries(c.dels, name, c.Key, before, now, w.next.Index.remove)
		c.puts = appendEntries(c.puts, name, c.Key, now, before, w.next.Index.add)
	}
}

// appendEntries appends the entries of values that are not among others, each once, and calls count with their keys.
func appendEntries(entries []indexPut, name, key string, values, others []string, count func(key string)) []indexPut {
	for i, v := range values {
		if !slices.Contains(others, v) && !slices.Contains(values[:i], v) {
			e := newIndexPut(name, v, key)
			count(e.key)
			entries = append(entries, e)
		}
	}
	return entries
}

// Commit applies the staged changes in one batch (A1). more puts into the same batch. Afterwards nothing is staged.
// more runs under the DB's lock, see [persist.Batch]; it may be nil.
func (w *Writer) Commit(more func(*persist.Batch)) error {
	ix := w.ix
	next := w.next
	stored := persist.JSON(next)
	err := ix.update(func(b *persist.Batch) {
		// The decoded objects change together with the content of snapshots, so that no
		// reader goes back in time when it reads now in one way and now in the other.
		ix.objects.apply(ix.owner, w.changes, next.Count)
		for i := range w.changes {
			c := &w.changes[i]
			if c.New != nil {
				put(b, !c.Existed, ix.objectsName, c.Key, c.value.Record())
			} else {
				b.Delete(ix.objectsName, c.Key)
			}
			for _, d := range c.dels {
				b.Delete(ix.indexName, d.key)
			}
			for _, p := range c.puts {
				put(b, c.newEntries, ix.indexName, p.key, p.value)
			}
		}
		b.Put(ix.storeName, stateKey, stored)
		ix.state = next
		ix.visible.Store(&next) // Before more hands the changes to handlers.
		if more != nil {
			more(b)
		}
	})
	w.next, w.changes = ix.state, nil
	if err != nil {
		return fmt.Errorf("indexer: %w", err)
	}
	return nil
}

// put makes sure that a new key which is deleted before the next commit leaves nothing to write. While commits fail,
// names that come and go take no memory.
func put(b *persist.Batch, isNew bool, bucket persist.Bucket, key string, v []byte) {
	if isNew {
		b.PutNew(bucket, key, v)
	} else {
		b.Put(bucket, key, v)
	}
}
