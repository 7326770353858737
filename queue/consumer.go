package queue

import (
	"errors"
	"fmt"
	"sort"
	"sync/atomic"

	"github.com/warmwatch/warmwatch/persist"
)

// ErrStopped is returned by the methods of a consumer that was stopped or removed.
var ErrStopped = errors.New("queue: consumer is stopped")

// A Consumer reads the log at its own cursor. One goroutine reads; Stop and
// Remove may come from others.
type Consumer struct {
	q       *Log
	name    string // Empty: plain.
	durable bool   // Next returns only durable deltas.
	// Known reports whether an earlier consumer of this name was told of all
	// objects. It may change while a handler of such a consumer runs.
	Known bool

	cursor         atomic.Uint64 // All deltas up to it are acknowledged.
	initialPending atomic.Bool
	removed        atomic.Bool // Set before cursor is read for the last time.
	buf            []Delta

	// Guarded by q.mu.
	closed      bool
	interrupted bool
	readTo      uint64 // The greatest Seq that was read, or is being read.
	// startsOver: Undelivered may return more, up to retellTo, which is the head at its
	// first call and 0 before.
	startsOver  bool
	retellTo    uint64
	mayKnow     bool // An earlier consumer of this name may have been told of objects, or that there are none.
	initialList initialList

	registered uint64 // Number of the batch with the name.

	// term decides whose acknowledgements count for a name, see passOn. Until it has
	// begun to read, a consumer has that of the one before, if it follows one of this
	// process. Guarded by q.mu, as are begun and follows.
	term           uint64
	begun, follows bool

	isNew bool // Nobody had the name before.
}

// terms has those of the names without a consumer.
type terms struct {
	last   uint64
	byName map[string]uint64
}

func (ts *terms) next() uint64 {
	ts.last++
	return ts.last
}

// Plain adds a plain consumer, which begins at the head.
func (q *Log) Plain() *Consumer {
	q.mu.Lock()
	defer q.mu.Unlock()
	c := &Consumer{q: q}
	c.cursor.Store(q.head)
	q.consumers[c] = struct{}{}
	return c
}

// Durable adds the consumer of a name. While the name has another one, the error wraps
// [ErrInUse].
func (q *Log) Durable(name string) (*Consumer, error) { return q.named(name, true) }

func (q *Log) named(name string, durable bool) (*Consumer, error) {
	if name == "" {
		return nil, errors.New("queue: name is empty")
	}
	if size := len(durablePrefix) + len(name); size > persist.MaxKeyBytes {
		return nil, fmt.Errorf("queue: a name of %d bytes is too long, the file has room for %d; it begins with %.40q", len(name), persist.MaxKeyBytes-len(durablePrefix), name)
	}
	c := &Consumer{q: q, name: name, durable: durable}
	if err := q.addNamed(c); err != nil {
		return nil, err
	}
	// The name must be in the file before its consumer is told of an object
	// (WaitDurable): from then on it must be told of the object's deletion.
	batch, err := q.db.Update(func(b *persist.Batch) {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.storeLocked(b, durablePrefix+name, c.at())
		b.Urgent()
	})
	if err != nil {
		c.Remove()
		return nil, err
	}
	c.registered = batch
	return c, nil
}

func (q *Log) addNamed(c *Consumer) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.consumerLocked(c.name) != nil {
		return fmt.Errorf("%w: %q", ErrInUse, c.name)
	}
	stored, seen := q.absent[c.name]
	c.isNew = !seen
	_, again := q.newAgain[c.name]
	switch {
	case seen:
		c.startLocked(stored)
	case q.nameLost && !again && c.durable: // The lost cursor may be of this name.
		c.initialPending.Store(true)
		c.mayKnow, c.startsOver = true, true
	default:
		c.initialPending.Store(true)
		c.cursor.Store(q.head)
	}
	if c.term, c.follows = q.terms.byName[c.name]; !c.follows {
		c.term = q.terms.next()
	}
	delete(q.terms.byName, c.name)
	c.readTo = q.absentReadTo[c.name]
	delete(q.absent, c.name)
	delete(q.absentReadTo, c.name)
	q.consumers[c] = struct{}{}
	return nil
}

// consumerLocked returns the consumer of a name, nil if it has none now.
func (q *Log) consumerLocked(name string) *Consumer {
	for c := range q.consumers {
		if c.name == name {
			return c
		}
	}
	return nil
}

