package warmwatch

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/warmwatch/warmwatch/indexer"
	"github.com/warmwatch/warmwatch/queue"
)

const (
	// crashPause follows a handler's panic, when panics do not end the program, as
	// in client-go's processorListener.run.
	crashPause = time.Second
	// readRetryDelay is the pause after the store or the queue could not be read.
	readRetryDelay = time.Second
)

// listener calls one handler, in one goroutine. It tells it first of the undelivered
// deletions of the last process, then of all objects (the initial list), then of
// every delta. A durable handler of a known name begins with the deltas.
//
// It implements cache.ResourceEventHandlerRegistration.
type listener struct {
	s        *SharedIndexInformer
	handler  cache.ResourceEventHandler
	name     string // For logs and Status.
	logger   klog.Logger
	consumer *queue.Consumer
	durable  bool
	turn     chan struct{} // Of the durable name, see turns.

	stopCh   chan struct{}
	stopOnce sync.Once
	finished chan struct{} // Closed when the handler is not called any more.
	synced   chan struct{} // Closed when the initial items were handled, and the informer has synced.
	syncOnce sync.Once
	// initialHead is the Seq up to which deltas count as initial items.
	initialHead atomic.Uint64
	// informerSynced says that the informer has synced.
	informerSynced atomic.Bool

	// listedSeq is the greatest Seq as of which the initial list told of an object, 0 once
	// the cursor has passed it: see Consumer.WalkedTo.
	listedSeq uint64
	// inherits says that handlers of the last process may know objects that this one was
	// not told of. It must be told of their deletion, which may come with the deltas.
	inherits bool
	// listedNew has the keys of objects in the initial list that were written after it
	// began. Earlier deletions of these keys are not told any more.
	listedNew map[string]struct{}

	toldEverything bool // tellEverything was called in this process.
	// replaced has the keys of objects that were deleted and created again, of which the
	// handler was told the deletion and not yet the new object.
	replaced map[string]struct{}

	sleepAfterCrash bool

	resyncWanted atomic.Bool // The handler is to be told of all objects again.
	syncing      atomic.Bool // The handler is told of deltas that changed nothing.
	resyncMu     sync.Mutex
	requested    time.Duration
	period       time.Duration
	next         time.Time
}

var (
	_ cache.ResourceEventHandlerRegistration      = (*listener)(nil)
	_ interface{ ShutdownChan() <-chan struct{} } = (*listener)(nil)
)

// AddEventHandler implements [cache.SharedInformer].
func (s *SharedIndexInformer) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return s.AddEventHandlerWithOptions(h, cache.HandlerOptions{})
}

// AddEventHandlerWithResyncPeriod implements [cache.SharedInformer].
func (s *SharedIndexInformer) AddEventHandlerWithResyncPeriod(h cache.ResourceEventHandler, resyncPeriod time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	return s.AddEventHandlerWithOptions(h, cache.HandlerOptions{ResyncPeriod: &resyncPeriod})
}

// AddEventHandlerWithOptions implements [cache.SharedInformer]. The handler is
// first told, by OnDelete, of the deletions that the handlers of the last process
// did not acknowledge, and of those that have happened since, even of objects that
// this handler never heard of. Then it is told of every object. A handler that is added
// later than a minute after the informer has caught up with the server is told of the
// objects only.
//
// As in client-go, handlers must not change objects. Here the old and the new object
// of an update may share memory, so that changing one may change the other. A changed
// unstructured object may also get into the file.
func (s *SharedIndexInformer) AddEventHandlerWithOptions(h cache.ResourceEventHandler, o cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	return s.addListener(h, "", o)
}

// AddDurableEventHandler adds a handler that goes on where the last handler of this
// name stopped, in this process or an earlier one: it is told, in order, exactly
// what that one was not told, or did not finish. The first handler of a name is
// told of every object first.
//
// The handler is told of a change only when the change is in the file, at most
// Options.DurableDelay later than plain handlers, so that no crash takes back what it
// was told. It is told of the deletion of every object that it was told of. Delivery
// is at least once: after a crash the last notifications, those finished within
// CommitInterval, may come again.
//
// The name holds deltas in the file even while it has no handler, see
// [SharedIndexInformer.ForgetDurableEventHandler]. A name can have one handler
// at a time: errors.Is(err, [ErrInUse]). After RemoveEventHandler the name is free at
// once. Its next handler is called after the callback in flight has returned.
//
// Without a file (Status().MemoryOnly) nothing is durable: every handler of the name is
// told of every object, whatever an earlier one was told.
//
// A handler that always panics on one object ends every process at the same
// notification, which the log names. To get past it, call ForgetDurableEventHandler
// before the handler is added.
func (s *SharedIndexInformer) AddDurableEventHandler(name string, h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	if name == "" {
		return nil, fmt.Errorf("warmwatch: add durable handler: a name %w", errRequired)
	}
	return s.addListener(h, name, cache.HandlerOptions{})
}

