package warmwatch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/warmwatch/warmwatch/checkpoint"
	"github.com/warmwatch/warmwatch/indexer"
	"github.com/warmwatch/warmwatch/persist"
	"github.com/warmwatch/warmwatch/queue"
	"github.com/warmwatch/warmwatch/reflector"
)

// InformerOptions configures [Cache.NewSharedIndexInformer]. Resource is
// required. Resource, Namespace, the selectors and Name are the identity of the
// data on disk: they must describe what the ListerWatcher lists.
type InformerOptions struct {
	// Resource is what the ListerWatcher lists. Version and Resource are
	// required.
	Resource schema.GroupVersionResource
	// Namespace that the list is restricted to. Default: none.
	Namespace string
	// LabelSelector and FieldSelector that the list is restricted to.
	LabelSelector string
	FieldSelector string
	// Name distinguishes informers of one Cache that list the same data.
	Name string
	// ResyncPeriod of handlers that set none. Default 0: no resync. As in
	// client-go, it should not be used without a reason.
	ResyncPeriod time.Duration
	// Indexers of the cache. More can be added later.
	Indexers cache.Indexers
	// Transformed is an example of what the function given to SetTransform
	// returns, if its Go type is not that of the example object.
	Transformed runtime.Object
	// TransformVersion is the version of the function given to SetTransform.
	// Objects that another version has transformed are not served, but handlers may
	// still get them as the old object of an update or a deletion. Default: it
	// changes with the program's binary.
	TransformVersion string
	// IndexVersion is the version of the Indexers. When it changes, the indices are
	// rebuilt. Default: it changes with the program's binary.
	IndexVersion string
	// NotifyUnchanged makes a relist also notify of objects that did not change,
	// as client-go does: by OnUpdate, and only handlers that resync.
	NotifyUnchanged bool
	// NeverResume makes every start a relist with a diff. It is for servers that
	// accept any resourceVersion, as some aggregated ones do. Events, whose history
	// the API server does not keep, are never resumed.
	NeverResume bool
}

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
//	                  │ the batch is visible: publish the delta
//	                  ▼
//	      queue.DeltaFIFO ──► listeners, each at its own cursor ──► handlers
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
//   - A relist notifies only of what changed (see NotifyUnchanged).
//   - A relist becomes visible in batches of up to 500 objects, deletions first, and
//     handlers are told of each batch once it is visible. client-go replaces its store at
//     once (AtomicFIFO, since 1.36): there List returns the old objects or the new ones,
//     here perhaps some of each until the last batch.
//   - Handlers never make memory grow.
//   - GetStore().Get may return an error, for an object that cannot be read.
//   - An object that the transform refuses is left out of a list, as of a watch;
//     client-go fails the list.
//   - If an object is deleted whose uid is not the stored one, handlers are told that the
//     stored one was deleted, by a [cache.DeletedFinalStateUnknown].
//   - Where panics do not end the program (utilruntime.ReallyCrash is false), an event or
//     a list with an object on which an index function fails is tried again until it
//     succeeds, and nothing behind it is applied. client-go goes on without the object's
//     index entries.
//
// All methods are safe for concurrent use.
type SharedIndexInformer struct {
	cache    *Cache
	opts     InformerOptions
	identity checkpoint.Identity
	space    string
	lw       cache.ListerWatcher
	example  runtime.Object
	logger   klog.Logger

	indexer  *indexer.Indexer
	queue    *queue.DeltaFIFO
	sink     *sink
	detector cache.MutationDetector
	progress progress
	syncGate syncGate
	late     late
	// removeHook removes the hook of the DB that calls replaced.
	removeHook func()

	synced    chan struct{} // Closed when HasSynced.
	syncOnce  sync.Once
	served    chan struct{} // Closed when the store may be read.
	serveOnce sync.Once
	servedAt  atomic.Uint64 // Number of the last batch before served was closed.
	resumer   atomic.Pointer[reflector.Resumer]
	// How many objects are asked for, and written, at once. Tests set less.
	pageSize    int64
	relistItems int

	mu                sync.Mutex
	started, stopped  bool
	cancel            context.CancelFunc // Of the run.
	controller        cache.Controller
	watchErrorHandler cache.WatchErrorHandlerWithContext
	transform         cache.TransformFunc
	resyncCheckPeriod time.Duration
	listeners         map[*listener]struct{}
	turns             turns
	reads             chan struct{}  // Semaphore of listeners that read a chunk of the store.
	running           sync.WaitGroup // Listeners, and verify.
}

