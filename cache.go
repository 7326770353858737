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
	// CommitInterval is how long after a change the commit begins that writes it.
	// Default 1s. A longer one spares the disk. After a crash the API server
	// sends again what was lost.
	CommitInterval time.Duration
	// DurableDelay replaces CommitInterval while a durable handler waits for the
	// change. Default 10ms; at most CommitInterval.
	DurableDelay time.Duration
	// MemoryBudget bounds the decoded objects in memory, of all informers together. Default 32 MiB; negative: no bound.
	// Besides, an informer keeps up to 16 MiB of recent changes while a handler is behind, and up to MaxPendingBytes
	// wait to be written. The first list uses at most half of the budget. During the first initial list of a process
	// the unused part of that half (at most 32 MiB) lets garbage grow, so that the collector runs less often.
	MemoryBudget int64
	// MaxPendingBytes bounds the changes that wait in memory to be written: beyond it the watch slows down. Where there is
	// no file, it bounds nothing. While the file cannot be written, the watch goes on, and a handler for which more than
	// this waits in memory starts over (S6). Default 16 MiB.
	MaxPendingBytes int64
	// MaxBacklogBytes bounds, for each handler, the changes that wait for it, most of them in the file. Beyond it the updates
	// are dropped first, then the oldest deletions, down to half of the bound, and the handler starts over (D6): it gets
	// the deletions that are left, and OnAdd for every object. Default 256 MiB; negative: no bound.
	MaxBacklogBytes int64
	// FullRelistEvery is how long after its last full list an informer lists all objects, and compares their contents, 20 %
	// more or less at random: a server may have lost events, and may read an object otherwise at the same
	// version. It waits for a second without events, at most for a tenth of FullRelistEvery. The time since the last
	// full list of an earlier process counts, too. Handlers are told of what differs. Default 24h; negative: never.
	// See also [Cache.Relist].
	FullRelistEvery time.Duration
	// RelistSpread bounds how long an informer waits before it relists when the API server has
	// lost its history under an open watch, as when it was restarted: then all clients ask at
	// once. The wait is a random share of 100 µs for each stored object, of at most RelistSpread;
	// fewer than 1,000 objects do not wait. What is stored is served meanwhile. Default 10s;
	// negative: no wait.
	RelistSpread time.Duration
	// ClusterID returns the identity of the cluster that is being listed, for example [KubeSystemUID]. If the stored
	// objects came from another one, none is served before all are compared by content. Each informer calls it while it
	// begins to list or watch, for at most 10 s. An error, or an empty identity, proves nothing: the stored objects are
	// used, and the call is repeated before the next watch.
	//
	// Default: if [Cache.WrapTransport] wraps the client's transport, the UID of the
	// namespace kube-system; else the cluster is not known.
	ClusterID func(context.Context) (string, error)
	// ServeStaleAfter makes HasSynced true with what the disk has when the API server cannot be heard for this long:
	// for agents that must work without one. Default 0: HasSynced waits until the cache has caught up with the server,
	// as client-go's does, and no plain handler is called before. Negative: HasSynced is true as soon as the file is
	// read. If the file has nothing that may be served, HasSynced waits for the server in every case. The store can be
	// read from disk before HasSynced in each case; [SharedIndexInformer.CaughtUp] says whether the server has been
	// heard.
	ServeStaleAfter time.Duration
	// TransformVersion, IndexVersion and NeverResume are those of
	// informers whose InformerOptions do not set them.
	TransformVersion, IndexVersion string
	NeverResume                    bool
	// MaxPanics is how many processes may end by the panic of a durable handler on the same object, before that
	// notification is skipped. It is logged then, with the key, and counted in HandlerStatus.Skipped. Later ones of the
	// object are delivered. Default 5; negative: never. Only panics of the callback count, and not other ways in which a
	// process may end in it. Reconcilers only put keys into the file, see [SharedIndexInformer.AddReconciler].
	MaxPanics int
	// LockTimeout is how long Open waits for a file that another process holds, before the Cache works
	// from memory. The log says so after 1 s. Default 30s; negative: it does not wait.
	LockTimeout time.Duration
	// Logger receives what an operator should know. Default klog's.
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

