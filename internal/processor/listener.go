package processor

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/warmwatch/warmwatch/persist"
	"github.com/warmwatch/warmwatch/queue"
)

const (
	// crashPause follows a handler's panic, when panics do not end the program, as
	// in client-go's processorListener.run.
	crashPause = time.Second
	// readRetryDelay is the pause after the store or the queue could not be read.
	readRetryDelay = time.Second
)

// listener calls one handler, in one goroutine. It tells it first of all objects (the
// initial list), then of every delta. A durable handler of a known name begins with the
// deltas. One that starts over is told of the deletions that wait for it first.
//
// It implements cache.ResourceEventHandlerRegistration.
type listener struct {
	p         *Processor
	handler   cache.ResourceEventHandler
	name      string       // For logs and Status.
	ownLogger *klog.Logger // Of the options of the handler, nil if they have none: see log.
	consumer  *queue.Consumer
	durable   bool
	turn      chan struct{} // Of the durable name, see turns.

	stopCh   chan struct{}
	stopOnce sync.Once
	finished chan struct{} // Closed when the handler is not called any more.
	synced   chan struct{} // Closed when the initial items were handled, and the informer has synced.
	syncOnce sync.Once
	// initialHead is the Seq up to which deltas count as initial items.
	initialHead atomic.Uint64
	// initialList says that the handler has not been told of all objects yet.
	initialList atomic.Bool
	inFlight    inFlight
	// informerSynced says that the informer has synced.
	informerSynced atomic.Bool

	// listedSeq is the greatest Seq as of which the initial list told of an object, 0 once
	// the cursor has passed it: see Consumer.ListedAt.
	listedSeq uint64
	// startsOver: it must be told of all deletions, also of objects that the initial list does not have any more. See
	// Consumer.StartsOver.
	startsOver bool
	// toldReplaced has the Seqs of the deletions that tellReplaced has told of.
	toldReplaced map[uint64]struct{}
	// untoldByList has the keys of deletions up to listedSeq that the handler is told of behind the list, see isUntold.
	// What follows about such a key is told as well: the list has told its outcome, and the deletion takes that back.
	untoldByList map[string]struct{}

	// leftOut has the keys of objects that could not be read when the handler, a durable one, was told
	// of all, and that it has not been told of since. Until there are none, its list is not done.
	leftOut map[string]struct{}

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

// log returns the logger of the handler's options, or else that of the informer.
func (l *listener) log() klog.Logger { return ptr.Deref(l.ownLogger, l.p.opts.Logger) }

// HasSynced implements [cache.ResourceEventHandlerRegistration].
func (l *listener) HasSynced() bool { return cache.IsDone(l.HasSyncedChecker()) }

// HasSyncedChecker implements [cache.ResourceEventHandlerRegistration].
func (l *listener) HasSyncedChecker() cache.DoneChecker {
	return NewDoneChecker(fmt.Sprintf("%s + event handler %s", l.p.opts.Informer, l.name), l.synced)
}

// ShutdownChan is for [cache.ShutDownEventHandler].
func (l *listener) ShutdownChan() <-chan struct{} { return l.finished }

// IsRemoved reports whether the handler was removed, or the Processor was stopped. Its name may be another one's
// then, although it may not have returned from its last callback.
func (l *listener) IsRemoved() bool { return l.stopped() }

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
	select {
	case <-time.After(d):
		return true
	case <-l.stopCh:
		return false
	}
}

