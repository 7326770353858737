package processor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/warmwatch/warmwatch/indexer"
	"github.com/warmwatch/warmwatch/persist"
	"github.com/warmwatch/warmwatch/queue"
)

// Store has the objects of initial lists and resyncs. [indexer.Indexer] implements it.
type Store interface {
	Chunk(from string, durable bool) (indexer.Chunk, error)
	GetByKey(key string) (item any, exists bool, err error)
	InFile(key string) (found bool, err error)
	// Seq is the number of the last write.
	Seq() uint64
	Ballast() (release func())
}

// Options configures [New]. A zero field has no other default.
type Options struct {
	// Informer names the informer in the names of checkers.
	Informer string
	// Served is closed when the store may be read.
	Served <-chan struct{}
	// Synced is closed when the informer has synced. Initial lists wait for it. The deltas that a durable handler
	// gets before are initial items.
	Synced <-chan struct{}
	// CaughtUp is closed when the store has caught up with the server.
	CaughtUp <-chan struct{}
	// ResyncPeriod is the period of handlers that set none. It is also the first period of the check.
	ResyncPeriod time.Duration
	// MaxPanics is in how many processes a durable handler may panic on one object before the notification is skipped.
	// Negative: it is never skipped.
	MaxPanics int
	// OnStartOver is called when a durable handler starts over, or a plain one that is not new. OnSkip is called when a
	// notification for an object is skipped.
	OnStartOver func(handler, cause string, pending queue.Backlog)
	OnSkip      func(handler, key string)
	Logger      klog.Logger
}

// Processor has the listeners of one informer. All methods are safe for concurrent use.
type Processor struct {
	opts Options

	// changing is held while the set of handlers changes. mu is not held while such a change waits for the file.
	// changing is locked before mu.
	changing sync.Mutex

	mu               sync.Mutex
	queue            *queue.Log // Nil before the start, as is store.
	store            Store
	logger           klog.Logger
	started, stopped bool
	checkPeriod      time.Duration
	listeners        map[*listener]struct{}
	unfinished       map[*listener]struct{} // The listeners that run, including removed ones.
	chunks           chunks
	running          sync.WaitGroup
}

// New returns a Processor without listeners.
func New(o Options) *Processor {
	return &Processor{
		opts: o, logger: o.Logger, checkPeriod: o.ResyncPeriod, listeners: map[*listener]struct{}{}, unfinished: map[*listener]struct{}{},
		chunks: chunks{byKey: map[chunkKey]*chunk{}, reads: make(chan struct{}, chunkReads)},
	}
}

// A Name names a durable handler. The zero Name means a plain handler.
type Name struct {
	Kind        queue.Kind
	Name, Epoch string // See [queue.Log.Durable].
	// Known, unless it is nil, returns the keys of the objects that the handler holds. Once the cache has caught up,
	// OnDelete is called for each of them that the store lacks.
	Known func(context.Context) ([]cache.ObjectName, error)
}

