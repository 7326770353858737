package warmwatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	clientworkqueue "k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/warmwatch/warmwatch/persist"
	"github.com/warmwatch/warmwatch/queue"
)

var (
	// ErrInUse is returned when an identity already has an informer in this
	// Cache, a durable name already has a handler in this informer, or a path already has a Cache in this process.
	ErrInUse = queue.ErrInUse

	// ErrClosed is returned by calls on a closed Cache.
	ErrClosed = persist.ErrClosed

	// ErrLocked is in Status().Err when another process holds the file.
	ErrLocked = persist.ErrLocked
)

// Options configures [Open]. The zero value is valid.
type Options struct {
	// Name of the Cache in the log, Status and metrics. Default: the base name of the file.
	Name string
	// CommitInterval is the time between a change and the start of its commit. Default 1s. A longer one spares the
	// disk. After a crash the API server sends lost changes again.
	CommitInterval time.Duration
	// DurableDelay replaces CommitInterval while a durable handler waits for the
	// change. Default 10ms; at most CommitInterval.
	DurableDelay time.Duration
	// MemoryBudget bounds the decoded objects in memory, of all informers together. Default 32 MiB; negative: no bound.
	// Besides, an informer keeps up to 16 MiB of recent changes while deltas are pending for a handler, and up to
	// MaxPendingBytes of unwritten changes. The first list uses at most half of the budget. During the first initial
	// list of a process the unused part of that half (at most 32 MiB) lets garbage grow, so that the collector runs
	// less often.
	MemoryBudget int64
	// MaxPendingBytes bounds the unwritten changes in memory: beyond it the watch slows down. Without a file it bounds
	// nothing. While the file cannot be written, the watch goes on, and a handler with more than this pending in memory
	// starts over (S6). Default 16 MiB.
	MaxPendingBytes int64
	// MaxBacklogBytes bounds each handler's pending deltas, most of them in the file. Beyond it the handler starts over
	// (D6): updates are dropped first, then the oldest deletions, down to half of the bound. The handler gets the
	// remaining deletions, and OnAdd for every object. Default 256 MiB; negative: no bound.
	MaxBacklogBytes int64
	// MaxFileBytes bounds the length of the file, to within 4 MiB. Beyond it the disk counts as full (S6): changes stay in
	// memory until deletions make room in the file. A file that is longer already is used. Default: no bound.
	MaxFileBytes int64
	// FullRelistEvery is the time between two full lists, 20 % more or less at random. A full list compares the
	// contents of all objects, because a server may have lost events, or may read an object otherwise at the same
	// version. It waits for a second without events, at most for a tenth of FullRelistEvery. The last full list of an
	// earlier process counts, too. Handlers get the differences. Default 24h; negative: never. See also [Cache.Relist].
	FullRelistEvery time.Duration
	// RelistSpread bounds the wait before a relist when the API server has lost its history under an open watch. After
	// a restart of the server all clients ask at once. The wait is a random share of 100 µs for each stored object, of
	// at most RelistSpread; fewer than 1,000 objects do not wait. Stored objects are served meanwhile. Default 10s;
	// negative: no wait.
	RelistSpread time.Duration
	// ClusterID returns the identity of the cluster that is being listed, for example [KubeSystemUID]. If the stored
	// objects came from another cluster, none is served before all are compared by content. Each informer calls it
	// before it lists or watches, for at most 10 s. An error, or an empty identity, proves nothing: the stored objects
	// are used, and the call is repeated before the next watch.
	//
	// Default: if [Cache.WrapTransport] wraps the client's transport, the UID of the namespace kube-system; else none.
	ClusterID func(context.Context) (string, error)
	// ServeStaleAfter is for agents that must work without the API server. When the server cannot be heard for this
	// long, HasSynced becomes true with the objects from disk. Default 0: HasSynced waits until the cache has caught up
	// with the server, as client-go's does, and no plain handler is called before. Negative: HasSynced is true as soon
	// as the file is read. If the file has nothing that may be served, HasSynced always waits for the server. The store
	// can always be read from disk before HasSynced; [SharedIndexInformer.CaughtUp] says whether the server has been
	// heard.
	ServeStaleAfter time.Duration
	// TransformVersion, IndexVersion and NeverResume are defaults of InformerOptions.
	TransformVersion, IndexVersion string
	NeverResume                    bool
	// MaxPanics is how many processes may end by the panic of a durable handler on the same object. Then that
	// notification is skipped, logged with the key, and counted in HandlerStatus.Skipped. Later ones of the object are
	// delivered. Default 5; negative: never. Only panics of the callback count. A reconcile is never skipped, see
	// [SharedIndexInformer.AddReconciler].
	MaxPanics int
	// DropUnusedAfter is how long the file keeps the data of an informer that no process opens any more, for example
	// because the program lists with another selector now. Status().Unused lists them. Once, at most ten minutes after
	// Open, the Cache removes data unused for longer, unless they have a durable name or work. Default 7 days; negative:
	// all are kept.
	DropUnusedAfter time.Duration
	// LockTimeout is how long Open waits for a file that another process holds. Then the Cache works from memory. The
	// log has the wait after 1 s. Default 30s; negative: no wait.
	LockTimeout time.Duration
	// Logger gets what an operator should know. Default: klog's.
	Logger *klog.Logger
}