// limitLocked returns the Seq up to which the consumer may read now.
func (c *Consumer) limitLocked() uint64 {
	if c.durable {
		return c.q.durableHead
	}
	return c.q.head
}

// A read ends after deltasPerRead deltas, or with more than maxReadBytes from disk.
const (
	deltasPerRead = 256
	maxReadBytes  = 1 << 20
)

// Next waits for deltas after the cursor and returns some, oldest first, valid until
// the next call. It returns none where the next ones were removed, or after Interrupt.
// The error is [ErrStopped] after Stop or Remove, [ErrLost], or that of the DB, such as
// persist.ErrClosed.
func (c *Consumer) Next() ([]Delta, error) {
	return c.read(^uint64(0), false)
}

// StartsOver reports whether the consumer's handler, or the one before of its name, may
// know objects that are gone, so that it is given what Undelivered returns. That ends with
// the last call of Undelivered.
func (c *Consumer) StartsOver() bool {
	c.q.mu.Lock()
	defer c.q.mu.Unlock()
	return c.startsOver
}

// Undelivered returns the next deltas that a consumer which starts over has not
// acknowledged. The caller acknowledges them, and calls Undelivered until it returns none,
// before Next.
func (c *Consumer) Undelivered() ([]Delta, error) {
	q := c.q
	for {
		q.mu.Lock()
		if c.startsOver && c.retellTo == 0 {
			c.retellTo = q.head
		}
		to := c.retellTo
		if !c.startsOver || c.cursor.Load() >= to {
			c.startsOver, c.retellTo = false, 0
			q.mu.Unlock()
			return nil, nil
		}
		q.mu.Unlock()
		if ds, err := c.read(to, true); len(ds) > 0 || err != nil {
			return ds, err
		}
	}
}

// read waits for deltas after the cursor and returns some, up to limit. It returns
// none after it has passed a gap. With undelivered, lost deletions are replaced by their
// tombstones, and nothing else counts as lost.
func (c *Consumer) read(limit uint64, undelivered bool) ([]Delta, error) {
	c.endInitialList()
	q := c.q
	q.mu.Lock()
	c.beginLocked()
	at := c.cursor.Load()
	for !c.closed && !c.interrupted && c.limitLocked() <= at {
		q.cond.Wait()
	}
	if c.closed {
		q.mu.Unlock()
		return nil, ErrStopped
	}
	c.interrupted = false
	if c.limitLocked() <= at {
		q.mu.Unlock()
		return nil, nil
	}
	limit = min(limit, c.limitLocked())
	clear(c.buf)
	c.buf = c.buf[:0]
	if at < q.tailBase {
		limit = min(limit, q.tailBase) // Not all deltas in the tail are stored.
		c.readTo = limit
		q.mu.Unlock()
		err := c.readStored(at, limit, undelivered)
		c.noteRead(err)
		if err != nil {
			return nil, err
		}
		return c.buf, nil
	}
	from := sort.Search(len(q.tail), func(i int) bool { return q.tail[i].Seq > at })
	for i := from; i < len(q.tail) && i < from+deltasPerRead && q.tail[i].Seq <= limit; i++ {
		c.buf = append(c.buf, q.tail[i])
		c.readTo = q.tail[i].Seq
	}
	q.mu.Unlock()
	if len(c.buf) == 0 {
		c.cursor.Store(limit)
	}
	return c.buf, nil
}

// noteRead notes how far was read, so that later deltas may be folded.
func (c *Consumer) noteRead(err error) {
	c.q.mu.Lock()
	defer c.q.mu.Unlock()
	c.readTo = c.cursor.Load()
	if n := len(c.buf); n > 0 && err == nil {
		c.readTo = c.buf[n-1].Seq
	}
}

// Behind returns how many deltas the consumer has still to acknowledge, and about how
// many bytes they have.
func (c *Consumer) Behind() (deltas int, bytes int64) {
	c.q.mu.Lock()
	defer c.q.mu.Unlock()
	return c.q.behindLocked(c.cursor.Load())
}

// WaitDurable waits until the consumer's name and the batch with this number are
// durable, and has them written soon. The error is [ErrStopped].
func (c *Consumer) WaitDurable(batch uint64) error {
	q := c.q
	q.db.CommitSoon(max(batch, c.registered))
	q.mu.Lock()
	defer q.mu.Unlock()
	c.beginLocked()
	for !c.closed && q.durable < max(batch, c.registered) {
		q.cond.Wait()
	}
	if c.closed {
		return ErrStopped
	}
	return nil
}

