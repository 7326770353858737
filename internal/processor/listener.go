package processor

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
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
	// acknowledgeEvery is the time between two acknowledgements while a handler gets many deltas at once.
	acknowledgeEvery = time.Second
	// panicPatience is how long a panic that ends the process waits for the disk to note it.
	panicPatience = 5 * time.Second
)

// listener calls one handler, in one goroutine, for every delta. If the handler starts over, or is new, it is first
// called for all objects.
//
// It implements cache.ResourceEventHandlerRegistration.
type listener struct {
	p         *Processor
	handler   cache.ResourceEventHandler
	named     Name
	name      string          // For logs and Status.
	ownLogger *klog.Logger    // The logger of the handler's options, or nil: see logger.
	consumer  *queue.Consumer // Nil before the start.
	durable   bool

	stopCh   chan struct{}
	finished chan struct{} // Closed when the handler is not called any more.
	synced   chan struct{} // Closed when the initial items were handled, and the informer has synced.
	// initialHead is the number of the last initial item plus 1. It is 0 while that is not known.
	initialHead atomic.Uint64
	inFlight    atomic.Pointer[callback]
	skipped     atomic.Int64
	restarts    atomic.Pointer[map[string]int64] // How often it has started over, by cause.

	// unknown has the result of Known, until OnDelete is called for the objects that the store lacks.
	unknown atomic.Pointer[[]cache.ObjectName]

	unacked      []queue.Delta // The handler has returned from these deltas.
	deliveredSeq uint64        // The number of the last write that was delivered.

	sleepAfterCrash bool

	resyncWanted atomic.Bool // The handler is to be called for all objects again.
	syncing      atomic.Bool // The handler also gets deltas that changed nothing.
	// Guarded by Processor.mu:
	requested time.Duration
	period    time.Duration
	next      time.Time
}

var (
	_ cache.ResourceEventHandlerRegistration      = (*listener)(nil)
	_ interface{ ShutdownChan() <-chan struct{} } = (*listener)(nil)
)

// logger returns the logger of the handler's options, or else the informer's.
func (l *listener) logger() klog.Logger { return ptr.Deref(l.ownLogger, l.p.logger) }

// HasSynced implements [cache.ResourceEventHandlerRegistration].
func (l *listener) HasSynced() bool {
	select {
	case <-l.synced:
		return true
	default:
		return false
	}
}

// HasSyncedChecker implements [cache.ResourceEventHandlerRegistration].
func (l *listener) HasSyncedChecker() cache.DoneChecker {
	return NewDoneChecker(fmt.Sprintf("%s + event handler %s", l.p.opts.Informer, l.name), l.synced)
}

// ShutdownChan is for [cache.ShutDownEventHandler].
func (l *listener) ShutdownChan() <-chan struct{} { return l.finished }

// stopLocked makes the listener end after the callback in flight.
func (l *listener) stopLocked() {
	if !l.stopped() {
		close(l.stopCh)
	}
	if l.consumer != nil {
		l.consumer.Stop()
	}
}

func (l *listener) stopped() bool {
	select {
	case <-l.stopCh:
		return true
	default:
		return false
	}
}

// waitFor waits for a channel, and reports false if the listener was stopped meanwhile.
func waitFor[T any](l *listener, c <-chan T) bool {
	select {
	case <-c:
		return !l.stopped()
	case <-l.stopCh:
		return false
	}
}

func (l *listener) run() {
	defer func() { _ = l.consumer.Remove() }() // After ErrClosed nobody asks for the name.
	if !waitFor(l, l.p.opts.Served) {
		return
	}
	l.p.running.Go(l.watchSynced) // Not waited for here: a handler's panic must not wait.
	if !l.consumer.StartsOver() { // Otherwise startOver asks after the list.
		l.askKnown()
	}
	for goOn := true; goOn; {
		l.checkSynced()
		if l.resyncWanted.Swap(false) && !l.consumer.StartsOver() && !l.resync() { // An initial list replaces a resync.
			return
		}
		ds, err := l.consumer.Next()
		if keys := l.unknown.Load(); keys != nil && err == nil {
			l.unknown.Store(nil)
			if !l.deliverUnknown(*keys) {
				return
			}
		}
		switch {
		case errors.Is(err, queue.ErrStartOver):
			goOn = l.startOver()
		case err != nil:
			goOn = l.failed(err)
		default:
			goOn = l.deliverDeltas(ds)
		}
	}
}

// failed reports whether to try again after the queue or the store could not be read.
func (l *listener) failed(err error) bool {
	if errors.Is(err, queue.ErrStopped) || errors.Is(err, persist.ErrClosed) {
		return false
	}
	if !errors.Is(err, errNotListed) { // That damage is logged already.
		l.logger().Error(err, "Could not read the pending deltas of a handler, trying again", "handler", l.name)
	}
	return waitFor(l, time.After(readRetryDelay))
}

