package queue

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/warmwatch/warmwatch/persist"
)

// ErrStopped is returned by the methods of a consumer that was stopped.
var ErrStopped = errors.New("queue: consumer is stopped")

// A Consumer reads the log at its own position. One goroutine reads; Stop and Interrupt may come from others.
type Consumer struct {
	q       *Log
	p       *position // Guarded by q.mu.
	durable bool      // It gets only durable deltas.

	wake        chan struct{} // Capacity 1: there may be more to read.
	interrupted atomic.Bool
	stop        sync.Once
	stopped     chan struct{}
	panicked    atomic.Bool // The position has Panics.

	buf []Delta
}

// One call of Next or Deletions returns at most deltasPerRead deltas. It stops after the delta with which it has read
// more than maxReadBytes from disk.
const (
	deltasPerRead = 256
	maxReadBytes  = 1 << 20
)

func (c *Consumer) wakeUp() {
	select {
	case c.wake <- struct{}{}:
	default: // It is about to look already.
	}
}

// Next waits for deltas that are not acknowledged, and returns some, oldest first, valid until
// the next call. It returns none after [Consumer.Interrupt]. The error is [ErrStopped], [ErrStartOver], or that of the
// DB, such as persist.ErrClosed.
func (c *Consumer) Next() ([]Delta, error) {
	for {
		committed := c.committed()
		ds, err := c.ready()
		if len(ds) > 0 || err != nil {
			return ds, err
		}
		if c.interrupted.Swap(false) {
			return nil, nil
		}
		select {
		case <-c.wake:
		case <-committed:
		case <-c.stopped:
		}
	}
}

// committed is closed when more may have become durable. It is nil if the consumer does not wait for that.
func (c *Consumer) committed() <-chan struct{} {
	if !c.durable {
		return nil
	}
	return c.q.db.Committed()
}

// ready returns deltas that can be given now.
func (c *Consumer) ready() ([]Delta, error) {
	select {
	case <-c.stopped:
		return nil, ErrStopped
	default:
	}
	q, durable := c.q, uint64(0)
	if c.durable {
		durable = q.db.Durable() // Not under mu.
	}
	q.mu.Lock()
	if c.p.StartsOver {
		q.mu.Unlock()
		return nil, ErrStartOver
	}
	clear(c.buf)
	c.buf = c.buf[:0]
	if at, base := c.p.Cursor, q.tail.base; at < base {
		q.mu.Unlock()
		return c.readStored(at, base)
	}
	for _, d := range q.tail.after(c.p.Cursor) {
		if len(c.buf) == deltasPerRead || c.durable && d.batch > durable {
			break
		}
		c.buf = append(c.buf, d)
	}
	q.mu.Unlock()
	return c.buf, nil
}

// Acknowledge moves the cursor behind ds: these deltas were handled. ds are the first of those that Next has returned.
// After the next commit not even a crash repeats them. It does not wait for the disk.
func (c *Consumer) Acknowledge(ds []Delta) error {
	if len(ds) == 0 {
		return nil
	}
	return c.update(func() { c.q.acknowledgeLocked(c.p, ds) })
}

// update changes the position under mu, stores it if it has a name, and removes deltas that nobody needs any more.
func (c *Consumer) update(change func()) error {
	q, p := c.q, c.p
	if p.name == "" {
		q.mu.Lock()
		change()
		q.leaveLocked(nil)
		q.showLocked(p)
		trims := q.trimsLocked()
		q.mu.Unlock()
		if !trims {
			return nil
		}
		change = func() {}
	}
	return q.db.Update(func(b *persist.Batch) {
		q.mu.Lock()
		defer q.mu.Unlock()
		change()
		q.leaveLocked(b)
		q.showLocked(p)
		q.putLocked(b, p)
		q.trimLocked(b)
	})
}

func (q *Log) acknowledgeLocked(p *position, ds []Delta) {
	number := ds[len(ds)-1].Number
	if number <= p.Cursor {
		return
	}
	p.Cursor = number
	for i := range ds {
		if !p.StartsOver || ds[i].deletes() {
			p.bytes -= int64(ds[i].SizeBytes)
		}
	}
	if p.StartsOver { // Since they were read, too much was pending.
		return
	}
	if p.from = p.Cursor; p.Cursor == q.head {
		p.bytes = 0 // The sizes are estimates.
	}
}

// Has reports whether the consumer has acknowledged the delta with a number, and has all that was before.
func (c *Consumer) Has(number uint64) bool {
	c.q.mu.Lock()
	defer c.q.mu.Unlock()
	return !c.p.StartsOver && c.p.Cursor >= number
}

// Behind returns the deltas that the consumer has still to acknowledge. It takes no lock.
func (c *Consumer) Behind() Backlog { return c.p.shown.get() }

// waitDurable waits until all that was applied is durable, and has it written soon.
func (c *Consumer) waitDurable() error {
	db := c.q.db
	batch := db.CommitSoon()
	for {
		committed := db.Committed()
		if db.Durable() >= batch {
			return nil
		}
		select {
		case <-committed:
		case <-c.stopped:
			return ErrStopped
		}
	}
}

// Interrupt makes Next return without deltas, now if it waits, or else when there are none the next time.
func (c *Consumer) Interrupt() {
	c.interrupted.Store(true)
	c.wakeUp()
}

// Stop makes Next and the other waiting methods return [ErrStopped]. Acknowledge still counts. Stop is idempotent.
func (c *Consumer) Stop() { c.stop.Do(func() { close(c.stopped) }) }

// Remove ends the consumer. It is called after the last Acknowledge. A consumer without a name then holds no deltas any
// more. A name can have another consumer then, and holds its deltas until [Log.Forget].
func (c *Consumer) Remove() error {
	c.Stop()
	return c.update(func() {
		q, p := c.q, c.p
		if p.consumer != c {
			return
		}
		if p.consumer = nil; p.StartsOver {
			p.from = never
		}
		if p.name == "" {
			delete(q.positions, p)
		}
	})
}