// Interrupt makes Next return without deltas, now if it waits, or else when it is
// called next.
func (c *Consumer) Interrupt() {
	c.q.mu.Lock()
	defer c.q.mu.Unlock()
	c.interrupted = true
	c.q.cond.Broadcast()
}

// Acknowledge moves the cursor to seq: all deltas up to it were handled. After the next
// commit not even a crash repeats them.
func (c *Consumer) Acknowledge(seq uint64) {
	c.cursor.Store(seq)
	if c.removed.Load() {
		c.passOn()
	}
	// The commit comes even if nothing else changes, and even if the consumer
	// hangs before it asks for more.
	if !c.q.kicked.Load() && !c.q.kicked.Swap(true) {
		c.q.db.Kick()
	}
}

// beginLocked begins a new term: the consumer before cannot move this cursor any more.
func (c *Consumer) beginLocked() {
	if !c.begun && c.name != "" {
		c.term, c.begun = c.q.terms.next(), true
	}
}

// passOn is for a handler that was still running when its consumer was removed. What it
// acknowledges counts for the name, and for the name's next consumer until that begins
// to read: both have the same term until then.
func (c *Consumer) passOn() {
	c.q.mu.Lock()
	defer c.q.mu.Unlock()
	c.passOnLocked()
}

func (c *Consumer) passOnLocked() {
	q := c.q
	at := c.at()
	if before, waits := q.absent[c.name]; waits {
		if q.terms.byName[c.name] == c.term && (at.Seq > before.Seq || before.InitialPending) {
			q.absent[c.name] = at
		}
		return
	}
	if next := q.consumerLocked(c.name); next != nil && next.term == c.term && (at.Seq > next.cursor.Load() || next.initialPending.Load()) {
		next.startLocked(at)
	}
}

// startLocked sets the position of a consumer that has not begun to read.
func (c *Consumer) startLocked(at cursor) {
	c.Known, c.startsOver, c.retellTo = !at.InitialPending, at.InitialPending, 0
	c.mayKnow = c.mayKnow || at.knows()
	c.initialPending.Store(at.InitialPending)
	c.cursor.Store(min(at.Seq, c.q.head))
}

// InitialPending reports whether a named consumer has still to be told of all objects, or of
// what happened while it was.
func (c *Consumer) InitialPending() bool { return c.initialPending.Load() }

// at returns the position to store.
func (c *Consumer) at() cursor {
	at := cursor{Seq: c.cursor.Load(), InitialPending: c.initialPending.Load()}
	at.MayKnow = c.mayKnow && !at.knows()
	return at
}

// Cursor returns the Seq up to which all deltas are acknowledged.
func (c *Consumer) Cursor() uint64 { return c.cursor.Load() }

// Stop makes Next and the other waiting methods return [ErrStopped]. Acknowledge still
// counts afterwards, until the log is stopped. Stop is idempotent.
func (c *Consumer) Stop() {
	c.q.mu.Lock()
	defer c.q.mu.Unlock()
	c.closed = true
	c.q.cond.Broadcast()
}

// Remove ends the consumer. A plain one holds no deltas any more. The cursor of a
// durable one stays, see [Log.Forget], and Acknowledge still counts until another
// consumer of the name begins to read. Remove is idempotent.
func (c *Consumer) Remove() {
	q := c.q
	q.mu.Lock()
	defer q.mu.Unlock()
	c.closed = true
	if _, ours := q.consumers[c]; !ours {
		return
	}
	delete(q.consumers, c)
	if c.name != "" {
		c.removed.Store(true)
		q.absent[c.name] = c.at()
		if q.terms.byName == nil {
			q.terms.byName = map[string]uint64{}
		}
		q.terms.byName[c.name] = c.term
		q.absentReadTo[c.name] = max(c.readTo, c.initialList.upTo)
	}
	q.cond.Broadcast()
}

// Discard is Remove for a consumer that was told of nothing, and leaves nothing of a name that nobody had before.
func (c *Consumer) Discard() error {
	c.Remove()
	if !c.isNew {
		return nil
	}
	_, err := c.q.db.Update(func(b *persist.Batch) {
		c.q.mu.Lock()
		defer c.q.mu.Unlock()
		c.q.forgetLocked(b, c.name)
	})
	return err
}
