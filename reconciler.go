package warmwatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/cache"
	clientworkqueue "k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/warmwatch/warmwatch/workqueue"
)

// A ReconcileFunc makes the world as the object of a key wants it. The state of the object is what a
// lister of the informer has, and [DeletedObjects]. If it returns an error, it is called again later.
// ctx ends with the informer.
type ReconcileFunc func(ctx context.Context, key cache.ObjectName) error

// ReconcilerOptions configures [SharedIndexInformer.AddReconciler]. The zero value is valid.
type ReconcilerOptions struct {
	// Workers is how many keys are reconciled at once. Default 1.
	Workers int
	// RateLimiter says when a reconcile that has failed is repeated. Default: client-go's for
	// controllers.
	RateLimiter clientworkqueue.TypedRateLimiter[cache.ObjectName]
	// WaitFor are caches that the function also reads. The first reconcile waits for them, as it
	// does for the informer.
	WaitFor []cache.DoneChecker
}

// AddReconciler has reconcile called for each object that is added, updated or deleted, until it
// returns nil, whatever crashes meanwhile. It is a durable handler, see AddDurableEventHandler, that
// puts keys into a workqueue of package workqueue, and the workers that take them from there:
//
//   - A key is reconciled by one worker at a time. What changes meanwhile, or before, is one more
//     reconcile, which finds the latest state.
//   - A key is in the file until a reconcile of it has returned nil and nothing has changed since. The
//     next process begins with those that are left. Delays after errors do not outlive the process.
//   - The last known object of a deletion is in the file until then, too: see [DeletedObjects].
//   - The first reconciler of a name is called for every object. So is the next one after another
//     handler had the name, and after the file has lost keys because it was damaged.
//
// Reconciles begin when the informer has synced. When it ends, ctx is cancelled, and Run returns when
// all have returned. A panic ends the process, or where panics do not, counts as an error. The next
// process begins with the key again, however often that happens: nothing is set aside for a reconciler,
// as it is for other handlers, see Options.MaxPanics. A reconcile that always panics on one object has to
// return an error instead, so that others are reconciled meanwhile. What was set aside for another
// handler that had the name before is reconciled.
//
// The name is one of a durable handler: two users of it, also another handler, are refused, by an
// error for which errors.Is(err, [ErrInUse]) holds; what waits for a name that has no reconciler any
// more stays in the file, see Status().Reconcilers, until ForgetDurableEventHandler is called.
// RemoveEventHandler ends the reconciler; its name is free once the reconciles in flight have returned.
func (s *SharedIndexInformer) AddReconciler(name string, reconcile ReconcileFunc, o ReconcilerOptions) (cache.ResourceEventHandlerRegistration, error) {
	switch {
	case name == "":
		return nil, fmt.Errorf("warmwatch: add reconciler: a name %w", errRequired)
	case reconcile == nil:
		return nil, fmt.Errorf("warmwatch: add reconciler: a function %w", errRequired)
	case o.Workers < 0:
		return nil, fmt.Errorf("warmwatch: add reconciler: Workers is negative: %d", o.Workers)
	case len(name) > workqueue.MaxNameBytes:
		return nil, fmt.Errorf("warmwatch: add reconciler: a name of %d bytes is too long, at most %d are allowed; it begins with %.40q", len(name), workqueue.MaxNameBytes, name)
	}
	o.Workers = max(o.Workers, 1)
	r := &reconciler{informer: s, name: name, reconcile: reconcile, opts: o}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped { // The processor may take a handler yet, which nobody would give a queue.
		return nil, fmt.Errorf("warmwatch: add reconciler: reconciler %q was not added because the informer has stopped already", name)
	}
	if s.hasReconcilerLocked(name) {
		return nil, fmt.Errorf("warmwatch: add reconciler: %w: %q", ErrInUse, name)
	}
	var open func() error
	if s.queuesOpen { // Not before the name is the reconciler's: what it notes there would be wrong.
		open = func() error { return r.open(s.parts.Load()) }
	}
	handle, err := s.processor.Add(r, name, cache.HandlerOptions{}, open)
	if err != nil {
		return nil, fmt.Errorf("warmwatch: add reconciler: %w", err)
	}
	r.registration = handle.(registration)
	s.reconcilers = append(s.reconcilers, r)
	if s.queuesOpen {
		r.begin(s.parts.Load())
		s.running.Go(func() { r.run(s.ctx) })
	}
	return handle, nil
}

// hasReconcilerLocked reports whether a reconciler has a name, also one that was removed and has not
// ended yet: what it has still to put into the file would be missed.
func (s *SharedIndexInformer) hasReconcilerLocked(name string) bool {
	return slices.ContainsFunc(s.reconcilers, func(r *reconciler) bool { return r.name == name && (s.queuesOpen || !r.removed()) })
}

