// Package warmwatch provides a [cache.SharedIndexInformer] whose store, indices, undelivered deltas and resourceVersion
// live in one file. A restarted program reads its cache from disk, resumes the watch where it stopped, and delivers the
// changes that it missed, deletions too. Only if the API server no longer holds the history it relists, with a diff.
//
// [Open] opens the file. [Cache.NewSharedIndexInformer] makes an informer. Unless options say what it lists, it learns
// that from the first request of its ListerWatcher. [Cache.NewInformer] has the signature that informer factories take.
// The rest is as in client-go, with three additions: [SharedIndexInformer.AddDurableEventHandler], for handlers that go
// on where they stopped; [SharedIndexInformer.AddReconciler], for work that is kept until it is done; and
// [SharedIndexInformer.Status]. Package informers has client-go's factories, and package workqueue its workqueue.
//
// The file can be deleted while no program uses it. Durable handlers and reconcilers then start over. Whatever happens
// to the file, the program keeps running and the cache becomes correct again: see [Open].
//
// The design and its invariants (A1 to S7) are in docs/design/README.md, "Data flow" and "Invariants".
package warmwatch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/warmwatch/warmwatch/indexer"
	"github.com/warmwatch/warmwatch/internal/deletions"
	"github.com/warmwatch/warmwatch/internal/request"
	"github.com/warmwatch/warmwatch/persist"
	"github.com/warmwatch/warmwatch/queue"
	"github.com/warmwatch/warmwatch/reflector"
	"github.com/warmwatch/warmwatch/workqueue"
)

// A Cache is one file, and the informers that live in it, all of one cluster. It is safe for
// concurrent use.
type Cache struct {
	shared
	link  *request.Link // One for all clients: they usually have one server.
	work  *workqueue.Store
	made  atomic.Int64  // How many informers NewInformer has made.
	ready chan struct{} // Closed when the timeline has begun.

	others []string // The arguments of NotPersisted. Guarded by mu.
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
	c := &Cache{
		shared: shared{opts: o, objects: indexer.NewObjects(o.MemoryBudget), schemas: newSchemas(), informers: map[string]*SharedIndexInformer{}, unused: map[string]Unused{}},
		link:   new(request.Link), ready: make(chan struct{}),
	}
	before, _ := os.Stat(path) // So the timeline shows whether each start begins a new file.
	db, err := persist.Open(ctx, path, persist.Options{
		CommitInterval:  o.CommitInterval,
		DurableDelay:    o.DurableDelay,
		MaxPendingBytes: o.MaxPendingBytes,
		MaxFileBytes:    o.MaxFileBytes,
		LockTimeout:     o.LockTimeout,
		OnEvent:         c.fileEvent,
		Logger:          o.Logger,
	})
	if err != nil {
		return nil, fmt.Errorf("warmwatch: open: %w", err)
	}
	c.db, c.work = db, workqueue.NewStore(db, workSpace, *o.Logger)
	c.opened(before)
	return c, nil
}

// opened begins the timeline of this process. before is the file before Open, nil if there was none.
func (c *Cache) opened(before os.FileInfo) {
	defer close(c.ready)
	c.timeline.db = c.db
	if err := c.timeline.load(); err != nil {
		c.opts.Logger.Error(err, "Could not read the timeline, beginning a new one")
	}
	for _, a := range c.db.SetAside() {
		c.timeline.record(*c.opts.Logger, Event{Code: CodeSetAside}, fmt.Errorf("%s: %s", a.Path, a.Reason))
	}
	opened := Event{Code: CodeOpened, Message: c.db.Path(), Numbers: map[string]float64{"fileBytes": 0}}
	if before != nil {
		opened.Numbers["fileBytes"] = float64(before.Size())
	}
	c.timeline.record(*c.opts.Logger, opened, nil)
	if err := c.findUnused(); err != nil {
		c.opts.Logger.Error(err, "Could not find out which data of the file are unused")
	}
	if code, _, err := c.db.Problem(); c.db.MemoryOnly() {
		c.timeline.record(*c.opts.Logger, Event{Code: Code(code)}, err)
	}
}

