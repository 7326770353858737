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

	"github.com/warmwatch/warmwatch/internal/indexer"
	"github.com/warmwatch/warmwatch/persist"
	"github.com/warmwatch/warmwatch/queue"
)

// Store has the objects of initial lists and resyncs. [indexer.Indexer] implements it.
type Store interface {
	ReadChunk(from string, durable bool) (indexer.Chunk, error)
	DecodeChunk(indexer.Chunk) indexer.Chunk
	ReadObject(key string, durable bool) (indexer.Chunk, error)
	Ballast() (release func())
}

// Options configures [New]. [Processor.Move] may give the first three later; of the others a zero value
// means what it says.
type Options struct {
	Log    *queue.Log
	Store  Store
	Logger klog.Logger
	// Informer names the informer in the names of checkers.
	Informer string
	// Served is closed when the store may be read. ServedAt then returns the number of the
	// last batch before.
	Served   <-chan struct{}
	ServedAt func() uint64
	// Synced is closed when the informer has synced. Initial lists wait for it. The deltas that a durable handler is
	// told of before are initial items.
	Synced <-chan struct{}
	// ResyncPeriod is that of handlers that set none, and the period of the check at first.
	ResyncPeriod time.Duration
	// MaxPanics is how often in a row a durable handler may panic on one object before that is set
	// aside. Negative: any number of times.
	MaxPanics int
}

// Processor has the listeners of one informer. All methods are safe for concurrent use.
type Processor struct {
	opts  Options
	reads chan struct{} // Semaphore of walks that read a chunk of the store.

	walksMu sync.Mutex
	walks   map[bool]*walk // Those that can be joined, by whether their listeners are durable.

	// changing is held while the handlers change, also where that waits for the file and mu is not held.
	// It is locked before mu.
	changing sync.Mutex
	turns    turns
	// What was asked for before the start: the names that were forgotten, and the keys, by durable name,
	// that are to be delivered again.
	forgotten   []string
	redelivered []redelivery

	mu               sync.Mutex
	started, stopped bool
	checkPeriod      time.Duration
	listeners        map[*listener]struct{}
	unfinished       map[*listener]struct{} // Those that run, also if they were removed.
	running          sync.WaitGroup
}

// New returns a Processor without listeners.
func New(o Options) *Processor {
	return &Processor{
		opts: o, reads: make(chan struct{}, chunkReads),
		checkPeriod: o.ResyncPeriod, listeners: map[*listener]struct{}{}, unfinished: map[*listener]struct{}{}, turns: turns{}, walks: map[bool]*walk{},
	}
}

// Add adds a handler, a durable one if it has a name. The error wraps [queue.ErrInUse] if the
// name has a handler. named, unless it is nil, is called once the name is the handler's, and before that is told of
// anything; if it returns an error, the handler is not added.
func (p *Processor) Add(h cache.ResourceEventHandler, durableName string, o cache.HandlerOptions, named func() error) (cache.ResourceEventHandlerRegistration, error) {
	p.changing.Lock()
	defer p.changing.Unlock()
	if p.stopped {
		return nil, fmt.Errorf("handler %v was not added to shared informer because it has stopped already", h)
	}
	l := &listener{
		p: p, handler: h, durable: durableName != "",
		name:      fmt.Sprintf("%T", h),
		ownLogger: o.Logger,
		stopCh:    make(chan struct{}),
		finished:  make(chan struct{}),
		synced:    make(chan struct{}),
	}
	l.syncing.Store(true) // Until the first check, as in client-go.
	if l.durable {
		l.name = durableName
	}
	c, err := l.consumerOf(p.opts.Log)
	if err != nil {
		return nil, err
	}
	if named != nil {
		if err := named(); err != nil {
			return nil, errors.Join(err, c.Discard())
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.consumeLocked(l, c)
	p.setResyncLocked(l, ptr.Deref(o.ResyncPeriod, p.opts.ResyncPeriod))
	p.listeners[l] = struct{}{}
	if p.started {
		p.runLocked(l)
	}
	return l, nil
}

// consumerOf returns a consumer of a log for the listener.
func (l *listener) consumerOf(log *queue.Log) (*queue.Consumer, error) {
	if !l.durable {
		return log.Plain(), nil
	}
	return log.Durable(l.name)
}

func (p *Processor) consumeLocked(l *listener, c *queue.Consumer) {
	l.consumer = c
	l.initialList.Store(!l.durable || c.InitialPending())
	if l.durable {
		l.turn = p.turns.of(l.name)
	}
}

// Move makes the handlers, which were not told of anything yet, hear of another log and
// another store, and what is logged from now on is logged by the logger. The names that were
// forgotten are forgotten there too, and what was to be delivered again is, from there.
func (p *Processor) Move(log *queue.Log, store Store, logger klog.Logger) error {
	p.changing.Lock()
	defer p.changing.Unlock()
	for _, name := range p.forgotten {
		if err := log.Forget(name); err != nil {
			return err
		}
	}
	for _, r := range p.redelivered {
		log.Redeliver(r.name, r.keys...)
	}
	consumers := map[*listener]*queue.Consumer{}
	for l := range p.listeners {
		c, err := l.consumerOf(log)
		if err != nil {
			return err
		}
		consumers[l] = c
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for l, c := range consumers {
		p.consumeLocked(l, c)
	}
	p.opts.Log, p.opts.Store, p.opts.Logger = log, store, logger
	return nil
}

func (p *Processor) runLocked(l *listener) {
	p.unfinished[l] = struct{}{}
	p.running.Go(func() {
		l.run()
		p.mu.Lock() // Not deferred: a handler's panic must not wait.
		defer p.mu.Unlock()
		delete(p.unfinished, l)
	})
}

// Remove removes a handler. The name of a durable one keeps its cursor.
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
	l.stop()
	l.consumer.Remove()
	if !p.started {
		close(l.finished)
	}
	return nil
}

// Forget removes what is kept for a durable name, see [queue.Log.Forget]. It fails after
// Stop, because the next informer of the space may use the name.
func (p *Processor) Forget(durableName string) error {
	p.changing.Lock()
	defer p.changing.Unlock()
	if p.stopped {
		return fmt.Errorf("durable handler %q was not forgotten because shared informer has stopped already", durableName)
	}
	if err := p.opts.Log.Forget(durableName); err != nil {
		return err
	}
	p.turns.forget(durableName)
	if !p.started {
		p.forgotten = append(p.forgotten, durableName)
	}
	return nil
}

// Start starts the listeners, which wait until the store is served. It returns the period
// after which ShouldResync is to be called, which does not change any more.
func (p *Processor) Start() (resyncCheckPeriod time.Duration) {
	p.changing.Lock()
	defer p.changing.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.started = true
	for l := range p.listeners {
		p.runLocked(l)
	}
	return p.checkPeriod
}

// WaitForSync waits until the handlers that there are now have synced, and reports whether they have:
// not if ctx is done before. It does not wait for those that are removed, or stopped.
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
		l.stop()
		if !p.started { // They were told of nothing, and never will be.
			delete(p.listeners, l)
			close(l.finished)
		}
	}
}

