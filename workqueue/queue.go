package workqueue

import (
	"cmp"
	"fmt"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/warmwatch/warmwatch/internal/keyfield"
	"github.com/warmwatch/warmwatch/persist"
)

// Options configures [New]. The zero value is valid for items that are strings or of type
// [cache.ObjectName].
type Options[T comparable] struct {
	// Codec writes items as strings. Default: [Strings] or [ObjectNames], where it fits.
	Codec Codec[T]
	// RateLimiter of AddRateLimited. Default: client-go's for controllers.
	RateLimiter workqueue.TypedRateLimiter[T]
	// LeaveAtShutDown: after ShutDown Get returns no item any more, so that the program ends soon. The waiting items
	// stay in the file for the next process. Default: Get returns the items that were added before, as client-go's
	// does.
	LeaveAtShutDown bool
}

// A Queue is client-go's rate limiting workqueue, with its items in a file.
//
//	Add AddAfter AddRateLimited ──► a batch with the key ──► the next commit ──► file
//	        │                         ▲
//	        ▼                         │ Done, if the item was not added again
//	client-go's rate limiting, delaying and plain queue ──► Get
//
// Its methods are client-go's, with the same results. Their changes are in the file with the next commit, at most
// CommitInterval later. They do not wait for it. A handler of an informer of the same file may add an item before it
// returns. Then the item's batch comes before the acknowledgement's: after a crash either the handler is called again,
// or the item is in the queue (D5).
//
//   - Add, AddAfter and AddRateLimited keep the item, but not its delay: the next process works on all items at once.
//   - Done removes it, unless it was added again since Get, even for later. Forget only clears the rate limiter, as in
//     client-go.
//   - After ShutDown items are kept as well: those that are left, and those that are still added, for example by a
//     handler that has not ended yet, or by a worker that has failed. The next process begins with them.
//
// In memory it is client-go's queue, plus the key of each item.
type Queue[T comparable] struct {
	workqueue.TypedRateLimitingInterface[T]
	store   *Store
	name    string
	codec   Codec[T]
	order   order[T]
	plain   *workqueue.Typed[T]
	leave   bool // After ShutDown the items stay in the file.
	damaged bool

	mu      sync.Mutex
	keys    map[string]struct{} // The keys that the file has, or will have with the next commit.
	delayed map[T]time.Time     // The waiting items, and when they will be added.
	left    map[T]struct{}      // Items that were added after ShutDown.
	closed  bool
	// processing has the items that Get has returned, until Done.
	processing map[T]struct{}
}

var _ workqueue.TypedRateLimitingInterface[string] = (*Queue[string])(nil)

// New returns the workqueue of a name, with the items that an earlier one of this name has left. The error wraps
// [ErrInUse] until the earlier one was closed, or shut down and emptied. Items that the Codec cannot decode are an
// error, too. It says what to do. Damaged items are no error: see Damaged.
func New[T comparable](s *Store, name string, o Options[T]) (*Queue[T], error) {
	if o.Codec == nil {
		var err error
		if o.Codec, err = codecOf[T](); err != nil {
			return nil, err
		}
	}
	if o.RateLimiter == nil {
		o.RateLimiter = workqueue.DefaultTypedControllerRateLimiter[T]()
	}
	q := &Queue[T]{store: s, name: name, keys: map[string]struct{}{}, codec: o.Codec, leave: o.LeaveAtShutDown, delayed: map[T]time.Time{}, left: map[T]struct{}{}, processing: map[T]struct{}{}}
	q.order.Queue = workqueue.DefaultQueue[T]()
	q.plain = workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[T]{
		Name: name, Queue: &q.order,
	})
	delaying := workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[T]{
		Logger: &s.logger, Name: name, Queue: kept[T]{q.plain, q},
	})
	q.TypedRateLimitingInterface = workqueue.NewTypedRateLimitingQueueWithConfig(o.RateLimiter, workqueue.TypedRateLimitingQueueConfig[T]{
		Name: name, DelayingQueue: keptForLater[T]{delaying, q},
	})
	if err := q.begin(); err != nil {
		q.Close()
		return nil, err
	}
	return q, nil
}