// unusedGrace is how long after Open unused data are removed: the program makes its informers first.
const unusedGrace = 10 * time.Minute

// findUnused notes all data in the file as unused. Open calls it, before there are informers. If an informer uses its
// data within the first second, nothing is written.
func (c *Cache) findUnused() error {
	buckets, err := c.db.Buckets()
	if err != nil {
		return err
	}
	now := time.Now()
	for _, b := range buckets {
		if b.Name != reflector.CheckpointBucket {
			continue
		}
		u := Unused{b.Space, now}
		if found, _ := reflector.StoredCheckpoint(c.db, b.Space, ""); found != nil { // Otherwise damage: an informer will meet it.
			u.Informer = found.Identity.String()
		}
		known, err := c.db.View(unusedBucket, b.Space, func(it *persist.Item) (err error) {
			u.Since, err = persist.ReadJSON[time.Time](it)
			return err
		})
		if !known || err != nil {
			err = c.db.Update(func(batch *persist.Batch) { batch.PutNew(unusedBucket, b.Space, persist.JSON(now)) })
		}
		if err != nil {
			return err
		}
		c.unused[b.Space] = u
	}
	if after := c.opts.DropUnusedAfter; after >= 0 && len(c.unused) > 0 {
		time.AfterFunc(min(after, unusedGrace), c.dropUnused)
	}
	return nil
}

// dropUnused removes the data that nobody has used for long and no durable name needs. After Close it does nothing.
func (c *Cache) dropUnused() {
	c.mu.Lock()
	unused := maps.Clone(c.unused)
	c.mu.Unlock()
	for space, u := range unused {
		if time.Since(u.Since) < c.opts.DropUnusedAfter || c.isKept(space) { // Reads the file: without the lock.
			continue
		}
		c.mu.Lock()
		_, still := c.unused[space]
		if still = still && dropSpace(c.db, space) == nil; still {
			delete(c.unused, space)
		}
		c.mu.Unlock()
		if still {
			c.timeline.record(*c.opts.Logger, Event{Code: CodeDropped, Informer: u.Informer}, nil)
		}
	}
}