// ForgetDurableEventHandler removes what is kept for a durable name. The next
// handler of the name begins as the first one did. It fails while the name has a
// handler: errors.Is(err, [ErrInUse]).
func (s *SharedIndexInformer) ForgetDurableEventHandler(name string) error {
	if name == "" {
		return fmt.Errorf("warmwatch: forget durable handler: a name %w", errRequired)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.queue.Forget(name); err != nil {
		return err
	}
	s.turns.forget(name)
	return nil
}

func (s *SharedIndexInformer) addListener(h cache.ResourceEventHandler, durableName string, o cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	if isNil(h) {
		return nil, fmt.Errorf("warmwatch: add handler: a handler %w", errRequired)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return nil, fmt.Errorf("handler %v was not added to shared informer because it has stopped already", h)
	}
	l := &listener{
		s: s, handler: h, durable: durableName != "",
		name:     fmt.Sprintf("%T", h),
		logger:   ptr.Deref(o.Logger, s.logger),
		stopCh:   make(chan struct{}),
		finished: make(chan struct{}),
		synced:   make(chan struct{}),
		replaced: map[string]struct{}{},
	}
	l.syncing.Store(true) // Until the first check, as in client-go.
	if l.durable {
		l.name = durableName
		c, err := s.queue.Durable(durableName)
		if err != nil {
			return nil, fmt.Errorf("warmwatch: add durable handler: %w", err)
		}
		l.consumer, l.turn = c, s.turns.of(durableName)
	} else {
		l.consumer = s.queue.Plain()
	}
	s.setResyncLocked(l, ptr.Deref(o.ResyncPeriod, s.opts.ResyncPeriod))
	s.listeners[l] = struct{}{}
	if s.started {
		s.running.Go(l.run)
	}
	return l, nil
}

// RemoveEventHandler implements [cache.SharedInformer]. The name of a durable
// handler keeps its cursor.
func (s *SharedIndexInformer) RemoveEventHandler(handle cache.ResourceEventHandlerRegistration) error {
	l, ok := handle.(*listener)
	if !ok {
		return fmt.Errorf("invalid key type %T", handle)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ours := s.listeners[l]; !ours {
		return nil
	}
	delete(s.listeners, l)
	l.stop()
	l.consumer.Remove()
	if !s.started {
		close(l.finished)
	}
	return nil
}

// HasSynced implements [cache.ResourceEventHandlerRegistration].
func (l *listener) HasSynced() bool { return cache.IsDone(l.HasSyncedChecker()) }

// HasSyncedChecker implements [cache.ResourceEventHandlerRegistration].
func (l *listener) HasSyncedChecker() cache.DoneChecker {
	return doneChecker{fmt.Sprintf("SharedIndexInformer %T + event handler %s", l.s.example, l.name), l.synced}
}

// ShutdownChan is for [cache.ShutDownEventHandler].
func (l *listener) ShutdownChan() <-chan struct{} { return l.finished }

// stop makes the listener end after the callback in flight.
func (l *listener) stop() {
	l.stopOnce.Do(func() { close(l.stopCh) })
	l.consumer.Stop()
}

func (l *listener) stopped() bool {
	select {
	case <-l.stopCh:
		return true
	default:
		return false
	}
}

// pause waits for d, and reports false if the listener was stopped meanwhile.
func (l *listener) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-l.stopCh:
		return false
	}
}