var _ cache.SharedIndexInformer = (*SharedIndexInformer)(nil)

// NewSharedIndexInformer makes an informer in the Cache. example has the Go type
// of the objects that lw lists; a *unstructured.Unstructured should have its
// apiVersion and kind set.
//
// While the Cache has an informer, a second one of the same identity is an error:
// errors.Is(err, [ErrInUse]). The identity is free again when Run has returned.
func (c *Cache) NewSharedIndexInformer(lw cache.ListerWatcher, example runtime.Object, o InformerOptions) (*SharedIndexInformer, error) {
	if isNil(lw) {
		return nil, fmt.Errorf("warmwatch: new informer: ListerWatcher %w", errRequired)
	}
	if isNil(example) {
		return nil, fmt.Errorf("warmwatch: new informer: an example object %w", errRequired)
	}
	if o.Resource.Resource == "" || o.Resource.Version == "" {
		return nil, fmt.Errorf("warmwatch: new informer: InformerOptions.Resource %w (version and resource), got %q", errRequired, o.Resource)
	}
	if o.ResyncPeriod < 0 {
		return nil, fmt.Errorf("warmwatch: new informer: ResyncPeriod is negative: %v", o.ResyncPeriod)
	}
	id := checkpoint.Identity{
		Group: o.Resource.Group, Version: o.Resource.Version, Resource: o.Resource.Resource,
		Namespace: o.Namespace, LabelSelector: o.LabelSelector, FieldSelector: o.FieldSelector,
		Name: o.Name, Form: formOf(example),
	}
	s := &SharedIndexInformer{
		cache: c, opts: o, identity: id, space: id.Space(), lw: lw, example: example,
		logger:            klog.LoggerWithValues(*c.opts.Logger, "informer", id.String()),
		detector:          cache.NewCacheMutationDetector(fmt.Sprintf("%T", example)),
		synced:            make(chan struct{}),
		served:            make(chan struct{}),
		resyncCheckPeriod: o.ResyncPeriod,
		listeners:         map[*listener]struct{}{},
		turns:             turns{},
		reads:             make(chan struct{}, chunkReads),
		relistItems:       relistItems,
	}
	s.progress.phase = PhaseLoading
	s.syncGate.caughtUp = s.caughtUp
	if err := c.claim(s); err != nil {
		return nil, err
	}
	err := s.open()
	if err == nil {
		err = c.admit(s)
	}
	if err != nil {
		c.release(s)
		return nil, fmt.Errorf("warmwatch: new informer for %s: %w", id, err)
	}
	return s, nil
}

// open makes the parts that live in the DB. If they cannot be read, the file as a
// whole may be damaged: then the DB replaces it. A space that still cannot be read
// is emptied.
func (s *SharedIndexInformer) open() error {
	err := s.openParts()
	for _, mend := range []func() error{s.replaceFile, s.dropSpace} {
		if !errors.Is(err, persist.ErrCorrupt) {
			break
		}
		s.logger.Error(err, "Could not read the cache")
		if err := mend(); err != nil {
			return err
		}
		err = s.openParts()
	}
	return err
}

// replaceFile waits until the DB has replaced a damaged file, if it has to.
func (s *SharedIndexInformer) replaceFile() error {
	if _, err := s.cache.db.Update(func(*persist.Batch) {}); err != nil {
		return err
	}
	if err := s.cache.db.Flush(); err != nil {
		s.logger.Error(err, "Could not write to the cache file")
	}
	return nil
}

