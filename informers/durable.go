package informers

import (
	"context"
	"errors"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/warmwatch/warmwatch"
)

// Of returns the Cache's informer: informer itself, or the one that it embeds, as the typed informers of client-go's
// groups do. It reports false if informer is client-go's own.
//
//	pods, ok := informers.Of(factory.Core().V1().Pods().Informer())
func Of(informer cache.SharedIndexInformer) (*warmwatch.SharedIndexInformer, bool) {
	if s, ok := informer.(*warmwatch.SharedIndexInformer); ok {
		return s, true
	}
	// GetController is a method that wrappers pass on.
	if c, ok := informer.GetController().(interface {
		Informer() *warmwatch.SharedIndexInformer
	}); ok {
		return c.Informer(), true
	}
	return nil, false
}

// AddDurableEventHandler adds a handler that goes on where the last handler of this name
// stopped, see [warmwatch.SharedIndexInformer.AddDurableEventHandler]. If informer is client-go's
// own, for example because the client is a fake, nothing is durable, as in a Cache without a
// file: the handler gets OnAdd for every object, and DurableOptions.Known is not called.
func AddDurableEventHandler(informer cache.SharedIndexInformer, name string, h cache.ResourceEventHandler, o warmwatch.DurableOptions) (cache.ResourceEventHandlerRegistration, error) {
	if s, ok := Of(informer); ok {
		return s.AddDurableEventHandler(name, h, o)
	}
	return informer.AddEventHandlerWithOptions(h, o.HandlerOptions)
}

// A Reconciler is what [AddReconciler] returns: a [warmwatch.Reconciler], or one that works in memory.
type Reconciler interface {
	cache.ResourceEventHandlerRegistration
	Enqueue(keys ...cache.ObjectName)
}

// AddReconciler has reconcile called for each object, see [warmwatch.SharedIndexInformer.AddReconciler]. If informer is
// client-go's own, for example because the client is a fake, the reconciler works in memory until the informer ends:
// nothing outlives the process, DurableOptions.Known is not called, and RemoveEventHandler does not know it.
func AddReconciler(informer cache.SharedIndexInformer, name string, reconcile warmwatch.ReconcileFunc, o warmwatch.ReconcilerOptions) (Reconciler, error) {
	if s, ok := Of(informer); ok {
		r, err := s.AddReconciler(name, reconcile, o)
		if err != nil {
			return nil, err // Not an interface with a nil pointer.
		}
		return r, nil
	}
	if name == "" || reconcile == nil || o.Workers < 0 {
		return nil, errors.New("warmwatch: add reconciler: a name and a function are required, and Workers must not be negative")
	}
	if o.RateLimiter == nil {
		o.RateLimiter = workqueue.DefaultTypedControllerRateLimiter[cache.ObjectName]()
	}
	m := &inMemory{
		reconcile: reconcile, logger: klog.LoggerWithValues(ptr.Deref(o.Logger, klog.Background()), "reconciler", name),
		deleted: map[cache.ObjectName][]any{},
		queue:   workqueue.NewTypedRateLimitingQueueWithConfig(o.RateLimiter, workqueue.TypedRateLimitingQueueConfig[cache.ObjectName]{Name: name}),
	}
	registration, err := informer.AddEventHandlerWithOptions(m, o.HandlerOptions)
	if err != nil {
		m.queue.ShutDown()
		return nil, err
	}
	m.ResourceEventHandlerRegistration = registration
	go m.run(max(o.Workers, 1), append([]cache.DoneChecker{informer.HasSyncedChecker()}, o.WaitFor...))
	return m, nil
}

// inMemory is a reconciler on an informer of client-go.
type inMemory struct {
	cache.ResourceEventHandlerRegistration
	reconcile warmwatch.ReconcileFunc
	logger    klog.Logger
	queue     workqueue.TypedRateLimitingInterface[cache.ObjectName]

	mu      sync.Mutex
	deleted map[cache.ObjectName][]any
}

// Enqueue implements [Reconciler].
func (m *inMemory) Enqueue(keys ...cache.ObjectName) {
	for _, key := range keys {
		m.queue.Add(key)
	}
}

// OnAdd implements [cache.ResourceEventHandler].
func (m *inMemory) OnAdd(obj any, _ bool) { m.add(obj) }

// OnUpdate implements [cache.ResourceEventHandler].
func (m *inMemory) OnUpdate(_, obj any) { m.add(obj) }

// OnDelete implements [cache.ResourceEventHandler].
func (m *inMemory) OnDelete(obj any) {
	deleted := obj
	if lost, unsure := obj.(cache.DeletedFinalStateUnknown); unsure {
		deleted = lost.Obj
	}
	if key, err := cache.DeletionHandlingObjectToName(obj); err == nil && deleted != nil {
		m.mu.Lock()
		m.deleted[key] = append(m.deleted[key], deleted)
		m.mu.Unlock()
	}
	m.add(obj)
}

func (m *inMemory) add(obj any) {
	if key, err := cache.DeletionHandlingObjectToName(obj); err == nil {
		m.queue.Add(key)
	}
}

// run reconciles until the handler ends, as it does with the informer.
func (m *inMemory) run(workers int, waitFor []cache.DoneChecker) {
	var ended <-chan struct{}
	if r, ok := m.ResourceEventHandlerRegistration.(interface{ ShutdownChan() <-chan struct{} }); ok {
		ended = r.ShutdownChan()
	}
	ctx := klog.NewContext(wait.ContextForChannel(ended), m.logger)
	defer m.queue.ShutDown() // What is in the queue is left, because ctx has ended.
	if !cache.WaitFor(ctx, "", waitFor...) {
		return
	}
	for range workers {
		go m.work(ctx)
	}
	<-ended
}

func (m *inMemory) work(ctx context.Context) {
	for {
		key, shutdown := m.queue.Get()
		if shutdown || ctx.Err() != nil {
			return
		}
		m.one(ctx, key)
		m.queue.Done(key)
	}
}

func (m *inMemory) one(ctx context.Context, key cache.ObjectName) {
	m.mu.Lock()
	deleted := m.deleted[key]
	delete(m.deleted, key)
	m.mu.Unlock()
	result, err := m.reconcile(ctx, warmwatch.ReconcileRequest{ObjectName: key, Deleted: deleted})
	if err != nil {
		m.logger.Error(err, "Could not reconcile an object, trying again", "object", key)
		m.mu.Lock()
		m.deleted[key] = slices.Concat(deleted, m.deleted[key])
		m.mu.Unlock()
		m.queue.AddRateLimited(key)
		return
	}
	m.queue.Forget(key)
	if result.After > 0 {
		m.queue.AddAfter(key, result.After)
	}
}
