package queue

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/warmwatch/warmwatch/persist"
)

// The buckets of a log in its space.
const (
	DeltasBucket   = "deltas"
	HandlersBucket = "handlers" // A record for each name.
	StateBucket    = "queue"

	LastKey = "last" // The number of the last delta that was stored.
)

// Buckets returns the names of the buckets that a log has in its space.
func Buckets() []string { return []string{DeltasBucket, HandlersBucket, StateBucket} }

var (
	// ErrInUse is returned for a name that has a consumer already.
	ErrInUse = persist.ErrInUse

	// ErrStartOver is returned by [Consumer.Next] if the consumer has to start over first, see [Consumer.BeginList].
	ErrStartOver = errors.New("queue: the consumer starts over")
)

// Options configures [NewLog].
type Options struct {
	DB *persist.DB
	// Space has the buckets. One log uses it at a time.
	Space string
	// NewObject returns an empty object of the type in the deltas. Not needed
	// for unstructured objects.
	NewObject func() any
	// TailBytes of recent deltas are kept in memory. Default 16 MiB. The deltas that are not durable yet should fit.
	TailBytes int
	// MaxBacklogBytes is how much is kept for a consumer before it starts over. Default 256 MiB; negative: everything.
	MaxBacklogBytes int64
	// OnCorrupt is called for all damage, such as an unreadable delta. By default damage is logged.
	OnCorrupt func(error)
	// Logger defaults to klog's.
	Logger *klog.Logger
}

// A Log has the deltas of a space, in order. Their numbers have no gap.
//
//	                      ┌──► tail in memory ──┐
//	Append (in a batch) ──┤                     ├──► consumers, each at its own position
//	                      └──► bucket "deltas" ─┘
//
// A delta is appended in the batch that has the change itself. A consumer may get it before that batch is visible. If
// it then reads the store, it waits for the batch. While a name exists, each delta is stored at once. Otherwise a delta
// is stored if it leaves the tail while a consumer still needs it. An acknowledgement is a batch, too: it stores the
// cursor, and removes the deltas that nobody needs any more.
//
// A name is stored with its position. The position holds deltas even while the name has no consumer. A stored position
// is sound if all deltas behind its cursor are there. Otherwise the consumer starts over. A consumer without a name
// ends with the process.
//
// Append is for one goroutine; all other methods are safe for concurrent use. Locks: the DB's lock is taken before mu,
// never while mu is held.
type Log struct {
	db        *persist.DB
	deltas    persist.Bucket
	handlers  persist.Bucket
	state     persist.Bucket
	newObject func() any
	tailMax   int
	backlog   int64
	onCorrupt func(error)
	logger    klog.Logger
	damaged   bool // load has found damage.

	mu        sync.Mutex
	head      uint64 // Number of the last delta.
	tail      tail
	stored    stored
	positions map[*position]struct{}
	names     map[string]*position        // The positions that have a name, by key.
	withName  atomic.Pointer[[]*position] // The values of names, to be read without mu.
}

// stored says which deltas the DB has.
type stored struct {
	// Below first only deletions are stored. Above last nothing is stored. last is below first if nothing is stored.
	first, last uint64
	deletions   []uint64 // The numbers of the stored deltas with a deletion.
}

func (s *stored) isDeletion(number uint64) bool {
	_, found := slices.BinarySearch(s.deletions, number)
	return found
}

// deletionsBehind returns the numbers of the deletions behind a cursor.
func (s *stored) deletionsBehind(cursor uint64) []uint64 {
	i, _ := slices.BinarySearch(s.deletions, cursor+1)
	return s.deletions[i:]
}

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
		o.OnCorrupt = func(err error) { o.Logger.Error(err, "Could not read a part of the queue") }
	}
	q := &Log{
		db:        o.DB,
		deltas:    persist.Bucket{Space: o.Space, Name: DeltasBucket},
		handlers:  persist.Bucket{Space: o.Space, Name: HandlersBucket},
		state:     persist.Bucket{Space: o.Space, Name: StateBucket},
		newObject: o.NewObject, tailMax: o.TailBytes, backlog: o.MaxBacklogBytes, onCorrupt: o.OnCorrupt, logger: *o.Logger,
		positions: map[*position]struct{}{},
		names:     map[string]*position{},
	}
	return q, q.load()
}

