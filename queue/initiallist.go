package queue

import (
	"errors"
	"hash/maphash"
	"slices"
	"sort"

	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/persist"
)

// ListedRange is a part of an initial list: the objects with keys from the To of the
// range before up to, but without, its own To, as of the write Seq.
type ListedRange struct {
	To   string
	Last bool // The range has no end; To is not used.
	Seq  uint64
}

// ErrOldRange is returned by [Consumer.NoteRange] if deltas from both sides of the range's Seq may
// have been folded since it was read.
var ErrOldRange = errors.New("queue: the range is too old")

// initialList has the ranges of objects that a consumer is told first. Deltas up to the
// Seq of the range that their key is in are left out later, so no fold joins deltas from
// both sides of that Seq. Guarded by q.mu.
type initialList struct {
	ranges []ListedRange
	upTo   uint64 // The greatest Seq of them.
	done   bool   // The consumer has been told of all ranges.
}

// seq returns the Seq of the range that a key is in, or 0 if that was not read.
func (l *initialList) seq(key string) uint64 {
	i := sort.Search(len(l.ranges), func(i int) bool { return l.ranges[i].Last || key < l.ranges[i].To })
	if i == len(l.ranges) {
		return 0
	}
	return l.ranges[i].Seq
}

// InitialListFrom moves the cursor to where an initial list begins: the consumer is told of
// all objects as of seq or later.
func (c *Consumer) InitialListFrom(seq uint64) {
	c.q.mu.Lock()
	defer c.q.mu.Unlock()
	c.cursor.Store(max(c.cursor.Load(), seq))
}

// Epoch is to be read before a range of an initial list, see [Consumer.NoteRange].
func (q *Log) Epoch() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.folding.epoch
}

// NoteRange notes that the consumer is told of the next range of its initial list: objects with
// keys of at least from, which were read, perhaps for other consumers too, after the epoch. The
// first range is from the empty key. The range's Seq must not be below the cursor. After
// [ErrOldRange] it is not noted.
func (c *Consumer) NoteRange(from string, r ListedRange, epoch uint64) error {
	c.q.mu.Lock()
	defer c.q.mu.Unlock()
	if from == "" {
		c.initialList = initialList{}
	}
	if epoch != c.q.folding.epoch && r.Seq < c.q.head {
		return ErrOldRange
	}
	c.initialList.ranges = append(c.initialList.ranges, r)
	c.initialList.upTo = max(c.initialList.upTo, r.Seq)
	return nil
}

// Deletions finds the deletions of some keys behind a consumer's cursor, during one initial list. It
// reads the tombstones once, and of the deltas only those that are asked for, some at a time.
type Deletions struct {
	c     *Consumer
	upTo  uint64 // The tombstones up to here have been read.
	found []deletion
}

// A deletion takes few bytes, because a backlog may have very many.
type deletion struct {
	seq     uint64
	keyHash uint64 // 0: the tombstone could not be read.
}

// Deletions begins at the cursor. What the cursor passes may be gone.
func (c *Consumer) Deletions() *Deletions { return &Deletions{c: c, upTo: c.cursor.Load()} }

// Of returns the oldest deletions of some keys behind after, up to upTo, as many as one read returns. If it returns none,
// there are no more.
func (ds *Deletions) Of(keys []string, after, upTo uint64) (deletions []Delta, err error) {
	if upTo <= ds.upTo && len(ds.found) == 0 {
		return nil, nil
	}
	q := ds.c.q
	s, err := q.db.Snapshot(q.deltas.Space)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	if err := ds.readTombstones(s, upTo); err != nil || len(ds.found) == 0 {
		return nil, err
	}
	wanted := make(map[uint64]struct{}, len(keys)+1)
	wanted[0] = struct{}{}
	for _, key := range keys {
		wanted[hashOf(key)] = struct{}{}
	}
	size := 0
	first := sort.Search(len(ds.found), func(i int) bool { return ds.found[i].seq > after })
	for _, f := range ds.found[first:] {
		if f.seq > upTo || len(deletions) == deltasPerRead || size > maxReadBytes {
			break
		}
		if _, ok := wanted[f.keyHash]; !ok {
			continue
		}
		read, _, err := q.readUndelivered(s, nil, f.seq-1, f.seq)
		if err != nil {
			return nil, err
		}
		for i := range read {
			if read[i].Type == cache.Deleted && slices.Contains(keys, read[i].Key) {
				deletions = append(deletions, read[i])
				size += read[i].SizeBytes
			}
		}
	}
	return deletions, nil
}

func (ds *Deletions) readTombstones(s *persist.Snapshot, upTo uint64) error {
	if upTo <= ds.upTo {
		return nil
	}
	n := len(ds.found)
	err := s.Scan(tombstonesBucket, deltaKey(ds.upTo+1), func(it *persist.Item) (bool, error) {
		seq, err := parseDeltaKey(it.Key)
		if err != nil {
			return true, nil // load removes it.
		}
		if seq > upTo {
			return false, nil
		}
		d := deletion{seq: seq}
		if t, err := persist.ReadJSON[tombstone](it); err == nil { // Else its delta may be readable.
			d.keyHash = hashOf(t.Key)
		}
		ds.found = append(ds.found, d)
		return true, nil
	})
	if err != nil {
		ds.found = ds.found[:n]
		return err
	}
	ds.upTo = upTo
	return nil
}

// hashOf is never 0.
func hashOf(key string) uint64 { return maphash.String(hashSeed, key) | 1 }

var hashSeed = maphash.MakeSeed()

// ListedAt returns the Seq of the initial list's range that a key is in. It is 0 once
// the cursor has passed all ranges.
func (c *Consumer) ListedAt(key string) uint64 {
	c.q.mu.Lock()
	defer c.q.mu.Unlock()
	return c.initialList.seq(key)
}

// endInitialList drops the ranges of a list that is done once the cursor has passed the Seqs of all, and then the
// list is not pending any more.
func (c *Consumer) endInitialList() {
	c.q.mu.Lock()
	ended := c.initialList.done && c.cursor.Load() >= c.initialList.upTo
	if ended {
		c.initialList = initialList{}
	}
	c.q.mu.Unlock()
	if ended && c.initialPending.Swap(false) && c.name != "" {
		c.q.db.Kick() // Not under mu.
	}
}

// InitialListDone notes that the consumer has been told of all objects. Once its cursor has
// passed the Seqs of all ranges, the next commit stores this for a durable one, and after it
// the next process goes on at the cursor. Before that the next consumer of the name begins
// anew, because only this one knows which deltas the list has covered.
func (c *Consumer) InitialListDone() {
	c.q.mu.Lock()
	c.initialList.done = true
	c.q.mu.Unlock()
	c.endInitialList()
	if c.removed.Load() {
		c.passOn()
	}
}
