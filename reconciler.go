package warmwatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/util/rand"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/warmwatch/warmwatch/internal/processor"
	"github.com/warmwatch/warmwatch/internal/record"
	"github.com/warmwatch/warmwatch/queue"
	"github.com/warmwatch/warmwatch/workqueue"
)

// AddReconciler calls reconcile like a controller: at each start for each object, and for what was deleted meanwhile;
// then for each change. It calls it for each key until it returns nil, also across crashes (D4). It is a durable
// handler that puts keys into a workqueue of package workqueue, and workers that take them from there:
//
//   - A key is reconciled by one worker at a time. Changes before it starts are one reconcile, and changes while it
//     runs are one more, which finds the latest state.
//   - A key is in the file until its reconcile has returned nil and nothing has changed since. The next process begins
//     with the keys that are left. Delays do not outlive the process.
//   - The last known object of a deletion is in the file until then, too: see [ReconcileRequest].
//   - With the same Epoch as before (a boot id, a version of the program), a start reconciles only what is not done. If
//     the file was lost, or has lost keys because it was damaged, all objects are reconciled.
//   - The keys of DurableOptions.Known that the cache lacks are reconciled once it has caught up.
//
// Reconciles begin when the informer has synced. When it ends, ctx is cancelled, and Run returns when all have
// returned. A panic ends the process; where panics do not, it counts as an error. The next process begins with the same
// key, however often that happens. If a reconcile always panics on one object, return an error instead: others are
// reconciled meanwhile.
//
// A handler may have the name of a reconciler. A second reconciler of a name is an error: errors.Is(err, [ErrInUse]).
// RemoveEventHandler ends the reconciler; its name is free once the reconciles in flight have returned. The keys of a
// retired name stay in the file, see Status().Reconcilers, until [SharedIndexInformer.ForgetDurable] is called.
func (s *SharedIndexInformer) AddReconciler(name string, reconcile ReconcileFunc, o ReconcilerOptions) (*Reconciler, error) {
	switch {
	case name == "":
		return nil, fmt.Errorf("warmwatch: add reconciler: a name %w", errRequired)
	case reconcile == nil:
		return nil, fmt.Errorf("warmwatch: add reconciler: a function %w", errRequired)
	case o.Workers < 0:
		return nil, fmt.Errorf("warmwatch: add reconciler: Workers is negative: %d", o.Workers)
	}
	o.Workers = max(o.Workers, 1)
	r := &Reconciler{informer: s, name: name, reconcile: reconcile, opts: o}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped { // The processor may take a handler yet, which nobody would give a queue.
		return nil, fmt.Errorf("warmwatch: add reconciler: reconciler %q was not added because the informer has stopped already", name)
	}
	if s.hasReconcilerLocked(name) {
		return nil, fmt.Errorf("warmwatch: add reconciler: %w: %q", ErrInUse, name)
	}
	if s.controller != nil {
		if err := r.open(s.parts.Load()); err != nil {
			return nil, fmt.Errorf("warmwatch: add reconciler: %w", err)
		}
	}
	epoch := cmp.Or(o.Epoch, rand.String(16)) // No other process has the random one.
	handle, err := s.processor.Add(handlerOf{r}, processor.Name{Kind: queue.Reconcilers, Name: name, Epoch: epoch, Known: o.Known}, o.HandlerOptions)
	if err != nil {
		r.close()
		return nil, fmt.Errorf("warmwatch: add reconciler: %w", err)
	}
	r.registration = handle.(registration)
	s.reconcilers = append(s.reconcilers, r)
	if s.controller != nil {
		s.running.Go(func() { r.run(s.ctx) })
	}
	return r, nil
}

// hasReconcilerLocked reports whether a reconciler has a name. A removed reconciler counts until it has ended: it may
// still put something into the file.
func (s *SharedIndexInformer) hasReconcilerLocked(name string) bool {
	return slices.ContainsFunc(s.reconcilers, func(r *Reconciler) bool { return r.name == name && (s.controller != nil || !r.hasEnded()) })
}

