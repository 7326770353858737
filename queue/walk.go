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
type initialList struct {
	ranges []WalkedRange
	upTo   uint64 // The greatest Seq of them.
	// reading: another range is being read. Its Seq is not below begun.
	reading bool
	minSeq  uint64
}

// seq is as of when the objects in the range of a key are told; 0: they were not read.
func (l *initialList) seq(key string) uint64 {
	i := sort.Search(len(l.ranges), func(i int) bool { return l.ranges[i].Last || key < l.ranges[i].To })
	if i == len(l.ranges) {
		return 0
	}
	return l.ranges[i].Seq
}

// WalkFrom moves the cursor to where a walk over the store begins: the
// consumer will be told of all objects as they were at seq or later.
func (c *Consumer) WalkFrom(seq uint64) { c.cursor.Store(max(c.cursor.Load(), seq)) }

// Walk calls read, which reads the objects that a walk tells of next, with keys from
// from on. The first range of a walk is from the empty key.
func (c *Consumer) Walk(from string, read func() (WalkedRange, error)) error {
	c.beginRange(from)
	r, err := read()
	c.q.mu.Lock()
	defer c.q.mu.Unlock()
	c.initialList.reading = false
	if err != nil {
		return err
	}
	c.initialList.ranges = append(c.initialList.ranges, r)
	c.initialList.upTo = max(c.initialList.upTo, r.Seq)
	return nil
}

// walkReads notes before the store is read that this may be as of any later Seq.
func (c *Consumer) beginRange(from string) {
	c.q.mu.Lock()
	defer c.q.mu.Unlock()
	if from == "" {
		c.initialList = initialList{}
	}
	c.initialList.reading, c.initialList.minSeq = true, c.limitLocked()
}

// WalkedTo is the Seq as of which the walk has told of the objects in the range of a
// key, 0 if the cursor is behind all of it.
func (c *Consumer) WalkedTo(key string) uint64 {
	c.q.mu.Lock()
	defer c.q.mu.Unlock()
	return c.initialList.seq(key)
}

// endWalkLocked forgets the ranges when the cursor is behind them all. It is not called
// during a walk.
func (c *Consumer) endInitialListLocked() {
	if c.initialList.ranges != nil && c.cursor.Load() >= c.initialList.upTo {
		c.initialList = initialList{}
	}
}

// WalkDone notes that the consumer has been told of all objects. For a durable
// one this is stored, and the next process goes on with the log.
func (c *Consumer) WalkDone() {
	c.initialPending.Store(false)
	if c.removed.Load() {
		c.passOn()
	}
	if c.name != "" {
		c.q.db.Kick()
	}
}
