package queue

import (
	"slices"
	"sort"

	"github.com/warmwatch/warmwatch/persist"
)

// A list describes the last initial list of a position. Only the goroutine of the consumer uses it.
type list struct {
	begun  uint64 // The number of the last delta when it began.
	isNew  bool   // The handler knew nothing when it began.
	ranges []listedRange
	before []listedRange // The ranges of the list before. The deletions that they cover were delivered with it.
	upTo   uint64        // The greatest Seq of ranges.
}

// A listedRange has the keys from the previous range's to, up to but without its own to, as of the write seq.
type listedRange struct {
	to   string
	last bool // The range has no end; to is not used.
	seq  uint64
}

// StartsOver reports whether the consumer needs an initial list.
func (c *Consumer) StartsOver() bool { return c.Behind().StartsOver }

// Why says why the consumer starts over, or last did.
func (c *Consumer) Why() string {
	c.q.mu.Lock()
	defer c.q.mu.Unlock()
	return c.p.why
}

// BeginList begins an initial list:
//
//  1. [Consumer.Deletions] returns the pending deletions.
//  2. For each range of keys, in order: the deletions in it that came before the range was read are delivered, then its
//     objects. [Consumer.Listed] notes as of which write.
//  3. [Consumer.EndList]. From then on Next returns the deltas since BeginList. If [Consumer.Covers] is true for a
//     delta, the list has already delivered it.
//
// The cursor stays where it is until EndList, so that a crash repeats the list. For a durable consumer BeginList waits
// until all that was applied is durable. begun is the number of the last delta before the list. The error is
// [ErrStopped].
func (c *Consumer) BeginList() (begun uint64, err error) {
	q := c.q
	q.mu.Lock()
	begun = q.head
	c.p.list = list{begun: begun, isNew: c.p.isNew, before: c.p.list.ranges}
	if c.p.isNew {
		c.p.isNew, c.p.Cursor = false, begun
	}
	c.p.from, c.p.again = begun, false
	q.showLocked(c.p)
	q.mu.Unlock()
	if c.durable {
		err = c.waitDurable()
	}
	return begun, err
}

// Deletions returns the deletions behind after, up to upTo, some at a time. A new handler gets none. A deletion that
// cannot be read is left out.
func (c *Consumer) Deletions(after, upTo uint64) (ds []Delta, err error) {
	if c.p.list.isNew {
		return nil, nil
	}
	q := c.q
	q.mu.Lock()
	numbers := slices.Clone(q.stored.deletionsBehind(max(after, c.p.Cursor)))
	q.mu.Unlock()
	numbers = numbers[:sort.Search(len(numbers), func(i int) bool { return numbers[i] > upTo })]
	if len(numbers) == 0 {
		return nil, nil
	}
	s, err := q.db.Snapshot(q.deltas.Space)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	size := 0
	for _, number := range numbers {
		if len(ds) == deltasPerRead || size > maxReadBytes {
			break
		}
		var d Delta
		found, err := s.View(DeltasBucket, deltaKey(number, true), func(it *persist.Item) (err error) { d, err = q.readDelta(number, it); return err })
		switch {
		case err != nil:
			q.onCorrupt(err)
			q.logger.Error(err, "Could not read a deletion, leaving it out", "number", number)
		case found && !covers(c.p.list.before, &d): // Otherwise it was dropped meanwhile, or delivered with the list before.
			ds, size = append(ds, d.Deletion()), size+d.SizeBytes
		}
	}
	if len(ds) == 0 {
		return c.Deletions(numbers[len(numbers)-1], upTo)
	}
	return ds, nil
}

// Listed notes that the next range of the list was delivered as of the write seq. The range ends before to, or has no
// end if last.
func (c *Consumer) Listed(to string, last bool, seq uint64) {
	c.p.list.ranges = append(c.p.list.ranges, listedRange{to, last, seq})
	c.p.list.upTo = max(c.p.list.upTo, seq)
}

// EndList ends the initial list.
func (c *Consumer) EndList() error {
	c.p.list.isNew = false
	return c.update(func() {
		p := c.p
		p.Cursor = max(p.Cursor, c.p.list.begun)
		if p.StartsOver = p.again; !p.StartsOver {
			p.from, p.Panics = p.Cursor, nil
			c.panicked.Store(false)
		}
	})
}

// Covers reports whether the initial list has already delivered a delta's change. It forgets the list once a delta is
// newer than all of it.
func (c *Consumer) Covers(d *Delta) bool {
	if d.Seq > c.p.list.upTo {
		c.p.list = list{}
		return false
	}
	return covers(c.p.list.ranges, d)
}

func covers(ranges []listedRange, d *Delta) bool {
	i := sort.Search(len(ranges), func(i int) bool { return ranges[i].last || d.Key < ranges[i].to })
	return i < len(ranges) && d.Seq <= ranges[i].seq
}
