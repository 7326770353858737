package persist

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/tidwall/btree"
)

// A Bucket names a map of keys to values. Buckets with the same Space belong
// to one owner and are captured together by [DB.Snapshot]. Both names have 1 to 32,768 bytes,
// and the space is not "warmwatch".
type Bucket struct {
	Space, Name string
}

func (b Bucket) String() string { return b.Space + "/" + b.Name }

// entryOverheadBytes is the cost of an entry beside its value and key.
const entryOverheadBytes = 64

type entry struct {
	sealed []byte // The value with its checksum, as it is in the file. Nil: the key is deleted.
	// fresh is set if neither a layer below nor the file has the key. Deleting it
	// then leaves no entry: a delta acknowledged before the commit is never written.
	fresh bool
}

func (e entry) bytes(key string) int64 { return int64(entryOverheadBytes + len(key) + len(e.sealed)) }

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

// lookup returns the layer's entry of a key. If the bucket was dropped and the key not set since, the entry is found
// and empty. If none is found, ask the layers below.
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

// copySpace captures the buckets of one space. The trees are copied on write: this costs a few allocations, however
// large they are. The caller holds db.mu.
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
	db    *DB
	delay time.Duration // The time until a commit begins.
}

// Number is what [DB.Update] returns.
func (b *Batch) Number() uint64 { return b.db.applied + 1 }

// Put sets a key. From now on the value and its spare capacity belong to the DB. Four spare bytes save a copy.
func (b *Batch) Put(bucket Bucket, key string, value []byte) { b.put(bucket, key, value, false) }

// PutNew sets a key that does not exist. A Delete before the commit then leaves no trace.
func (b *Batch) PutNew(bucket Bucket, key string, value []byte) { b.put(bucket, key, value, true) }

func (b *Batch) put(bucket Bucket, key string, value []byte, isNew bool) {
	// The file may still hold an older value of this key, so a later Delete must be written, not dropped.
	if old, waits := b.db.pending.bucket(bucket).entries.Get(key); waits {
		isNew = old.fresh
	}
	b.db.pending.set(bucket, key, entry{sealed: seal(bucket, key, value), fresh: isNew || b.db.MemoryOnly()})
}

// Delete removes a key. Removing an absent key is no error.
func (b *Batch) Delete(bucket Bucket, key string) {
	l := b.db.pending
	bl := l.bucket(bucket)
	e, found := bl.entries.Get(key)
	if b.db.MemoryOnly() || (found && e.fresh && b.db.writes()) { // A commit may have been under way when the file was found damaged.
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
	if b.db.MemoryOnly() {
		delete(l.buckets, bucket) // Nothing is below it.
		return
	}
	l.buckets[bucket] = &bucketLayer{dropped: true, entries: new(btree.Map[string, entry])}
}

// Failing reports whether the last commit has failed. Changes then wait in memory. At most maxPendingBytes of them
// should wait there for one reader (S6).
func (b *Batch) Failing() (maxPendingBytes int64, failing bool) {
	return b.db.opts.MaxPendingBytes, b.db.failingLocked()
}

// Urgent asks for a commit within DurableDelay instead of CommitInterval,
// because somebody waits for this batch to be durable.
func (b *Batch) Urgent() { b.delay = b.db.opts.DurableDelay }

// idleInterval is how long an idle batch may wait for a commit.
const idleInterval = time.Minute

// Idle lets the batch wait for a minute, or for an earlier commit. It is for changes that a crash may undo at little
// cost.
func (b *Batch) Idle() { b.delay = max(idleInterval, b.db.opts.CommitInterval) }