func (l *listener) run() {
	defer close(l.finished)
	select {
	case <-l.s.served:
	case <-l.stopCh:
		return
	}
	if !l.takeTurn() {
		return
	}
	defer l.endTurn()
	if l.consumer.Known {
		l.initialHead.Store(l.s.queue.Head())
	}
	l.s.running.Go(l.watchSynced) // Not waited for here: a handler's panic must not wait.
	if l.consumer.Known {
		l.logger.V(4).Info("A durable handler goes on", "handler", l.name, "from", l.consumer.Cursor())
	} else if !l.tellEverything() {
		return
	}
	for {
		if l.informerSynced.Load() && l.consumer.Cursor() >= l.initialHead.Load() {
			l.syncOnce.Do(func() { close(l.synced) })
		}
		if l.resyncWanted.Swap(false) && !l.resync() {
			return
		}
		ds, err := l.consumer.Next()
		if errors.Is(err, queue.ErrLost) {
			if !l.tellEverything() {
				return
			}
			continue
		}
		if err != nil {
			if !l.failed(err) {
				return
			}
			continue
		}
		if !l.tellDeltas(ds) {
			return
		}
	}
}

// tellEverything tells of the undelivered deletions, and then of every object: at the
// start, and when the waiting deltas cannot be read.
func (l *listener) tellEverything() bool {
	l.toldEverything, l.inherits = true, l.consumer.Inherits()
	l.listedSeq, l.listedNew = 0, nil
	return l.tellUndelivered() && l.tellInitialList()
}

// failed reports whether to try again after the queue or the store could not be read.
func (l *listener) failed(err error) bool {
	if errors.Is(err, queue.ErrStopped) || errors.Is(err, ErrClosed) {
		return false
	}
	l.logger.Error(err, "Could not read what to tell a handler, trying again", "handler", l.name)
	return l.pause(readRetryDelay)
}

// watchSynced waits until the informer has synced. If the informer had to catch up
// first, the deltas up to then are initial items too.
func (l *listener) watchSynced() {
	select {
	case <-l.s.synced:
	case <-l.stopCh:
		return
	}
	if l.s.cache.opts.SyncPolicy == SyncFromServer {
		l.initialHead.Store(max(l.initialHead.Load(), l.s.queue.Head()))
	}
	l.informerSynced.Store(true)
	l.consumer.Interrupt()
}

func (l *listener) tellDeltas(ds []queue.Delta) bool {
	for i := range ds {
		if l.stopped() {
			return false
		}
		d := &ds[i]
		if !l.toldByInitialList(d) && !l.tell(d) {
			return false
		}
		l.consumer.Acknowledge(d.Seq)
	}
	return true
}

// tellUndelivered tells of the undelivered deletions.
func (l *listener) tellUndelivered() bool {
	l.inherits = l.consumer.Inherits()
	for {
		ds, err := l.consumer.Orphans()
		if err != nil {
			if !l.failed(err) {
				return false
			}
			continue
		}
		if len(ds) == 0 {
			if !l.durable { // A durable handler may find more behind its cursor.
				l.inherits = l.consumer.Inherits()
			}
			return true
		}
		for i := range ds {
			if l.stopped() {
				return false
			}
			ds[i].Replaced = false // The initial list, not an update, tells of the new object.
			if ds[i].Type == cache.Deleted && !l.tell(&ds[i]) {
				return false
			}
			l.consumer.Acknowledge(ds[i].Seq)
		}
	}
}

// tellInitialList tells of every object. A chunk is read, at its own moment, while the
// one before is told, and its Seq is noted: later, deltas up to that Seq are left out.
// So no snapshot is held while a handler runs.
func (l *listener) tellInitialList() bool {
	if l.durable {
		if err := l.consumer.WaitDurable(l.s.servedAt.Load()); err != nil {
			return false
		}
	}
	endBallast := func() {}
	defer func() { endBallast() }()
	begin, first := l.consumer.Cursor(), true
	ok := l.chunks(l.readInitialList, func(c indexer.Chunk) bool {
		if first && !l.inherits {
			l.consumer.WalkFrom(c.Seq)
		}
		if first && !c.Done {
			endBallast = l.s.indexer.Ballast()
		}
		first = false
		l.noteNew(c, begin)
		l.listedSeq = max(l.listedSeq, c.Seq)
		d := queue.Delta{Type: cache.Added}
		for i, obj := range c.Objects {
			d.Key, d.Seq = c.Keys[i], c.Seqs[i]
			if l.stopped() || !l.call(&d, func() { l.handler.OnAdd(obj, true) }) {
				return false
			}
		}
		return true
	})
	if ok {
		l.consumer.WalkDone()
	}
	return ok
}

func (l *listener) noteNew(c indexer.Chunk, begin uint64) {
	if !l.inherits {
		return
	}
	if l.listedNew == nil {
		l.listedNew = map[string]struct{}{}
	}
	for i, seq := range c.Seqs {
		if seq > begin {
			l.listedNew[c.Keys[i]] = struct{}{}
		}
	}
}

