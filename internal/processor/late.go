package processor

import (
	"sync"
	"time"
)

// lateHandlers is how long, after the informer has caught up, a plain handler that is
// added is still told of the deletions of the downtime, and of those since.
// controller-runtime adds its handlers after the caches have synced.
const lateHandlers = time.Minute

// late ends that time.
type late struct {
	mu      sync.Mutex
	timer   *time.Timer
	stopped bool
}

// start begins that time, once.
func (l *late) start(end func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer == nil && !l.stopped {
		l.timer = time.AfterFunc(lateHandlers, end)
	}
}

func (l *late) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	if l.timer != nil {
		l.timer.Stop()
	}
}
