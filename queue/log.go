package queue

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"k8s.io/klog/v2"

	"github.com/warmwatch/warmwatch/persist"
)

// The buckets of a log in its space.
const (
	deltasBucket     = "deltas"
	cursorsBucket    = "cursors"
	tombstonesBucket = "tombstones" // For each deletion in deltas, under the same key.
	stateBucket      = "queue"

	stateKey = "state"

	durablePrefix = "durable/"
)

// Buckets returns the names of the buckets that a log has in its space.
func Buckets() []string {
	return []string{deltasBucket, cursorsBucket, tombstonesBucket, stateBucket, asideBucket, panicsBucket}
}

var (
	// ErrInUse is returned for a durable name that has a consumer already.
	ErrInUse = persist.ErrInUse

	// ErrLost is returned by [Consumer.Next] where deltas are lost or cannot be
	// read. The handler must then be told what [Consumer.Undelivered] returns, all
	// objects ([Consumer.InitialListDone]), and what Next returns.
	ErrLost = errors.New("queue: deltas are lost")
)

// Options configures [NewLog].
type Options struct {
	DB *persist.DB
	// Space has the buckets. One log uses it at a time.
	Space string
	// Seq is the number of the last write to the space, if the caller numbers
	// the deltas.
	Seq uint64
	// NewObject returns an empty object of the type in the deltas. Not needed
	// for unstructured objects.
	NewObject func() any
	// TailBytes of recent deltas are kept in memory. Default 16 MiB. Those that
	// wait to be durable should fit.
	TailBytes int
	// MaxBacklogBytes is how much is stored for a consumer that is behind before
	// the deltas of each key are folded into one, beside its deletions. Default
	// 256 MiB; negative: never.
	MaxBacklogBytes int64
	// OnCorrupt is called for all damage, such as an unreadable delta. By default damage is logged.
	OnCorrupt func(error)
	// Logger defaults to klog's.
	Logger *klog.Logger
}

// A Log has the deltas of a space, in the order of their numbers.
//
//	Append (in a batch) ──► bucket "deltas"        trimmed when every consumer
//	Publish (after it)  ──► tail in memory ──►     has acknowledged
//	                              consumers, each at its own cursor
//
// A delta is appended in the batch that has the change itself, and published
// when that batch is visible. Acknowledging only moves a cursor in memory: the next
// commit stores the cursors and removes the deltas that all have passed, so a delta
// that was acknowledged before its first commit is never written.
//
// Consumers are of two kinds. Plain ones have no name, and their cursors end with the
// process. Each durable one has a name and a stored cursor, which holds deltas even
// while the name has no consumer.
//
// Nobody reads after a restart what a plain consumer has not acknowledged. So while no
// cursor has a name, deltas are stored only when they leave the tail before all consumers
// have acknowledged them.
//
// Append and Publish are for one goroutine; all other methods are safe for
// concurrent use. Locks: the DB's lock is taken before mu, never while mu is held.
type Log struct {
	db         *persist.DB
	deltas     persist.Bucket
	cursors    persist.Bucket
	tombstones persist.Bucket
	state      persist.Bucket
	newObject  func() any
	tailMax    int
	onCorrupt  func(error)
	reported   sync.Map // Seqs, see reportDelta.
	logger     klog.Logger
	removeHook func()

	loadedHead uint64 // Deltas with a Seq up to this are of an earlier Log of the space.

	kicked atomic.Bool // The DB was asked for a commit because a cursor has moved.

	mu   sync.Mutex
	cond sync.Cond // On mu: something was published or became durable, or a consumer closed.

	head        uint64      // Seq of the last published delta, or of the last write known at start.
	durableHead uint64      // The greatest head that is durable.
	durable     uint64      // Number of the last durable batch.
	batchHeads  []batchHead // Of batches that are not durable yet, oldest first.
	headsApart  int         // So many of the next must not replace the one before.

	tail      []Delta // Published, oldest first.
	tailArray []Delta // Empty; begins where the array behind tail does.
	tailBytes int
	tailBase  uint64 // Deltas with a Seq up to this are not in tail.

	ledger
	folding folding
	folder  sync.WaitGroup

	consumers    map[*Consumer]struct{}
	absent       map[string]cursor // Cursors of names without a consumer.
	absentReadTo map[string]uint64 // How far their last consumers had read.
	// nameLost says that a durable cursor may be lost, and its name with it. newAgain has the names that were
	// forgotten since.
	nameLost bool
	newAgain map[string]struct{}
	terms    terms
	aside    aside
}

// batchHead says that deltas up to seq are durable when the batch is.
type batchHead struct{ batch, seq uint64 }