// isKept reports whether a space has the position of a durable name, or work, which a program may still want. If that
// cannot be read, it returns true.
func (c *Cache) isKept(space string) (kept bool) {
	err := c.db.Read(space, func(s *persist.Snapshot) error {
		for _, bucket := range []string{queue.HandlersBucket, workqueue.NamesBucket, workqueue.KeysBucket, deletions.BucketName} {
			err := s.Scan(bucket, "", func(*persist.Item) (bool, error) {
				kept = true
				return false, nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	return kept || err != nil
}

// fileEvent is called when a problem of the file begins, and without a code when commits succeed again.
func (c *Cache) fileEvent(code persist.Code, err error) {
	<-c.ready
	e := Event{Code: Code(code)}
	if err == nil {
		e = Event{Code: CodeRecovered, Cause: string(CodeNotWritten)}
	}
	c.timeline.record(*c.opts.Logger, e, err)
	if code == persist.CodeFileDamaged {
		c.fileDamaged(err)
	}
}

// Timeline returns the last 200 events, oldest first, also those of earlier processes. A new event is in the file with
// the next commit.
func (c *Cache) Timeline() []Event { return c.timeline.all() }

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
	first := !c.closed
	c.closed = true // No informer is made after this.
	c.mu.Unlock()
	if first {
		c.timeline.record(*c.opts.Logger, Event{Code: CodeClosed}, nil)
	}
	informers := c.all()
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

// awaitEnds waits until the runs of informers have ended: handlers and reconciles can read until they return. It waits
// at most for closePatience, because a handler or a ListerWatcher may hang.
func awaitEnds(informers []*SharedIndexInformer) {
	ctx, cancel := context.WithTimeout(context.Background(), closePatience)
	defer cancel()
	for _, s := range informers {
		select {
		case <-s.ended:
		case <-ctx.Done():
			if isClosed(s.ended) {
				continue
			}
			s.place.Load().logger.Error(nil, "The Cache is closed although an informer has not ended: from now on its handlers and reconciles find no objects, and their acknowledgements are not stored",
				"waited", closePatience)
		}
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
// It also distinguishes clusters, see Options.ClusterID. When a watch has expired (410), an informer of 100 objects or
// more asks for the metadata of all objects, and then for the changed ones by their names. These requests go through
// the ListerWatcher's List, with its credentials, up to 8 at a time. 64 objects cost one token of the rate limiter. For
// a list of all objects the ListerWatcher is asked for a streaming watch. The transport sends that as a list or as
// pages, without a token. The watch brings only objects that may differ, and then ends.
func (c *Cache) WrapTransport(rt http.RoundTripper) http.RoundTripper {
	c.wrapped.Store(true)
	return request.Transport{RoundTripper: request.Counting{RoundTripper: rt}, Link: c.link}
}

// workSpace is the space of the workqueues that belong to no informer.
const workSpace = "workqueues"

// Workqueues returns the workqueues in the file, for [workqueue.New]. They belong to no informer: handlers of several
// may add items to one queue. See also [SharedIndexInformer.AddReconciler].
func (c *Cache) Workqueues() *workqueue.Store { return c.work }

// running returns the informers that run.
func (c *Cache) running() []*SharedIndexInformer {
	return slices.DeleteFunc(c.all(), func(s *SharedIndexInformer) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.ctx == nil || s.stopped
	})
}

// Informer returns the running informer that Status lists under this name, or nil. An informer of [Cache.NewInformer]
// gets its final name once its first request was seen.
func (c *Cache) Informer(name string) *SharedIndexInformer {
	for _, s := range c.running() {
		if s.place.Load().name() == name {
			return s
		}
	}
	return nil
}

// Status returns the present state.
func (c *Cache) Status() Status {
	st := Status{Name: c.opts.Name, Path: c.db.Path(), MemoryOnly: c.db.MemoryOnly(), Informers: map[string]InformerStatus{}, Workqueues: c.work.Status(), SetAside: c.db.SetAside()}
	st.Problems, st.Err = problemOf(c.db)
	for _, s := range c.all() {
		st.Informers[s.place.Load().name()] = s.Status()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, space := range slices.Sorted(maps.Keys(c.unused)) {
		st.Unused = append(st.Unused, c.unused[space])
	}
	for _, what := range c.others {
		err := errors.New("warmwatch: client-go's own informer, not in the file: the next process begins with a list. " +
			"Give InformerFor a function that returns c.NewInformer(listerWatcher, example, resync, indexers)")
		st.Informers[what] = InformerStatus{Problems: []Problem{{Code: CodeFromMemory, Message: err.Error()}}, Err: err}
	}
	return st
}

// NotPersisted makes Status list client-go's own informer, under the name what, with [CodeFromMemory]. The log says so
// once. Package informers calls it for a function that the program gives to InformerFor.
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

// NewSharedIndexInformer makes an informer in the Cache. example has the Go type
// of the objects that lw lists; a *unstructured.Unstructured should have its
// apiVersion and kind set.
//
// A second informer of the same identity in a Cache is an error: errors.Is(err, [ErrInUse]). The identity is free again
// when Run has returned. Without InformerOptions.Resource an informer has an identity once it runs; if that is still
// taken after 10 s, it works from memory.
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
	s := c.newInformer(lw, example, o, newPlace(id, asked, *c.opts.Logger))
	if err := c.claim(s.place.Load(), s); err != nil {
		return nil, fmt.Errorf("warmwatch: new informer: %w", err)
	}
	return s, nil
}

// NewInformer makes an informer whose identity is what its ListerWatcher asks the API server for: group, version,
// resource, namespace, selectors, form (typed, metadata, unstructured), and the path before /api or /apis. Informer
// factories and controller-runtime's cache.Options.NewInformer take it, because it has the signature of client-go's
// [cache.NewSharedIndexInformer]:
//
//	config.Wrap(c.WrapTransport) // Before clients are made of it.
//	factory.InformerFor(&corev1.Pod{}, func(client kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
//		lw := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "pods", "", fields.Everything())
//		return c.NewInformer(lw, &corev1.Pod{}, resync, nil)
//	})
//
// When it runs, and before small requests of its own, it opens a watch. The wrapped transport recognises that by its
// context and answers it without the network. So this works offline too, unless the client gets its credentials over
// the network. The error of this call is not reported. If the transport does not see the watch, it is sent, and
// stopped. It takes no token of the client's rate limiter, like all requests of the informer's own.
//
// The informer works from memory in two cases: the request cannot be seen (transport not wrapped, or the ListerWatcher
// drops its context), or another informer of this Cache has the identity and does not end within 10 s. If a
// ListerWatcher asks for more than one thing (two namespaces), each process begins with a list. Status and the log say
// so. Options of the Cache that are defaults of InformerOptions apply. The informer is a *[SharedIndexInformer]. Without
// an example, objects may be of any type, and the informer is client-go's own.
//
// A Cache is for one cluster. If two informers ask two clusters for the same, the second one works from memory.
//
// Until it runs, it holds nothing in the file, does not know what is pending for its handlers, and has in its store
// what the program puts there. After Close it does not run, and its store cannot be read.
func (c *Cache) NewInformer(lw cache.ListerWatcher, example runtime.Object, defaultResync time.Duration, indexers cache.Indexers) cache.SharedIndexInformer {
	return c.NewInformerFunc(InformerOptions{})(lw, example, defaultResync, indexers)
}

// NewInformerFunc returns [Cache.NewInformer] with options: a Name, which is part of the identity, versions,
// Transformed, NeverResume. The arguments of the returned function are ResyncPeriod and Indexers. It panics if o has a
// Resource, namespace or selector: the request says what is listed.
func (c *Cache) NewInformerFunc(o InformerOptions) func(lw cache.ListerWatcher, example runtime.Object, defaultResync time.Duration, indexers cache.Indexers) cache.SharedIndexInformer {
	if err := o.checkLearning(); err != nil {
		panic(err)
	}
	return func(lw cache.ListerWatcher, example runtime.Object, defaultResync time.Duration, indexers cache.Indexers) cache.SharedIndexInformer {
		if example == nil {
			c.NotPersisted("without an example object")
			return cache.NewSharedIndexInformer(lw, nil, defaultResync, indexers)
		}
		o := o
		o.ResyncPeriod, o.Indexers = max(0, defaultResync), indexers
		return c.newLearningInformer(lw, example, o)
	}
}

// newLearningInformer makes an informer that learns its identity from its first request.
func (c *Cache) newLearningInformer(lw cache.ListerWatcher, example runtime.Object, o InformerOptions) *SharedIndexInformer {
	id := unseenIdentity(example, fmt.Sprintf("%T #%d", example, c.made.Add(1)))
	return c.newInformer(lw, example, o, newPlace(id, request.Asked{}, *c.opts.Logger))
}

// WaitForHandlerSync waits until HasSynced of all present handlers of the running informers. It reports false if ctx is
// done before. It does not wait for handlers that are removed, or whose informer ends, meanwhile.
func (c *Cache) WaitForHandlerSync(ctx context.Context) bool {
	for _, s := range c.running() {
		if !s.processor.WaitForSync(ctx) {
			return false
		}
	}
	return true
}

// Relist is [SharedIndexInformer.Relist] of all informers that run.
func (c *Cache) Relist(ctx context.Context) error {
	informers := c.running()
	errs := make([]error, len(informers))
	var wg sync.WaitGroup
	for i, s := range informers {
		wg.Go(func() { errs[i] = s.Relist(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