func (s *SharedIndexInformer) openParts() (err error) {
	s.indexer, err = indexer.New(indexer.Options{
		DB: s.cache.db, Space: s.space, NewObject: s.newObject, Indexers: s.opts.Indexers,
		Objects: s.cache.objects, OnCorrupt: s.corrupt, OnDecode: s.detector.AddObject, Logger: &s.logger,
	})
	if err != nil {
		return err
	}
	s.indexer.Hide(true)
	s.queue, err = queue.New(queue.Options{
		DB: s.cache.db, Space: s.space, Seq: s.indexer.Seq(), NewObject: s.newObject,
		OnCorrupt: s.corrupt, Logger: &s.logger, MaxBacklogBytes: s.cache.opts.MaxBacklogBytes,
	})
	if err != nil {
		return err
	}
	if s.indexer.Seq() == 0 && s.queue.Head() > 0 { // The store is empty, but deltas were written.
		s.corrupt(&persist.CorruptError{Bucket: persist.Bucket{Space: s.space, Name: "store"}, Err: errors.New("the store is missing")})
	}
	s.indexer.RaiseSeq(s.queue.Head()) // No new Seq may be below a cursor, even if the file lost the last one.
	s.sink = newSink(s)
	s.removeHook = s.cache.db.AddHook(&persist.Hook{Space: s.space, AfterReset: s.replaced})
	return nil
}

// corruption returns the last damage that was found, nil once it is repaired.
func (s *SharedIndexInformer) corruption() error {
	s.progress.mu.Lock()
	defer s.progress.mu.Unlock()
	return s.progress.corruptErr
}

func (s *SharedIndexInformer) dropSpace() error {
	_, err := s.cache.db.Update(func(b *persist.Batch) {
		for _, name := range append(append(indexer.Buckets(), queue.Buckets()...), checkpointBucket) {
			b.Drop(persist.Bucket{Space: s.space, Name: name})
		}
	})
	return err
}

// corrupt is called when a record cannot be read. It schedules a relist that writes
// every record anew.
func (s *SharedIndexInformer) corrupt(err error) { s.damaged(err, false) }

// replaced is called when a damaged file has been replaced. It does the same.
func (s *SharedIndexInformer) replaced(err error) { s.damaged(err, true) }

func (s *SharedIndexInformer) damaged(err error, wholeFile bool) {
	p := &s.progress
	p.mu.Lock()
	p.corruptErr = err
	// The relist that is due, or running, rewrites a single bad record as well.
	onItsWay := p.relistForced || p.rewriting
	if onItsWay && !wholeFile {
		p.mu.Unlock()
		return
	}
	p.relistForced = true
	p.mu.Unlock()
	if r := s.resumer.Load(); r != nil {
		r.ForceRelist(reflector.Relisting{Reason: fmt.Sprintf("the cache could not be read: %v", err), Rewrite: true})
	}
}

// Run implements [cache.SharedInformer].
func (s *SharedIndexInformer) Run(stopCh <-chan struct{}) {
	s.RunWithContext(wait.ContextForChannel(stopCh))
}

// RunWithContext implements [cache.SharedInformer]: it runs the informer until
// ctx is done, and returns when all that it started has ended, except a List that
// hangs. Callbacks in flight have returned then. What handlers have not been told by
// then, they are told after the next start. An informer runs once.
func (s *SharedIndexInformer) RunWithContext(ctx context.Context) {
	defer utilruntime.HandleCrashWithContext(ctx)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if !s.begin(ctx, cancel) {
		return
	}
	var wg wait.Group
	detectorStop := make(chan struct{})
	wg.StartWithChannel(detectorStop, s.detector.Run)
	defer func() {
		s.end()
		close(detectorStop)
		wg.Wait()
	}()
	s.controller.RunWithContext(ctx)
}