const (
	// chunksAhead is how many chunks are read and decoded before they are told.
	chunksAhead = 2
	// chunkReads is how many listeners of an informer read a chunk at once. More
	// would only wait for locks that the next event needs too, and while they wait
	// would not notice that they were removed.
	chunkReads = 4
)

// chunks calls tell with all objects until tell returns false. It reads some chunks ahead.
func (l *listener) chunks(read func(from string) (indexer.Chunk, error), tell func(indexer.Chunk) bool) bool {
	ahead := make(chan chan indexer.Chunk, chunksAhead)
	gaveUp := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(gaveUp)
	wg.Go(func() {
		defer close(ahead)
		for from, done := "", false; !done; {
			c, err := read(from)
			if err != nil {
				if !l.failed(err) {
					return
				}
				continue
			}
			from, done = c.Next, c.Done
			decoded := make(chan indexer.Chunk, 1)
			wg.Go(func() { decoded <- l.s.indexer.DecodeChunk(c) })
			select {
			case ahead <- decoded:
			case <-gaveUp:
				return
			}
		}
	})
	for decoded := range ahead {
		c := <-decoded
		if !tell(c) {
			return false
		}
		if c.Done {
			return true
		}
	}
	return false
}

// readInitialList is readChunk for the initial list. The queue notes the Seq of each chunk.
func (l *listener) readInitialList(from string) (c indexer.Chunk, err error) {
	err = l.consumer.Walk(from, func() (queue.WalkedRange, error) {
		c, err = l.readChunk(from)
		return queue.WalkedRange{To: c.Next, Last: c.Done, Seq: c.Seq}, err
	})
	return c, err
}

func (l *listener) readChunk(from string) (indexer.Chunk, error) {
	select {
	case l.s.reads <- struct{}{}:
		defer func() { <-l.s.reads }()
	case <-l.stopCh:
	}
	if l.stopped() {
		return indexer.Chunk{}, queue.ErrStopped
	}
	return l.s.indexer.ReadChunk(from, l.durable)
}

// toldByInitialList reports whether the initial list has told of a delta's outcome already.
func (l *listener) toldByInitialList(d *queue.Delta) bool {
	if d.Seq > l.listedSeq {
		l.listedSeq, l.listedNew = 0, nil
		return false
	}
	if d.Seq > l.consumer.WalkedTo(d.Key) {
		return false
	}
	_, again := l.listedNew[d.Key]
	return d.Type != cache.Deleted || !l.inherits || again
}

// tell calls the handler for a delta, and reports whether to go on.
func (l *listener) tell(d *queue.Delta) bool {
	return l.call(d, func() {
		switch {
		case d.Replaced && !l.durable && d.Type == cache.Deleted: // The update follows.
		case d.Replaced && l.durable && d.Type == cache.Deleted:
			l.replaced[d.Key] = struct{}{}
			l.handler.OnDelete(d.Object())
		case d.Replaced && l.durable && d.Type == cache.Updated && d.New != nil:
			// The deletion was told before, by this process or an earlier one, unless it came
			// before the handler did. Then the initial list told of the old object nevertheless.
			if _, told := l.replaced[d.Key]; !told && l.toldEverything && d.Old != nil {
				l.handler.OnDelete(cache.DeletedFinalStateUnknown{Key: d.Key, Obj: d.Old})
			}
			delete(l.replaced, d.Key)
			l.handler.OnAdd(d.New, false)
		case d.Type == cache.Deleted:
			l.handler.OnDelete(d.Object())
		case d.New == nil: // The object could not be read.
		case d.Type == cache.Sync:
			if l.syncing.Load() {
				l.handler.OnUpdate(d.Old, d.New)
			}
		case d.Old != nil:
			l.handler.OnUpdate(d.Old, d.New)
		default:
			l.handler.OnAdd(d.New, false)
		}
	})
}

// call runs the callback for a delta as client-go's processorListener does: a panic
// ends the program, or if that is switched off, costs a pause and the notification.
func (l *listener) call(d *queue.Delta, f func()) bool {
	if l.sleepAfterCrash && !l.pause(crashPause) {
		return false
	}
	l.sleepAfterCrash = true
	func() {
		defer func() {
			if r := recover(); r != nil {
				l.crashed(r, d)
			}
		}()
		f()
		l.sleepAfterCrash = false
	}()
	return true
}
