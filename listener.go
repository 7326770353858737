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
	// crashPause after a handler has panicked, when panics do not end the
	// program. client-go's processorListener.run.
	crashPause = time.Second
	// readRetryDelay after the store or the log could not be read.
	readRetryDelay = time.Second
)

// listener tells one handler, in one goroutine: of the deletions that the last
// process left untold, then of all objects, then of every delta. A durable one
// that is known begins with the deltas.
//
// It implements cache.ResourceEventHandlerRegistration.
type listener struct {
	s        *SharedIndexInformer
	handler  cache.ResourceEventHandler
	name     string // For people.
	logger   klog.Logger
	consumer *queue.Consumer
	durable  bool
	turn     chan struct{} // Of the durable name.

	stopCh   chan struct{}
	stopOnce sync.Once
	finished chan struct{} // Closed when the handler is not called any more.
	synced   chan struct{} // Closed when the initial items were handled, and the informer has synced.
	syncOnce sync.Once
	// initial is the Seq up to which deltas count as initial items, and
	// upstream says that the informer has synced.
	initial  atomic.Uint64
	upstream atomic.Bool

	// walkedSeq is the greatest Seq as of which the walk told of something, 0 when the
	// cursor is behind it: see Consumer.WalkedTo.
	walkedSeq uint64
	// inherits: the handlers of the last process may know objects that this one
	// has not been told of, and must be told of their deletion, which may come
	// with the deltas.
	inherits bool
	// walkedNew are the keys that the walk told of, of objects written since
	// the walk began. What was deleted before that is not told any more.
	walkedNew map[string]struct{}

	toldAll bool // By this process, with tellEverything.
	// replaced are the keys whose deletion was told, of objects that were made anew, and
	// whose new object was not yet.
	replaced map[string]struct{}

	sleepAfterCrash bool

	resyncWanted atomic.Bool // Tell everything again.
	syncing      atomic.Bool // Is told of deltas that changed nothing.
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
// first told, by OnDelete, of the deletions that the handlers of the last
// process had not been told of when it ended, and of those that have happened since,
// also of objects that this handler never heard of, and then of every object. One that
// is added later than a minute after the informer has caught up with the server is told
// of the objects only.
//
// Handlers must not change objects, as in client-go. Here the old and the new object
// of an update may share memory, so that to change one may change the other. A change
// of an unstructured object may also get into the file.
func (s *SharedIndexInformer) AddEventHandlerWithOptions(h cache.ResourceEventHandler, o cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	return s.addListener(h, "", o)
}

// AddDurableEventHandler adds a handler that goes on where the handler of this
// name stopped, in this process or an earlier one: it is told exactly what that
// one had not been told, or had not finished, in order, and nothing that it
// knows. The first handler of a name is told of every object first.
//
// It is told of a change only when the change is in the file, at most
// Options.DurableDelay later than others, so that what it was told is never
// taken back by a crash, and it hears of every deletion of an object that it
// was told of. Delivery is at least once: after a crash the last
// notifications, those finished within CommitInterval, may come again.
//
// The name holds deltas in the file even while no handler uses it, see
// [SharedIndexInformer.ForgetDurableEventHandler]. A name can have one handler
// at a time: errors.Is(err, [ErrInUse]). After RemoveEventHandler the name is
// free at once, and its next handler is called when the callback in flight of the
// one before has returned.
//
// Without a file (Status().MemoryOnly) nothing is durable: the handler is told of every
// object, whatever one of its name has been told before, and so is the next one.
//
// A handler that panics on an object every time ends every process at the same
// notification, which the log names. ForgetDurableEventHandler, called before the
// handler is added, is the way past.
func (s *SharedIndexInformer) AddDurableEventHandler(name string, h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	if name == "" {
		return nil, fmt.Errorf("warmwatch: add durable handler: a name %w", errRequired)
	}
	return s.addListener(h, name, cache.HandlerOptions{})
}

// ForgetDurableEventHandler removes what is kept for a durable name. The next
// handler of the name begins as the first one did. While the name has a handler
// it is an error: errors.Is(err, [ErrInUse]).
func (s *SharedIndexInformer) ForgetDurableEventHandler(name string) error {
	if name == "" {
		return fmt.Errorf("warmwatch: forget durable handler: a name %w", errRequired)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.log.Forget(name); err != nil {
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
		c, err := s.log.Durable(durableName)
		if err != nil {
			return nil, fmt.Errorf("warmwatch: add durable handler: %w", err)
		}
		l.consumer, l.turn = c, s.turns.of(durableName)
	} else {
		l.consumer = s.log.Plain()
	}
	s.setResyncLocked(l, ptr.Deref(o.ResyncPeriod, s.opts.ResyncPeriod))
	s.listeners[l] = struct{}{}
	if s.started {
		s.running.Go(l.run)
	}
	return l, nil
}

// RemoveEventHandler implements [cache.SharedInformer]. The name of a durable
// handler keeps its place.
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

// pause waits, and reports whether to go on.
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
		l.initial.Store(l.s.log.Head())
	}
	l.s.running.Go(l.watchSynced) // Not waited for here: a handler's panic must not wait.
	if l.consumer.Known {
		l.logger.V(4).Info("A durable handler goes on", "handler", l.name, "from", l.consumer.Cursor())
	} else if !l.tellEverything() {
		return
	}
	for {
		if l.upstream.Load() && l.consumer.Cursor() >= l.initial.Load() {
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
		if !l.tellAll(ds) {
			return
		}
	}
}

// tellEverything tells of the deletions that wait, and then of every object: at the
// start, and where what waits cannot be read.
func (l *listener) tellEverything() bool {
	l.toldAll, l.inherits = true, l.consumer.Inherits()
	l.walkedSeq, l.walkedNew = 0, nil
	return l.tellOrphans() && l.walk()
}

// failed reports whether to go on after the log or the store could not be read.
func (l *listener) failed(err error) bool {
	if errors.Is(err, queue.ErrStopped) || errors.Is(err, ErrClosed) {
		return false
	}
	l.logger.Error(err, "Could not read what to tell a handler, trying again", "handler", l.name)
	return l.pause(readRetryDelay)
}

// watchSynced waits for the informer. What it was told until then is initial
// too, if it had to catch up first.
func (l *listener) watchSynced() {
	select {
	case <-l.s.synced:
	case <-l.stopCh:
		return
	}
	if l.s.cache.opts.SyncPolicy == SyncFromServer {
		l.initial.Store(max(l.initial.Load(), l.s.log.Head()))
	}
	l.upstream.Store(true)
	l.consumer.Interrupt()
}

func (l *listener) tellAll(ds []queue.Delta) bool {
	for i := range ds {
		if l.stopped() {
			return false
		}
		d := &ds[i]
		if !l.toldByWalk(d) && !l.tell(d) {
			return false
		}
		l.consumer.Acknowledge(d.Seq)
	}
	return true
}

// tellOrphans tells of the deletions that were not told before.
func (l *listener) tellOrphans() bool {
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
			if !l.durable { // Else more may be behind its cursor.
				l.inherits = l.consumer.Inherits()
			}
			return true
		}
		for i := range ds {
			if l.stopped() {
				return false
			}
			ds[i].Replaced = false // The update that follows is not told: the new object is.
			if ds[i].Type == cache.Deleted && !l.tell(&ds[i]) {
				return false
			}
			l.consumer.Acknowledge(ds[i].Seq)
		}
	}
}