// RemoveEventHandler implements [cache.SharedInformer]. The name of a durable
// handler keeps its position.
func (s *SharedIndexInformer) RemoveEventHandler(handle cache.ResourceEventHandlerRegistration) error {
	if r, ok := handle.(*Reconciler); ok {
		handle = r.registration
	}
	return s.processor.Remove(handle)
}

// Enqueue has keys reconciled, for example of the owner of another object, also if the cache lacks the object. If a
// durable handler calls Enqueue, the keys are in the file before its delta is acknowledged. Before the informer runs
// they wait in memory.
func (r *Reconciler) Enqueue(keys ...cache.ObjectName) {
	r.informer.mu.Lock()
	queue := r.queue
	if queue == nil {
		r.enqueued = append(r.enqueued, keys...)
	}
	r.informer.mu.Unlock()
	if queue != nil {
		addAll(queue, keys)
	}
}

func addAll(queue *workqueue.Queue[cache.ObjectName], keys []cache.ObjectName) {
	for _, key := range keys {
		queue.Add(key)
	}
}

// open is called before the handler is called. The caller holds informer.mu.
func (r *Reconciler) open(p *parts) error {
	if r.queue != nil { // An earlier call has opened it.
		return nil
	}
	logger := klog.LoggerWithValues(p.logger, "reconciler", r.name)
	work, err := workqueue.New(p.work, r.name, workqueue.Options[cache.ObjectName]{RateLimiter: r.opts.RateLimiter})
	if err != nil {
		return err
	}
	deleted, damaged, err := p.deletions.Keys(r.name)
	if err == nil && (damaged || work.Damaged()) {
		logger.Info("Reconciling all objects, because it is not known which were left to be reconciled")
		err = p.queue.StartOver(queue.CauseDamaged, func(key string, _ int) bool { return key == queue.Reconcilers.Key(r.name) })
	}
	if err != nil {
		work.Close()
		return err
	}
	for _, key := range deleted {
		if name, err := cache.ParseObjectName(key); err == nil {
			work.Add(name) // Usually it is in the queue.
		}
	}
	addAll(work, r.enqueued)
	r.parts, r.logger, r.queue, r.enqueued = p, logger, work, nil
	return nil
}

// close closes the queue if open was called. The caller holds informer.mu.
func (r *Reconciler) close() {
	if r.queue != nil {
		r.queue.Close()
	}
}

// hasEnded reports whether the handler is not called any more.
func (r *Reconciler) hasEnded() bool { return isClosed(r.ShutdownChan()) }

// handlerOf is the handler of a Reconciler. What it puts into the file is there before the delta is acknowledged.
type handlerOf struct{ *Reconciler }

// OnAdd implements [cache.ResourceEventHandler]. Without an epoch the next process lists all objects again.
func (h handlerOf) OnAdd(obj any, isInInitialList bool) {
	h.add(obj, isInInitialList && h.opts.Epoch == "")
}

// OnUpdate implements [cache.ResourceEventHandler]. A resync, which has one object twice, is repeated in any case.
func (h handlerOf) OnUpdate(old, obj any) { h.add(obj, old == obj) }

// OnDelete implements [cache.ResourceEventHandler].
func (h handlerOf) OnDelete(obj any) {
	deleted := obj
	if lost, unsure := obj.(cache.DeletedFinalStateUnknown); unsure {
		deleted = lost.Obj
	}
	key, err := cache.DeletionHandlingObjectToName(obj)
	if err == nil && deleted != nil {
		err = h.keep(key, deleted)
	}
	if err != nil && !errors.Is(err, ErrClosed) {
		h.logger.Error(err, "Could not keep a deleted object")
	}
	h.add(obj, false)
}

// keep puts a deleted object into the file.
func (h handlerOf) keep(name cache.ObjectName, obj any) error {
	value, err := record.Encode(obj)
	if err != nil {
		return err
	}
	uid, _ := record.Head(obj)
	return h.parts.deletions.Keep(h.name, name.String(), string(uid), value.Record())
}