// watchSynced waits until the informer has synced. The deltas up to then are initial items.
func (l *listener) watchSynced() {
	if waitFor(l, l.p.opts.Synced) {
		l.initialHead.Store(l.p.queue.Head() + 1)
		l.consumer.Interrupt()
	}
}

// checkSynced notes whether the handler has synced.
func (l *listener) checkSynced() {
	if head := l.initialHead.Load(); head > 0 && !l.HasSynced() && l.consumer.Has(head-1) {
		close(l.synced)
	}
}

func (l *listener) deliverDeltas(ds []queue.Delta) bool {
	last := time.Now()
	defer l.acknowledge()
	for i := range ds {
		d := &ds[i]
		called := !l.consumer.Covers(d) && l.concerns(d)
		if called && !l.call(d, func() { l.deliver(d) }) {
			return false
		}
		l.unacked, l.deliveredSeq = ds[i-len(l.unacked):i+1], max(l.deliveredSeq, d.Seq)
		panicked := called && l.consumer.Panics(d.Key) > 0
		if now := time.Now(); panicked || now.Sub(last) >= acknowledgeEvery {
			last = now
			l.acknowledge()
		}
		if panicked { // After the acknowledgement: a crash must not repeat a skipped delta.
			l.forgetPanics(d.Key)
		}
	}
	return true
}

// acknowledge acknowledges the deltas that the handler has returned from. After ErrClosed they are delivered again.
func (l *listener) acknowledge() {
	_ = l.consumer.Acknowledge(l.unacked)
	l.unacked = nil
	l.checkSynced()
}

// forgetPanics forgets the panics on an object, because the handler has returned, or was not called. During an initial
// list, which a crash repeats, they count until its end. After ErrClosed they count a little longer.
func (l *listener) forgetPanics(key string) { _ = l.consumer.Returned(key) }

// concerns reports whether the handler is called for a delta. A delta that changed nothing is only for handlers that
// resync.
func (l *listener) concerns(d *queue.Delta) bool { return d.Type != cache.Sync || l.syncing.Load() }

// deliver calls the handler for a delta.
func (l *listener) deliver(d *queue.Delta) {
	switch {
	case d.Replaced && l.durable:
		gone := d.Deletion()
		l.handler.OnDelete(gone.Object())
		l.handler.OnAdd(d.New, false)
	case d.Type == cache.Deleted:
		l.handler.OnDelete(d.Object())
	case d.Old != nil || d.Type == cache.Sync:
		l.handler.OnUpdate(d.Old, d.New)
	default:
		l.handler.OnAdd(d.New, false)
	}
}

// call runs the callback for a delta as client-go's processorListener does. A panic ends the program. If that is
// switched off, the notification is lost, and a pause follows. A durable handler is not called for an object on which
// it has panicked too often. call returns false if the listener was stopped.
func (l *listener) call(d *queue.Delta, f func()) bool {
	if l.stopped() {
		return false
	}
	if n := l.p.opts.MaxPanics; n >= 0 && l.consumer.Panics(d.Key) >= max(n, 1) {
		l.skipped.Add(1)
		l.p.opts.OnSkip(l.name, d.Key)
		return true
	}
	if l.sleepAfterCrash && !waitFor(l, time.After(crashPause)) {
		return false
	}
	l.sleepAfterCrash = true
	func() {
		defer func() {
			if r := recover(); r != nil {
				l.crashed(r, d)
			}
		}()
		l.inFlight.Store(&callback{d.Key, time.Now()})
		defer l.inFlight.Store(nil)
		f()
		l.sleepAfterCrash = false
	}()
	return true
}

// crashed handles the panic of a callback as client-go does, and logs the callback's delta in the same line.
func (l *listener) crashed(r any, d *queue.Delta) {
	logger := l.logger().WithValues("handler", l.name, "key", d.Key, "type", d.Type)
	if l.durable {
		l.acknowledge()
		logger = logger.WithValues("panics", l.notePanic(d.Key),
			"wayPast", "If it panics here in every process, this change is skipped (Options.MaxPanics); or call ForgetDurable with this name: the next handler of the name then begins with all objects")
	}
	defer utilruntime.HandleCrashWithLogger(logger)
	panic(r)
}

// notePanic notes durably that a durable handler has panicked on an object. It notes nothing if the process goes on. A
// disk that does not answer does not keep the process from ending.
func (l *listener) notePanic(key string) (noted string) {
	if !utilruntime.ReallyCrash || l.p.opts.MaxPanics < 0 {
		return "not counted"
	}
	done := make(chan string, 1)
	go func() {
		count, err := l.consumer.NotePanic(key)
		if err != nil {
			done <- fmt.Sprintf("could not be counted: %v", err)
			return
		}
		done <- fmt.Sprintf("%d, the object is skipped after %d", count, l.p.opts.MaxPanics)
	}()
	select {
	case noted = <-done:
		return noted
	case <-time.After(panicPatience):
		return "could not be counted: no answer from the disk"
	}
}
