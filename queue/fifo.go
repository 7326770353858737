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
	o        DeltaFIFOOptions
	log      *Log
	consumer *Consumer
	producer sync.Mutex    // Serialises the methods that queue.
	pop      chan struct{} // Capacity 1: full while an item is waited for, or processed.
	ready    []Delta

	mu        sync.Mutex
	populated bool
	initial   uint64 // Number of the last item that Pop must process before the queue has synced.
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
	return newDeltaFIFO(log, o)
}

func newDeltaFIFO(log *Log, o DeltaFIFOOptions) (*DeltaFIFO, error) {
	if o.KeyFunc == nil {
		o.KeyFunc = cache.DeletionHandlingMetaNamespaceKeyFunc
	}
	q := &DeltaFIFO{o: o, log: log, pop: make(chan struct{}, 1), synced: make(chan struct{})}
	var err error
	if q.consumer, err = log.named(fifos, "pop", "", false); err != nil {
		return nil, err
	}
	if q.consumer.StartsOver() { // From now on all items are kept.
		q.ready, err = q.startOver()
	}
	return q, err
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
	d, err := q.delta(t, obj)
	if err != nil {
		return err
	}
	q.populate(0)
	return q.push([]Delta{d})
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
	if q.o.Transformer != nil && t != cache.Sync {
		if obj, err = q.o.Transformer(obj); err != nil {
			return Delta{}, err
		}
	}
	d := Delta{Type: t, Key: key, New: obj, SizeBytes: record.EstimateSize(obj)}
	value, err := record.Encode(obj)
	switch {
	case err == nil:
		d.NewRecord = value.Record()
	case t != cache.Deleted: // A deletion is queued in any case.
		return Delta{}, err
	}
	return d, nil
}

func (q *DeltaFIFO) keyOf(obj any) (string, error) {
	if tomb, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		return tomb.Key, nil
	}
	key, err := q.o.KeyFunc(obj)
	if err != nil {
		return "", cache.KeyError{Obj: obj, Err: err}
	}
	return key, nil
}

// push adds deltas to the log in one batch.
func (q *DeltaFIFO) push(ds []Delta) error {
	q.log.Encode(ds)
	batch, err := q.log.db.Update(func(b *persist.Batch) { q.log.Append(b, ds) })
	if err == nil {
		q.log.Publish(batch, ds)
	}
	return err
}

// Replace implements [cache.Queue]. It queues a delta Deleted for each object that is
// known, or waits in the queue, and is not in list, and then a delta Replaced for each
// object in list. It does not use the resourceVersion.
func (q *DeltaFIFO) Replace(list []any, _ string) error {
	q.producer.Lock()
	defer q.producer.Unlock()
	keys := sets.New[string]()
	for _, obj := range list {
		key, err := q.keyOf(obj)
		if err != nil {
			return err
		}
		keys.Insert(key)
	}
	queued, err := q.queued()
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
	for key, obj := range q.known() {
		if _, waits := queued[key]; !waits && !keys.Has(key) {
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
	q.populate(q.log.Head())
	return nil
}

// known returns the objects that Pop's caller knows, by key, nil for those that it does not find.
func (q *DeltaFIFO) known() map[string]any {
	known := map[string]any{}
	if q.o.KnownObjects == nil {
		return known
	}
	for _, key := range q.o.KnownObjects.ListKeys() {
		obj, exists, err := q.o.KnownObjects.GetByKey(key)
		if err != nil || !exists {
			q.log.logger.Error(err, "Could not look up a known object", "key", key)
			obj = nil
		}
		known[key] = obj
	}
	return known
}

// queued returns the last delta of each key that waits for Pop, which may go on meanwhile.
func (q *DeltaFIFO) queued() (waiting map[string]Delta, err error) {
	waiting = map[string]Delta{}
	err = q.log.db.Read(q.log.deltas.Space, func(s *persist.Snapshot) error {
		return s.Scan(deltasBucket, keyAfter(q.consumer.cursor()), func(it *persist.Item) (bool, error) {
			number, _, _ := parseDeltaKey(it.Key)
			if d, err := q.log.readDelta(number, it); err == nil { // Else Pop reports it.
				waiting[d.Key] = d
			}
			return true, nil
		})
	})
	return waiting, err
}

// Resync implements [cache.Queue]. It queues a delta Sync for each known object that
// has no delta in the queue.
func (q *DeltaFIFO) Resync() error {
	q.producer.Lock()
	defer q.producer.Unlock()
	queued, err := q.queued()
	if err != nil {
		return err
	}
	var ds []Delta
	for key, obj := range q.known() {
		if _, waits := queued[key]; waits || obj == nil {
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
	q.pop <- struct{}{}
	defer func() { <-q.pop }()
	for len(q.ready) == 0 {
		ds, err := q.consumer.Next()
		if errors.Is(err, ErrStartOver) {
			ds, err = q.startOver()
		}
		if err != nil {
			if errors.Is(err, ErrStopped) || errors.Is(err, persist.ErrClosed) {
				err = cache.ErrFIFOClosed
			}
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

// startOver skips what is lost. It returns the deletions that are left: Replace tells of the rest.
func (q *DeltaFIFO) startOver() (all []Delta, err error) {
	if err := q.consumer.BeginList(); err != nil {
		return nil, err
	}
	for upTo, after := q.consumer.ListBegun(), uint64(0); ; {
		ds, err := q.consumer.Deletions(after, upTo)
		if err != nil || len(ds) == 0 {
			return all, errors.Join(err, q.consumer.EndList())
		}
		all, after = append(all, ds...), ds[len(ds)-1].Number
	}
}

// populate notes that the queue has its initial items, up to a number. The queue has
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
	if q.populated && !cache.IsDone(q) && q.consumer.cursor() >= q.initial {
		close(q.synced)
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

// Transformer implements [cache.TransformingStore].
func (q *DeltaFIFO) Transformer() cache.TransformFunc { return q.o.Transformer }

// Close implements [cache.Queue]. A waiting Pop returns cache.ErrFIFOClosed. Deltas that
// were not processed stay in the log.
func (q *DeltaFIFO) Close() { q.log.Stop() }
