package queue

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/warmwatch/warmwatch/persist"
)

// The buckets of a log in its space.
const (
	deltasBucket  = "deltas"
	cursorsBucket = "cursors"

	plainCursor   = "plain"
	durablePrefix = "durable/"
)

// Buckets are the names of the buckets that a log has in its space.
func Buckets() []string { return []string{deltasBucket, cursorsBucket} }

// ErrInUse says that a durable name has a consumer already.
var ErrInUse = errors.New("queue: name is in use")

// Options configures [New].
type Options struct {
	DB *persist.DB
	// Space names the buckets. One space belongs to one log at a time.
	Space string
	// Seq is the number of the last write to the space, if deltas are numbered
	// by somebody else.
	Seq uint64
	// NewObject returns an empty object of the type in the deltas. Not needed
	// for unstructured objects.
	NewObject func() any
	// TailBytes of recent deltas are kept in memory. Default 16 MiB: what waits
	// to be durable should fit.
	TailBytes int
	// KeyFunc defaults to cache.DeletionHandlingMetaNamespaceKeyFunc. It is
	// used by the methods of cache.Queue only, as are the next two.
	KeyFunc cache.KeyFunc
	// KnownObjects is what the caller of Pop knows. Replace and Resync need it.
	KnownObjects cache.KeyListerGetter
	// Transformer is called for each object before it is queued.
	Transformer cache.TransformFunc
	// OnCorrupt, if set, hears of deltas that could not be read.
	OnCorrupt func(error)
	// Logger defaults to klog's.
	Logger *klog.Logger
}

// DeltaFIFO is the log.
//
//	Append (in a batch) ──► bucket "deltas"        trimmed when every consumer
//	Publish (after it)  ──► tail in memory ──►     has acknowledged
//	                              consumers, each at its own cursor
//
// A delta is appended in the batch that has the change itself, and published
// when that batch is visible. Acknowledging only moves a cursor in memory: the
// next commit stores the cursors and removes what all have passed, so a delta
// that was acknowledged before its first commit is never written.
//
// Consumers are of two kinds. Plain ones have no names and share one stored
// cursor, that of the slowest. Durable ones have a name and a cursor each, and
// hold the log even while nobody consumes under their name.
//
// After a restart a plain consumer needs the deletions only: of all else it is
// told by the walk. So while there is no name, the other deltas are stored only
// when they leave the tail and somebody has still to be told of them.
//
// DeltaFIFO also is a cache.Queue with one consumer, Pop, see fifo.go.
//
// Append and Publish are for one goroutine; all else is safe for concurrent
// use. Locks: the DB's is taken before mu, never while mu is held.
type DeltaFIFO struct {
	db        *persist.DB
	deltas    persist.Bucket
	cursors   persist.Bucket
	newObject func() any
	tailMax   int
	onCorrupt func(error)
	log       klog.Logger
	removeHk  func()

	kicked atomic.Bool // Since the last commit: cursors have moved, and the DB knows.

	mu   sync.Mutex
	cond sync.Cond // On mu: something was published or became durable, or a consumer closed.

	head        uint64 // Seq of the last published delta, or of the last write known at start.
	durableHead uint64 // The same for durable ones.
	durable     uint64 // Number of the last durable batch.
	marks       []mark // Published and not yet durable, oldest first.

	tail      []Delta // Published, oldest first.
	tailArray []Delta // Begins where the memory of tail does; empty.
	tailBytes int
	tailBase  uint64 // Deltas up to here are not in tail.

	// runs are the ranges of Seq that have a stored delta which was not removed and
	// is not in tail, in order.
	runs []run

	consumers map[*Consumer]struct{}
	absent    map[string]cursor // Stored durable cursors without a consumer.
	stored    map[string]cursor // What the file has, or will with the next commit.
	turns     turns

	plainFloor uint64 // Of plain consumers that were stopped, and of the last process.
	floorSet   bool
	orphans    orphans

	fifo fifo
}

// mark says which batch has the deltas up to seq.
type mark struct{ batch, seq uint64 }

// run is from..to, both included.
type run struct{ from, to uint64 }

