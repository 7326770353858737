package warmwatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/warmwatch/warmwatch/checkpoint"
	"github.com/warmwatch/warmwatch/indexer"
	"github.com/warmwatch/warmwatch/internal/deletions"
	"github.com/warmwatch/warmwatch/internal/processor"
	"github.com/warmwatch/warmwatch/persist"
	"github.com/warmwatch/warmwatch/queue"
	"github.com/warmwatch/warmwatch/reflector"
	"github.com/warmwatch/warmwatch/workqueue"
)

// SharedIndexInformer is a [cache.SharedIndexInformer] that lives in a [Cache].
//
//	caller's ListerWatcher
//	      │ list / watch
//	reflector.Resumer ──► client-go's Reflector
//	      │ relist's items      │ Add Update Delete Bookmark
//	      └────────► sink ◄─────┘      one event = one batch:
//	                  │ object, index entries (indexer), delta (queue), checkpoint
//	                  ▼
//	            persist.DB ──► file
//	                  │ the delta is in the queue once the batch is visible
//	                  ▼
//	      queue.Log ──► processor's listeners, each at its own cursor ──► handlers
//
// A start has four steps:
//
//  1. Read the checkpoint and decide how to start (package checkpoint).
//  2. If the stored objects may be served, serve them.
//  3. When the Reflector lists, ask the server whether the watch can be resumed; if it
//     cannot, relist with a diff.
//  4. Watch.
//
// The contract is client-go's, with these differences:
//
//   - After a restart the store can be read before HasSynced, from disk.
//   - A relist notifies only of what changed.
//   - A relist becomes visible in batches of up to 500 objects, deletions first. Handlers get each batch once it is
//     visible. client-go replaces its store at once (AtomicFIFO, since 1.36): there List returns the old objects or the
//     new ones, here perhaps some of each until the last batch.
//   - Handlers make the file grow, not memory.
//   - A read that meets damage waits for the relist while the server is heard; Get and ByIndex return an error after 10
//     s. While the server is not heard, Get returns an error, List leaves the object out, and Status says so. If the
//     object is not in memory, each Get returns a new copy.
//   - After Cache.Close List is empty.
//   - An object on which the transform fails is left out of a list, as of a watch; client-go fails the list.
//   - If the uid of a deleted object is not the stored one, handlers get the stored object in a
//     [cache.DeletedFinalStateUnknown].
//   - If an index function panics on an object, and panics do not end the program (utilruntime.ReallyCrash is false),
//     the event or list is tried again until it succeeds, and nothing behind it is applied. client-go goes on without
//     the object's index entries.
//
// All methods are safe for concurrent use.
type SharedIndexInformer struct {
	shared  *shared
	opts    InformerOptions
	lw      cache.ListerWatcher
	example runtime.Object

	place     atomic.Pointer[place]
	parts     atomic.Pointer[parts] // Nil until the informer runs.
	store     store
	processor *processor.Processor
	detector  cache.MutationDetector
	progress  progress

	caught  *signal // The cache has caught up with the server.
	synced  *signal // HasSynced.
	served  *signal // The store may be read.
	resumer atomic.Pointer[reflector.Resumer]

	mu                sync.Mutex
	stopped           bool
	ctx               context.Context    // Of the run; nil before.
	cancel            context.CancelFunc // Of ctx.
	ended             chan struct{}      // Closed when the run has ended, or will never begin.
	controller        cache.Controller   // Nil until begin has done all else.
	watchErrorHandler cache.WatchErrorHandlerWithContext
	transform         cache.TransformFunc
	reconcilers       []*Reconciler  // Before begin all that were added, then those that run.
	forgotten         []string       // The names of ForgetDurable calls before begin.
	running           sync.WaitGroup // Reconcilers, and other goroutines of the run.
}

var _ cache.SharedIndexInformer = (*SharedIndexInformer)(nil)

// A Reconciler is the registration of a ReconcileFunc: a durable handler, and the workers of its queue. HasSynced means
// that all initial keys are in the queue. All methods are safe for concurrent use.
type Reconciler struct {
	registration
	informer  *SharedIndexInformer
	name      string
	reconcile ReconcileFunc
	opts      ReconcilerOptions

	// informer.mu guards the fields that open sets. The handler and the workers begin later, and need no lock.
	parts    *parts // Nil before open, as are logger and queue.
	logger   klog.Logger
	queue    *workqueue.Queue[cache.ObjectName]
	enqueued []cache.ObjectName // Before open.
}

// registration is what the processor returns.
type registration interface {
	cache.ResourceEventHandlerRegistration
	ShutdownChan() <-chan struct{}
}