func (o Options) withDefaults(path string) Options {
	o.Name = cmp.Or(o.Name, filepath.Base(path))
	if o.FullRelistEvery == 0 {
		o.FullRelistEvery = 24 * time.Hour
	}
	if o.RelistSpread == 0 {
		o.RelistSpread = 10 * time.Second
	}
	if o.DropUnusedAfter == 0 {
		o.DropUnusedAfter = 7 * 24 * time.Hour
	}
	if o.MaxPanics == 0 {
		o.MaxPanics = 5
	}
	logger := klog.Background()
	if o.Logger != nil {
		logger = *o.Logger
	}
	logger = klog.LoggerWithValues(logger, "cache", o.Name)
	o.Logger = &logger
	return o
}

// InformerOptions configures [Cache.NewSharedIndexInformer] and [Cache.NewInformerFunc]. The zero value is valid.
//
// Resource, Namespace, the selectors and Name are the identity of the data on disk. Without a Resource the informer
// learns it, with namespace and selectors, from its first request, see [Cache.NewInformer]. If Resource is set, they
// must describe what the ListerWatcher lists; [Cache.WrapTransport] has that checked.
// Without a wrapped transport nothing is checked.
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

// DurableOptions configures [SharedIndexInformer.AddDurableEventHandler] and, as a part of [ReconcilerOptions],
// [SharedIndexInformer.AddReconciler]. The zero value is valid.
type DurableOptions struct {
	cache.HandlerOptions
	// Epoch names the state of what the handler has made outside the cluster, for example a boot id, or the version of
	// the program. The handler starts over if the last handler of the name had another epoch. Default: none. Then a
	// reconciler starts over in each process, and a durable handler never for this reason.
	Epoch string
	// Known returns the keys of the objects that the program holds, for example of the files that it finds. Once the
	// cache has caught up with the server, the handler gets OnDelete for each key that the cache lacks, with a
	// [cache.DeletedFinalStateUnknown] whose Obj is nil. So no deletion is missed, whatever happens to the file. Known
	// is called in each process, on a goroutine of its own, and again after an error; ctx ends with the handler.
	Known func(ctx context.Context) ([]cache.ObjectName, error)
}

// A ReconcileFunc makes the world as the object of a key wants it. Get the object from a lister of the informer. If it
// returns an error, it is called again later. ctx ends with the informer.
type ReconcileFunc func(ctx context.Context, req ReconcileRequest) (ReconcileResult, error)

// A ReconcileRequest names the object to reconcile.
type ReconcileRequest struct {
	cache.ObjectName
	// Deleted has the last known objects that were deleted since this key was last done, oldest first: usually one, or
	// none. It is empty for a key of DurableOptions.Known, and where the file was lost, so clean up by the key. It has
	// more than one if the name was used again and deleted again; an object of the name may exist now. They may be
	// stale like the object of a [cache.DeletedFinalStateUnknown], and must not be changed. A reconcile may find the
	// object gone before the deletion is in the file; then one more reconcile has it. An object is left out if its
	// record was damaged, or if the informer's transform returns another Go type now.
	Deleted []any
}

// A ReconcileResult says what follows a reconcile without an error.
type ReconcileResult struct {
	// After is the time until the key is reconciled again. A new process does it at once. Default 0: when the object
	// changes.
	After time.Duration
}

// ReconcilerOptions configures [SharedIndexInformer.AddReconciler]. The zero value is valid.
type ReconcilerOptions struct {
	// DurableOptions of the handler. Without an Epoch each start reconciles all objects. With the same Epoch as before,
	// it reconciles only what is not done.
	DurableOptions
	// Workers is how many keys are reconciled at once. Default 1.
	Workers int
	// RateLimiter says when a failed reconcile is repeated. Default: client-go's for controllers.
	RateLimiter clientworkqueue.TypedRateLimiter[cache.ObjectName]
	// WaitFor has the other caches that the function reads. The first reconcile waits for them, as for the informer.
	WaitFor []cache.DoneChecker
}

// learns reports whether the identity is what the first request asks for, see newLearningInformer.
func (o InformerOptions) learns() bool { return o.Resource == schema.GroupVersionResource{} }

// checkLearning returns an error if o says what is listed.
func (o InformerOptions) checkLearning() error {
	if !o.learns() {
		return fmt.Errorf("warmwatch: new informer: Resource is set to %v, and would be learned from the first request", o.Resource)
	}
	if o.Namespace+o.LabelSelector+o.FieldSelector+o.ShardSelector != "" {
		return fmt.Errorf("warmwatch: new informer: Resource %w, because Namespace or a selector is set", errRequired)
	}
	return nil
}

var errRequired = errors.New("is required")

// isNil also finds a nil pointer in an interface.
func isNil(v any) bool {
	return v == nil || (reflect.ValueOf(v).Kind() == reflect.Pointer && reflect.ValueOf(v).IsNil())
}

// A signal is set once, and stays set.
type signal struct {
	once sync.Once
	done chan struct{} // Closed when it is set.
}

func newSignal() *signal { return &signal{done: make(chan struct{})} }

// set reports whether this call has set it.
func (s *signal) set() (first bool) {
	s.once.Do(func() {
		close(s.done)
		first = true
	})
	return first
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// pause waits for d, and reports false if ctx was done first.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
