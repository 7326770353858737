package queue

import (
	"errors"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/record"
	"github.com/warmwatch/warmwatch/persist"
)

// popName is the name under which the cursor of Pop is stored.
const popName = "pop"

// DeltaFIFOOptions configures [NewDeltaFIFO].
type DeltaFIFOOptions struct {
	Options
	// KeyFunc defaults to cache.DeletionHandlingMetaNamespaceKeyFunc.
	KeyFunc cache.KeyFunc
	// KnownObjects has the objects that Pop's caller knows, for Replace and Resync.
	KnownObjects cache.KeyListerGetter
	// Transformer is called for each object before it is queued.
	Transformer cache.TransformFunc
}

// DeltaFIFO is a [cache.Queue] whose items are in a [Log], so that the next process pops
// those that this one did not. Pop is the only consumer. All methods are safe for
// concurrent use.
type DeltaFIFO struct {
	log         *Log
	keyFunc     cache.KeyFunc
	known       cache.KeyListerGetter
	transformer cache.TransformFunc

	producer sync.Mutex // Serialises the methods that queue.
	pop      struct {
		sync.Mutex // Held while an item is processed, as client-go's DeltaFIFO does.
		consumer   *Consumer
		ready      []Delta
		reading    bool      // One Pop calls Next, for all.
		read       sync.Cond // On the Mutex: reading has become false.
	}

	mu        sync.Mutex
	closed    bool
	populated bool
	initial   uint64 // Seq of the last item that Pop must process before the queue has synced.
	synced    chan struct{}
}

var (
	_ cache.Queue             = (*DeltaFIFO)(nil)
	_ cache.TransformingStore = (*DeltaFIFO)(nil)
	_ cache.DoneChecker       = (*DeltaFIFO)(nil)
)

// NewDeltaFIFO returns the queue of a space, with the items that are in the DB.
func NewDeltaFIFO(o DeltaFIFOOptions) (*DeltaFIFO, error) {
	log, err := NewLog(o.Options)
	if err != nil {
		return nil, err
	}
	return newDeltaFIFO(log, o), nil
}

func newDeltaFIFO(log *Log, o DeltaFIFOOptions) *DeltaFIFO {
	q := &DeltaFIFO{
		log: log, keyFunc: o.KeyFunc, known: o.KnownObjects, transformer: o.Transformer,
		synced: make(chan struct{}),
	}
	if q.keyFunc == nil {
		q.keyFunc = cache.DeletionHandlingMetaNamespaceKeyFunc
	}
	q.pop.read.L = &q.pop.Mutex
	return q
}

// Add implements [cache.Queue].
func (q *DeltaFIFO) Add(obj any) error { return q.enqueue(cache.Added, obj) }

// Update implements [cache.Queue].
func (q *DeltaFIFO) Update(obj any) error { return q.enqueue(cache.Updated, obj) }

// Delete implements [cache.Queue].
func (q *DeltaFIFO) Delete(obj any) error { return q.enqueue(cache.Deleted, obj) }

func (q *DeltaFIFO) enqueue(t cache.DeltaType, obj any) error {
	q.producer.Lock()
	defer q.producer.Unlock()
	if err := q.startPop(); err != nil {
		return err
	}
	d, err := q.delta(t, obj)
	if err != nil {
		return err
	}
	q.populate(0)
	return q.push([]Delta{d})
}

// startPop adds Pop's consumer before the first delta, so that none is removed unread.
func (q *DeltaFIFO) startPop() error {
	q.pop.Lock()
	defer q.pop.Unlock()
	return q.startPopLocked()
}

func (q *DeltaFIFO) startPopLocked() error {
	if q.pop.consumer != nil {
		return nil
	}
	c, err := q.log.named(popName, false)
	q.pop.consumer = c
	return err
}

// delta makes the delta of an object. It transforms the object, but not that of a
// DeletedFinalStateUnknown or of a Sync, which was transformed before.
func (q *DeltaFIFO) delta(t cache.DeltaType, obj any) (Delta, error) {
	key, err := q.keyOf(obj)
	if err != nil {
		return Delta{}, err
	}
	if tomb, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		return Delta{Type: t, Key: key, New: tomb.Obj, FinalStateUnknown: true, SizeBytes: record.EstimateSize(tomb.Obj)}, nil
	}
	if q.transformer != nil && t != cache.Sync {
		if obj, err = q.transformer(obj); err != nil {
			return Delta{}, err
		}
	}
	return Delta{Type: t, Key: key, New: obj, SizeBytes: record.EstimateSize(obj)}, nil
}