// walk tells of every object. Each chunk is read as it is at its moment, while
// the one before is told, and its Seq noted: deltas up to there are left out
// later. So no snapshot is held while a handler runs.
func (l *listener) walk() bool {
	if l.durable {
		if err := l.consumer.WaitDurable(l.s.servedAt.Load()); err != nil {
			return false
		}
	}
	endBallast := func() {}
	defer func() { endBallast() }()
	begin, first := l.consumer.Cursor(), true
	ok := l.chunks(l.readWalk, func(c indexer.Chunk) bool {
		if first && !l.inherits {
			l.consumer.WalkFrom(c.Seq)
		}
		if first && !c.Done {
			endBallast = l.s.indexer.Ballast()
		}
		first = false
		l.noteNew(c, begin)
		l.walkedSeq = max(l.walkedSeq, c.Seq)
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
	if l.walkedNew == nil {
		l.walkedNew = map[string]struct{}{}
	}
	for i, seq := range c.Seqs {
		if seq > begin {
			l.walkedNew[c.Keys[i]] = struct{}{}
		}
	}
}

const (
	// chunksAhead of the one that is being told are read and decoded.
	chunksAhead = 2
	// chunkReads is how many listeners of an informer read a chunk at once. More
	// would only wait for the same locks, which the next event needs too, and would
	// not notice there that they were removed.
	chunkReads = 4
)

// chunks calls tell with all objects, and reads some chunks ahead. What was
// read ahead is only told if tell goes on.
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

// readWalk is readChunk for a walk, of which the log knows as of when it tells.
func (l *listener) readWalk(from string) (c indexer.Chunk, err error) {
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

// toldByWalk reports whether the walk has told of a delta's outcome already.
func (l *listener) toldByWalk(d *queue.Delta) bool {
	if d.Seq > l.walkedSeq {
		l.walkedSeq, l.walkedNew = 0, nil
		return false
	}
	if d.Seq > l.consumer.WalkedTo(d.Key) {
		return false
	}
	_, again := l.walkedNew[d.Key]
	return d.Type != cache.Deleted || !l.inherits || again
}

// tell tells of a delta, and reports whether to go on.
func (l *listener) tell(d *queue.Delta) bool {
	return l.call(d, func() {
		switch {
		case d.Replaced && !l.durable && d.Type == cache.Deleted: // The update follows.
		case d.Replaced && l.durable && d.Type == cache.Deleted:
			l.replaced[d.Key] = struct{}{}
			l.handler.OnDelete(d.Object())
		case d.Replaced && l.durable && d.Type == cache.Updated && d.New != nil:
			// The deletion was told before, by this process or an earlier one, unless it came
			// before the handler did, whose first walk told of the old object all the same.
			if _, told := l.replaced[d.Key]; !told && l.toldAll && d.Old != nil {
				l.handler.OnDelete(cache.DeletedFinalStateUnknown{Key: d.Key, Obj: d.Old})
			}
			delete(l.replaced, d.Key)
			l.handler.OnAdd(d.New, false)
		case d.Type == cache.Deleted:
			l.handler.OnDelete(d.Object())
		case d.New == nil: // Could not be read.
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