// shared has the things that the informers of a Cache share.
type shared struct {
	opts     Options
	db       *persist.DB
	objects  *indexer.Objects
	schemas  *schemas
	wrapped  atomic.Bool // WrapTransport was called.
	timeline timeline

	mu        sync.Mutex
	informers map[string]*SharedIndexInformer // By space.
	unused    map[string]Unused               // By space: no informer of this process has opened them.
	closed    bool
}

// claim makes s the informer of a space.
func (c *shared) claim(p *place, s *SharedIndexInformer) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	if c.informers[p.space] != nil {
		return fmt.Errorf("%w: this Cache has an informer of %s: share it, or make another one by NewSharedIndexInformer with a Name", ErrInUse, p.identity)
	}
	c.informers[p.space] = s
	return nil
}

// use notes that an informer uses a space.
func (c *shared) use(space string) error {
	c.mu.Lock()
	_, was := c.unused[space]
	delete(c.unused, space)
	c.mu.Unlock()
	if !was {
		return nil
	}
	return c.db.Update(func(b *persist.Batch) { b.Delete(unusedBucket, space) })
}

// all returns the informers in the order of their spaces.
func (c *shared) all() []*SharedIndexInformer {
	c.mu.Lock()
	defer c.mu.Unlock()
	informers := make([]*SharedIndexInformer, 0, len(c.informers))
	for _, space := range slices.Sorted(maps.Keys(c.informers)) {
		informers = append(informers, c.informers[space])
	}
	return informers
}

func (c *shared) release(space string, s *SharedIndexInformer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.informers[space] == s {
		delete(c.informers, space)
	}
}

// newInformer makes an informer. It opens nothing before it runs.
func (c *shared) newInformer(lw cache.ListerWatcher, example runtime.Object, o InformerOptions, p *place) *SharedIndexInformer {
	o.TransformVersion = cmp.Or(o.TransformVersion, c.opts.TransformVersion)
	o.IndexVersion = cmp.Or(o.IndexVersion, c.opts.IndexVersion)
	o.NeverResume = o.NeverResume || c.opts.NeverResume
	s := &SharedIndexInformer{
		shared: c, opts: o, lw: lw, example: ownExample(example),
		detector: cache.NewCacheMutationDetector(fmt.Sprintf("%T", example)),
		caught:   newSignal(), synced: newSignal(), served: newSignal(),
		ended: make(chan struct{}), watchErrorHandler: cache.DefaultWatchErrorHandler,
	}
	s.place.Store(p)
	indexers := cache.Indexers{}
	maps.Copy(indexers, o.Indexers)
	s.store.current.Store(&contents{cache.NewIndexer(cache.DeletionHandlingMetaNamespaceKeyFunc, indexers)})
	s.progress.init(s.report)
	s.processor = processor.New(processor.Options{
		Informer: s.describe(),
		Served:   s.served.done, Synced: s.synced.done, CaughtUp: s.caught.done,
		ResyncPeriod: o.ResyncPeriod, MaxPanics: c.opts.MaxPanics, Logger: *c.opts.Logger,
		OnStartOver: func(handler, cause string, pending queue.Backlog) {
			s.report(Event{Code: CodeStartedOver, Handler: handler, Cause: cause, Numbers: map[string]float64{"undelivered": float64(pending.Deltas)}}, nil)
		},
		OnSkip: func(handler, key string) { s.report(Event{Code: CodeSkipped, Handler: handler, Message: key}, nil) },
	})
	return s
}

// report adds an event of the informer to the timeline, unless it has no code.
func (s *SharedIndexInformer) report(e Event, err error) {
	if e.Code == "" {
		return
	}
	p := s.place.Load()
	e.Informer = p.name()
	s.shared.timeline.record(p.logger, e, err)
}

// HasSynced implements [cache.SharedInformer]: the cache has caught up with the server as it was when the informer
// started. Before that the store can be read, from disk. See also Options.ServeStaleAfter.
func (s *SharedIndexInformer) HasSynced() bool { return cache.IsDone(s.HasSyncedChecker()) }

// HasSyncedChecker implements [cache.SharedInformer].
func (s *SharedIndexInformer) HasSyncedChecker() cache.DoneChecker {
	return processor.NewDoneChecker(s.describe(), s.synced.done)
}

// CaughtUp says whether the cache has caught up with the server. HasSynced may be true before
// (Options.ServeStaleAfter).
func (s *SharedIndexInformer) CaughtUp() cache.DoneChecker {
	return processor.NewDoneChecker(s.describe()+" caught up", s.caught.done)
}