func (q *DeltaFIFO) keyOf(obj any) (string, error) {
	if tomb, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		return tomb.Key, nil
	}
	key, err := q.keyFunc(obj)
	if err != nil {
		return "", cache.KeyError{Obj: obj, Err: err}
	}
	return key, nil
}

// push numbers deltas and adds them to the log in one batch.
func (q *DeltaFIFO) push(ds []Delta) error {
	if len(ds) == 0 {
		return nil
	}
	seq := q.log.Head()
	for i := range ds {
		seq++
		ds[i].Seq = seq
	}
	batch, err := q.log.db.Update(func(b *persist.Batch) { q.log.Append(b, ds) })
	if err != nil {
		return err
	}
	q.log.Publish(batch, ds)
	return nil
}

// Replace implements [cache.Queue]. It queues a delta Deleted for each object that is
// known, or waits in the queue, and is not in list, and then a delta Replaced for each
// object in list. It does not use the resourceVersion.
func (q *DeltaFIFO) Replace(list []any, _ string) error {
	q.producer.Lock()
	defer q.producer.Unlock()
	if err := q.startPop(); err != nil {
		return err
	}
	keys := sets.New[string]()
	for _, obj := range list {
		key, err := q.keyOf(obj)
		if err != nil {
			return err
		}
		keys.Insert(key)
	}
	queued, last, err := q.queued()
	if err != nil {
		return err
	}
	var ds []Delta
	gone := func(key string, obj any) {
		ds = append(ds, Delta{Type: cache.Deleted, Key: key, New: obj, FinalStateUnknown: true, SizeBytes: record.EstimateSize(obj)})
	}
	for key, d := range queued {
		if !keys.Has(key) && d.Type != cache.Deleted {
			gone(key, d.New)
		}
	}
	if q.known != nil {
		for _, key := range q.known.ListKeys() {
			if _, waits := queued[key]; waits || keys.Has(key) {
				continue
			}
			obj, exists, err := q.known.GetByKey(key)
			if err != nil || !exists {
				q.log.logger.Error(err, "Could not look up a known object, its deletion is queued without it", "key", key)
				obj = nil
			}
			gone(key, obj)
		}
	}
	for _, obj := range list {
		d, err := q.delta(cache.Replaced, obj)
		if err != nil {
			return fmt.Errorf("couldn't enqueue object: %w", err)
		}
		ds = append(ds, d)
	}
	if err := q.push(ds); err != nil {
		return err
	}
	if len(ds) > 0 {
		last = ds[len(ds)-1].Seq
	}
	q.populate(last)
	return nil
}

// queued returns the last delta of each key that waits for Pop, and the greatest Seq of
// all, 0 if there are none. Pop may go on meanwhile: its caller then knows some of them.
func (q *DeltaFIFO) queued() (waiting map[string]Delta, last uint64, err error) {
	waiting = map[string]Delta{}
	q.pop.Lock()
	after := q.pop.consumer.Cursor()
	q.pop.Unlock()
	for {
		ds, err := q.log.read(after, ^uint64(0))
		if err != nil {
			return nil, 0, err
		}
		if len(ds) == 0 {
			return waiting, last, nil
		}
		for _, d := range ds {
			if d.Type != "" { // A delta that could not be read has none.
				waiting[d.Key] = d
			}
		}
		last = ds[len(ds)-1].Seq
		after = last
	}
}

// Resync implements [cache.Queue]. It queues a delta Sync for each known object that
// has no delta in the queue.
func (q *DeltaFIFO) Resync() error {
	q.producer.Lock()
	defer q.producer.Unlock()
	if q.known == nil {
		return nil
	}
	if err := q.startPop(); err != nil {
		return err
	}
	queued, _, err := q.queued()
	if err != nil {
		return err
	}
	var ds []Delta
	for _, key := range q.known.ListKeys() {
		if _, waits := queued[key]; waits {
			continue
		}
		obj, exists, err := q.known.GetByKey(key)
		if err != nil || !exists {
			q.log.logger.Error(err, "Could not look up a known object, it is not queued for sync", "key", key)
			continue
		}
		d, err := q.delta(cache.Sync, obj)
		if err != nil {
			return err
		}
		ds = append(ds, d)
	}
	return q.push(ds)
}

