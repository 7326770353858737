package queue

import (
	"errors"
	"math"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/record"
	"github.com/warmwatch/warmwatch/persist"
)

// DeltaFIFOOptions configures [NewDeltaFIFO].
type DeltaFIFOOptions struct {
	Options
	// KnownObjects has the objects that Pop's caller knows, for Replace and Resync. Default: none.
	KnownObjects cache.KeyListerGetter
}

// DeltaFIFO is a [cache.Queue] whose items are in a [Log], so that the next process pops
// those that this one did not. Pop is the only consumer. All methods are safe for
// concurrent use.
type DeltaFIFO struct {
	o        DeltaFIFOOptions
	log      *Log
	consumer *Consumer
	pop      chan struct{} // Capacity 1: full while an item is waited for, or processed.
	ready    []Delta       // Only the goroutine that has filled pop uses it.
	queueing sync.Mutex    // One goroutine queues at a time.

	initial  atomic.Uint64 // Number of the last item that Pop must process before the queue has synced.
	synced   chan struct{}
	syncOnce sync.Once
}

var _ cache.Queue = (*DeltaFIFO)(nil)

// noInitial is the initial number of a queue that nothing was put into.
const noInitial = math.MaxUint64

// NewDeltaFIFO returns the queue of a space, with the items that are in the DB.
func NewDeltaFIFO(o DeltaFIFOOptions) (*DeltaFIFO, error) {
	if o.KnownObjects == nil {
		o.KnownObjects = cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc)
	}
	log, err := NewLog(o.Options)
	if err != nil {
		return nil, err
	}
	consumer, err := log.named(fifos, "pop", "", false)
	if err != nil {
		return nil, err
	}
	q := &DeltaFIFO{o: o, log: log, consumer: consumer, pop: make(chan struct{}, 1), synced: make(chan struct{})}
	q.initial.Store(noInitial)
	if consumer.StartsOver() { // From now on all items are kept.
		err = q.startOver()
	}
	return q, err
}

// startOver skips the lost items: Replace queues them again.
func (q *DeltaFIFO) startOver() error {
	_, err := q.consumer.BeginList()
	return errors.Join(err, q.consumer.EndList())
}

// Add implements [cache.Queue].
func (q *DeltaFIFO) Add(obj any) error { return q.enqueue(cache.Added, obj) }

// Update implements [cache.Queue].
func (q *DeltaFIFO) Update(obj any) error { return q.enqueue(cache.Updated, obj) }

// Delete implements [cache.Queue].
func (q *DeltaFIFO) Delete(obj any) error { return q.enqueue(cache.Deleted, obj) }

func (q *DeltaFIFO) enqueue(t cache.DeltaType, obj any) error {
	q.queueing.Lock()
	defer q.queueing.Unlock()
	d, err := q.delta(t, obj)
	if err != nil {
		return err
	}
	q.populate(0)
	return q.push(d)
}

// delta makes the delta of an object, or of a DeletedFinalStateUnknown.
func (q *DeltaFIFO) delta(t cache.DeltaType, obj any) (d Delta, err error) {
	d = Delta{Type: t, New: obj}
	if d.Key, err = cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err != nil {
		return d, cache.KeyError{Obj: obj, Err: err}
	}
	if tomb, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		d.New, d.FinalStateUnknown = tomb.Obj, true
	}
	value, err := record.Encode(d.New)
	if err == nil {
		d.NewRecord, d.SizeBytes = value.Record(), value.SizeBytes()
	} else if t == cache.Deleted { // It is queued in any case.
		err = nil
	}
	return d, err
}

// push adds deltas to the log in one batch.
func (q *DeltaFIFO) push(ds ...Delta) error {
	if q.log.Stores() {
		q.log.Encode(ds)
	}
	return q.log.db.Update(func(b *persist.Batch) { q.log.Append(b, ds) })
}

// Replace implements [cache.Queue]. It queues a delta Deleted for each object that list lacks, if the object is known
// or waits in the queue. Then it queues a delta Replaced for each object in list. It does not use the resourceVersion.
func (q *DeltaFIFO) Replace(list []any, _ string) error {
	q.queueing.Lock()
	defer q.queueing.Unlock()
	believed, _, err := q.believed()
	if err != nil {
		return err
	}
	var ds, replaced []Delta
	for _, obj := range list {
		d, err := q.delta(cache.Replaced, obj)
		if err != nil {
			return err
		}
		replaced = append(replaced, d)
		delete(believed, d.Key)
	}
	for key, obj := range believed {
		d, _ := q.delta(cache.Deleted, cache.DeletedFinalStateUnknown{Key: key, Obj: obj})
		ds = append(ds, d)
	}
	if err := q.push(append(ds, replaced...)...); err != nil {
		return err
	}
	q.populate(q.log.Head())
	return nil
}

