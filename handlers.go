package warmwatch

import (
	"context"
	"fmt"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

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
// gets OnAdd for every object, then every change (D1). It gets nothing of what earlier processes knew: for the deletions of
// the downtime there is AddDurableEventHandler. Of a handler that hangs see Options.MaxBacklogBytes.
//
// As in client-go, handlers must not change objects. Here the old and the new object
// of an update may share memory, and so may objects of the initial list, so that changing one may
// change others. An object that is changed while it is written may get into the file so, or end the process.
func (s *SharedIndexInformer) AddEventHandlerWithOptions(h cache.ResourceEventHandler, o cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	if isNil(h) {
		return nil, fmt.Errorf("warmwatch: add handler: a handler %w", errRequired)
	}
	return s.processor.Add(h, processor.Name{}, o)
}

// DurableOptions configures [SharedIndexInformer.AddDurableEventHandler] and, as a part of [ReconcilerOptions],
// [SharedIndexInformer.AddReconciler]. The zero value is valid.
type DurableOptions struct {
	cache.HandlerOptions
	// Epoch names the state of what the handler has made outside the cluster, for example by a boot id, or the version
	// of the program. The handler starts over if the last handler of the name had another epoch. Default: none. Then a
	// reconciler starts over in each process, and a durable handler never does for this reason.
	Epoch string
	// Known returns the keys of the objects that the program holds, for example those of which it finds files. Once
	// the cache has caught up with the server, the handler gets OnDelete with a [cache.DeletedFinalStateUnknown], whose
	// Obj is nil, for each key that the cache lacks. So no deletion is missed, whatever becomes of the file. It is
	// called in each process, on a goroutine of its own, and again after an error; ctx ends with the handler.
	Known func(ctx context.Context) ([]cache.ObjectName, error)
}

// AddDurableEventHandler adds a handler that gets every change at least once, in the order of the watch, across crashes
// and restarts (D2). It goes on where the last handler of the name stopped, in this process or an earlier one. To return
// from a callback is to acknowledge. After a crash the notifications of about the last second come again.
//
//   - A replaced object, one of another uid under the same name, is OnDelete of the old one, then OnAdd.
//   - The handler is called only when the change is in the file, up to Options.DurableDelay and a commit later than plain
//     handlers. Exceptions: after 30 s of a full disk, and where the file is only read, it is called from memory, and a
//     crash may take that back.
//   - Where the past cannot be given, it starts over (D3): it gets the deletions that are still stored, and OnAdd for every
//     object. That is so for a new name, a file that was lost or damaged, another Epoch, another TransformVersion while
//     something waits, and where more than Options.MaxBacklogBytes wait. Then only DurableOptions.Known finds each
//     deletion.
//   - If the record of an object was damaged, OnDelete gets a [cache.DeletedFinalStateUnknown] whose Obj is nil, also for
//     an object that still exists; then OnAdd follows.
//
// The name holds deltas in the file even while it has no handler, see [SharedIndexInformer.ForgetDurable]. A name can have
// one handler at a time: errors.Is(err, [ErrInUse]). After RemoveEventHandler the name is free when the callback in flight
// has returned.
//
// Without a file (Status().MemoryOnly) nothing outlives the process: the first handler of a name in each process
// starts over.
//
// A handler that always panics on one object ends every process at the same notification, which the log names. After
// Options.MaxPanics processes that notification is skipped, logged, and counted in HandlerStatus.Skipped.
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

// ForgetDurable removes what is kept for a name that has neither a durable handler nor a reconciler any more, of both
// kinds. The next one of the name begins as the first one did. While the name has one it fails:
// errors.Is(err, [ErrInUse]). After the end of the informer it fails as well. Nothing is kept for a name that nobody had, so
// that is no error. The names of [Cache.Workqueues] are others.
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
	if s.forgotten == nil { // What the file has is known when the informer begins.
		s.forgotten = map[string]struct{}{}
	}
	s.forgotten[name] = struct{}{}
	return nil
}

// RemoveEventHandler implements [cache.SharedInformer]. The name of a durable
// handler keeps its position.
func (s *SharedIndexInformer) RemoveEventHandler(handle cache.ResourceEventHandlerRegistration) error {
	if r, ok := handle.(*Reconciler); ok {
		handle = r.registration
	}
	return s.processor.Remove(handle)
}

// WaitForHandlerSync waits until the handlers that the running informers have now have synced: until
// HasSynced of their registrations. It reports false if ctx is done before. It does not wait for
// handlers that are removed, or whose informer ends, meanwhile.
func (c *Cache) WaitForHandlerSync(ctx context.Context) bool {
	for _, s := range c.running() {
		if !s.processor.WaitForSync(ctx) {
			return false
		}
	}
	return true
}

// unreturned is a callback or a reconcile that has not returned, or, without an object, a handler
// that is between two callbacks.
type unreturned struct {
	kind, name, object string
	since              time.Time
}

func (s *SharedIndexInformer) unreturned() []unreturned {
	var all []unreturned
	for _, h := range s.processor.Unfinished() {
		all = append(all, unreturned{"handler", h.Name, h.Callback, h.CallbackSince})
	}
	return append(all, s.progress.unreturned()...)
}

// logger returns one that names it.
func (u unreturned) logger(s *SharedIndexInformer) klog.Logger {
	logger := s.place.Load().logger.WithValues(u.kind, u.name)
	if !u.since.IsZero() {
		logger = logger.WithValues("object", u.object, "running", time.Since(u.since).Round(time.Second))
	}
	return logger
}

// hangingCallback is how long a callback or a reconcile runs before that is logged, hangingAgain after how long it is logged
// again, and hangingLook how often it is looked for.
const (
	hangingCallback = time.Minute
	hangingAgain    = 10 * time.Minute
	hangingLook     = 10 * time.Second
)

// logHanging logs what has been running for long, so that somebody finds it who does not look at the status.
func (s *SharedIndexInformer) logHanging(ctx context.Context) {
	defer utilruntime.HandleCrashWithContext(ctx)
	logged := map[unreturned]time.Time{}
	for pause(ctx, hangingLook) {
		still := map[unreturned]time.Time{}
		for _, u := range s.unreturned() {
			if u.since.IsZero() || time.Since(u.since) < hangingCallback {
				continue
			}
			still[u] = logged[u]
			if time.Since(still[u]) >= hangingAgain {
				u.logger(s).Error(nil, "A handler or a reconcile has not returned for a while")
				still[u] = time.Now()
			}
		}
		logged = still
	}
}
