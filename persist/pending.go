package persist

import (
	"cmp"
	"maps"
	"slices"

	"github.com/tidwall/btree"
)

// A Bucket names a map of keys to values. Buckets with the same Space belong
// to one owner and are captured together by [DB.Snapshot]. Both names have 1 to 32,768 bytes,
// and the space is not "warmwatch". The values of any other bucket stay in memory, and
// [DB.Err] returns an error.
type Bucket struct {
	Space, Name string
}

func (b Bucket) String() string { return b.Space + "/" + b.Name }

// A Value is put into a bucket as it is; the committer encodes it later, off
// the caller's path. It must not change after it was put.
type Value interface {
	// AppendTo appends the encoded value. It is called without locks, at most
	// once per commit attempt. After an error the value stays in memory for the
	// life of the process, and [DB.Err] returns the error.
	AppendTo(dst []byte) ([]byte, error)
	// SizeBytes estimates the length of what AppendTo appends. It counts
	// towards the bound on pending bytes.
	SizeBytes() int
}

// Bytes is a Value that is its own encoding.
type Bytes []byte

// AppendTo implements [Value].
func (b Bytes) AppendTo(dst []byte) ([]byte, error) { return append(dst, b...), nil }

// SizeBytes implements [Value].
func (b Bytes) SizeBytes() int { return len(b) }

// WritesSoon reports whether the next commit is likely to write what is put now: there
// is a file, and the last commit succeeded.
func (db *DB) WritesSoon() bool {
	db.mu.RLock()
	defer db.mu.RUnlock()
	return db.writesLocked() && db.commitErr == nil
}

// entryOverheadBytes is what an entry costs beside its value and key.
const entryOverheadBytes = 64

type entry struct {
	value Value // Nil: the key is deleted.
	// fresh is set if neither a layer below nor the file has the key. Deleting it
	// then leaves no entry: a delta acknowledged before the commit is never written.
	fresh bool
	// unencodable entries stay in memory, because AppendTo failed. They do not
	// count as pending bytes: Update would block for ever.
	unencodable bool
}

func (e entry) bytes(key string) int64 {
	if e.unencodable {
		return 0
	}
	n := entryOverheadBytes + len(key)
	if e.value != nil {
		n += e.value.SizeBytes()
	}
	return int64(n)
}

// A layer is a set of changes on top of what lies below it.
type layer struct {
	buckets map[Bucket]*bucketLayer
	bytes   int64
}

type bucketLayer struct {
	dropped bool // The layers below and the file are not read for this bucket.
	entries *btree.Map[string, entry]
}

func newLayer() *layer { return &layer{buckets: map[Bucket]*bucketLayer{}} }

func (l *layer) bucket(b Bucket) *bucketLayer {
	bl := l.buckets[b]
	if bl == nil {
		bl = &bucketLayer{entries: new(btree.Map[string, entry])}
		l.buckets[b] = bl
	}
	return bl
}

func (l *layer) set(b Bucket, key string, e entry) {
	old, replaced := l.bucket(b).entries.Set(key, e)
	if replaced {
		l.bytes -= old.bytes(key)
	}
	l.bytes += e.bytes(key)
}

// noneFresh notes that the file may have any key.
func (l *layer) noneFresh() {
	for _, bl := range l.buckets {
		bl.noneFresh()
	}
}

func (bl *bucketLayer) noneFresh() {
	bl.entries.Copy().Scan(func(key string, e entry) bool {
		if e.fresh {
			e.fresh = false
			bl.entries.Set(key, e)
		}
		return true
	})
}

// lookup returns the layer's entry of a key. It is found, and empty, if the
// bucket was dropped and the key not set since. Else ask the layers below.
func (l *layer) lookup(b Bucket, key string) (e entry, found bool) {
	if l == nil {
		return entry{}, false
	}
	bl := l.buckets[b]
	if bl == nil {
		return entry{}, false
	}
	e, found = bl.entries.Get(key)
	if !found && bl.dropped {
		return entry{}, true
	}
	return e, found
}

// sortedBuckets is the order in which a commit writes: sorted input is fast in
// bbolt, and tests need a fixed order.
func (l *layer) sortedBuckets() []Bucket {
	return slices.SortedFunc(maps.Keys(l.buckets), func(a, b Bucket) int {
		return cmp.Or(cmp.Compare(a.Space, b.Space), cmp.Compare(a.Name, b.Name))
	})
}

// copySpace captures the buckets of one space. The trees are copied on write,
// so this costs a few allocations, whatever they hold. The caller holds db.mu.
func (l *layer) copySpace(space string) *layer {
	c := newLayer()
	for b, bl := range l.buckets {
		if b.Space == space {
			c.buckets[b] = &bucketLayer{dropped: bl.dropped, entries: bl.entries.Copy()}
		}
	}
	return c
}

// A Batch collects the changes of one [DB.Update]. It is valid only inside
// the function that received it, which runs under the DB's lock: it must not
// block, do I/O or call foreign code.
type Batch struct {
	db     *DB
	urgent bool
}

// Put sets a key.
func (b *Batch) Put(bucket Bucket, key string, v Value) { b.put(bucket, key, v, false) }

// PutNew sets a key that does not exist, so that a Delete before the commit leaves no trace.
func (b *Batch) PutNew(bucket Bucket, key string, v Value) { b.put(bucket, key, v, true) }

func (b *Batch) put(bucket Bucket, key string, v Value, isNew bool) {
	// Below a change that waits there may be the key, although it does not exist now: deleting the
	// new value must not bring it back.
	if old, waits := b.db.pending.bucket(bucket).entries.Get(key); waits {
		isNew = old.fresh
	}
	b.db.pending.set(bucket, key, entry{value: v, fresh: isNew || b.db.memoryOnly()})
}

// Delete removes a key. Removing an absent key is no error.
func (b *Batch) Delete(bucket Bucket, key string) {
	l := b.db.pending
	bl := l.bucket(bucket)
	e, found := bl.entries.Get(key)
	if b.db.memoryOnly() || (found && e.fresh) {
		if found {
			bl.entries.Delete(key)
			l.bytes -= e.bytes(key)
		}
		return
	}
	l.set(bucket, key, entry{})
}

// Drop removes all keys of a bucket. The commit deletes the whole bucket in the
// file, which frees its pages at once.
func (b *Batch) Drop(bucket Bucket) {
	l := b.db.pending
	if bl := l.buckets[bucket]; bl != nil {
		bl.entries.Scan(func(key string, e entry) bool {
			l.bytes -= e.bytes(key)
			return true
		})
	}
	if b.db.memoryOnly() {
		delete(l.buckets, bucket) // Nothing is below it.
		return
	}
	l.buckets[bucket] = &bucketLayer{dropped: true, entries: new(btree.Map[string, entry])}
}

// Urgent asks for a commit within DurableDelay instead of CommitInterval,
// because somebody waits for this batch to be durable.
func (b *Batch) Urgent() { b.urgent = true }
