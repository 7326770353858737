package warmwatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/processor"
	"github.com/warmwatch/warmwatch/reflector"
)

// InformerOptions configures [Cache.NewSharedIndexInformer] and [Cache.NewInformerFunc]. The zero value is valid.
//
// Resource, Namespace, the selectors and Name are the identity of the data on disk. Without a Resource the informer
// learns it, with namespace and selectors, from its first request, see [Cache.NewInformer]. If Resource is set, they
// must describe what the ListerWatcher lists; [Cache.WrapTransport] has that checked. Without a wrapped transport the
// objects are checked instead, by namespace and LabelSelector. A list with an object from outside fails, and a watch
// that brings one ends. Nothing of it is served until a list has none, and Status().Err and the log say so.
// Resource, FieldSelector and ShardSelector are not checked then.
type InformerOptions struct {
	// Resource is what the ListerWatcher lists. Default: what its first request asks for. If you set it, set its
	// Version and Resource.
	Resource schema.GroupVersionResource
	// Namespace that the list is restricted to. Default: none. Like the selectors, it needs a Resource.
	Namespace string
	// LabelSelector and FieldSelector that the list is restricted to.
	LabelSelector string
	FieldSelector string
	// ShardSelector that the list is restricted to, written as in the request.
	ShardSelector string
	// Name distinguishes informers of one Cache that list the same data.
	Name string
	// ResyncPeriod of handlers that set none. Default 0: no resync. As in client-go, do not set it without a reason.
	ResyncPeriod time.Duration
	// Indexers of the cache. More can be added later.
	Indexers cache.Indexers
	// Transformed is an example of the objects that the function of SetTransform returns, if they have another Go type
	// than the example object. An object of yet another Go type is left out of the cache, like one on which the
	// function fails, and Status().Err names it.
	Transformed runtime.Object
	// TransformVersion is the version of the function of SetTransform. Objects that another version has transformed are
	// not served, but handlers may still get them as the old object of an update or a deletion. A durable handler for
	// which some are pending starts over. An object on which the function fails stays as the other version has left it.
	// If the function depends on configuration, so must its version.
	//
	// Default: none. Then the next process serves objects as this one has transformed them. A changed function shows
	// with each object's next event, and for all objects with the next full list (Options.FullRelistEvery). If it must
	// apply to all objects at once, for example because it now removes secrets, give it another version.
	TransformVersion string
	// IndexVersion is the version of the Indexers. When it changes, the indices are rebuilt. If an index function
	// depends on configuration, so must the version: else the index is updated only for objects that change. Default:
	// changes with the program's binary.
	IndexVersion string
	// NeverResume makes every start a relist with a diff. It is for servers that accept any resourceVersion, as some
	// aggregated ones do. Events are never resumed, because the API server keeps no history of them.
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
	cache   *Cache
	opts    InformerOptions
	lw      cache.ListerWatcher
	example runtime.Object
	seen    atomic.Pointer[lastSeen]

	place     atomic.Pointer[place]
	parts     atomic.Pointer[parts] // Nil until the informer runs.
	store     store
	processor *processor.Processor
	detector  cache.MutationDetector
	progress  progress

	clusterLogged sync.Once // The first time that nobody knows the cluster.
	caught        *signal   // The cache has caught up with the server.
	synced        *signal   // HasSynced.
	served        *signal   // The store may be read.
	resumer       atomic.Pointer[reflector.Resumer]

	mu                sync.Mutex
	stopped           bool
	ctx               context.Context    // Of the run; nil before.
	cancel            context.CancelFunc // Of ctx.
	ended             chan struct{}      // Closed when the run has ended.
	controller        cache.Controller   // Nil until begin has done all else.
	watchErrorHandler cache.WatchErrorHandlerWithContext
	transform         cache.TransformFunc
	reconcilers       []*Reconciler       // Those that run, and before begin all that were added.
	forgotten         map[string]struct{} // Names that ForgetDurable has been given before begin.
	running           sync.WaitGroup      // Reconcilers.
}

var _ cache.SharedIndexInformer = (*SharedIndexInformer)(nil)