func (l *listener) run() {
	defer close(l.finished)
	select {
	case <-l.p.opts.Served:
	case <-l.stopCh:
		return
	}
	if !l.takeTurn() {
		return
	}
	defer l.endTurn()
	if l.consumer.Known {
		l.initialHead.Store(l.p.opts.Log.Head())
		l.initialList.Store(false) // The handler before may have ended its list meanwhile.
	}
	l.p.running.Go(l.watchSynced) // Not waited for here: a handler's panic must not wait.
	if l.consumer.Known {
		l.log().V(4).Info("A durable handler goes on", "handler", l.name, "from", l.consumer.Cursor())
	} else if !l.tellEverything() {
		return
	}
	for {
		if l.informerSynced.Load() && l.consumer.Cursor() >= l.initialHead.Load() {
			l.syncOnce.Do(func() { close(l.synced) })
		}
		if !l.redeliver() || l.resyncWanted.Swap(false) && !l.resync() {
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

// tellEverything calls the handler for every object, at the start and when the waiting deltas cannot be read. A handler
// that starts over gets the undelivered deletions first. tellEverything waits until the informer has synced, so that no
// handler is called for objects that are gone.
func (l *listener) tellEverything() bool {
	select {
	case <-l.p.opts.Synced:
	case <-l.stopCh:
		return false
	}
	l.startsOver = l.consumer.StartsOver()
	l.listedSeq, l.toldReplaced, l.untoldByList = 0, nil, nil
	l.initialList.Store(true)
	told := l.tellUndelivered() && l.tellInitialList()
	l.initialList.Store(!told)
	return told
}

// failed reports whether to try again after the queue or the store could not be read.
func (l *listener) failed(err error) bool {
	if errors.Is(err, queue.ErrStopped) || errors.Is(err, persist.ErrClosed) {
		return false
	}
	l.log().Error(err, "Could not read what to tell a handler, trying again", "handler", l.name)
	return l.pause(readRetryDelay)
}

// watchSynced waits until the informer has synced. The deltas up to then are initial items.
func (l *listener) watchSynced() {
	select {
	case <-l.p.opts.Synced:
	case <-l.stopCh:
		return
	}
	l.initialHead.Store(max(l.initialHead.Load(), l.p.opts.Log.Head()))
	l.informerSynced.Store(true)
	l.consumer.Interrupt()
}

func (l *listener) tellDeltas(ds []queue.Delta) bool {
	for i := range ds {
		if l.stopped() {
			return false
		}
		d := &ds[i]
		told, goOn, concerns := false, true, !l.toldByInitialList(d) && l.concerns(d)
		if concerns {
			told, goOn = l.tell(d)
		}
		if !goOn {
			return false
		}
		l.acknowledge(d, told)
		if concerns { // If it was not told, it is set aside, and the list owes nothing any more.
			l.noteTold(d)
		}
	}
	return true
}

// tellUndelivered tells of the undelivered deletions.
func (l *listener) tellUndelivered() bool {
	for {
		ds, err := l.consumer.Undelivered()
		if err != nil {
			if !l.failed(err) {
				return false
			}
			continue
		}
		if len(ds) == 0 {
			return true
		}
		for i := range ds {
			if l.stopped() {
				return false
			}
			ds[i].Replaced = false // The initial list, not an update, tells of the new object.
			told, goOn := false, true
			if ds[i].Type == cache.Deleted {
				told, goOn = l.tell(&ds[i])
			}
			if !goOn {
				return false
			}
			l.acknowledge(&ds[i], told)
		}
	}
}

// concerns reports whether there is something to tell of a delta: not if its object could not be read, nor if it changed
// nothing and the handler does not resync.
func (l *listener) concerns(d *queue.Delta) bool {
	if d.Type == cache.Sync && !l.syncing.Load() && !l.consumer.Unseen(d.Key) {
		return false
	}
	return d.New != nil || d.Type == cache.Deleted
}

// tell calls the handler for a delta, see call.
func (l *listener) tell(d *queue.Delta) (told, goOn bool) {
	if d.Type != cache.Deleted && l.consumer.Unseen(d.Key) {
		d.Type, d.Old = cache.Added, nil
	}
	return l.call(d, func() {
		switch {
		case d.Replaced && !l.durable && d.Type == cache.Deleted: // The update follows.
		case d.Type == cache.Deleted:
			l.handler.OnDelete(d.Object())
		case d.Replaced && l.durable: // The deletion of the old object came before.
			l.handler.OnAdd(d.New, false)
		case d.Old != nil || d.Type == cache.Sync:
			l.handler.OnUpdate(d.Old, d.New)
		default:
			l.handler.OnAdd(d.New, false)
		}
	})
}

// call runs the callback for a delta, unless the object of the delta is set aside. It reports
// whether it has done so, and whether to go on.
func (l *listener) call(d *queue.Delta, f func()) (told, goOn bool) {
	if withheld, goOn := l.withheld(d); withheld {
		return false, goOn
	}
	goOn = l.callNow(d, f)
	return goOn, goOn
}

// callNow runs the callback for a delta as client-go's processorListener does: a panic
// ends the program, or if that is switched off, costs a pause and the notification.
func (l *listener) callNow(d *queue.Delta, f func()) bool {
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
		l.inFlight.set(d.Key, time.Now())
		defer l.inFlight.set("", time.Time{})
		f()
		l.sleepAfterCrash = false
		l.consumer.Returned(d.Key)
	}()
	return true
}
