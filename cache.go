package warmwatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/warmwatch/warmwatch/indexer"
	"github.com/warmwatch/warmwatch/internal/request"
	"github.com/warmwatch/warmwatch/persist"
	"github.com/warmwatch/warmwatch/queue"
	"github.com/warmwatch/warmwatch/workqueue"
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
	// Name of the Cache in the log and in Status. Default: the base name of the file.
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

// A Cache is one file, and the informers that live in it, all of one cluster. It is safe for
// concurrent use.
type Cache struct {
	opts    Options
	db      *persist.DB
	objects *indexer.Objects
	schemas *schemas
	link    *request.Link // One, because clients of a Cache usually have one server.
	work    *workqueue.Store

	wrapped atomic.Bool  // WrapTransport was called.
	made    atomic.Int64 // How many informers NewInformer has made.

	mu        sync.Mutex
	informers map[string]*SharedIndexInformer // By space.
	closed    bool
	others    []string // Of NotPersisted.
}

// Open opens the file at path, or creates it (mode 0600, in a directory created with mode 0700, because it can hold
// Secrets). If path is a symbolic link, Open uses its target, which need not exist yet.
//
// Open fails if path is empty or not a regular file, if the options are invalid, or if this process has a Cache on the
// path (errors.Is(err, [ErrInUse])). If ctx is done while Open waits for another process (Options.LockTimeout), it
// returns the error of ctx. No other trouble with the file stops the program:
//
//   - A file that is damaged, foreign or of an unknown format is set aside as path.corrupt-<time>, see
//     Status().SetAside, and a new one is begun. The same happens after three processes in a row have died while they
//     opened it. Then everything is listed, and durable handlers get OnAdd for every object.
//   - If another process holds the file, or it cannot be written, it is left alone: the Cache works from memory until
//     it is closed.
//   - If the file turns out to be damaged in use, it is only read from then on. The next Open sets it aside.
//
// Status().Err and the log say so. An empty file is begun in place, so path may be a mount point. A damaged file cannot
// be set aside there: mount its directory instead.
func Open(ctx context.Context, path string, o Options) (*Cache, error) {
	o = o.withDefaults(path)
	db, err := persist.Open(ctx, path, persist.Options{
		CommitInterval:  o.CommitInterval,
		DurableDelay:    o.DurableDelay,
		MaxPendingBytes: o.MaxPendingBytes,
		LockTimeout:     o.LockTimeout,
		Logger:          o.Logger,
	})
	if err != nil {
		return nil, fmt.Errorf("warmwatch: open: %w", err)
	}
	return &Cache{
		opts: o, db: db, work: workqueue.NewStore(db, workSpace, *o.Logger), objects: indexer.NewObjects(o.MemoryBudget),
		schemas: newSchemas(), link: new(request.Link), informers: map[string]*SharedIndexInformer{},
	}, nil
}

// Close stops the informers that still run, waits at most 5 s for their handlers and reconcilers to return, and writes
// and closes the file. If it returns nil, the file has everything that was applied and acknowledged. After an error,
// the API server will send the missing changes again. If the file was found damaged in use, Close returns that error.
// Without a file it returns nil, because Status().Err has said so since Open. Further calls wait for the first and
// return its result.
//
// Afterwards the stores cannot be read: List finds nothing, and Get fails. End all other readers first, such as the
// workers of a workqueue. A handler that returns after the 5 s is not acknowledged: to let it finish, stop the
// informers first and wait for their Run to return. A handler must not call Close.
func (c *Cache) Close() error {
	c.mu.Lock()
	c.closed = true
	informers := c.informersLocked()
	c.mu.Unlock()
	for _, s := range informers {
		s.detach()
	}
	awaitEnds(informers)
	if err := c.db.Close(); err != nil {
		return fmt.Errorf("warmwatch: close: %w", err)
	}
	return nil
}

// closePatience is how long Close waits for handlers and reconciles that have begun.
const closePatience = 5 * time.Second

// awaitEnds waits until the runs of informers have ended, so that what they have called can read until
// it returns. It does not wait longer than closePatience, because a handler or a ListerWatcher may hang.
func awaitEnds(informers []*SharedIndexInformer) {
	ctx, cancel := context.WithTimeout(context.Background(), closePatience)
	defer cancel()
	for _, s := range informers {
		if s.hasEnded(ctx) {
			continue
		}
		s.place.Load().logger.Error(nil, "The Cache is closed although an informer has not ended: what its handlers and reconciles read from now on is not found, and what they acknowledge is not stored",
			"waited", closePatience)
	}
}