// cursor is the stored position of a consumer: all deltas up to Seq are acknowledged.
type cursor struct {
	Seq uint64 `json:"seq"`
	// InitialPending: the consumer has still to be told of all objects.
	InitialPending bool `json:"walking,omitempty"`
	// MayKnow: the consumer's handler may know objects, although Seq is 0.
	MayKnow bool `json:"mayKnow,omitempty"`
}

// knows reports whether the handler may know objects, or that there are none.
func (c cursor) knows() bool { return c.MayKnow || c.Seq > 0 || !c.InitialPending }

// SizeBytes implements [persist.Value].
func (c cursor) SizeBytes() int { return 48 }

// AppendTo implements [persist.Value].
func (c cursor) AppendTo(dst []byte) ([]byte, error) { return persist.AppendJSON(dst, c) }

// NewLog returns the log of a space, with the deltas that are in the DB.
func NewLog(o Options) (*Log, error) {
	if o.DB == nil || o.Space == "" {
		return nil, errors.New("queue: DB and Space are required")
	}
	if o.TailBytes == 0 {
		o.TailBytes = 16 << 20
	}
	if o.MaxBacklogBytes == 0 {
		o.MaxBacklogBytes = 256 << 20
	}
	if o.Logger == nil {
		l := klog.Background()
		o.Logger = &l
	}
	if o.OnCorrupt == nil {
		o.OnCorrupt = func(err error) { o.Logger.Error(err, "Could not read what the log has") }
	}
	q := &Log{
		db:         o.DB,
		deltas:     persist.Bucket{Space: o.Space, Name: deltasBucket},
		cursors:    persist.Bucket{Space: o.Space, Name: cursorsBucket},
		tombstones: persist.Bucket{Space: o.Space, Name: tombstonesBucket},
		state:      persist.Bucket{Space: o.Space, Name: stateBucket},
		newObject:  o.NewObject, tailMax: o.TailBytes, onCorrupt: o.OnCorrupt, logger: *o.Logger,
		head:         o.Seq,
		consumers:    map[*Consumer]struct{}{},
		absent:       map[string]cursor{},
		absentReadTo: map[string]uint64{},
		newAgain:     map[string]struct{}{},
		ledger:       ledger{storedCursors: map[string]cursor{}},
	}
	q.cond.L = &q.mu
	q.folding.max = o.MaxBacklogBytes
	q.durable = q.db.Durable()
	if err := q.load(); err != nil {
		return nil, err
	}
	if _, some := q.runs.last(); some { // A commit removes what no cursor holds.
		defer q.db.Kick()
	}
	q.removeHook = q.db.AddHook(&persist.Hook{BeforeCommit: q.beforeCommit, AfterCommit: q.afterCommit, AfterDamage: q.afterDamage})
	q.afterCommit(q.db.Durable()) // The last commit may have ended before the hook was added.
	return q, nil
}

// Append puts those deltas that have to be stored into b, the batch of the changes
// themselves, and marks them as stored for Publish. It also stores unacknowledged
// deltas that Publish will drop from the tail.
func (q *Log) Append(b *persist.Batch, deltas []Delta) {
	q.mu.Lock()
	defer q.mu.Unlock()
	named, size := q.namedLocked(), q.tailBytes
	for i := range deltas {
		size += deltas[i].SizeBytes
	}
	if size > q.tailMax {
		floor := q.floorLocked()
		for i := 0; i < len(q.tail) && size > q.tailMax; i++ {
			d := &q.tail[i]
			if size -= d.SizeBytes; !d.stored && d.Seq > floor {
				q.storeDeltaLocked(b, d)
			}
		}
	}
	for i := range deltas {
		d := &deltas[i]
		if named || size > q.tailMax {
			q.storeDeltaLocked(b, d)
		}
		size -= d.SizeBytes
	}
}

// namedLocked reports whether there is a named cursor, with a consumer or without.
func (q *Log) namedLocked() bool {
	for c := range q.consumers {
		if c.name != "" {
			return true
		}
	}
	return len(q.absent) > 0
}

// Publish hands copies of the deltas to the consumers, after the batch with this
// number has been applied. The objects must not change any more.
func (q *Log) Publish(batch uint64, deltas []Delta) {
	if len(deltas) == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.tailBytes > q.tailMax/ackedTailShare {
		q.dropAckedLocked(q.floorLocked())
		q.dropUnreadLocked()
	}
	for i := range deltas {
		d := deltas[i]
		d.batch, d.NewValue, d.OldValue = batch, nil, nil // The values belong to the committer.
		q.pushTailLocked(d)
		q.tailBytes += d.SizeBytes
		q.head = d.Seq
	}
	drop := 0
	for size := q.tailBytes; size > q.tailMax && drop < len(q.tail); drop++ {
		size -= q.tail[drop].SizeBytes
	}
	q.dropTailLocked(drop)
	q.noteHeadLocked(batch)
	q.foldIfDueLocked()
	q.cond.Broadcast()
}