// cursor is what is stored of a consumer.
type cursor struct {
	Seq uint64 `json:"seq"`
	// Walking says that the consumer has not been told of all objects yet.
	Walking bool `json:"walking,omitempty"`
	// Lives is of the plain cursor: so many processes have left the deltas behind
	// it to the next, without a plain consumer.
	Lives int `json:"lives,omitempty"`
}

// New returns the log of a space, with the deltas that are in the DB.
func New(o Options) (*DeltaFIFO, error) {
	if o.DB == nil || o.Space == "" {
		return nil, errors.New("queue: DB and Space are required")
	}
	if o.TailBytes == 0 {
		o.TailBytes = 16 << 20
	}
	if o.OnCorrupt == nil {
		o.OnCorrupt = func(error) {}
	}
	if o.Logger == nil {
		l := klog.Background()
		o.Logger = &l
	}
	q := &DeltaFIFO{
		db:        o.DB,
		deltas:    persist.Bucket{Space: o.Space, Name: deltasBucket},
		cursors:   persist.Bucket{Space: o.Space, Name: cursorsBucket},
		newObject: o.NewObject, tailMax: o.TailBytes, onCorrupt: o.OnCorrupt, log: *o.Logger,
		head:      o.Seq,
		consumers: map[*Consumer]struct{}{},
		absent:    map[string]cursor{},
		stored:    map[string]cursor{},
	}
	q.cond.L = &q.mu
	if err := q.load(); err != nil {
		return nil, err
	}
	q.initFIFO(o)
	q.durable = q.db.Durable()
	if len(q.runs) > 0 { // What nobody holds is removed.
		defer q.db.Kick()
	}
	q.removeHk = q.db.AddHook(&persist.Hook{BeforeCommit: q.beforeCommit, AfterCommit: q.afterCommit, AfterReset: q.afterReset})
	return q, nil
}

func (q *DeltaFIFO) load() error {
	s, err := q.db.Snapshot(q.deltas.Space)
	if err != nil {
		return err
	}
	defer s.Close()
	err = s.Scan(deltasBucket, "", func(it *persist.Item) (bool, error) {
		seq, err := parseDeltaKey(it.Key)
		if err != nil {
			return false, &persist.CorruptError{Bucket: q.deltas, Key: it.Key, Err: err}
		}
		q.addRunLocked(seq)
		return true, nil
	})
	var bad []string
	if err == nil {
		bad, err = q.loadHead(s)
	}
	if err != nil {
		return err
	}
	err = s.Scan(cursorsBucket, "", func(it *persist.Item) (bool, error) {
		c, err := parseCursor(it)
		if err != nil {
			return false, err
		}
		q.stored[it.Key] = c
		q.head = max(q.head, c.Seq)
		return true, nil
	})
	if err != nil {
		return err
	}
	s.Close() // A commit may have to wait for it, and an update for a commit.
	if len(bad) > 0 {
		if _, err := q.db.Update(func(b *persist.Batch) {
			for _, key := range bad {
				b.Delete(q.deltas, key)
			}
		}); err != nil {
			return err
		}
	}
	for key, c := range q.stored {
		if name, ok := strings.CutPrefix(key, durablePrefix); ok {
			q.absent[name] = c
		}
	}
	q.tailBase, q.durableHead = q.head, q.head
	if c, ok := q.stored[plainCursor]; ok { // Else the last process had no plain consumers.
		q.orphans = inherited(c, q.head)
	}
	return nil
}

// loadHead takes the head from the last delta. A damaged number may be a great
// one, and there would be none behind it: it counts only with its checksum. It
// returns the keys of those that do not count, which are to be removed.
func (q *DeltaFIFO) loadHead(s *persist.Snapshot) (bad []string, err error) {
	for n := len(q.runs); n > 0; n = len(q.runs) {
		last := &q.runs[n-1]
		_, err := s.View(deltasBucket, deltaKey(last.to), func(it *persist.Item) (err error) {
			if it.Value == nil {
				_, err = it.Payload()
			}
			return err
		})
		if err == nil {
			q.head = max(q.head, last.to)
			break
		}
		if !errors.Is(err, persist.ErrCorrupt) {
			return nil, err
		}
		q.onCorrupt(err)
		q.log.Error(err, "Could not read a delta, removing it", "seq", last.to)
		bad = append(bad, deltaKey(last.to))
		if last.to--; last.to < last.from {
			q.runs = q.runs[:n-1]
		}
	}
	return bad, nil
}

