package reflector

import (
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// eventBuffer is how many events are decoded ahead, so that decoding and storing run
// at the same time.
const eventBuffer = 128

// endsEarly: a watch that ends earlier than this before its timeout was cut.
const endsEarly = time.Second

// watcher forwards the events of a watch, and notes how the watch ends.
type watcher struct {
	r        *Resumer
	inner    *handover
	events   chan watch.Event
	stopped  chan struct{}
	ended    chan struct{} // Closed when nothing comes any more.
	stopOnce sync.Once
	expired  chan string // Capacity 1: the reason why the watch must end now.
	// received counts the events. asked counts the calls of ResultChan: the Reflector calls it before each event, when
	// it is done with the one before.
	received, asked atomic.Int64
}

func newWatcher(r *Resumer, inner *handover) *watcher {
	w := &watcher{
		r: r, inner: inner,
		events:  make(chan watch.Event, eventBuffer),
		stopped: make(chan struct{}),
		ended:   make(chan struct{}),
		expired: make(chan string, 1),
	}
	if inner.first != nil {
		w.received.Add(1)
	}
	return w
}

// ResultChan implements [watch.Interface].
func (w *watcher) ResultChan() <-chan watch.Event {
	w.asked.Add(1)
	return w.events
}

// behind reports whether the Reflector is not done with a received event, or an event may be on its way from the
// client.
func (w *watcher) behind() bool {
	decoding := w.inner.meter.Bytes() > 0 && !w.inner.meter.Waits()
	return decoding || w.received.Load() > max(0, w.asked.Load()-1)
}

// came returns a number that grows with every event and every byte of one.
func (w *watcher) came() int64 { return w.received.Load() + w.inner.meter.Bytes() }

// Stop implements [watch.Interface].
func (w *watcher) Stop() {
	w.stopOnce.Do(func() { close(w.stopped) })
}

// expire ends the watch with a 410, as a server does that no longer has the history.
func (w *watcher) expire(reason string) {
	select {
	case w.expired <- reason:
	default: // The watch is about to end already.
	}
}

func (w *watcher) run() {
	sawEvent := false
	var err error
	defer func() {
		w.inner.Stop()
		if err == nil {
			w.r.ended(ending{sawEvent: sawEvent, early: time.Since(w.inner.opened) < w.inner.lasts-endsEarly})
			w.r.informer.Disconnected(nil)
		}
		close(w.ended)
		close(w.events)
	}()
	// fail sends an error to the Reflector. It calls ended first, because the Reflector may call List at once.
	fail := func(status runtime.Object) {
		err = apierrors.FromObject(status)
		w.r.ended(ending{err: err, sawEvent: sawEvent, byEvent: true})
		w.r.informer.Disconnected(err)
		w.send(watch.Event{Type: watch.Error, Object: status})
	}
	forward := func(e watch.Event) bool {
		sawEvent = true
		if e.Type != watch.Bookmark {
			w.r.sink.checkType(e.Object)
		}
		w.r.informer.Contact()
		return w.send(e)
	}
	if first := w.inner.first; first != nil && !forward(*first) {
		return
	}
	for {
		select {
		case <-w.stopped:
			return
		case reason := <-w.expired:
			fail(expiredStatus(reason))
			return
		case e, ok := <-w.inner.ResultChan():
			switch {
			case !ok:
				if w.inner.unproven && !sawEvent && time.Since(w.inner.opened) < quickClose {
					fail(expiredStatus(closedAtOnce))
				}
				return
			case e.Type == watch.Error:
				fail(e.Object)
				return
			}
			w.received.Add(1)
			if !forward(e) {
				return
			}
		}
	}
}

func (w *watcher) send(e watch.Event) bool {
	select {
	case w.events <- e:
		return true
	case <-w.stopped:
		return false
	}
}