// begin adds the items that an earlier queue of the name has left.
func (q *Queue[T]) begin() error {
	var items []T
	var damaged []string
	var unknown error
	err := q.store.open(q.name, q, func(snapshot *persist.Snapshot) error {
		err := q.store.scan(snapshot, q.name, func(key string, it *persist.Item) {
			_, damage := it.Payload()
			item, err := q.codec.Decode(key)
			if err == nil { // To work on an item that nobody has added does no harm.
				items = append(items, item)
			}
			switch {
			case damage != nil:
				q.store.logger.Error(damage, "An item of a workqueue is damaged", "workqueue", q.name, "key", key, "used", err == nil)
				damaged = append(damaged, it.Key)
			case err != nil:
				unknown = fmt.Errorf("workqueue: %q has the key %q of an earlier program, which the Codec does not know; Forget removes what the name has: %w", q.name, key, err)
			default:
				q.keys[key] = struct{}{}
			}
		})
		return cmp.Or(err, unknown)
	})
	if err != nil {
		return err
	}
	if q.damaged = len(damaged) > 0; q.damaged {
		err = q.store.db.Update(func(b *persist.Batch) {
			for _, key := range damaged {
				b.Delete(q.store.keys, key)
			}
		})
	}
	for _, item := range items {
		q.Add(item)
	}
	return err
}

// Damaged reports whether an item of an earlier queue was damaged. Then any item may be missing: add the items of all
// objects.
func (q *Queue[T]) Damaged() bool { return q.damaged }

// AddTransient adds an item for this process only, unless it is in the file anyway. Use it for items that the next
// process adds again.
func (q *Queue[T]) AddTransient(item T) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.plain.Add(item)
}

// keepLocked puts the key of an item into the file.
func (q *Queue[T]) keepLocked(item T) {
	key := q.codec.Encode(item)
	_, kept := q.keys[key]
	if kept && !q.closed {
		return
	}
	if len(key) > MaxKeyBytes {
		q.store.logger.Error(nil, "An item of a workqueue is not kept: its key is too long", "workqueue", q.name, "bytes", len(key), "most", MaxKeyBytes)
		return
	}
	q.keys[key] = struct{}{}
	q.change(func(b *persist.Batch, key string) {
		if q.closed { // Another queue may have put it.
			b.Put(q.store.keys, key, nil)
		} else {
			b.PutNew(q.store.keys, key, nil)
		}
	}, key)
}

// dropLocked removes the key of an item from the file.
func (q *Queue[T]) dropLocked(item T) {
	key := q.codec.Encode(item)
	if _, kept := q.keys[key]; kept {
		delete(q.keys, key)
		q.change(func(b *persist.Batch, key string) { b.Delete(q.store.keys, key) }, key)
	}
}

// change changes a key. After the end of the Cache nothing is kept.
func (q *Queue[T]) change(fn func(b *persist.Batch, key string), key string) {
	key = keyfield.Of(q.name) + key
	_ = q.store.db.Update(func(b *persist.Batch) { fn(b, key) })
}

// Close shuts the queue down and frees its name for another queue. That queue gets the items that are left. Get of this
// one returns no item any more, and Done removes none. Items that are added later are kept for the next process. Close
// is idempotent.
func (q *Queue[T]) Close() {
	q.ShutDown()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
}

// inUse implements owner. It reports whether an item is worked on, or will be. A queue that is shut down and not in use
// is closed.
func (q *Queue[T]) inUse() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = q.closed || q.ShuttingDown() && (q.leave || q.Len() == 0) && q.order.popped.Load() == 0
	return !q.closed
}

// len implements owner.
func (q *Queue[T]) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return max(len(q.keys), q.Len()+int(q.order.popped.Load()))
}
