package warmwatch

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// quietTime after a resumed watch was opened, or after its last event, counts
// as having caught up: a bookmark may not come for a minute.
const quietTime = 500 * time.Millisecond

// bookmarkTime is within which a server sends a bookmark, about one a minute, once the watch
// has been sent all that came before.
const bookmarkTime = 2 * time.Minute

// syncGate finds out when the informer has caught up with the server: by a resumed
// watch, or by a relist. HasSynced waits for it if it is armed.
type syncGate struct {
	// caughtUp is called once or more, without the gate's lock; quiet if nothing else says so
	// than that no event comes.
	caughtUp func(quiet bool)

	mu     sync.Mutex
	armed  bool // SyncFromServer, and not yet caught up.
	passed bool // Has caught up, for good.
	target string
	timer  *time.Timer
	watch  bool // A watch is open.
}

func (g *syncGate) arm() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.armed = true
}

// waits reports whether nobody may pass yet.
func (g *syncGate) waits() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.armed
}

func (g *syncGate) aim(serverVersion string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.target = serverVersion
}

func (g *syncGate) opened(when time.Time, rv string) {
	g.mu.Lock()
	g.watch = true
	if !g.passed {
		if g.timer != nil {
			g.timer.Stop()
		}
		g.timer = time.AfterFunc(quietTime-time.Since(when), g.quiet)
	}
	there := g.reachedLocked(rv)
	g.mu.Unlock()
	if there {
		g.pass(false)
	}
}

// reached tells of the resourceVersion that an event has brought the store to.
func (g *syncGate) reached(rv string) {
	g.mu.Lock()
	there := g.reachedLocked(rv)
	if g.timer != nil && !g.passed && g.watch {
		g.timer.Reset(quietTime)
	}
	g.mu.Unlock()
	if there {
		g.pass(false)
	}
}

func (g *syncGate) reachedLocked(rv string) bool {
	if g.passed || !g.watch {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(rv, g.target)
	return err == nil && order >= 0
}

func (g *syncGate) quiet() {
	g.mu.Lock()
	open := g.watch
	g.mu.Unlock()
	if open {
		g.pass(true)
	}
}

// pass lets through for good: caught up, or relisted.
func (g *syncGate) pass(quiet bool) {
	g.mu.Lock()
	g.armed, g.passed = false, true
	if g.timer != nil {
		g.timer.Stop()
	}
	g.mu.Unlock()
	g.caughtUp(quiet)
}

func (g *syncGate) interrupted() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.watch = false
	if g.timer != nil {
		g.timer.Stop()
	}
}
