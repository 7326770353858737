package warmwatch

import (
	"sync"
	"time"

	"github.com/warmwatch/warmwatch/internal/checkpoint"
)

// quietTime after a resumed watch was opened, or after its last event, the watch counts
// as caught up, if all that has come is applied: a bookmark may take a minute.
const quietTime = 500 * time.Millisecond

// bookmarkTime is how soon a server sends a bookmark, about one a minute, once it has sent
// the watch all earlier events.
const bookmarkTime = 2 * time.Minute

// syncGate finds out when the informer has caught up with the server, by a resumed
// watch or by a relist. If it is armed, HasSynced waits for that.
type syncGate struct {
	// caughtUp is called once or more, without mu. quiet says that only silence shows it.
	caughtUp func(quiet bool)
	// behind reports whether something has come by the watch that is not applied yet. It is
	// called without mu.
	behind func() bool

	mu     sync.Mutex
	armed  bool   // SyncFromServer, and not yet caught up.
	passed bool   // The informer has caught up once.
	target string // The server's version at the resumption.
	timer  *time.Timer
	watch  bool // A watch is open.
}

func (g *syncGate) arm() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.armed = true
}

// waits reports whether HasSynced must stay false.
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
		// Nobody may have read the watch since it was opened, so it is given some time.
		g.timer = time.AfterFunc(max(quietTime-time.Since(when), quietTime/2), g.quiet)
	}
	there := g.reachedLocked(rv)
	g.mu.Unlock()
	if there {
		g.pass(false)
	}
}

// heard is called when the server has sent something.
func (g *syncGate) heard() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waitLocked()
}

// waitLocked begins to wait for silence.
func (g *syncGate) waitLocked() {
	if g.timer != nil && !g.passed && g.watch {
		g.timer.Reset(quietTime)
	}
}

// reached is called when an event has brought the store to a resourceVersion.
func (g *syncGate) reached(rv string) {
	g.mu.Lock()
	there := g.reachedLocked(rv)
	g.waitLocked()
	g.mu.Unlock()
	if there {
		g.pass(false)
	}
}

func (g *syncGate) reachedLocked(rv string) bool {
	if g.passed || !g.watch {
		return false
	}
	order, ok := checkpoint.CompareVersions(rv, g.target)
	return ok && order >= 0
}

func (g *syncGate) quiet() {
	behind := g.behind()
	g.mu.Lock()
	if behind {
		g.waitLocked()
	}
	open := g.watch
	g.mu.Unlock()
	if open && !behind {
		g.pass(true)
	}
}

// pass opens the gate for good: the watch has caught up, or a relist is done.
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