// storedCursor is a cursor as a persist.Value.
type storedCursor cursor

func (c storedCursor) SizeBytes() int { return 48 }

func (c storedCursor) AppendTo(dst []byte) ([]byte, error) {
	b, err := json.Marshal(cursor(c))
	return append(dst, b...), err
}

func parseCursor(it *persist.Item) (c cursor, err error) {
	if v, inMemory := it.Value.(storedCursor); inMemory {
		return cursor(v), nil
	}
	payload, err := it.Payload()
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(payload, &c); err != nil {
		return c, &persist.CorruptError{Key: it.Key, Bucket: persist.Bucket{Name: cursorsBucket}, Err: err}
	}
	return c, nil
}

// Append puts deltas into the batch that has the changes they tell of, as far as
// they have to be stored, and notes which these are for Publish. The batch is also
// given what Publish will drop from the tail.
func (q *DeltaFIFO) Append(b *persist.Batch, deltas []Delta) {
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
		if named || d.Type == cache.Deleted || size > q.tailMax {
			q.storeDeltaLocked(b, d)
		}
		size -= d.SizeBytes
	}
}

func (q *DeltaFIFO) storeDeltaLocked(b *persist.Batch, d *Delta) {
	d.stored = true
	stored := *d
	b.PutNew(q.deltas, deltaKey(d.Seq), deltaValue{&stored})
}

// namedLocked reports whether there is a name, with a consumer or without.
func (q *DeltaFIFO) namedLocked() bool {
	for c := range q.consumers {
		if c.name != "" {
			return true
		}
	}
	return len(q.absent) > 0
}

// Publish hands copies of the deltas to the consumers, after the batch with this
// number has been applied. The objects must not change any more.
func (q *DeltaFIFO) Publish(batch uint64, deltas []Delta) {
	if len(deltas) == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.tailBytes > q.tailMax/ackedTailShare {
		q.dropAckedLocked(q.floorLocked())
	}
	for i := range deltas {
		d := deltas[i]
		d.batch, d.NewValue, d.OldValue = batch, nil, nil // The committer's.
		q.pushTailLocked(d)
		q.tailBytes += d.SizeBytes
		q.head = d.Seq
		q.orphans.noteLocked(&d)
	}
	drop := 0
	for size := q.tailBytes; size > q.tailMax && drop < len(q.tail); drop++ {
		size -= q.tail[drop].SizeBytes
	}
	q.dropTailLocked(drop)
	q.markLocked(batch)
	q.cond.Broadcast()
}

// Advance moves the head to the number of a write that has no delta, so that
// consumers that have acknowledged all deltas are known to be up to date.
func (q *DeltaFIFO) Advance(batch, seq uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if seq <= q.head {
		return
	}
	q.head = seq
	if q.orphans.held && q.orphans.open {
		q.orphans.to = seq
	}
	q.markLocked(batch)
	q.cond.Broadcast()
}

// markLocked notes which batch has the head.
func (q *DeltaFIFO) markLocked(batch uint64) {
	if batch <= q.durable {
		q.durableHead = q.head
	} else {
		q.marks = append(q.marks, mark{batch, q.head})
	}
}

const (
	// A tail larger than TailBytes/ackedTailShare does not wait for the next commit
	// to drop what was acknowledged.
	ackedTailShare = 8
	// For so many deltas a tail keeps its memory when it is empty.
	tailIdleDeltas = 1024
)

// pushTailLocked moves the tail to the front of its memory before it asks for more,
// if half of that has become free there.
func (q *DeltaFIFO) pushTailLocked(d Delta) {
	if n := len(q.tail); n == cap(q.tail) && n <= cap(q.tailArray)/2 {
		moved := append(q.tailArray, q.tail...)
		clear(q.tail)
		q.tail = moved
	}
	grows := len(q.tail) == cap(q.tail)
	q.tail = append(q.tail, d)
	if grows {
		q.tailArray = q.tail[:0]
	}
}