// WrapTransport wraps the transport of the client that ListerWatchers use:
//
//	config.Wrap(c.WrapTransport) // A rest.Config, before the client is made of it.
//
// Informers without InformerOptions.Resource need it to learn their identity. With a Resource, each List and each watch
// is compared with InformerOptions: resource, namespace, selectors, and whether it asks for metadata only. A request
// for something else is not sent. Its error, the informer's Status().Err and the log name both: a selector that was
// forgotten in InformerOptions would have another node's objects served. Requests are recognised by their context, so a
// ListFunc that drops it is not checked. Other requests pass. The first request of an informer of NewInformer is its
// identity. If a later one asks for something else, it is sent, and the next process begins with a list.
//
// It also tells clusters apart, see Options.ClusterID. When a watch has expired (410), an informer of 100 objects or
// more asks for the metadata of all objects, and then for the changed ones by their names. These requests go through
// the ListerWatcher's List, with its credentials, up to 8 at a time. 64 objects cost one token of the rate limiter. For
// a list of all objects the ListerWatcher is asked for a streaming watch. The transport sends that as a list or as
// pages, without a token. The watch brings only objects that may differ, and then ends.
func (c *Cache) WrapTransport(rt http.RoundTripper) http.RoundTripper {
	c.wrapped.Store(true)
	return request.Transport{RoundTripper: rt, Link: c.link}
}

// workSpace is where the workqueues are that belong to no informer.
const workSpace = "workqueues"

// Workqueues returns the workqueues in the file, for [workqueue.New]. They belong to no informer: handlers of several
// may add items to one queue. See also [SharedIndexInformer.AddReconciler].
func (c *Cache) Workqueues() *workqueue.Store { return c.work }

// claim makes s the informer of a space. With ErrInUse it returns the informer that is.
func (c *Cache) claim(p *place, s *SharedIndexInformer) (holder *SharedIndexInformer, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrClosed
	}
	if holder, taken := c.informers[p.space]; taken {
		return holder, fmt.Errorf("%w: this Cache has an informer of %s: share it, or make another one by NewSharedIndexInformer with a Name", ErrInUse, p.identity)
	}
	c.informers[p.space] = s
	return nil, nil
}

// informersLocked returns the informers in the order of their spaces.
func (c *Cache) informersLocked() []*SharedIndexInformer {
	informers := make([]*SharedIndexInformer, 0, len(c.informers))
	for _, space := range slices.Sorted(maps.Keys(c.informers)) {
		informers = append(informers, c.informers[space])
	}
	return informers
}

// all returns the informers in the order of their spaces.
func (c *Cache) all() []*SharedIndexInformer {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.informersLocked()
}

// running returns the informers that run.
func (c *Cache) running() []*SharedIndexInformer {
	return slices.DeleteFunc(c.all(), func(s *SharedIndexInformer) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.ctx == nil || s.stopped
	})
}

func (c *Cache) release(space string, s *SharedIndexInformer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.informers[space] == s {
		delete(c.informers, space)
	}
}

// A SetAside is a file that was renamed and replaced: it was damaged, foreign or of an unknown format, or three
// processes died while it was opened.
type SetAside struct {
	// Path of the file now.
	Path string
	// Time when the file was set aside.
	Time time.Time
	// Reason says what was wrong with the file, for people.
	Reason string
}

// Status is the state of a [Cache]. Its JSON has the names of the fields, and errors as
// strings.
type Status struct {
	// Name is Options.Name, or the default.
	Name string
	// Path that was given to Open.
	Path string
	// MemoryOnly: the Cache works without a file, see Err.
	MemoryOnly bool
	// SetAside lists the files that were set aside since Open and still exist.
	SetAside []SetAside
	// Informers by identity, without those that have ended. An informer of NewInformer is listed once it runs; if it
	// works from memory, by the Go type of its objects. One of NotPersisted is listed by its name, with nothing but
	// Problems and Err.
	Informers map[string]InformerStatus
	// Workqueues of [Cache.Workqueues], also names that have none now.
	Workqueues []workqueue.Status
	// Problems has Err as a code.
	Problems []Problem
	// Err says why persistence is degraded. The informers still work.
	Err error
}

// Status returns the present state.
func (c *Cache) Status() Status {
	st := Status{Name: c.opts.Name, Path: c.db.Path(), MemoryOnly: c.db.MemoryOnly(), Informers: map[string]InformerStatus{}, Workqueues: c.work.Status(), Problems: problemOf(c.db), Err: c.db.Err()}
	for _, a := range c.db.SetAside() {
		st.SetAside = append(st.SetAside, SetAside(a))
	}
	for _, s := range c.all() {
		st.Informers[s.place.Load().name()] = s.Status()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, what := range c.others {
		err := errors.New("warmwatch: client-go's own informer, not in the file: the next process begins with a list. " +
			"Give InformerFor a function that returns c.NewInformer(listerWatcher, example, resync, indexers)")
		st.Informers[what] = InformerStatus{Problems: []Problem{{Code: CodeFromMemory, Message: err.Error()}}, Err: err}
	}
	return st
}

// NotPersisted makes Status list client-go's own informer, under the name what, with [CodeFromMemory]. The log says so
// once. The factories of package informers call it for a function of the program that InformerFor gets.
func (c *Cache) NotPersisted(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if slices.Contains(c.others, what) {
		return
	}
	c.others = append(c.others, what)
	c.opts.Logger.Info("An informer is client-go's own, the next process begins with a list", "informer", what)
}

// Logger returns Options.Logger, or the default, with the name of the Cache.
func (c *Cache) Logger() klog.Logger { return *c.opts.Logger }

var errRequired = errors.New("is required")

// isNil also finds a nil pointer in an interface.
func isNil(v any) bool {
	return v == nil || (reflect.ValueOf(v).Kind() == reflect.Pointer && reflect.ValueOf(v).IsNil())
}