// begin decides how to start and starts the listeners.
func (s *SharedIndexInformer) begin(ctx context.Context, cancel context.CancelFunc) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started {
		klog.FromContext(ctx).Info("Warning: the sharedIndexInformer has started, run more than once is not allowed")
		return false
	}
	if s.stopped { // The Cache was closed.
		return false
	}
	decision := s.sink.load(s.want(""))
	level := 0
	if decision.Action == checkpoint.ActionResume || s.indexer.Len() == 0 { // An ordinary start.
		level = 2
	}
	s.logger.V(level).Info("Starting", "action", decision.Action, "serve", decision.Serve, "reason", decision.Reason)
	relisting := relistingOf(decision, s.sink.lastVersion())
	resumer := reflector.NewResumer(reflector.Options{
		ListerWatcher: s.lw,
		Store:         s.sink,
		Observer:      (*observer)(s),
		History:       (*history)(s.sink),
		Relist:        relisting,
		NeverResume:   s.opts.NeverResume || isEvents(s.opts.Resource),
		BeforeList:    s.checkCluster,
		PageSize:      s.pageSize,
		Logger:        &s.logger,
	})
	s.resumer.Store(resumer)
	if err := s.corruption(); err != nil { // It was found before there was a Resumer.
		resumer.ForceRelist(reflector.Relisting{Reason: err.Error(), Rewrite: true})
	}
	s.controller = cache.New(&cache.Config{
		Queue:                        s.sink,
		ListerWatcher:                resumer,
		ObjectType:                   s.example,
		FullResyncPeriod:             s.resyncCheckPeriod,
		ShouldResync:                 s.shouldResync,
		WatchErrorHandlerWithContext: s.watchErrorHandler,
	})
	s.progress.mu.Lock()
	s.progress.reason, s.progress.startedFrom = decision.Reason, "server"
	if decision.Serve {
		s.progress.startedFrom = "disk"
	}
	s.progress.mu.Unlock()
	s.cancel, s.started = cancel, true
	if decision.Serve {
		s.serve()
		if s.cache.opts.SyncPolicy == SyncFromServer {
			s.syncGate.arm()
		} else {
			s.setSynced()
		}
	}
	s.running.Go(func() { s.verify(ctx) })
	go s.compareContents(ctx) // Nothing waits for it, because its List may never return.
	for l := range s.listeners {
		s.running.Go(l.run)
	}
	return true
}

// The whole file is verified soon after a start, when the urgent work is done, and
// seldom after that. For the indices every object is decoded.
const (
	verifyDelay    = 10 * time.Second
	verifyInterval = time.Hour
)

func (s *SharedIndexInformer) verify(ctx context.Context) {
	defer utilruntime.HandleCrashWithContext(ctx)
	for delay := verifyDelay; pause(ctx, delay); delay = verifyInterval {
		s.indexer.Verify(ctx)
		s.indexer.VerifyIndices(ctx)
	}
}

func relistingOf(d checkpoint.Decision, lastVersion string) *reflector.Relisting {
	if d.Action == checkpoint.ActionResume {
		return nil
	}
	if d.Action == checkpoint.ActionDiscard {
		lastVersion = "" // It belongs to what is discarded.
	}
	return &reflector.Relisting{Reason: d.Reason, Rewrite: d.Rewrite, Rewound: d.Rewound, NotOlderThan: lastVersion}
}

// end waits for everything that the run has started, except a List that hangs, whose
// objects are refused. The order matters: nothing may be written after the last
// acknowledgements of the listeners.
func (s *SharedIndexInformer) end() {
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	s.progress.setPhase(PhaseStopped)
	s.sink.close()
	s.resumer.Load().Stop()
	s.syncGate.interrupted()
	s.late.stop()
	s.mu.Lock()
	for l := range s.listeners {
		l.stop()
	}
	s.mu.Unlock()
	patience := time.AfterFunc(stopPatience, s.logRunning)
	s.running.Wait()
	patience.Stop()
	if err := s.queue.Stop(); err != nil && !errors.Is(err, ErrClosed) {
		s.logger.Error(err, "Could not store what the handlers have acknowledged")
	}
	s.removeHook()
	s.indexer.Release()
	s.cache.release(s)
}

// stopPatience is how long a stopping informer waits for handlers before it logs that
// it waits.
const stopPatience = 10 * time.Second

// logRunning logs the handlers that have not returned.
func (s *SharedIndexInformer) logRunning() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.listeners {
		select {
		case <-l.finished:
		default:
			s.logger.Info("Still waiting for a handler to return, in order to stop", "handler", l.name)
		}
	}
}