// believed returns two things: the objects that Pop's caller will know once it has popped all waiting items, by key,
// and the keys of the waiting items. An object is nil if KnownObjects does not find it. Pop may go on meanwhile. The
// waiting items are read first, so that nothing is missed.
func (q *DeltaFIFO) believed() (objects map[string]any, waits sets.Set[string], err error) {
	objects, waits = map[string]any{}, sets.New[string]()
	err = q.log.db.Read(q.log.deltas.Space, func(s *persist.Snapshot) error {
		return s.Scan(DeltasBucket, "", func(it *persist.Item) (bool, error) {
			number, _, _ := ParseDeltaKey(it.Key)
			d, err := q.log.readDelta(number, it)
			if err != nil || q.consumer.Has(number) { // Pop reports an error.
				return true, nil
			}
			if waits.Insert(d.Key); d.Type == cache.Deleted {
				delete(objects, d.Key)
			} else {
				objects[d.Key] = d.New
			}
			return true, nil
		})
	})
	for _, key := range q.o.KnownObjects.ListKeys() {
		if waits.Has(key) {
			continue
		}
		var lookup error
		if objects[key], _, lookup = q.o.KnownObjects.GetByKey(key); lookup != nil {
			q.log.logger.Error(lookup, "Could not look up a known object", "key", key)
		}
	}
	return objects, waits, err
}

// Resync implements [cache.Queue]. It queues a delta Sync for each known object that
// has no delta in the queue.
func (q *DeltaFIFO) Resync() error {
	q.queueing.Lock()
	defer q.queueing.Unlock()
	known, waits, err := q.believed()
	if err != nil {
		return err
	}
	var ds []Delta
	for key, obj := range known {
		if obj == nil || waits.Has(key) {
			continue
		}
		d, err := q.delta(cache.Sync, obj)
		if err != nil {
			return err
		}
		ds = append(ds, d)
	}
	return q.push(ds...)
}

// Pop implements [cache.Queue]. It calls process with a cache.Deltas of one delta, and
// acknowledges it when process returns, even with an error: as in client-go's RealFIFO
// there is no requeue. A delta that was popped but not processed when the program
// ended is popped again by the next one.
func (q *DeltaFIFO) Pop(process cache.PopProcessFunc) (any, error) {
	q.pop <- struct{}{}
	defer func() { <-q.pop }()
	for len(q.ready) == 0 {
		ds, err := q.consumer.Next()
		switch {
		case errors.Is(err, ErrStartOver):
			err = q.startOver()
		case errors.Is(err, ErrStopped), errors.Is(err, persist.ErrClosed):
			err = cache.ErrFIFOClosed
		}
		if err != nil {
			return nil, err
		}
		q.ready = ds
	}
	d := q.ready[:1]
	q.ready = q.ready[1:]
	deltas := cache.Deltas{{Type: d[0].Type, Object: d[0].Object()}}
	err := process(deltas, !q.HasSynced())
	err = errors.Join(err, q.consumer.Acknowledge(d))
	q.checkSynced()
	return deltas, err
}

// populate notes that the queue has its initial items, up to a number. Only the first call counts.
func (q *DeltaFIFO) populate(last uint64) {
	q.initial.CompareAndSwap(noInitial, last)
	q.checkSynced() // Pop may have processed them.
}

func (q *DeltaFIFO) checkSynced() {
	if q.consumer.Has(q.initial.Load()) {
		q.syncOnce.Do(func() { close(q.synced) })
	}
}

// HasSynced implements [cache.Queue].
func (q *DeltaFIFO) HasSynced() bool { return cache.IsDone(q) }

// HasSyncedChecker implements [cache.Queue].
func (q *DeltaFIFO) HasSyncedChecker() cache.DoneChecker { return q }

// Name implements [cache.DoneChecker].
func (q *DeltaFIFO) Name() string { return "DeltaFIFO " + q.log.deltas.Space }

// Done implements [cache.DoneChecker].
func (q *DeltaFIFO) Done() <-chan struct{} { return q.synced }

// Close implements [cache.Queue]. A waiting Pop returns cache.ErrFIFOClosed. Deltas that
// were not processed stay in the log.
func (q *DeltaFIFO) Close() { q.log.Stop() }
