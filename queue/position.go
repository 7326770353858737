package queue

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"strings"

	"github.com/warmwatch/warmwatch/persist"
)

// A Kind says whether a name belongs to a handler or a reconciler. A handler and a reconciler may have the same name.
type Kind string

// The kinds.
const (
	Handlers    Kind = "handler"
	Reconcilers Kind = "reconciler"

	fifos Kind = "fifo" // For the consumer of a DeltaFIFO.
)

// Key returns the key that a name is stored under.
func (k Kind) Key(name string) string { return string(k) + "/" + name }

func (k Kind) cut(key string) (name string, ok bool) { return strings.CutPrefix(key, string(k)+"/") }

// Handled is the stored state of a handler.
type Handled struct {
	// Cursor: all deltas up to it are acknowledged.
	Cursor uint64 `json:"cursor"`
	// StartsOver: the handler first gets the deletions behind the cursor and all objects.
	StartsOver bool   `json:"startsOver,omitempty"`
	Epoch      string `json:"epoch,omitempty"`
	// Panics says in how many processes the handler has panicked on an object, by key. The map is replaced, not
	// changed.
	Panics map[string]int `json:"panics,omitempty"`
}

// A position says how far a handler has come. Guarded by Log.mu.
type position struct {
	Handled
	name     string    // Its key in the DB. Empty: it is not stored.
	consumer *Consumer // Nil: the name has none now.
	// from is the number behind which all deltas are needed. It is normally the cursor. During an initial list it is
	// the list's beginning. Before the list it is never.
	from  uint64
	isNew bool  // The handler knows no object yet.
	again bool  // During an initial list: another one follows.
	bytes int64 // About how long the pending deltas are.
	// unwritten is how many of these bytes stay in memory because commits fail.
	unwritten int64
	list      list
	why       string // Why it last started over.
	shown     shown
}

// Why a handler starts over.
const (
	CauseNew              = "New"
	CauseEpoch            = "Epoch"
	CauseBacklog          = "Backlog"
	CauseDamaged          = "Damaged"
	CauseTransformVersion = "TransformVersion"
	CauseUnfinished       = "Unfinished" // The last process ended before the handler had all objects.
)

const never = math.MaxUint64

// wantsDeletions reports whether deletions behind the cursor are needed.
func (p *position) wantsDeletions() bool { return p.StartsOver && !p.isNew }

// putLocked stores the position, if it has a name.
func (q *Log) putLocked(b *persist.Batch, p *position) {
	if p.name != "" {
		b.Put(q.handlers, p.name, persist.JSON(p.Handled))
	}
}

// startOverLocked makes a handler start over, or start over once more.
func (q *Log) startOverLocked(b *persist.Batch, p *position, cause string) {
	if p.from != never {
		for i := range q.tail.deltas { // Its deletions are read from the DB.
			if d := &q.tail.deltas[i]; d.deletes() && !d.stored && d.Number > p.Cursor {
				q.storeLocked(b, d)
			}
		}
		kept, all := len(q.stored.deletionsBehind(p.Cursor)), q.head-min(p.Cursor, q.head)
		p.bytes = int64(float64(p.bytes) * float64(kept) / float64(max(all, 1)))
		p.unwritten = min(p.unwritten, p.bytes)
	}
	p.again = p.again || p.StartsOver && p.from != never
	p.StartsOver, p.from, p.why = true, never, cause
	q.putLocked(b, p)
	q.showLocked(p)
}

// countLocked adds a delta to the backlog of each handler. A handler starts over, which drops its pending updates, if
// its backlog is over MaxBacklogBytes, or, while commits fail, over MaxPendingBytes in memory. If its deletions alone
// are still over half of MaxBacklogBytes, the older half of them is dropped.
func (q *Log) countLocked(b *persist.Batch, d *Delta) {
	maxInMemory, failing := b.Failing()
	for p := range q.positions {
		if p.from == never && (!p.wantsDeletions() || !d.deletes()) {
			continue
		}
		p.bytes += int64(d.SizeBytes)
		if p.unwritten = min(p.unwritten+int64(d.SizeBytes), p.bytes); !failing {
			p.unwritten = 0
		}
		tooMuch := q.backlog >= 0 && p.bytes > q.backlog
		if p.from != never && (tooMuch || p.unwritten > maxInMemory) {
			q.logger.Info("Too much is pending for a handler, it starts over", "handler", p.title(), "bytes", p.bytes, "inMemory", p.unwritten, "deltas", q.behindLocked(p))
			q.startOverLocked(b, p, CauseBacklog)
		}
		if kept := q.stored.deletionsBehind(p.Cursor); tooMuch && p.bytes > q.backlog/2 && len(kept) > 0 {
			q.logger.Info("Too many deletions are pending for a handler, the oldest are dropped", "handler", p.title(), "dropped", (len(kept)+1)/2)
			p.Cursor, p.bytes = kept[(len(kept)-1)/2], p.bytes/2
			q.putLocked(b, p)
		}
	}
}