// Advance moves the head to the number of a write that has no delta, so that a
// consumer that has acknowledged all deltas moves its cursor there too.
func (q *Log) Advance(batch, seq uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if seq <= q.head {
		return
	}
	q.head = seq
	q.noteHeadLocked(batch)
	q.cond.Broadcast()
}

// HasDurable reports whether there is a durable consumer, which waits until a batch is
// durable, so that the batch should be urgent.
func (q *Log) HasDurable() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for c := range q.consumers {
		if c.durable {
			return true
		}
	}
	return false
}

// HasKnown reports whether there is a durable name, with a consumer or without,
// whose handler may know objects already, and must be told of every change.
func (q *Log) HasKnown() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for c := range q.consumers {
		if c.mayKnow {
			return true
		}
	}
	return len(q.absent) > 0 || q.nameLost
}

// HasTold reports whether a consumer of a durable name was told of all objects.
func (q *Log) HasTold(name string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if c := q.consumerLocked(name); c != nil {
		return !c.initialPending.Load()
	}
	c, found := q.absent[name]
	return found && !c.InitialPending
}

// Follows reports whether the consumer of a durable name, which has not begun to read, follows one of this process. The
// handler of that may still run: when it returns from its last object, HasTold becomes true.
func (q *Log) Follows(name string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	c := q.consumerLocked(name)
	return c != nil && c.follows && !c.begun
}

// Head returns the Seq of the last published delta, or of a later write, see Advance.
func (q *Log) Head() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.head
}

// Unacked returns the number of deltas that some consumer, or absent name, has not
// acknowledged.
func (q *Log) Unacked() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n, _ := q.behindLocked(q.floorLocked())
	return n
}

// behindLocked returns how many deltas come after a cursor, and about how many bytes
// they have.
func (q *Log) behindLocked(cursor uint64) (deltas int, bytes int64) {
	for n, b := range q.runs.sizes(cursor) {
		deltas += n
		bytes += b
	}
	for i := len(q.tail) - 1; i >= 0 && q.tail[i].Seq > cursor; i-- {
		deltas++
		bytes += int64(q.tail[i].SizeBytes)
	}
	return deltas, bytes
}

// Absent returns the durable names without a consumer, sorted.
func (q *Log) Absent() []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Sorted(maps.Keys(q.absent))
}

// Behind is [Consumer.Behind] for a name without a consumer.
func (q *Log) Behind(name string) (deltas int, bytes int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if c, found := q.absent[name]; found {
		return q.behindLocked(c.Seq)
	}
	return 0, 0
}

// floorLocked returns the Seq up to which every consumer has acknowledged.
func (q *Log) floorLocked() uint64 {
	floor := q.head
	for c := range q.consumers {
		floor = min(floor, c.cursor.Load())
	}
	for _, c := range q.absent {
		floor = min(floor, c.Seq)
	}
	return floor
}

// Forget removes the cursor of a durable consumer that will not come back, so
// that it holds no deltas any more. The error wraps [ErrInUse] if the name has a
// consumer now, and is persist.ErrClosed if the DB is closed.
func (q *Log) Forget(name string) (err error) {
	_, updateErr := q.db.Update(func(b *persist.Batch) {
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.consumerLocked(name) != nil {
			err = fmt.Errorf("%w: %q", ErrInUse, name)
			return
		}
		q.forgetLocked(b, name)
		if q.nameLost {
			q.newAgain[name] = struct{}{}
		}
	})
	return cmp.Or(err, updateErr)
}

func (q *Log) forgetLocked(b *persist.Batch, name string) {
	delete(q.absent, name)
	delete(q.terms.byName, name)
	delete(q.absentReadTo, name)
	delete(q.storedCursors, durablePrefix+name)
	b.Delete(q.cursors, durablePrefix+name)
	q.forgetAsideLocked(b, name)
}

// Stop ends all consumers. Deltas that the durable ones did not acknowledge stay in the
// log. A last batch stores their cursors.
func (q *Log) Stop() error {
	q.mu.Lock()
	q.folding.stopped = true
	q.mu.Unlock()
	q.folder.Wait()
	q.mu.Lock()
	for c := range q.consumers {
		c.closed = true
		if c.name != "" {
			q.absent[c.name] = c.at()
		}
	}
	clear(q.consumers)
	q.cond.Broadcast()
	q.mu.Unlock()
	_, err := q.db.Update(q.beforeCommit)
	q.removeHook()
	return err
}
