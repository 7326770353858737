package warmwatch

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

// start begins that time after a delay, once.
func (l *late) start(after time.Duration, end func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer == nil && !l.stopped {
		l.timer = time.AfterFunc(after+lateHandlers, end)
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

// caughtUp is called when the resumed watch has caught up with the server, and after each
// relist. If quiet, only silence says that the watch has caught up: it may be on a slow
// link, and events may still come.
func (s *SharedIndexInformer) caughtUp(quiet bool) {
	s.setSynced()
	s.queue.CaughtUp()
	after := time.Duration(0)
	if quiet {
		after = bookmarkTime
	}
	s.late.start(after, s.queue.ReleaseOrphans)
}