// openReconcilers has those that were added find what the last process has left. The caller holds s.mu.
func (s *SharedIndexInformer) openReconcilers(p *parts) error {
	if err := s.replayForgotten(p); err != nil {
		return fmt.Errorf("warmwatch: read the work of reconcilers: %w", err)
	}
	s.reconcilers = slices.DeleteFunc(s.reconcilers, (*reconciler).removed)
	for _, h := range s.processor.Status() {
		if h.Durable && !h.Absent && !s.hasReconcilerLocked(h.Name) {
			if err := p.work.MarkLost(h.Name); err != nil {
				return fmt.Errorf("warmwatch: read the work of reconciler %q: %w", h.Name, err)
			}
		}
	}
	for i, r := range s.reconcilers {
		if err := r.open(p); err != nil {
			for _, opened := range s.reconcilers[:i] {
				opened.close()
			}
			return fmt.Errorf("warmwatch: read the work of reconciler %q: %w", r.name, err)
		}
	}
	for _, r := range s.reconcilers {
		r.begin(p)
	}
	s.queuesOpen = true
	return nil
}

func (s *SharedIndexInformer) replayForgotten(p *parts) error {
	for name := range s.forgotten {
		if err := p.forgetWork(name); err != nil {
			return err
		}
	}
	s.forgotten = nil
	return nil
}

// forgetReconciler removes the work of a name that has no handler.
func (s *SharedIndexInformer) forgetReconciler(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.parts.Load()
	if err := p.forgetWork(name); err != nil {
		return err
	}
	if s.queuesOpen {
		return nil
	}
	if s.forgotten == nil { // The informer may move to the file before it begins, see replayForgotten.
		s.forgotten = map[string]struct{}{}
	}
	s.forgotten[name] = struct{}{}
	return nil
}

func (p *parts) forgetWork(name string) error {
	if err := p.work.Forget(name); err != nil {
		return err
	}
	return forgetDeletions(p.db, p.space, name)
}

// A reconciler is a durable handler, and the workers that do what it has put into its queue.
type reconciler struct {
	informer     *SharedIndexInformer
	name         string
	reconcile    ReconcileFunc
	opts         ReconcilerOptions
	registration registration

	logger    klog.Logger
	queue     *workqueue.Queue[cache.ObjectName]
	deletions *deletions
}

var _ cache.ResourceEventHandler = (*reconciler)(nil)

// open is called before the handler is told anything. The caller holds informer.mu.
func (r *reconciler) open(p *parts) (err error) {
	r.logger = klog.LoggerWithValues(p.logger, "reconciler", r.name)
	if r.deletions, err = openDeletions(p.db, p.space, r.name, r.informer.newObject); err != nil {
		return err
	}
	told := p.queue.HasTold(r.name) || r.informer.queuesOpen && p.queue.Follows(r.name) // Before that no handler runs.
	r.queue, err = workqueue.New(p.work, r.name, workqueue.Options[cache.ObjectName]{RateLimiter: r.opts.RateLimiter, LostIfUnknown: told})
	if err != nil {
		r.close()
		return err
	}
	if !r.queue.Known() && !told {
		r.queue.Recovered() // Its handler will be told of all objects, also where a damaged file has forgotten the name.
	}
	for _, key := range r.deletions.keys() { // Usually it is in the queue.
		r.queue.Add(key)
	}
	return nil
}

// begin is called once the handler was added, which has the name then. What was set aside for a handler
// that had the name before is told, because this one does not panic.
func (r *reconciler) begin(p *parts) { p.queue.RedeliverToOther(r.name) }

// close ends what open has begun, also if it has failed.
func (r *reconciler) close() {
	if r.queue != nil {
		r.queue.Close()
	}
	if r.deletions != nil {
		r.deletions.close()
	}
}

// registration is what the processor returns.
type registration interface {
	cache.ResourceEventHandlerRegistration
	ShutdownChan() <-chan struct{}
	IsRemoved() bool
}

// ended is closed when the handler is not called any more.
func (r *reconciler) ended() <-chan struct{} { return r.registration.ShutdownChan() }

// removed reports whether another handler may have the name, although this one may not have ended.
func (r *reconciler) removed() bool { return r.registration.IsRemoved() }

// OnAdd implements [cache.ResourceEventHandler].
func (r *reconciler) OnAdd(obj any, _ bool) { r.enqueue(obj) }

// OnUpdate implements [cache.ResourceEventHandler].
func (r *reconciler) OnUpdate(_, obj any) { r.enqueue(obj) }

// OnDelete implements [cache.ResourceEventHandler].
func (r *reconciler) OnDelete(obj any) {
	deleted := obj
	lost, unsure := obj.(cache.DeletedFinalStateUnknown)
	if unsure {
		deleted = lost.Obj
	}
	if key, ok := r.key(obj); ok {
		r.deleted(key, deleted, !unsure)
	}
}

// deleted adds a key, with the last known object of a deletion, if there is one.
func (r *reconciler) deleted(key cache.ObjectName, obj any, sure bool) {
	if obj != nil {
		r.deletions.add(key, obj, sure)
	}
	r.queue.Add(key)
}

