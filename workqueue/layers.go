package workqueue

import (
	"sync/atomic"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// kept is client-go's plain queue. The delaying queue also calls it, when an item's time has come.
type kept[T comparable] struct {
	*workqueue.Typed[T]
	q *Queue[T]
}

// Add implements workqueue.TypedInterface.
func (k kept[T]) Add(item T) {
	q := k.q
	q.mu.Lock()
	defer q.mu.Unlock()
	if due, waits := q.delayed[item]; waits && !time.Now().Before(due) {
		delete(q.delayed, item)
	}
	q.keepLocked(item)
	k.Typed.Add(item)
	if q.plain.ShuttingDown() { // The item may be left for the next process.
		q.left[item] = struct{}{}
	}
}

// Get implements workqueue.TypedInterface.
func (k kept[T]) Get() (item T, shutdown bool) {
	item, shutdown = k.Typed.Get()
	if shutdown {
		return item, true
	}
	q := k.q
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed && (!q.leave || !q.plain.ShuttingDown()) {
		q.processing[item] = struct{}{}
		return item, false
	}
	k.Typed.Done(item) // Nobody works on it. Its key stays.
	q.order.popped.Add(-1)
	return *new(T), true
}

// Done implements workqueue.TypedInterface.
func (k kept[T]) Done(item T) {
	q := k.q
	q.mu.Lock()
	defer q.mu.Unlock()
	q.order.pushed.Store(false)
	k.Typed.Done(item)
	if _, is := q.processing[item]; is {
		delete(q.processing, item)
		q.order.popped.Add(-1)
	}
	again := q.order.pushed.Load() // Done has pushed an item that was added again. Every cause of a Push holds q.mu.
	_, waits := q.delayed[item]
	_, left := q.left[item]
	if !again && !waits && !left && !q.closed {
		q.dropLocked(item)
	}
}

// keptForLater is client-go's delaying queue. The rate limiting queue also calls it.
type keptForLater[T comparable] struct {
	workqueue.TypedDelayingInterface[T]
	q *Queue[T]
}

// AddAfter implements workqueue.TypedDelayingInterface.
func (k keptForLater[T]) AddAfter(item T, d time.Duration) {
	if d <= 0 {
		k.Add(item)
	} else if k.q.delay(item, d) {
		k.TypedDelayingInterface.AddAfter(item, d) // The lock is not held: AddAfter may wait for an Add.
	}
}

// delay notes an item that is to wait. It returns false if the item waits already and will be added no later: the
// earlier time counts, as with client-go. The later time is not passed on to client-go's queue: if the earlier time
// came meanwhile, that queue would let the item wait once more, and this queue would not know.
func (q *Queue[T]) delay(item T, d time.Duration) bool {
	due := time.Now().Add(d) // client-go adds the item no earlier.
	q.mu.Lock()
	defer q.mu.Unlock()
	q.keepLocked(item)
	if before, waits := q.delayed[item]; waits && !due.Before(before) {
		return false
	}
	q.delayed[item] = due
	return true
}

// An order is client-go's FIFO queue of the items that are ready. The plain queue calls Push and Pop under its lock.
type order[T comparable] struct {
	workqueue.Queue[T]
	pushed atomic.Bool  // Since Done has begun.
	popped atomic.Int64 // Items that were popped and are not done.
}

// Pop implements workqueue.Queue.
func (o *order[T]) Pop() T {
	o.popped.Add(1)
	return o.Queue.Pop()
}

// Push implements workqueue.Queue.
func (o *order[T]) Push(item T) {
	o.pushed.Store(true)
	o.Queue.Push(item)
}
