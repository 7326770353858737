package processor

import (
	"slices"
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/indexer"
)

// minimumResyncPeriod is client-go's (shared_informer.go).
const minimumResyncPeriod = time.Second

// setResyncLocked follows client-go's AddEventHandlerWithOptions. A period is at least a second. Before the start the
// shortest period becomes the check period. After the start no period is shorter than the check period.
func (p *Processor) setResyncLocked(l *listener, period time.Duration) {
	if period > 0 {
		if period < minimumResyncPeriod {
			l.logger().Info("Warning: resync period is too small. Changing it to the minimum allowed value", "resyncPeriod", period, "minimumResyncPeriod", minimumResyncPeriod)
			period = minimumResyncPeriod
		}
		if period < p.checkPeriod {
			if p.started {
				l.logger().Info("Warning: resync period is smaller than resync check period and the informer has already started. Changing it to the resync check period", "resyncPeriod", period, "resyncCheckPeriod", p.checkPeriod)
				period = p.checkPeriod
			} else {
				p.checkPeriod = period
				for other := range p.listeners {
					other.setPeriodLocked(p.checkPeriod)
				}
			}
		}
	}
	l.requested = period
	l.setPeriodLocked(p.checkPeriod)
	l.next = time.Now().Add(l.period)
}

// setPeriodLocked sets the handler's resync period, given the check period.
func (l *listener) setPeriodLocked(check time.Duration) {
	switch {
	case l.requested == 0:
		l.period = 0
	case check == 0:
		l.logger().Info("Warning: the specified resyncPeriod is invalid because this shared informer doesn't support resyncing", "desired", l.requested)
		l.period = 0
	default:
		l.period = max(l.requested, check)
	}
}

// dueLocked reports whether the handler is to resync now.
func (l *listener) dueLocked(now time.Time) bool {
	if l.period == 0 || now.Before(l.next) {
		return false
	}
	l.next = now.Add(l.period)
	return true
}

// ShouldResync reports whether a handler is to resync now. The Reflector calls it every
// check period, and then Resync.
func (p *Processor) ShouldResync() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	some, now := false, time.Now()
	for l := range p.listeners {
		due := l.dueLocked(now)
		l.syncing.Store(due)
		some = some || due
	}
	return some
}

// Resync makes the listeners that are due call their handlers for all objects again.
func (p *Processor) Resync() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.listeners {
		if l.syncing.Load() {
			l.resyncWanted.Store(true)
			if l.consumer != nil {
				l.consumer.Interrupt()
			}
		}
	}
}

// resync calls OnUpdate for every object, with the same object as old and new. It leaves out objects with a pending
// delta: that will be delivered.
func (l *listener) resync() bool {
	return l.eachChunk(false, func(_ string, c indexer.Chunk) bool {
		if l.consumer.Behind().Deltas > 0 {
			c.Objects = slices.Clone(c.Objects)
			for i, seq := range c.Seqs {
				if seq > l.deliveredSeq {
					c.Objects[i] = nil
				}
			}
		}
		return l.deliverObjects(c, cache.Sync, func(obj any) { l.handler.OnUpdate(obj, obj) })
	})
}