// Wait waits, after Stop, until all callbacks have returned, and stores what the handlers
// have acknowledged.
func (p *Processor) Wait() {
	p.running.Wait()
	if err := p.opts.Log.Stop(); err != nil && !errors.Is(err, persist.ErrClosed) {
		p.opts.Logger.Error(err, "Could not store what the handlers have acknowledged")
	}
}

// Unfinished is a handler that runs, perhaps also one that was removed, with the callback that it has not
// returned from, if any.
type Unfinished struct {
	Handler, Key string
	Since        time.Time
}

// Unfinished returns the handlers that run, sorted.
func (p *Processor) Unfinished() []Unfinished {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []Unfinished
	for l := range p.unfinished {
		u := Unfinished{Handler: l.name}
		u.Key, u.Since = l.inFlight.get()
		all = append(all, u)
	}
	slices.SortFunc(all, func(a, b Unfinished) int { return cmp.Compare(a.Handler, b.Handler) })
	return all
}

// inFlight says for which object a callback runs.
type inFlight struct {
	mu    sync.Mutex
	key   string
	since time.Time
}

func (f *inFlight) set(key string, since time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.key, f.since = key, since
}

func (f *inFlight) get() (key string, since time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.key, f.since
}

// HandlerStatus says how far behind a handler is.
type HandlerStatus struct {
	Name    string // Of a durable handler, or the Go type of a plain one.
	Durable bool
	Absent  bool // The durable name has no handler.
	// InitialList says that a handler has not been told of all objects yet.
	InitialList bool
	// Callback is the key of the object that a callback runs for, and CallbackSince when that began;
	// empty and zero if none runs.
	Callback      string
	CallbackSince time.Time `json:",omitzero"`
	// Undelivered is how many deltas the handler has still to acknowledge, and
	// UndeliveredBytes about how many bytes they have.
	Undelivered      int
	UndeliveredBytes int64
	// SetAside has the keys of the objects that are set aside for a durable name, sorted.
	SetAside []string
}

// Status returns that of all handlers, and of durable names without one, sorted.
func (p *Processor) Status() []HandlerStatus {
	var all []HandlerStatus
	p.mu.Lock()
	for l := range p.listeners {
		h := HandlerStatus{Name: l.name, Durable: l.durable, InitialList: l.initialList.Load() || l.consumer.InitialPending()}
		h.Callback, h.CallbackSince = l.inFlight.get()
		h.Undelivered, h.UndeliveredBytes = l.consumer.Behind()
		if l.durable {
			h.SetAside = p.opts.Log.SetAside(l.name)
		}
		all = append(all, h)
	}
	log := p.opts.Log
	p.mu.Unlock()
	for _, name := range log.Absent() {
		if slices.ContainsFunc(all, func(h HandlerStatus) bool { return h.Durable && h.Name == name }) {
			continue // Its consumer has ended, with the log.
		}
		h := HandlerStatus{Name: name, Durable: true, Absent: true}
		h.Undelivered, h.UndeliveredBytes = log.Behind(name)
		h.SetAside = log.SetAside(name)
		all = append(all, h)
	}
	slices.SortFunc(all, func(a, b HandlerStatus) int {
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
