package warmwatch

import (
	"context"
	"fmt"
	"time"

	"k8s.io/client-go/tools/cache"
)

// AddEventHandler implements [cache.SharedInformer].
func (s *SharedIndexInformer) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return s.AddEventHandlerWithOptions(h, cache.HandlerOptions{})
}

// AddEventHandlerWithResyncPeriod implements [cache.SharedInformer].
func (s *SharedIndexInformer) AddEventHandlerWithResyncPeriod(h cache.ResourceEventHandler, resyncPeriod time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	return s.AddEventHandlerWithOptions(h, cache.HandlerOptions{ResyncPeriod: &resyncPeriod})
}

// AddEventHandlerWithOptions implements [cache.SharedInformer]. The handler is called once HasSynced is true. First it
// gets OnAdd for every object, then every change. It gets nothing of what earlier processes knew: for the deletions of
// the downtime there is AddDurableEventHandler.
//
// As in client-go, handlers must not change objects. Here the old and the new object
// of an update may share memory, and so may objects of the initial list, so that changing one may
// change others. An object that is changed while it is written may get into the file so, or end the process.
func (s *SharedIndexInformer) AddEventHandlerWithOptions(h cache.ResourceEventHandler, o cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	if isNil(h) {
		return nil, fmt.Errorf("warmwatch: add handler: a handler %w", errRequired)
	}
	return s.processor.Add(h, "", o, nil)
}

// AddDurableEventHandler adds a handler that goes on where the last handler of this
// name stopped, in this process or an earlier one: it is told, in order, exactly
// what that one was not told, or did not finish. The first handler of a name is
// told of every object first.
//
// The handler is called only when the change is in the file, up to Options.DurableDelay and a commit later than plain
// handlers. Exceptions: after 30 s of a full disk, and where the file is only read, it is called from memory, and a
// crash may take that back. It gets the deletion of every object that it got, unless only a lost file knew the object.
// If the record of an object was damaged, OnDelete gets a [cache.DeletedFinalStateUnknown] whose Obj is nil, also for
// an object that may still exist; then OnAdd follows. Delivery is at least once: after a crash the last notifications,
// those finished within CommitInterval, may come again. If the first handler of a name ends during its initial list, or
// before the changes of that time are delivered, the next one begins the list again. If it ends between the OnDelete
// and the OnAdd of an object that a relist found replaced, the OnDelete comes again.
//
// The name holds deltas in the file even while it has no handler, see
// [SharedIndexInformer.ForgetDurableEventHandler]. A name can have one handler
// at a time: errors.Is(err, [ErrInUse]). After RemoveEventHandler the name is free at
// once. Its next handler is called after the callback in flight has returned.
//
// Without a file (Status().MemoryOnly) nothing outlives the process: the first handler of a name in each process is
// called for every object. A later one goes on where it stopped.
//
// A handler that always panics on one object ends every process at the same
// notification, which the log names. After Options.MaxPanics processes the object is set
// aside, see [SharedIndexInformer.RedeliverSetAside]. Another way past it is to call
// ForgetDurableEventHandler before the handler is added.
func (s *SharedIndexInformer) AddDurableEventHandler(name string, h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	switch {
	case name == "":
		return nil, fmt.Errorf("warmwatch: add durable handler: a name %w", errRequired)
	case isNil(h):
		return nil, fmt.Errorf("warmwatch: add durable handler: a handler %w", errRequired)
	}
	s.mu.Lock() // Whoever opens the queues finds the handler.
	defer s.mu.Unlock()
	handle, err := s.processor.Add(h, name, cache.HandlerOptions{}, func() error { return s.loseWorkLocked(name) })
	if err != nil {
		return nil, fmt.Errorf("warmwatch: add durable handler: %w", err)
	}
	return handle, nil
}

// loseWorkLocked has the next reconciler of a name reconcile all objects, because another handler has the name
// now, and is told of what it would have to reconcile. One that was removed may not have ended yet.
func (s *SharedIndexInformer) loseWorkLocked(name string) error {
	if !s.queuesOpen { // See openReconcilers.
		return nil
	}
	return s.parts.Load().work.MarkLost(name)
}

// ForgetDurableEventHandler removes what is kept for a durable name, also the work of a
// reconciler. The next handler of the name begins as the first one did. It fails while the name has a
// handler: errors.Is(err, [ErrInUse]). After the end of the informer it fails as well. Nothing is kept for a name
// that nobody had, so that is no error. The names of Status().Workqueues of the Cache are others, see
// [Cache.Workqueues].
func (s *SharedIndexInformer) ForgetDurableEventHandler(name string) error {
	if name == "" {
		return fmt.Errorf("warmwatch: forget durable handler: a name %w", errRequired)
	}
	s.mu.Lock()
	inUse := s.hasReconcilerLocked(name)
	s.mu.Unlock()
	if inUse {
		return fmt.Errorf("warmwatch: forget durable handler: %w: %q", ErrInUse, name)
	}
	if err := s.processor.Forget(name); err != nil {
		return err
	}
	return s.forgetReconciler(name)
}

// RedeliverSetAside has the handler of a durable name told of objects that are set aside: of those
// with these keys, or of all if none is given. For each it is told, between other notifications,
//
//   - OnDelete of the object on whose deletion it has panicked, if it was a deletion;
//   - then OnAdd of the present object, if there is one, because the handler has seen none of
//     the versions since. If there is a change that the handler has still to be told of,
//     its next notification of the object is that OnAdd.
//
// While a deletion is set aside, a new object of the same key is not delivered, nor is its deletion. An earlier process
// may have delivered them.
//
// After that it is told of the object as of any other. It may have no handler yet. The demand
// is for this process only: a handler that panics again ends it, and the next one finds the
// object still set aside. Keys that are not set aside are ignored, and so is a name for which nothing is. It may be called before the informer runs. After
// the end of the informer RedeliverSetAside fails.
func (s *SharedIndexInformer) RedeliverSetAside(name string, keys ...string) error {
	if name == "" {
		return fmt.Errorf("warmwatch: redeliver what is set aside: a name %w", errRequired)
	}
	return s.processor.Redeliver(name, keys...)
}

// RemoveEventHandler implements [cache.SharedInformer]. The name of a durable
// handler keeps its cursor.
func (s *SharedIndexInformer) RemoveEventHandler(handle cache.ResourceEventHandlerRegistration) error {
	return s.processor.Remove(handle)
}

// WaitForHandlerSync waits until the handlers that the running informers have now have synced: until
// HasSynced of their registrations. It reports false if ctx is done before. It does not wait for
// handlers that are removed, or whose informer ends, meanwhile.
func (c *Cache) WaitForHandlerSync(ctx context.Context) bool {
	c.mu.Lock()
	informers := c.informersLocked()
	c.mu.Unlock()
	for _, s := range informers {
		s.mu.Lock()
		started := s.started
		s.mu.Unlock()
		if started && !s.processor.WaitForSync(ctx) {
			return false
		}
	}
	return true
}