// Encode encodes deltas that Append will store, see [Log.Stores]. It is called before their batch, because Append runs
// under the DB's lock. A delta that leaves the tail because a handler hangs is encoded under that lock: MarshalJSON of
// a type must not read the store.
func (q *Log) Encode(deltas []Delta) {
	for i := range deltas {
		deltas[i].encoded = deltas[i].encode()
	}
}

// Append numbers deltas, and hands copies of them to the consumers. If they have to be stored, it puts them into b, the
// batch of the changes themselves. It also stores deltas that leave the tail. The batch becomes urgent if a durable
// consumer waits for it. The objects must not change any more.
func (q *Log) Append(b *persist.Batch, deltas []Delta) {
	if len(deltas) == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.leaveLocked(b)
	for i := range deltas {
		deltas[i].Number = q.head + uint64(i) + 1
		q.countLocked(b, &deltas[i])
	}
	if q.storesLocked() { // Also if countLocked has made somebody start over.
		for i := range deltas {
			q.storeLocked(b, &deltas[i])
		}
	}
	now := time.Now().UnixNano()
	for i := range deltas {
		d := deltas[i]
		d.at, d.batch, d.encoded, d.NewRecord, d.OldRecord = now, b.Number(), nil, nil, nil
		q.tail.push(d)
		q.head = d.Number
	}
	for p := range q.positions {
		if q.showLocked(p); p.consumer == nil {
			continue
		}
		if p.consumer.wakeUp(); p.consumer.durable {
			b.Urgent()
		}
	}
	q.trimLocked(b)
}

// storesLocked reports whether somebody will read the next delta from the DB.
func (q *Log) storesLocked() bool {
	for p := range q.positions {
		if p.name != "" || p.from < q.tail.base || p.wantsDeletions() {
			return true
		}
	}
	return false
}

// Stores reports whether Append will store the next deltas.
func (q *Log) Stores() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.storesLocked()
}

// HasKnown reports whether there is a name whose handler does not start over: it knows all changes up to its cursor,
// and must get every later one.
func (q *Log) HasKnown() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, p := range q.names {
		if !p.StartsOver {
			return true
		}
	}
	return false
}

func (q *Log) storeLocked(b *persist.Batch, d *Delta) {
	d.stored = true
	if d.encoded == nil {
		d.encoded = d.encode()
	}
	b.PutNew(q.deltas, deltaKey(d.Number, d.deletes()), d.encoded)
	d.encoded = nil
	s := &q.stored
	if s.last < s.first { // Nothing was stored.
		s.first = d.Number
	}
	s.first, s.last = min(s.first, d.Number), max(s.last, d.Number) // What leaves the tail may come late.
	if d.deletes() {
		i, _ := slices.BinarySearch(s.deletions, d.Number)
		s.deletions = slices.Insert(s.deletions, i, d.Number)
	}
	q.putLastLocked(b, s.last)
}

func (q *Log) putLastLocked(b *persist.Batch, number uint64) {
	b.Put(q.state, LastKey, binary.BigEndian.AppendUint64(nil, number))
}

// maxTrim bounds what one batch removes.
const maxTrim = 4096

// trimLocked removes deltas that nobody needs any more, at most about maxTrim of them.
func (q *Log) trimLocked(b *persist.Batch) {
	_, all, deletions := q.neededLocked()
	s, left := &q.stored, maxTrim
	for ; s.first <= min(all, s.last) && left > 0; s.first++ {
		if !s.isDeletion(s.first) {
			b.Delete(q.deltas, deltaKey(s.first, false))
			left--
		}
	}
	n, _ := slices.BinarySearch(s.deletions, min(deletions+1, s.first))
	for _, number := range s.deletions[:n] {
		b.Delete(q.deltas, deltaKey(number, true))
	}
	s.deletions = s.deletions[n:]
}

// trimsLocked reports whether trimLocked would remove something.
func (q *Log) trimsLocked() bool {
	s := &q.stored
	if s.first > s.last && len(s.deletions) == 0 { // There may be very many positions.
		return false
	}
	_, all, deletions := q.neededLocked()
	return s.first <= min(all, s.last) || len(s.deletions) > 0 && s.deletions[0] <= deletions
}

