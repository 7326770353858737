package workqueue

import (
	"fmt"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
)

// Options configures [New]. The zero value is valid for items that are strings or of type
// [cache.ObjectName].
type Options[T comparable] struct {
	// Codec writes items as strings. Default: [Strings] or [ObjectNames], where it fits.
	Codec Codec[T]
	// RateLimiter of AddRateLimited. Default: client-go's for controllers.
	RateLimiter workqueue.TypedRateLimiter[T]
	// MetricsProvider is used instead of the one of client-go's SetProvider. The metrics have the
	// name of the workqueue.
	MetricsProvider workqueue.MetricsProvider
	// Clock is that of delays. Default: the real one.
	Clock clock.WithTicker
	// LeaveAtShutDown has Get return no item any more after ShutDown, so that a program ends without
	// working on all that waits: it stays in the file for the next process. Default: Get returns what
	// was added before, as client-go's does.
	LeaveAtShutDown bool
	// LostIfUnknown has items count as lost if the file does not know the name: something else than a
	// workqueue did its work before.
	LostIfUnknown bool
}

// A Queue is client-go's rate limiting workqueue, whose items are kept in a file.
//
//	Add AddAfter AddRateLimited ──► keys, in memory ──► the next commit ──► file
//	        │                         ▲
//	        ▼                         │ Done, if the item was not added again
//	client-go's rate limiting, delaying and plain queue ──► Get
//
// Its methods are client-go's, with the same results. What they add and remove in the file is
// there with the next commit, at most CommitInterval later. An item that a handler of an informer of
// the same file adds, before it returns, is in the file as soon as the handler's acknowledgement:
// after a crash either the handler is told again, or the item is in the queue (D5).
//
//   - Add, AddAfter and AddRateLimited keep the item. Delays are not kept: the next process works
//     on all items at once.
//   - Done removes it, unless it was added again since Get, also for later. Forget only ends what
//     the rate limiter knows, as in client-go.
//   - After ShutDown items are kept as well: those that nobody works on any more, and those that
//     are added, for example by a handler that has not ended yet, or again by a worker that has
//     failed. The next process begins with them.
//
// In memory it holds what client-go's holds, and the key of each item.
type Queue[T comparable] struct {
	workqueue.TypedRateLimitingInterface[T]
	keys  *keys
	codec Codec[T]
	clock clock.WithTicker
	order order[T]
	plain *workqueue.Typed[T]
	leave bool // After ShutDown the items stay in the file.

	mu      sync.Mutex
	delayed map[T]time.Time // When the item will be added that waits for its time.
	left    map[T]struct{}  // Items that were added after ShutDown.
	closed  bool
}

var _ workqueue.TypedRateLimitingInterface[string] = (*Queue[string])(nil)

// New returns the workqueue of a name, with the items that an earlier one of this name has left. The
// error wraps [ErrInUse] while the name has another one: one that was neither closed nor shut down
// and emptied. Items that the Codec cannot decode are an error too, which says what to do, unless they
// are damaged: see Lost.
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
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	q := &Queue[T]{codec: o.Codec, clock: o.Clock, leave: o.LeaveAtShutDown, delayed: map[T]time.Time{}, left: map[T]struct{}{}}
	q.order.Queue, q.order.processing = workqueue.DefaultQueue[T](), map[T]struct{}{}
	q.plain = workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[T]{
		Name: name, MetricsProvider: o.MetricsProvider, Clock: o.Clock, Queue: &q.order,
	})
	delaying := workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[T]{
		Logger: &s.logger, Name: name, MetricsProvider: o.MetricsProvider, Clock: o.Clock, Queue: kept[T]{q.plain, q},
	})
	q.TypedRateLimitingInterface = workqueue.NewTypedRateLimitingQueueWithConfig(o.RateLimiter, workqueue.TypedRateLimitingQueueConfig[T]{
		Name: name, MetricsProvider: o.MetricsProvider, Clock: o.Clock, DelayingQueue: keptForLater[T]{delaying, q},
	})
	if err := q.begin(s, name, o.LostIfUnknown); err != nil {
		q.ShutDown()
		return nil, err
	}
	return q, nil
}

// begin adds what an earlier queue of the name has left.
func (q *Queue[T]) begin(s *Store, name string, lostIfUnknown bool) error {
	if err := s.open(name, lostIfUnknown, q); err != nil {
		return err
	}
	var items []T
	for _, key := range q.keys.sorted() {
		item, err := q.codec.Decode(key)
		if err != nil && q.keys.isDamaged(key) { // What it was counts as lost.
			q.keys.remove(key)
			continue
		}
		if err != nil {
			s.release(q.keys, q)
			return fmt.Errorf("workqueue: %q has the key %q of an earlier program, which the Codec does not know; Forget removes what the name has: %w", name, key, err)
		}
		items = append(items, item)
	}
	q.keys.believe()
	for _, item := range items {
		q.Add(item)
	}
	return nil
}

// Known reports whether the file knew the name when it was used first in this process.
func (q *Queue[T]) Known() bool { return q.keys.known }

// Lost reports whether items of the name may be lost: the file was damaged, or see
// Options.LostIfUnknown and [Store.MarkLost]. Whoever adds items should then add those of all objects, and
// call Recovered: until then Lost is true, also in the next process. An item of an object that is gone
// stays lost.
func (q *Queue[T]) Lost() bool { return q.keys.isLost() }

// Recovered notes that all items which may be lost were added again.
func (q *Queue[T]) Recovered() { q.keys.setLost(false) }

// Close shuts the queue down and makes its name free for another one, with the items that are
// left. Get returns none of them, and Done removes none any more. What is added later is kept for the
// next process. Close is idempotent.
func (q *Queue[T]) Close() {
	q.ShutDown()
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.keys.store.release(q.keys, q)
}

// own implements owner.
func (q *Queue[T]) own(k *keys) { q.keys = k }

// drained reports whether the queue is shut down, and nobody works on an item of it any more, nor will.
func (q *Queue[T]) drained() bool {
	return q.ShuttingDown() && (q.leave || q.Len() == 0) && !q.order.busy()
}
