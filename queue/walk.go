package queue

import "sort"

// WalkedRange says as of when a walk tells of some objects: those with keys before To,
// and not before the To of the range before, as of Seq.
type WalkedRange struct {
	To   string
	Last bool // It has no end.
	Seq  uint64
}

// walk is what a consumer has been told of by a walk, or will be: its deltas are left
// out up to the Seq of the range that their key is in. So a delta before that Seq and
// one behind it are not folded. Guarded by q.mu.
type walk struct {
	ranges []WalkedRange
	upTo   uint64 // The greatest Seq of them.
	// reading: another range is being read. Its Seq is not below begun.
	reading bool
	begun   uint64
}

// seq is as of when the objects in the range of a key are told; 0: they were not read.
func (w *walk) seq(key string) uint64 {
	i := sort.Search(len(w.ranges), func(i int) bool { return w.ranges[i].Last || key < w.ranges[i].To })
	if i == len(w.ranges) {
		return 0
	}
	return w.ranges[i].Seq
}

// WalkFrom moves the cursor to where a walk over the store begins: the
// consumer will be told of all objects as they were at seq or later.
func (c *Consumer) WalkFrom(seq uint64) { c.cursor.Store(max(c.cursor.Load(), seq)) }

// Walk calls read, which reads the objects that a walk tells of next, with keys from
// from on. The first range of a walk is from the empty key.
func (c *Consumer) Walk(from string, read func() (WalkedRange, error)) error {
	c.walkReads(from)
	r, err := read()
	c.q.mu.Lock()
	defer c.q.mu.Unlock()
	c.walk.reading = false
	if err != nil {
		return err
	}
	c.walk.ranges = append(c.walk.ranges, r)
	c.walk.upTo = max(c.walk.upTo, r.Seq)
	return nil
}

// walkReads notes before the store is read that this may be as of any later Seq.
func (c *Consumer) walkReads(from string) {
	c.q.mu.Lock()
	defer c.q.mu.Unlock()
	if from == "" {
		c.walk = walk{}
	}
	c.walk.reading, c.walk.begun = true, c.limitLocked()
}

// WalkedTo is the Seq as of which the walk has told of the objects in the range of a
// key, 0 if the cursor is behind all of it.
func (c *Consumer) WalkedTo(key string) uint64 {
	c.q.mu.Lock()
	defer c.q.mu.Unlock()
	return c.walk.seq(key)
}

// endWalkLocked forgets the ranges when the cursor is behind them all. It is not called
// during a walk.
func (c *Consumer) endWalkLocked() {
	if c.walk.ranges != nil && c.cursor.Load() >= c.walk.upTo {
		c.walk = walk{}
	}
}

// WalkDone notes that the consumer has been told of all objects. For a durable
// one this is stored, and the next process goes on with the log.
func (c *Consumer) WalkDone() {
	c.walking.Store(false)
	if c.removed.Load() {
		c.passOn()
	}
	if c.name != "" {
		c.q.db.Kick()
	}
}