// neededLocked returns three numbers. read is how far every reader of the tail has read. Up to all nobody needs any
// delta. Up to deletions nobody needs a deletion.
func (q *Log) neededLocked() (read, all, deletions uint64) {
	read, all, deletions = q.head, q.head, q.head
	for p := range q.positions {
		if all = min(all, p.from); p.from >= q.tail.base {
			read = min(read, p.from)
		}
		if p.wantsDeletions() {
			deletions = min(deletions, p.Cursor)
		}
	}
	return read, all, min(all, deletions)
}

// Head returns the number of the last delta.
func (q *Log) Head() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.head
}

// behindLocked returns how many deltas are pending for a position.
func (q *Log) behindLocked(p *position) int {
	switch {
	case p.from != never:
		return int(q.head - min(p.from, q.head))
	case p.wantsDeletions():
		return len(q.stored.deletionsBehind(p.Cursor))
	}
	return 0
}

// Named returns the backlog of each name of a kind. It takes no lock.
func (q *Log) Named(kind Kind) map[string]Backlog {
	all := map[string]Backlog{}
	for _, p := range *q.withName.Load() {
		if name, ok := kind.cut(p.name); ok {
			all[name] = p.shown.get()
		}
	}
	return all
}

// showNamesLocked shows which positions have a name.
func (q *Log) showNamesLocked() {
	all := slices.Collect(maps.Values(q.names))
	q.withName.Store(&all)
}

// A Backlog counts the deltas that are pending for a handler.
type Backlog struct {
	Deltas int
	Bytes  int64 // About how long they are.
	// Oldest is about when the oldest of them was appended, or when the log was opened if that is later. It may be too
	// early while the delta is no longer in memory.
	Oldest time.Time
	// StartsOver: the handler has not got OnAdd for all objects yet.
	StartsOver bool
}

// shown is the backlog of a position, which is read without a lock.
type shown struct {
	deltas, bytes, oldest atomic.Int64
	startsOver            atomic.Bool
}

func (s *shown) get() (b Backlog) {
	b.StartsOver = s.startsOver.Load()
	if b.Deltas = int(s.deltas.Load()); b.Deltas > 0 {
		b.Bytes, b.Oldest = s.bytes.Load(), time.Unix(0, s.oldest.Load())
	}
	return b
}

// showLocked is called when the backlog of a position may have changed.
func (q *Log) showLocked(p *position) {
	n := q.behindLocked(p)
	switch {
	case p.from != never && n > 0 && p.from >= q.tail.base:
		p.shown.oldest.Store(q.tail.after(p.from)[0].at)
	case p.shown.deltas.Load() == 0 && n > 0:
		p.shown.oldest.Store(time.Now().UnixNano())
	}
	p.shown.startsOver.Store(p.StartsOver)
	p.shown.bytes.Store(p.bytes)
	p.shown.deltas.Store(int64(n))
}

// StartOver calls which for each name, with its key and how many deltas are pending for it. If which returns true, the
// handler starts over for the cause. StartOver is called before the names have consumers.
func (q *Log) StartOver(cause string, which func(key string, waiting int) bool) error {
	return q.db.Update(func(b *persist.Batch) {
		q.mu.Lock()
		defer q.mu.Unlock()
		for key, p := range q.names {
			if which(key, q.behindLocked(p)) {
				q.startOverLocked(b, p, cause)
			}
		}
	})
}

// Forget removes a name of both kinds that will not be used again. It holds no deltas any more. The error wraps
// [ErrInUse] if the name has a consumer now, and is persist.ErrClosed if the DB is closed.
func (q *Log) Forget(name string) (err error) {
	updateErr := q.db.Update(func(b *persist.Batch) {
		q.mu.Lock()
		defer q.mu.Unlock()
		for _, kind := range []Kind{Handlers, Reconcilers} {
			p := q.names[kind.Key(name)]
			switch {
			case p == nil:
			case p.consumer != nil:
				err = fmt.Errorf("%w: %q", ErrInUse, name)
			default:
				b.Delete(q.handlers, p.name)
				delete(q.names, p.name)
				delete(q.positions, p)
				q.showNamesLocked()
				q.trimLocked(b)
			}
		}
	})
	return errors.Join(err, updateErr)
}

// Stop ends all consumers. Pending deltas of names stay in the log.
func (q *Log) Stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for p := range q.positions {
		if p.consumer != nil {
			p.consumer.Stop()
		}
	}
}