// Open opens the file at path, or creates it (mode 0600, in a directory created
// with mode 0700, because it can hold Secrets). If path is a symbolic link, Open uses
// the file that the link leads to, which need not exist yet.
//
// Open fails if path is empty or not a regular file, if the options are invalid, if this process has
// a Cache on the path (errors.Is(err, [ErrInUse])), and with the error of ctx if that is done while Open waits
// for another process, see Options.LockTimeout. Nothing else that may be wrong with a file stops the program:
//
//   - A file that is damaged, foreign or of an unknown format is set aside as path.corrupt-<time>, see
//     Status().SetAside, and a new one is begun. So is one in which three processes in a row have died while it
//     was opened. Then all is listed, and durable handlers are told of every object.
//   - A file that another process holds, or that cannot be written, is left alone: the Cache works from memory
//     until it is closed.
//   - A file that turns out to be damaged in use is only read from then on, and the next Open sets it aside.
//
// Status().Err and the log say so. An empty file is begun in place, so path may be a mount point. A damaged file
// cannot be set aside there: mount the directory that it is in instead.
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

// Close stops the informers that still run, waits until their handlers and reconcilers have returned,
// at most 5 s, and writes and closes the file. If it returns nil, all that was applied and
// acknowledged is in the file; after an error, the API server will send again what is missing. If
// the file was found damaged in use, Close returns that; if there
// never was a file, it returns nil, because Status().Err has said so since Open. Further calls wait
// for the first and return its result.
//
// Afterwards the stores cannot be read: List finds nothing, and Get fails. So whatever else reads
// them, such as the workers of a workqueue, ends before. So do handlers that take longer than 5 s,
// and what they acknowledge later is not stored: to let them finish, stop the informers
// first and wait for their Run to return. A handler does not call Close.
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
// Informers without InformerOptions.Resource need it, to see what is asked for. For one with a Resource, each List and
// each watch is compared with InformerOptions: resource, namespace, selectors, and whether metadata only is asked for.
// A request for something else is not sent. Its error names both, and so do the informer's Status().Err and the log: a
// selector that was forgotten in InformerOptions would have another node's objects served. Requests are recognised by
// their context, so a ListFunc that drops it is not checked. Other requests pass. An informer of NewInformer was made
// for what its first request asks for; if another one asks for something else, that is sent, and the next process
// begins with a list.
//
// It also tells clusters apart, see Options.ClusterID. And when a watch has expired (410), it lets an informer of 100
// objects and more ask for the metadata of all objects, and for those that have changed, by their names. The requests
// go through the ListerWatcher's List, with its credentials, up to 8 at a time. 64 objects cost one token of the rate
// limiter. For a list of all objects the ListerWatcher is asked for a streaming watch, which is sent as a list or as
// pages, without a token. Its watch brings only objects that may differ, and then ends.
func (c *Cache) WrapTransport(rt http.RoundTripper) http.RoundTripper {
	c.wrapped.Store(true)
	return request.Transport{RoundTripper: rt, Link: c.link}
}

// workSpace is where the workqueues are that belong to no informer.
const workSpace = "workqueues"

// Workqueues returns the workqueues in the file, for [workqueue.New]. They are not of one
// informer: handlers of several may add items to one. See also [SharedIndexInformer.AddReconciler].
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
	// Path of the file, as it was given to Open.
	Path string
	// MemoryOnly says that the Cache works without a file, see Err.
	MemoryOnly bool
	// SetAside lists the files that were set aside since Open and still exist.
	SetAside []SetAside
	// Informers by identity, but for those that have ended. One of NewInformer is here once it
	// runs, by the Go type of its objects if it works from memory. One that is not in the file is here by its name, see
	// NotPersisted, with nothing but Problems and Err.
	Informers map[string]InformerStatus
	// Workqueues are those of [Cache.Workqueues], also names that have none now.
	Workqueues []workqueue.Status
	// Problems is what Err says, as a code.
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

// NotPersisted has Status list an informer that is client-go's own, under the name what, with [CodeFromMemory]. The log
// says so once. The factories of package informers call it where InformerFor is given a function of the program.
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