// NewSharedIndexInformer makes an informer in the Cache. example has the Go type
// of the objects that lw lists; a *unstructured.Unstructured should have its
// apiVersion and kind set.
//
// A second informer of the same identity in a Cache is an error: errors.Is(err, [ErrInUse]). The identity is free again
// when Run has returned. Without InformerOptions.Resource an informer has an identity once it runs; if that is taken
// then, it works from memory.
func (c *Cache) NewSharedIndexInformer(lw cache.ListerWatcher, example runtime.Object, o InformerOptions) (*SharedIndexInformer, error) {
	if isNil(lw) {
		return nil, fmt.Errorf("warmwatch: new informer: ListerWatcher %w", errRequired)
	}
	if isNil(example) {
		return nil, fmt.Errorf("warmwatch: new informer: an example object %w", errRequired)
	}
	if o.ResyncPeriod < 0 {
		return nil, fmt.Errorf("warmwatch: new informer: ResyncPeriod is negative: %v", o.ResyncPeriod)
	}
	if o.learns() {
		if err := o.checkLearning(); err != nil {
			return nil, err
		}
		return c.newLearningInformer(lw, example, o), nil
	}
	if o.Resource.Resource == "" || o.Resource.Version == "" {
		return nil, fmt.Errorf("warmwatch: new informer: InformerOptions.Resource %w whole (version and resource), got %q", errRequired, o.Resource)
	}
	asked, err := askedBy(example, o)
	if err != nil {
		return nil, fmt.Errorf("warmwatch: new informer: %w", err)
	}
	id := identityOf(example, asked)
	id.Name = o.Name
	s := c.newInformer(lw, example, o, c.newPlace(id, asked))
	if _, err := c.claim(s.place.Load(), s); err != nil {
		return nil, fmt.Errorf("warmwatch: new informer: %w", err)
	}
	return s, nil
}

// newInformer makes an informer. It opens nothing before it runs.
func (c *Cache) newInformer(lw cache.ListerWatcher, example runtime.Object, o InformerOptions, p *place) *SharedIndexInformer {
	o.TransformVersion = cmp.Or(o.TransformVersion, c.opts.TransformVersion)
	o.IndexVersion = cmp.Or(o.IndexVersion, c.opts.IndexVersion)
	o.NeverResume = o.NeverResume || c.opts.NeverResume
	s := &SharedIndexInformer{
		cache: c, opts: o, lw: lw, example: ownExample(example),
		detector: cache.NewCacheMutationDetector(fmt.Sprintf("%T", example)),
		caught:   newSignal(), synced: newSignal(), served: newSignal(),
		ended: make(chan struct{}),
	}
	s.place.Store(p)
	indexers := cache.Indexers{}
	maps.Copy(indexers, o.Indexers)
	s.store.current.Store(&contents{cache.NewIndexer(cache.DeletionHandlingMetaNamespaceKeyFunc, indexers)})
	s.progress.phase = PhaseLoading
	s.processor = processor.New(processor.Options{
		Informer: s.describe(),
		Served:   s.served.done, Synced: s.synced.done, CaughtUp: s.caught.done,
		ResyncPeriod: o.ResyncPeriod, MaxPanics: c.opts.MaxPanics, Logger: *c.opts.Logger,
	})
	return s
}

// ownExample returns an example of which the caller may change his: he may create the object by
// which he has asked controller-runtime for an informer. Of a typed one only the Go type is read.
func ownExample(example runtime.Object) runtime.Object {
	u, ok := example.(*unstructured.Unstructured)
	if !ok || u == nil {
		return example
	}
	own := &unstructured.Unstructured{}
	own.SetGroupVersionKind(u.GroupVersionKind())
	return own
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
	if err := s.addIndexers(indexers); err != nil {
		return err
	}
	// Without s.mu: the Sink may be in a transform, which may call the informer.
	if p := s.parts.Load(); p != nil {
		return p.sink.SetIndexVersion(s.indexVersion)
	}
	return nil
}

func (s *SharedIndexInformer) addIndexers(indexers cache.Indexers) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return errors.New("indexer was not added because it has stopped already")
	}
	return s.store.AddIndexers(indexers)
}

// GetController implements [cache.SharedInformer]. It is deprecated and does
// nothing useful.
func (s *SharedIndexInformer) GetController() cache.Controller { return dummyController{s} }

type dummyController struct{ *SharedIndexInformer }

func (dummyController) Run(<-chan struct{})            {}
func (dummyController) RunWithContext(context.Context) {}

// Informer is how package informers gets at the informer through those that embed it, as
// client-go's typed ones do.
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