// Add adds a handler. The error wraps [queue.ErrInUse] if the name has a handler.
func (p *Processor) Add(h cache.ResourceEventHandler, name Name, o cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	p.changing.Lock()
	defer p.changing.Unlock()
	if p.stopped {
		return nil, fmt.Errorf("handler %v was not added to shared informer because it has stopped already", h)
	}
	l := &listener{
		p: p, handler: h, durable: name.Name != "", named: name,
		name:      cmp.Or(name.Name, fmt.Sprintf("%T", h)),
		ownLogger: o.Logger,
		stopCh:    make(chan struct{}),
		finished:  make(chan struct{}),
		synced:    make(chan struct{}),
	}
	l.syncing.Store(true) // Until the first check, as in client-go.
	if err := p.checkName(name); err != nil {
		return nil, err
	}
	if p.started {
		if err := l.consume(p.queue); err != nil {
			return nil, err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.setResyncLocked(l, ptr.Deref(o.ResyncPeriod, p.opts.ResyncPeriod))
	p.listeners[l] = struct{}{}
	if p.started {
		p.runLocked(l)
	}
	return l, nil
}

// checkName checks a name before the start. After the start the queue checks it.
func (p *Processor) checkName(name Name) error {
	if name.Name == "" {
		return nil
	}
	for l := range p.listeners {
		if l.named.Kind == name.Kind && l.named.Name == name.Name {
			return fmt.Errorf("%w: %q", queue.ErrInUse, name.Name)
		}
	}
	return queue.CheckName(name.Name)
}

// consume gives the listener a consumer of the queue.
func (l *listener) consume(log *queue.Log) (err error) {
	if !l.durable {
		l.consumer = log.Plain()
		return nil
	}
	l.consumer, err = log.Durable(l.named.Kind, l.named.Name, l.named.Epoch)
	return err
}

func (p *Processor) runLocked(l *listener) {
	p.unfinished[l] = struct{}{}
	p.running.Go(func() {
		l.run()
		p.mu.Lock() // Not deferred: a handler's panic must not wait.
		delete(p.unfinished, l)
		p.mu.Unlock()
		close(l.finished)
	})
}

// Remove removes a handler. Its name is free when the callback in flight has returned, and keeps its position.
func (p *Processor) Remove(handle cache.ResourceEventHandlerRegistration) error {
	l, ok := handle.(*listener)
	if !ok {
		return fmt.Errorf("invalid key type %T", handle)
	}
	p.changing.Lock()
	defer p.changing.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ours := p.listeners[l]; !ours {
		return nil
	}
	delete(p.listeners, l)
	l.stopLocked()
	switch {
	case !p.started:
		close(l.finished)
	case !l.durable: // It holds no deltas, even while its callback runs.
		_ = l.consumer.Remove() // After ErrClosed no deltas are held.
	}
	return nil
}

// Unused returns an error if a name has a handler, or the Processor has stopped, because the next informer of the space
// may use the name.
func (p *Processor) Unused(name string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return fmt.Errorf("durable handler %q was not forgotten because shared informer has stopped already", name)
	}
	for _, ls := range []map[*listener]struct{}{p.listeners, p.unfinished} {
		for l := range ls {
			if l.named.Name == name {
				return fmt.Errorf("%w: %q", queue.ErrInUse, name)
			}
		}
	}
	return nil
}

// Start starts the listeners. They wait until the store is served. From now on logger is used. Start returns the period
// after which ShouldResync must be called. It does not change any more. After an error Start can be called again.
func (p *Processor) Start(log *queue.Log, store Store, logger klog.Logger) (resyncCheckPeriod time.Duration, err error) {
	p.changing.Lock()
	defer p.changing.Unlock()
	if p.stopped {
		return 0, persist.ErrClosed
	}
	for l := range p.listeners {
		if l.consumer != nil { // An earlier call has set it.
			continue
		}
		if err := l.consume(log); err != nil {
			return 0, err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue, p.store, p.logger, p.started = log, store, logger, true
	for l := range p.listeners {
		p.runLocked(l)
	}
	return p.checkPeriod, nil
}

// WaitForSync waits until the present handlers have synced. It returns false if ctx is done before. It does not wait
// for handlers that are removed or stopped meanwhile.
func (p *Processor) WaitForSync(ctx context.Context) bool {
	p.mu.Lock()
	listeners := slices.Collect(maps.Keys(p.listeners))
	p.mu.Unlock()
	for _, l := range listeners {
		select {
		case <-l.synced:
		case <-l.stopCh:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// Stop makes the listeners end after the callback in flight. No handler can be added after it.
func (p *Processor) Stop() {
	p.changing.Lock()
	defer p.changing.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
	for l := range p.listeners {
		l.stopLocked()
		if !p.started { // They were not called, and never will be.
			delete(p.listeners, l)
			close(l.finished)
		}
	}
}

// Wait waits, after Stop, until all callbacks have returned.
func (p *Processor) Wait() { p.running.Wait() }

// Unfinished returns the handlers that run, including removed ones. Their Undelivered is not set.
func (p *Processor) Unfinished() []queue.HandlerStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []queue.HandlerStatus
	for l := range p.unfinished {
		all = append(all, l.status())
	}
	return all
}

// A callback runs for the object of a key.
type callback struct {
	key   string
	since time.Time
}

// status leaves out the backlog. InitialList is as before the start.
func (l *listener) status() queue.HandlerStatus {
	h := queue.HandlerStatus{Name: l.name, Durable: l.durable, InitialList: true, Skipped: l.skipped.Load()}
	if restarts := l.restarts.Load(); restarts != nil {
		h.Restarts = *restarts
	}
	if c := l.inFlight.Load(); c != nil {
		h.Callback, h.CallbackSince = c.key, c.since
	}
	return h
}

// Status returns the status of all handlers, and of durable names without a handler, sorted. It leaves out names of
// another kind.
func (p *Processor) Status(kind queue.Kind) []queue.HandlerStatus {
	var all []queue.HandlerStatus
	p.mu.Lock()
	for l := range p.listeners {
		if l.durable && l.named.Kind != kind {
			continue
		}
		h := l.status()
		if p.started {
			l.consumer.Behind().In(&h)
		}
		all = append(all, h)
	}
	log := p.queue
	p.mu.Unlock()
	if log != nil {
		for name, b := range log.Named(kind) {
			if slices.ContainsFunc(all, func(h queue.HandlerStatus) bool { return h.Durable && h.Name == name }) {
				continue
			}
			h := queue.HandlerStatus{Name: name, Durable: true, Absent: true}
			b.In(&h)
			all = append(all, h)
		}
	}
	slices.SortFunc(all, func(a, b queue.HandlerStatus) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), cmp.Compare(a.Undelivered, b.Undelivered))
	})
	return all
}

// NewDoneChecker returns a [cache.DoneChecker].
func NewDoneChecker(name string, done <-chan struct{}) cache.DoneChecker {
	return doneChecker{name, done}
}

type doneChecker struct {
	name string
	done <-chan struct{}
}

func (d doneChecker) Name() string          { return d.name }
func (d doneChecker) Done() <-chan struct{} { return d.done }

var errNotListed = errors.New("objects of the list could not be read")