func (h handlerOf) add(obj any, transient bool) {
	key, err := cache.DeletionHandlingObjectToName(obj)
	switch {
	case err != nil:
		h.logger.Error(err, "Could not find out the key of an object")
	case transient:
		h.queue.AddTransient(key)
	default:
		h.queue.Add(key)
	}
}

// run returns when the handler has ended, and all reconciles have returned.
func (r *Reconciler) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(klog.NewContext(ctx, r.logger))
	defer cancel()
	var workers sync.WaitGroup
	if r.wait(ctx) {
		for range r.opts.Workers {
			workers.Go(func() { r.work(ctx) })
		}
	}
	select {
	case <-ctx.Done():
	case <-r.ShutdownChan():
		cancel()
	}
	r.queue.ShutDown() // What is added from now on is for the next process.
	workers.Wait()
	<-r.ShutdownChan()
	s := r.informer
	s.progress.reconcilerEnded(r.name)
	s.mu.Lock()
	defer s.mu.Unlock()
	r.close() // Reconcilers in s.reconcilers may still be given keys.
	s.reconcilers = slices.DeleteFunc(s.reconcilers, func(other *Reconciler) bool { return other == r })
}

// wait waits for the caches, and reports false if the reconciler ends before.
func (r *Reconciler) wait(ctx context.Context) bool {
	for _, checker := range append([]cache.DoneChecker{r.informer.HasSyncedChecker()}, r.opts.WaitFor...) {
		select {
		case <-checker.Done():
		case <-ctx.Done():
			return false
		case <-r.ShutdownChan():
			return false
		}
	}
	return true
}

func (r *Reconciler) work(ctx context.Context) {
	for {
		key, shutdown := r.queue.Get()
		if shutdown || ctx.Err() != nil { // What is not done stays in the file.
			return
		}
		r.one(ctx, key)
	}
}

func (r *Reconciler) one(ctx context.Context, key cache.ObjectName) {
	stored, objects, err := r.readDeleted(key)
	r.informer.progress.reconcileBegun(r.name, key)
	var result ReconcileResult
	if err == nil {
		result, err = r.call(ctx, ReconcileRequest{key, objects})
	}
	r.informer.progress.reconcileReturned(r.name, key, result.After, err)
	switch {
	case err == nil:
		err = r.parts.deletions.Remove(stored)
		r.queue.Forget(key)
		if result.After > 0 {
			r.queue.AddAfter(key, result.After)
		}
	case ctx.Err() == nil:
		r.logger.Error(err, "Could not reconcile an object, trying again", "object", key)
	}
	if err != nil {
		r.queue.AddRateLimited(key)
	}
	r.queue.Done(key) // Not deferred: a panic that ends the process is not done.
}

// readDeleted returns the deleted objects of a name, oldest first, and what they are stored as.
func (r *Reconciler) readDeleted(name cache.ObjectName) (stored []string, objects []any, err error) {
	stored, err = r.parts.deletions.Read(r.name, name.String(), func(payload []byte, err error) {
		var rec record.Record
		if err == nil {
			rec, err = record.Parse(payload)
		}
		var object any
		if err == nil {
			object, err = rec.Decode(r.informer.newObject)
		}
		if err != nil {
			r.logger.Error(err, "Could not read a deleted object, reconciling without it", "object", name)
			return
		}
		objects = append(objects, object)
	})
	return stored, objects, err
}

var errPanicked = errors.New("the reconcile has panicked")

// call calls the function. Where panics do not end the process, one is an error.
func (r *Reconciler) call(ctx context.Context, req ReconcileRequest) (result ReconcileResult, err error) {
	err = errPanicked
	defer utilruntime.HandleCrashWithLogger(klog.LoggerWithValues(r.logger, "object", req.ObjectName))
	result, err = r.reconcile(ctx, req)
	return result, err
}