// Pop implements [cache.Queue]. It calls process with a cache.Deltas of one delta, and
// acknowledges it when process returns, even with an error: as in client-go's RealFIFO
// there is no requeue. A delta that was popped but not processed when the program
// ended is popped again by the next one.
func (q *DeltaFIFO) Pop(process cache.PopProcessFunc) (any, error) {
	q.pop.Lock()
	defer q.pop.Unlock()
	for {
		switch {
		case q.isClosed():
			return nil, cache.ErrFIFOClosed
		case len(q.pop.ready) > 0:
			return q.popLocked(process)
		case q.pop.reading:
			q.pop.read.Wait()
			continue
		}
		if err := q.readLocked(); err != nil {
			if errors.Is(err, ErrStopped) || errors.Is(err, persist.ErrClosed) {
				err = cache.ErrFIFOClosed
			}
			return nil, err
		}
	}
}

// readLocked waits for deltas. It releases the lock meanwhile, because producers take
// it to read the cursor.
func (q *DeltaFIFO) readLocked() error {
	if err := q.startPopLocked(); err != nil {
		return err
	}
	q.pop.reading = true
	q.pop.Unlock()
	ds, err := q.pop.consumer.Next()
	q.pop.Lock()
	q.pop.reading = false
	q.pop.ready = append(q.pop.ready, ds...)
	q.pop.read.Broadcast()
	q.checkSynced() // Next may have moved the cursor past a gap.
	return err
}

func (q *DeltaFIFO) popLocked(process cache.PopProcessFunc) (any, error) {
	d := q.pop.ready[0]
	q.pop.ready = q.pop.ready[1:]
	deltas := cache.Deltas{{Type: d.Type, Object: d.Object()}}
	err := process(deltas, !q.HasSynced())
	q.pop.consumer.Acknowledge(d.Seq)
	q.checkSynced()
	return deltas, err
}

// populate notes that the queue has its initial items, up to the Seq last. The queue has
// synced once Pop has processed them, which may be so already.
func (q *DeltaFIFO) populate(last uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.populated {
		q.populated, q.initial = true, last
		q.checkSyncedLocked()
	}
}

func (q *DeltaFIFO) checkSynced() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.checkSyncedLocked()
}

func (q *DeltaFIFO) checkSyncedLocked() {
	if q.populated && !cache.IsDone(q) && q.pop.consumer.Cursor() >= q.initial {
		close(q.synced)
	}
}

// Unacked returns the number of items that Pop has not processed.
func (q *DeltaFIFO) Unacked() int { return q.log.Unacked() }

// HasSynced implements [cache.Queue].
func (q *DeltaFIFO) HasSynced() bool { return cache.IsDone(q) }

// HasSyncedChecker implements [cache.Queue].
func (q *DeltaFIFO) HasSyncedChecker() cache.DoneChecker { return q }

// Name implements [cache.DoneChecker].
func (q *DeltaFIFO) Name() string { return "DeltaFIFO " + q.log.deltas.Space }

// Done implements [cache.DoneChecker].
func (q *DeltaFIFO) Done() <-chan struct{} { return q.synced }

// Transformer implements [cache.TransformingStore].
func (q *DeltaFIFO) Transformer() cache.TransformFunc { return q.transformer }

// Close implements [cache.Queue]. A waiting Pop returns cache.ErrFIFOClosed. Deltas that
// were not processed stay in the log.
func (q *DeltaFIFO) Close() {
	q.mu.Lock()
	closed := q.closed
	q.closed = true
	q.mu.Unlock()
	if closed {
		return
	}
	if err := q.log.Stop(); err != nil {
		q.log.logger.Error(err, "Could not store the cursors of the queue")
	}
}

func (q *DeltaFIFO) isClosed() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.closed
}
