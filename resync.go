package warmwatch

import (
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/indexer"
	"github.com/warmwatch/warmwatch/queue"
)

// minimumResyncPeriod is client-go's (shared_informer.go).
const minimumResyncPeriod = time.Second

// setResyncLocked follows client-go's AddEventHandlerWithOptions. A period is at least
// a second. Before the start the shortest period becomes the check period, after it no
// period is shorter than that.
func (s *SharedIndexInformer) setResyncLocked(l *listener, period time.Duration) {
	if period > 0 {
		if period < minimumResyncPeriod {
			l.logger.Info("Warning: resync period is too small. Changing it to the minimum allowed value", "resyncPeriod", period, "minimumResyncPeriod", minimumResyncPeriod)
			period = minimumResyncPeriod
		}
		if period < s.resyncCheckPeriod {
			if s.started {
				l.logger.Info("Warning: resync period is smaller than resync check period and the informer has already started. Changing it to the resync check period", "resyncPeriod", period, "resyncCheckPeriod", s.resyncCheckPeriod)
				period = s.resyncCheckPeriod
			} else {
				s.resyncCheckPeriod = period
				for other := range s.listeners {
					other.setPeriod(s.resyncCheckPeriod)
				}
			}
		}
	}
	l.requested = period
	l.setPeriod(s.resyncCheckPeriod)
	l.next = time.Now().Add(l.period)
}

// setPeriod sets the handler's resync period, given the check period.
func (l *listener) setPeriod(check time.Duration) {
	l.resyncMu.Lock()
	defer l.resyncMu.Unlock()
	switch {
	case l.requested == 0:
		l.period = 0
	case check == 0:
		l.logger.Info("Warning: the specified resyncPeriod is invalid because this shared informer doesn't support resyncing", "desired", l.requested)
		l.period = 0
	default:
		l.period = max(l.requested, check)
	}
}

// due reports whether the handler is to resync now.
func (l *listener) due(now time.Time) bool {
	l.resyncMu.Lock()
	defer l.resyncMu.Unlock()
	if l.period == 0 || now.Before(l.next) {
		return false
	}
	l.next = now.Add(l.period)
	return true
}

// shouldResync is called by the Reflector every check period.
func (s *SharedIndexInformer) shouldResync() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	some, now := false, time.Now()
	for l := range s.listeners {
		due := l.due(now)
		l.syncing.Store(due)
		some = some || due
	}
	return some
}

// resync makes the listeners that are due tell of all objects again.
func (s *SharedIndexInformer) resync() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.listeners {
		if l.syncing.Load() {
			l.resyncWanted.Store(true)
			l.consumer.Interrupt()
		}
	}
}

// resync tells of every object, with the same one as old and new. It leaves out objects
// with a delta that the handler was not told yet, because that will come.
func (l *listener) resync() bool {
	return l.chunks(l.readChunk, func(c indexer.Chunk) bool {
		d := queue.Delta{Type: cache.Sync}
		for i, obj := range c.Objects {
			if c.Seqs[i] > l.consumer.Cursor() {
				continue
			}
			d.Key, d.Seq = c.Keys[i], c.Seqs[i]
			if l.stopped() || !l.call(&d, func() { l.handler.OnUpdate(obj, obj) }) {
				return false
			}
		}
		return true
	})
}