// enqueue adds the key of obj. Before it returns, nothing of the delta is acknowledged.
func (r *reconciler) enqueue(obj any) {
	if key, ok := r.key(obj); ok {
		r.queue.Add(key)
	}
}

func (r *reconciler) key(obj any) (key cache.ObjectName, ok bool) {
	key, err := cache.DeletionHandlingObjectToName(obj)
	if err != nil {
		r.logger.Error(err, "Could not find out the key of an object")
	}
	return key, err == nil
}

// run returns when the handler has ended, and all reconciles have returned.
func (r *reconciler) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(klog.NewContext(ctx, r.logger))
	defer cancel()
	var workers sync.WaitGroup
	if r.wait(ctx) {
		r.addLost(ctx)
		for range r.opts.Workers {
			workers.Go(func() { r.work(ctx) })
		}
	}
	select {
	case <-ctx.Done():
	case <-r.ended():
		cancel()
	}
	r.queue.ShutDown() // What is added from now on is for the next process.
	workers.Wait()
	<-r.ended()
	s := r.informer
	s.reconciling.ended(r.name)
	s.mu.Lock()
	defer s.mu.Unlock()
	r.close() // Whoever finds it in s.reconcilers can add to it.
	s.reconcilers = slices.DeleteFunc(s.reconcilers, func(other *reconciler) bool { return other == r })
}

// wait waits for the caches, and reports false if the reconciler ends before.
func (r *reconciler) wait(ctx context.Context) bool {
	for _, checker := range append([]cache.DoneChecker{r.informer.HasSyncedChecker()}, r.opts.WaitFor...) {
		select {
		case <-checker.Done():
		case <-ctx.Done():
			return false
		case <-r.ended():
			return false
		}
	}
	return true
}

// addLost adds the keys of all objects, if some may be lost. Until they can be read it tries again.
func (r *reconciler) addLost(ctx context.Context) {
	if !r.queue.Lost() {
		return
	}
	r.logger.Info("Reconciling all objects, because it is not known which were left to be reconciled")
	for {
		err := r.informer.parts.Load().indexer.Keys(r.addKeys)
		if err == nil {
			break
		}
		r.logger.Error(err, "Could not read the keys of all objects, trying again")
		select {
		case <-time.After(readRetryDelay):
		case <-ctx.Done():
			return
		case <-r.ended():
			return
		}
	}
	r.informer.mu.Lock()
	defer r.informer.mu.Unlock()
	if !r.removed() { // Else another handler may have noted that keys are lost.
		r.queue.Recovered()
	}
}

func (r *reconciler) addKeys(keys []string) error {
	for _, key := range keys {
		name, err := cache.ParseObjectName(key)
		if err != nil {
			r.logger.Error(err, "Could not read a key", "key", key)
			continue
		}
		r.queue.Add(name)
	}
	return nil
}

func (r *reconciler) work(ctx context.Context) {
	for {
		key, shutdown := r.queue.Get()
		if shutdown || ctx.Err() != nil { // What is not done stays in the file.
			return
		}
		r.one(ctx, key)
	}
}

func (r *reconciler) one(ctx context.Context, key cache.ObjectName) {
	deleted := r.deletions.read(key, r.logger)
	what := oneReconcile{r.name, key}
	r.informer.reconciling.begun(what)
	err := r.call(context.WithValue(ctx, deletedKey{}, deleted.objects), key)
	r.informer.reconciling.returned(what, err)
	if err == nil {
		r.deletions.remove(key, deleted)
		r.queue.Forget(key)
	} else {
		if ctx.Err() == nil {
			r.logger.Error(err, "Could not reconcile an object, trying again", "object", key)
		}
		r.queue.AddRateLimited(key)
	}
	r.queue.Done(key) // Not deferred: a panic that ends the process is not done.
}

var errPanicked = errors.New("the reconcile has panicked")

// call calls the function. Where panics do not end the process, one is an error.
func (r *reconciler) call(ctx context.Context, key cache.ObjectName) (err error) {
	err = errPanicked
	defer utilruntime.HandleCrashWithLogger(klog.LoggerWithValues(r.logger, "object", key))
	err = r.reconcile(ctx, key)
	return err
}

type deletedKey struct{}

// DeletedObjects returns, in the ctx of a reconcile, the last known objects of the key that were
// deleted since a reconcile of it has returned nil: usually one, or none. There are more, in no order,
// where others were made under the name and deleted; an object of the name may exist again. The
// objects may lack what a [cache.DeletedFinalStateUnknown] lacks, and must not be changed.
//
// A reconcile that was due anyway may find that the object is gone before the deletion is in the file. It
// gets none then, and there is one more reconcile, which does. A deleted object whose Go type is not the one that
// the informer's transform returns now is left out, as is one whose record was damaged.
func DeletedObjects(ctx context.Context) []any {
	objects, _ := ctx.Value(deletedKey{}).([]any)
	return objects
}