func (s *SharedIndexInformer) describe() string {
	return fmt.Sprintf("SharedIndexInformer %T", s.example)
}

// LastSyncResourceVersion implements [cache.SharedInformer]. While objects are served
// from disk and the server has not answered yet, it is the resourceVersion of the store.
func (s *SharedIndexInformer) LastSyncResourceVersion() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.controller == nil {
		return ""
	}
	if rv := s.controller.LastSyncResourceVersion(); rv != "" || !isClosed(s.served.done) {
		return rv
	}
	return s.store.LastStoreSyncResourceVersion()
}

// GetStore implements [cache.SharedInformer].
func (s *SharedIndexInformer) GetStore() cache.Store { return &s.store }

// GetIndexer implements [cache.SharedIndexInformer].
func (s *SharedIndexInformer) GetIndexer() cache.Indexer { return &s.store }

// AddIndexers implements [cache.SharedIndexInformer]. It also works after the start, but then the index is computed
// from every object at every start: set known indexers in InformerOptions. Unlike with client-go, a transform must not
// call AddIndexers, which waits for running transforms.
func (s *SharedIndexInformer) AddIndexers(indexers cache.Indexers) error {
	if s.IsStopped() {
		return errors.New("indexer was not added because it has stopped already")
	}
	if err := s.store.AddIndexers(indexers); err != nil {
		return err
	}
	// Without s.mu: the Sink may be in a transform, which may call the informer.
	if p := s.parts.Load(); p != nil {
		return p.sink.SetIndexVersion(s.indexVersion)
	}
	return nil
}

// indexVersion identifies the index functions. When it changes, the indices are rebuilt.
func (s *SharedIndexInformer) indexVersion() string {
	indexers := s.store.GetIndexers()
	if len(indexers) == 0 {
		return ""
	}
	version := s.opts.IndexVersion
	if version == "" {
		version = checkpoint.BinaryVersion()
	}
	return version + " " + strings.Join(slices.Sorted(maps.Keys(indexers)), " ")
}

// GetController implements [cache.SharedInformer]. It is deprecated and does
// nothing useful.
func (s *SharedIndexInformer) GetController() cache.Controller { return dummyController{s} }

type dummyController struct{ *SharedIndexInformer }

func (dummyController) Run(<-chan struct{})            {}
func (dummyController) RunWithContext(context.Context) {}

// Informer returns the informer. Package informers gets at it in this way if another type embeds it, as client-go's
// typed informers do.
func (c dummyController) Informer() *SharedIndexInformer { return c.SharedIndexInformer }

var errStarted = errors.New("informer has already started")

// SetWatchErrorHandler implements [cache.SharedInformer].
func (s *SharedIndexInformer) SetWatchErrorHandler(handler cache.WatchErrorHandler) error {
	return s.SetWatchErrorHandlerWithContext(func(_ context.Context, r *cache.Reflector, err error) { handler(r, err) })
}

// SetWatchErrorHandlerWithContext implements [cache.SharedInformer].
func (s *SharedIndexInformer) SetWatchErrorHandlerWithContext(handler cache.WatchErrorHandlerWithContext) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx != nil {
		return errStarted
	}
	s.watchErrorHandler = handler
	return nil
}

// SetTransform implements [cache.SharedInformer]. f should return equal objects for equal objects. Otherwise each
// relist that compares contents calls OnUpdate for every object. See also InformerOptions.TransformVersion and
// Transformed.
func (s *SharedIndexInformer) SetTransform(f cache.TransformFunc) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx != nil {
		return errStarted
	}
	s.transform = f
	return nil
}

// IsStopped implements [cache.SharedInformer].
func (s *SharedIndexInformer) IsStopped() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopped
}

// storedType returns an example of the stored Go type.
func (s *SharedIndexInformer) storedType() runtime.Object {
	if s.opts.Transformed != nil {
		return s.opts.Transformed
	}
	return s.example
}

func (s *SharedIndexInformer) newObject() any {
	return reflect.New(reflect.TypeOf(s.storedType()).Elem()).Interface()
}

// parts are the components of an informer that runs. They do not change.
type parts struct {
	*place
	db        *persist.DB
	indexer   *indexer.Indexer
	queue     *queue.Log
	sink      *reflector.Sink
	work      *workqueue.Store // The reconcilers' workqueues.
	deletions deletions.Store  // The deletions that are pending for reconcilers.
}