func (p *position) title() string {
	if p.name == "" {
		return "without a name"
	}
	return p.name
}

// Plain adds a consumer without a name. Its handler knows nothing, and begins with an initial list.
func (q *Log) Plain() *Consumer {
	q.mu.Lock()
	defer q.mu.Unlock()
	p := &position{Handled: Handled{StartsOver: true, Cursor: q.head}, isNew: true, from: never, why: CauseNew}
	q.positions[p] = struct{}{}
	return q.consumeLocked(p, false)
}

// Durable adds the consumer of a name. It gets only durable deltas. A name that is new, or has another epoch, starts
// over. The error wraps [ErrInUse] while the name has a consumer. The name is in the file before the consumer's initial
// list begins.
func (q *Log) Durable(kind Kind, name, epoch string) (*Consumer, error) {
	return q.named(kind, name, epoch, true)
}

func (q *Log) named(kind Kind, name, epoch string, durable bool) (c *Consumer, err error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	updateErr := q.db.Update(func(b *persist.Batch) {
		q.mu.Lock()
		defer q.mu.Unlock()
		key := kind.Key(name)
		p := q.names[key]
		switch {
		case p == nil:
			p = &position{name: key, Handled: Handled{Epoch: epoch, StartsOver: true}, from: never, why: CauseNew}
			q.positions[p], q.names[key] = struct{}{}, p
			q.showNamesLocked()
			q.putLocked(b, p)
			q.putLastLocked(b, q.head) // From now on each delta is stored.
		case p.consumer != nil:
			err = fmt.Errorf("%w: %q", ErrInUse, name)
			return
		case p.Epoch != epoch:
			p.Epoch = epoch
			q.startOverLocked(b, p, CauseEpoch)
		}
		c = q.consumeLocked(p, durable)
		b.Urgent()
	})
	return c, errors.Join(err, updateErr)
}

// maxNameBytes is the length of the longest name.
const maxNameBytes = 1024

// CheckName returns an error if a name cannot be stored.
func CheckName(name string) error {
	switch {
	case name == "":
		return errors.New("queue: a name is required")
	case len(name) > maxNameBytes:
		return fmt.Errorf("queue: a name of %d bytes is too long, at most %d are allowed; it begins with %.40q", len(name), maxNameBytes, name)
	}
	return nil
}

func (q *Log) consumeLocked(p *position, durable bool) *Consumer {
	p.consumer = &Consumer{q: q, p: p, durable: durable, wake: make(chan struct{}, 1), stopped: make(chan struct{})}
	p.consumer.panicked.Store(len(p.Panics) > 0)
	q.showLocked(p)
	return p.consumer
}

// NotePanic notes durably that the handler has panicked on an object. It returns in how many processes it has done so.
func (c *Consumer) NotePanic(key string) (count int, err error) {
	err = c.changePanics(func(panics map[string]int) {
		panics[key]++
		count = panics[key]
	})
	if err != nil {
		return 0, err
	}
	return count, c.q.db.Flush()
}

// Panics returns in how many processes the handler has panicked on an object.
func (c *Consumer) Panics(key string) int {
	if !c.panicked.Load() {
		return 0
	}
	c.q.mu.Lock()
	defer c.q.mu.Unlock()
	return c.p.Panics[key]
}

// Returned notes that the handler has returned from a callback for an object: earlier panics on it do not count any
// more.
func (c *Consumer) Returned(key string) error {
	if c.Panics(key) == 0 {
		return nil
	}
	return c.changePanics(func(panics map[string]int) { delete(panics, key) })
}

func (c *Consumer) changePanics(change func(map[string]int)) error {
	return c.q.db.Update(func(b *persist.Batch) {
		c.q.mu.Lock()
		defer c.q.mu.Unlock()
		panics := maps.Clone(c.p.Panics)
		if panics == nil {
			panics = map[string]int{}
		}
		change(panics)
		c.p.Panics = panics
		c.panicked.Store(len(panics) > 0)
		c.q.putLocked(b, c.p)
		b.Urgent()
	})
}