// detach makes the informer stop using the file, because the Cache is closing.
// What handlers acknowledge from now on may not be stored.
func (s *SharedIndexInformer) detach() {
	s.mu.Lock()
	started, cancel := s.started, s.cancel
	s.stopped = true
	s.mu.Unlock()
	if started {
		cancel()
	}
	// detach does not wait for the Reflector, because a ListerWatcher may hang.
	// The sink refuses what still comes.
	s.sink.close()
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.listeners {
		l.stop()
	}
}

// serve makes the store readable.
func (s *SharedIndexInformer) serve() {
	s.serveOnce.Do(func() {
		s.servedAt.Store(s.cache.db.Applied())
		s.indexer.Hide(false)
		close(s.served)
	})
}

func (s *SharedIndexInformer) setSynced() {
	s.syncOnce.Do(func() { close(s.synced) })
}

// HasSynced implements [cache.SharedInformer]. After a warm start Options.SyncPolicy
// says when it turns true.
func (s *SharedIndexInformer) HasSynced() bool { return cache.IsDone(s.HasSyncedChecker()) }

// HasSyncedChecker implements [cache.SharedInformer].
func (s *SharedIndexInformer) HasSyncedChecker() cache.DoneChecker {
	return doneChecker{fmt.Sprintf("SharedIndexInformer %T", s.example), s.synced}
}

type doneChecker struct {
	name string
	done <-chan struct{}
}

func (d doneChecker) Name() string          { return d.name }
func (d doneChecker) Done() <-chan struct{} { return d.done }

// LastSyncResourceVersion implements [cache.SharedInformer]. While objects are served
// from disk and the server has not answered yet, it is the resourceVersion of the store.
func (s *SharedIndexInformer) LastSyncResourceVersion() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.controller == nil {
		return ""
	}
	if rv := s.controller.LastSyncResourceVersion(); rv != "" || !s.servesFromDisk() {
		return rv
	}
	return s.indexer.LastStoreSyncResourceVersion()
}

// GetStore implements [cache.SharedInformer].
func (s *SharedIndexInformer) GetStore() cache.Store { return s.indexer }

// GetIndexer implements [cache.SharedIndexInformer].
func (s *SharedIndexInformer) GetIndexer() cache.Indexer { return s.indexer }

// AddIndexers implements [cache.SharedIndexInformer]. It also works after the start.
func (s *SharedIndexInformer) AddIndexers(indexers cache.Indexers) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return errors.New("indexer was not added because it has stopped already")
	}
	if err := s.indexer.AddIndexers(indexers); err != nil {
		return err
	}
	return s.sink.setIndexVersion(s.indexVersion())
}

// GetController implements [cache.SharedInformer]. It is deprecated and does
// nothing useful.
func (s *SharedIndexInformer) GetController() cache.Controller { return dummyController{s} }

type dummyController struct{ *SharedIndexInformer }

func (dummyController) Run(<-chan struct{})            {}
func (dummyController) RunWithContext(context.Context) {}

var errStarted = errors.New("informer has already started")

// SetWatchErrorHandler implements [cache.SharedInformer].
func (s *SharedIndexInformer) SetWatchErrorHandler(handler cache.WatchErrorHandler) error {
	return s.SetWatchErrorHandlerWithContext(func(_ context.Context, r *cache.Reflector, err error) { handler(r, err) })
}

// SetWatchErrorHandlerWithContext implements [cache.SharedInformer].
func (s *SharedIndexInformer) SetWatchErrorHandlerWithContext(handler cache.WatchErrorHandlerWithContext) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started {
		return errStarted
	}
	s.watchErrorHandler = handler
	return nil
}

// SetTransform implements [cache.SharedInformer]. f should return equal objects for equal
// objects. Otherwise each relist, and the comparison of contents once in MaxAge, tells
// handlers that every object was updated. See also InformerOptions.TransformVersion and
// Transformed.
func (s *SharedIndexInformer) SetTransform(f cache.TransformFunc) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started {
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