// dropAckedLocked drops from the tail what every consumer has acknowledged.
func (q *DeltaFIFO) dropAckedLocked(floor uint64) {
	q.dropTailLocked(sort.Search(len(q.tail), func(i int) bool { return q.tail[i].Seq > floor }))
}

// dropTailLocked forgets the oldest deltas of the tail, and most of its memory if
// it is large and hardly used any more.
func (q *DeltaFIFO) dropTailLocked(n int) {
	for i := range q.tail[:n] {
		d := &q.tail[i]
		q.tailBytes -= d.SizeBytes
		q.tailBase = d.Seq
		if d.stored {
			q.addRunLocked(d.Seq)
		}
	}
	clear(q.tail[:n]) // The objects can go now, the array later.
	q.tail = q.tail[n:]
	if cap(q.tailArray) > tailIdleDeltas && len(q.tail) < cap(q.tailArray)/4 {
		q.tail = append(make([]Delta, 0, 2*len(q.tail)+16), q.tail...)
		q.tailArray = q.tail[:0]
	}
}

// addRunLocked notes that there is a delta with this Seq, behind all others.
func (q *DeltaFIFO) addRunLocked(seq uint64) {
	if n := len(q.runs); n > 0 && q.runs[n-1].to+1 == seq {
		q.runs[n-1].to = seq
		return
	}
	q.runs = append(q.runs, run{seq, seq})
}

// HasDurable reports whether a durable consumer waits for what is appended, so
// that the batch should be urgent.
func (q *DeltaFIFO) HasDurable() bool {
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
// that may know of all objects already, and must hear of every change.
func (q *DeltaFIFO) HasKnown() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for c := range q.consumers {
		if c.Known {
			return true
		}
	}
	return len(q.absent) > 0
}

// Head is the Seq of the last published delta.
func (q *DeltaFIFO) Head() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.head
}

// Unacked is the number of deltas in the log.
func (q *DeltaFIFO) Unacked() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := uint64(0)
	floor := q.floorLocked()
	for _, r := range q.runs {
		if from := max(r.from, floor+1); from <= r.to {
			n += r.to - from + 1
		}
	}
	acked := sort.Search(len(q.tail), func(i int) bool { return q.tail[i].Seq > floor })
	return int(n) + len(q.tail) - acked
}

// floorLocked is the Seq up to which every consumer has acknowledged, orphans
// aside.
func (q *DeltaFIFO) floorLocked() uint64 {
	floor := q.head
	for c := range q.consumers {
		floor = min(floor, c.cursor.Load())
	}
	for _, c := range q.absent {
		floor = min(floor, c.Seq)
	}
	if q.floorSet {
		floor = min(floor, q.plainFloor)
	}
	return floor
}

// maxTrimPerCommit bounds the time that a commit's hook takes.
const maxTrimPerCommit = 20_000

// beforeCommit stores cursors and removes what everybody has acknowledged. It
// runs under the DB's lock.
func (q *DeltaFIFO) beforeCommit(b *persist.Batch) {
	q.kicked.Store(false)
	q.mu.Lock()
	defer q.mu.Unlock()
	plain, anyPlain := q.head, false
	for c := range q.consumers {
		seq := c.cursor.Load()
		if c.name != "" {
			q.storeLocked(b, durablePrefix+c.name, cursor{Seq: seq, Walking: c.walking.Load()})
		} else {
			plain, anyPlain = min(plain, seq), true
		}
	}
	for name, c := range q.absent {
		q.storeLocked(b, durablePrefix+name, c)
	}
	if q.floorSet {
		plain, anyPlain = min(plain, q.plainFloor), true
	}
	switch {
	case anyPlain:
		q.storeLocked(b, plainCursor, cursor{Seq: plain})
	case q.orphans.held:
		q.storeLocked(b, plainCursor, cursor{Seq: q.orphans.after, Lives: q.orphans.lives})
	}
	q.trimLocked(b)
}

func (q *DeltaFIFO) storeLocked(b *persist.Batch, key string, c cursor) {
	if old, ok := q.stored[key]; ok && old == c {
		return
	}
	q.stored[key] = c
	b.Put(q.cursors, key, storedCursor(c))
}