// Status returns the present state.
func (s *SharedIndexInformer) Status() InformerStatus {
	s.progress.mu.Lock()
	st := InformerStatus{
		Phase:       s.progress.phase,
		StartedFrom: s.progress.startedFrom,
		Cause:       s.progress.cause,
		Reason:      s.progress.reason,
		LastContact: s.progress.lastContact(),
		ServerErr:   s.progress.troubles[CodeServerFails].err,
		Resumes:     s.progress.resumes,
	}
	for _, n := range s.progress.relists {
		st.Relists += n
	}
	st.Problems, st.Err = s.progress.problemsLocked()
	s.progress.mu.Unlock()
	st.Handlers = s.processor.Status(queue.Handlers)
	p := s.parts.Load()
	if p == nil {
		return st
	}
	st.ResourceVersion = p.indexer.LastStoreSyncResourceVersion()
	st.Objects = p.indexer.Len()
	st.Reconcilers = s.progress.reconcilerStatus(s.workStatus(p))
	if problems, err := problemOf(p.db); err != nil {
		st.Err, st.Problems = err, append(problems, st.Problems...)
	}
	return st
}

// workStatus returns the states of the workqueues of all reconcilers. Keys also counts deltas that are still pending.
// It reads these first: a delta that becomes a key meanwhile is not missed.
func (s *SharedIndexInformer) workStatus(p *parts) []workqueue.Status {
	undelivered := map[string]int{}
	for _, h := range s.processor.Status(queue.Reconcilers) {
		if h.Durable {
			undelivered[h.Name] += h.Undelivered
		}
	}
	queues := p.work.Status()
	for i := range queues {
		queues[i].Keys += undelivered[queues[i].Name]
	}
	return queues
}

// A store is the cache.Indexer of an informer. Until the informer runs, its contents are an indexer of client-go, which
// remembers the indexers. Then they are the Indexer in the file.
type store struct {
	adding  sync.Mutex // Held while indexers are added, and while the informer opens with those that were added.
	current atomic.Pointer[contents]
}

type contents struct{ cache.Indexer }

var _ cache.Indexer = (*store)(nil)

// AddIndexers implements [cache.Indexer].
func (s *store) AddIndexers(added cache.Indexers) error {
	s.adding.Lock()
	defer s.adding.Unlock()
	return s.current.Load().AddIndexers(added)
}

// Add implements [cache.Store].
func (s *store) Add(obj any) error { return s.current.Load().Add(obj) }

// Update implements [cache.Store].
func (s *store) Update(obj any) error { return s.current.Load().Update(obj) }

// Delete implements [cache.Store].
func (s *store) Delete(obj any) error { return s.current.Load().Delete(obj) }

// Replace implements [cache.Store].
func (s *store) Replace(list []any, resourceVersion string) error {
	return s.current.Load().Replace(list, resourceVersion)
}

// Bookmark implements [cache.Store].
func (s *store) Bookmark(rv string) { s.current.Load().Bookmark(rv) }

// Resync implements [cache.Store].
func (s *store) Resync() error { return s.current.Load().Resync() }

// List implements [cache.Store].
func (s *store) List() []any { return s.current.Load().List() }

// ListKeys implements [cache.Store].
func (s *store) ListKeys() []string { return s.current.Load().ListKeys() }

// LastStoreSyncResourceVersion implements [cache.Store].
func (s *store) LastStoreSyncResourceVersion() string {
	return s.current.Load().LastStoreSyncResourceVersion()
}

// Get implements [cache.Store].
func (s *store) Get(obj any) (item any, exists bool, err error) { return s.current.Load().Get(obj) }

// GetByKey implements [cache.Store].
func (s *store) GetByKey(key string) (item any, exists bool, err error) {
	return s.current.Load().GetByKey(key)
}

// Index implements [cache.Indexer].
func (s *store) Index(indexName string, obj any) ([]any, error) {
	return s.current.Load().Index(indexName, obj)
}

// IndexKeys implements [cache.Indexer].
func (s *store) IndexKeys(indexName, indexedValue string) ([]string, error) {
	return s.current.Load().IndexKeys(indexName, indexedValue)
}

// ListIndexFuncValues implements [cache.Indexer].
func (s *store) ListIndexFuncValues(indexName string) []string {
	return s.current.Load().ListIndexFuncValues(indexName)
}

// ByIndex implements [cache.Indexer].
func (s *store) ByIndex(indexName, indexedValue string) ([]any, error) {
	return s.current.Load().ByIndex(indexName, indexedValue)
}

// GetIndexers implements [cache.Indexer].
func (s *store) GetIndexers() cache.Indexers { return s.current.Load().GetIndexers() }
