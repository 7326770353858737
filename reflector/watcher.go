package reflector

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/warmwatch/warmwatch/internal/request"
)

// eventBuffer is how many events are decoded ahead, so that decoding and storing run
// at the same time.
const eventBuffer = 128

// endsEarly: a watch that ends earlier than this before its timeout was cut.
const endsEarly = time.Second

// A watcher is an open watch. A List may keep it for the Reflector's next Watch. Then it runs: it forwards the events,
// which it reads ahead, and notes how the watch ends.
type watcher struct {
	r               *Resumer
	inner           watch.Interface
	cancel          context.CancelFunc // Ends the context of inner.
	resourceVersion string
	opened          time.Time
	lasts           time.Duration // The timeout that it was opened with, see endsEarly.
	answer          *reply        // The answer to the question beside it. Nil: there was no question.
	meter           request.Meter
	quiet           int          // The number of silent ticks so far, see follow.
	first           *watch.Event // An event that await has received, or nil.
	unproven        bool         // A resumed watch that counts as expired if it closes at once.

	events   chan watch.Event
	stopped  chan struct{}
	ended    chan struct{} // Closed when nothing comes any more.
	stopOnce sync.Once
	expired  chan string // Capacity 1: the reason why the watch must end now.
	// received counts the events. asked counts the calls of ResultChan: the Reflector calls it before each event, when
	// it is done with the one before.
	received, asked atomic.Int64
}

// end ends the watch and its context.
func (w *watcher) end() {
	w.inner.Stop()
	w.cancel()
}

// ResultChan implements [watch.Interface].
func (w *watcher) ResultChan() <-chan watch.Event {
	w.asked.Add(1)
	return w.events
}

// behind reports whether the Reflector is not done with a received event, or an event may be on its way from the
// client.
func (w *watcher) behind() bool {
	decoding := w.meter.Bytes() > 0 && !w.meter.Waits()
	return decoding || w.received.Load() > max(0, w.asked.Load()-1)
}

// came returns a number that grows with every event and every byte of one.
func (w *watcher) came() int64 { return w.received.Load() + w.meter.Bytes() }

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
	var err error
	defer func() {
		w.end()
		if err == nil {
			w.r.ended(ending{early: time.Since(w.opened) < w.lasts-endsEarly})
			w.r.informer.Disconnected(nil)
		}
		close(w.ended)
		close(w.events)
	}()
	// fail sends an error to the Reflector. It calls ended first, because the Reflector may call List at once.
	fail := func(status runtime.Object) {
		err = apierrors.FromObject(status)
		w.r.ended(ending{err: err, byEvent: true})
		w.r.informer.Disconnected(err)
		w.send(watch.Event{Type: watch.Error, Object: status})
	}
	forward := func(e watch.Event) bool {
		w.received.Add(1)
		if e.Type != watch.Bookmark {
			w.r.sink.checkType(e.Object)
		}
		w.r.informer.Contact()
		return w.send(e)
	}
	if w.first != nil && !forward(*w.first) {
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
				if w.unproven && w.received.Load() == 0 && time.Since(w.opened) < quickClose {
					fail(expiredStatus(closedAtOnce))
				}
				return
			case e.Type == watch.Error:
				fail(e.Object)
				return
			}
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