func (q *DeltaFIFO) trimLocked(b *persist.Batch) {
	floor, left := q.floorLocked(), maxTrimPerCommit
	q.dropAckedLocked(floor)
	keep := make([]run, 0, len(q.runs)+2)
	for _, r := range q.runs {
		for r.from <= r.to {
			held, end := q.orphans.stretch(r.from)
			part := run{r.from, min(end, r.to)}
			r.from = part.to + 1
			if !held {
				for ; part.from <= min(part.to, floor) && left > 0; part.from++ {
					b.Delete(q.deltas, deltaKey(part.from))
					left--
				}
			}
			if part.from <= part.to {
				keep = append(keep, part)
			}
		}
	}
	q.runs = keep
	if left == 0 {
		b.Urgent() // There is more: come again soon.
	}
}

// afterCommit lets durable consumers go on.
func (q *DeltaFIFO) afterCommit(durable uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.durable = durable
	n := sort.Search(len(q.marks), func(i int) bool { return q.marks[i].batch > durable })
	if n > 0 {
		q.durableHead = q.marks[n-1].seq
		q.marks = slices.Delete(q.marks, 0, n)
	}
	q.cond.Broadcast()
}

// afterReset has all cursors written into the new file.
func (q *DeltaFIFO) afterReset(error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	clear(q.stored)
}

// Forget removes the cursor of a durable consumer that will not come back, so
// that it does not hold the log any more. It is an error if the name has a
// consumer now.
func (q *DeltaFIFO) Forget(name string) (err error) {
	_, updateErr := q.db.Update(func(b *persist.Batch) {
		q.mu.Lock()
		defer q.mu.Unlock()
		for c := range q.consumers {
			if c.name == name {
				err = fmt.Errorf("%w: %q", ErrInUse, name)
				return
			}
		}
		delete(q.absent, name)
		delete(q.turns.of, name)
		delete(q.stored, durablePrefix+name)
		b.Delete(q.cursors, durablePrefix+name)
	})
	return cmp.Or(err, updateErr)
}

// Stop ends all consumers. What they did not acknowledge stays in the log. The
// cursors are put into a last batch.
func (q *DeltaFIFO) Stop() error {
	q.mu.Lock()
	for c := range q.consumers {
		c.closed = true
		at := c.cursor.Load()
		switch {
		case c.name != "":
			q.absent[c.name] = cursor{Seq: at, Walking: c.walking.Load()}
		case q.floorSet:
			q.plainFloor = min(q.plainFloor, at)
		default:
			q.plainFloor, q.floorSet = at, true
		}
	}
	clear(q.consumers)
	q.cond.Broadcast()
	forget := q.endOrphansLocked()
	if forget {
		delete(q.stored, plainCursor)
	}
	q.mu.Unlock()
	_, err := q.db.Update(func(b *persist.Batch) {
		if forget {
			b.Delete(q.cursors, plainCursor)
		}
		q.beforeCommit(b)
	})
	q.removeHk()
	return err
}

// read appends deltas behind after, up to limit, from the DB.
func (q *DeltaFIFO) read(ds []Delta, after, limit uint64) ([]Delta, error) {
	s, err := q.db.Snapshot(q.deltas.Space)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	size := 0
	err = s.Scan(deltasBucket, deltaKey(after+1), func(it *persist.Item) (bool, error) {
		seq, err := parseDeltaKey(it.Key)
		if err != nil {
			return false, err
		}
		if seq > limit || len(ds) == deltasPerRead || size > maxReadBytes {
			return false, nil
		}
		d, err := q.readDelta(seq, it)
		if err != nil {
			// It cannot be told any more. The owner hears of it.
			q.onCorrupt(err)
			q.log.Error(err, "Could not read a delta", "seq", seq)
			d = Delta{Seq: seq}
		}
		size += d.SizeBytes
		ds = append(ds, d)
		return true, nil
	})
	return ds, err
}

func (q *DeltaFIFO) readDelta(seq uint64, it *persist.Item) (Delta, error) {
	if v, inMemory := it.Value.(deltaValue); inMemory {
		return *v.Delta, nil
	}
	payload, err := it.Payload()
	if err != nil {
		return Delta{}, err
	}
	return parseDelta(seq, payload, q.newObject)
}
