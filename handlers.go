package warmwatch

import (
	"fmt"
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/processor"
	"github.com/warmwatch/warmwatch/queue"
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
// gets OnAdd for every object, then every change (D1). It gets no deletions of the downtime: use AddDurableEventHandler
// for them. For a handler that hangs see Options.MaxBacklogBytes.
//
// As in client-go, handlers must not change objects. Here a change may reach other objects: the old and the new object
// of an update may share memory, and so may objects of the initial list. It may also reach the file, or end the
// process, while the object is being written.
func (s *SharedIndexInformer) AddEventHandlerWithOptions(h cache.ResourceEventHandler, o cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	if isNil(h) {
		return nil, fmt.Errorf("warmwatch: add handler: a handler %w", errRequired)
	}
	return s.processor.Add(h, processor.Name{}, o)
}

// AddDurableEventHandler adds a handler that gets every change at least once, in the order of the watch, across crashes
// and restarts (D2). It goes on where the last handler of the name stopped, in this process or an earlier one.
// Returning from a callback acknowledges. After a crash the notifications of about the last second come again.
//
//   - A replaced object, one of another uid under the same name, is OnDelete of the old one, then OnAdd.
//   - The handler is called once the change is in the file, up to Options.DurableDelay and a commit later than plain
//     handlers. After 30 s of a full disk, or if the file is only read, it is called from memory, and a crash may undo
//     the change.
//   - It starts over (D3) for a new name, after a lost or damaged file, for another Epoch, for another TransformVersion
//     while deltas are pending, and with more than Options.MaxBacklogBytes pending. Then it gets the deletions that are
//     still stored, and OnAdd for every object; only DurableOptions.Known finds each deletion.
//   - If the record of an object was damaged, OnDelete gets a [cache.DeletedFinalStateUnknown] whose Obj is nil, also
//     for an object that still exists; then OnAdd follows.
//
// The file keeps deltas for a name even while it has no handler, see [SharedIndexInformer.ForgetDurable]. A second
// handler of a name is an error: errors.Is(err, [ErrInUse]). After RemoveEventHandler the name is free when the
// callback in flight has returned.
//
// Without a file (Status().MemoryOnly) nothing outlives the process: the first handler of a name in each process
// starts over.
//
// A handler that always panics on one object ends every process at the same notification, which the log names. After
// Options.MaxPanics processes that notification is skipped.
func (s *SharedIndexInformer) AddDurableEventHandler(name string, h cache.ResourceEventHandler, o DurableOptions) (cache.ResourceEventHandlerRegistration, error) {
	switch {
	case name == "":
		return nil, fmt.Errorf("warmwatch: add durable handler: a name %w", errRequired)
	case isNil(h):
		return nil, fmt.Errorf("warmwatch: add durable handler: a handler %w", errRequired)
	}
	handle, err := s.processor.Add(h, processor.Name{Kind: queue.Handlers, Name: name, Epoch: o.Epoch, Known: o.Known}, o.HandlerOptions)
	if err != nil {
		return nil, fmt.Errorf("warmwatch: add durable handler: %w", err)
	}
	return handle, nil
}

// ForgetDurable removes a retired name of a durable handler, of a reconciler, or of both, from the file. The next
// handler or reconciler of the name starts as a new one. ForgetDurable fails while the name is in use (errors.Is(err,
// [ErrInUse])), and after the end of the informer. An unknown name is no error. The names of [Cache.Workqueues] are
// others.
func (s *SharedIndexInformer) ForgetDurable(name string) error {
	if name == "" {
		return fmt.Errorf("warmwatch: forget durable handler: a name %w", errRequired)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hasReconcilerLocked(name) {
		return fmt.Errorf("warmwatch: forget durable handler: %w: %q", ErrInUse, name)
	}
	if err := s.processor.Unused(name); err != nil {
		return err
	}
	if s.controller != nil {
		return s.parts.Load().forget(name)
	}
	s.forgotten = append(s.forgotten, name) // The names in the file are not known before the informer begins.
	return nil
}
