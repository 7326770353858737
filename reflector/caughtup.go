package reflector

import (
	"fmt"
	"time"

	"github.com/warmwatch/warmwatch/checkpoint"
)

const (
	// After quietTicks of silence, one after the other, an open watch has brought all there is. A process that was
	// stopped for a while notices only one tick, so it reads what has come meanwhile before the next one.
	quietTicks = 5
	// The silence lasts quietQuestions × the question's time, at least leastQuiet, at most mostQuiet. Without a meter
	// it lasts unmeteredQuiet.
	quietQuestions = 3
	leastQuiet     = 50 * time.Millisecond
	mostQuiet      = 2 * time.Second
	unmeteredQuiet = 500 * time.Millisecond
	// countPatience is how long the numbers of objects in the store and on the server may differ.
	countPatience = 5 * time.Second
)

// tick is how long one of quietTicks lasts.
func (w *watcher) tick() time.Duration {
	quiet := unmeteredQuiet
	if w.answer != nil && w.meter.Bytes() > 0 {
		quiet = min(max(quietQuestions*w.answer.took, leastQuiet), mostQuiet)
	}
	return quiet / quietTicks
}

// hasCaughtUp notes that the store has caught up with the server.
func (r *Resumer) hasCaughtUp() {
	r.mu.Lock()
	r.caughtUp = true
	r.mu.Unlock()
	r.informer.CaughtUp()
}

func (r *Resumer) isCaughtUp() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.caughtUp
}

// follow finds out when the store has caught up with the answer to the question beside its watch. There are two ways:
//
//   - An event or a bookmark at the answer's version, or a later one, is applied.
//   - The answer's version is the store's, or the watch is quiet and all that has come is applied. Besides, the store
//     has as many objects as the answer counts. If the numbers still differ after countPatience, the store is relisted.
//
// follow never waits for an event that is being applied. It ends with the watch, or when a relist is done: the store
// has caught up then, too.
func (r *Resumer) follow(w *watcher) {
	a, begun, came := w.answer, time.Now(), w.came()
	for quiet := w.quiet; !r.isCaughtUp(); quiet++ {
		at := r.sink.at()
		order, ok := checkpoint.CompareVersions(at, a.ResourceVersion)
		reached := ok && order >= 0
		silent := quiet >= quietTicks && !w.behind()
		switch {
		case reached && at != w.resourceVersion:
			r.hasCaughtUp()
			return
		case !reached && !silent:
		case a.Count < 0 || r.sink.counts(a.Count):
			r.hasCaughtUp()
			return
		case time.Since(begun) >= countPatience:
			r.ForceRelist(Relisting{Cause: checkpoint.CauseContradiction, Reason: fmt.Sprintf("the server has counted %d objects, the store has %d", a.Count, r.sink.indexer.Len()), Newest: true})
			return
		}
		select {
		case <-w.ended:
			return
		case <-time.After(w.tick()):
		}
		if now := w.came(); now != came {
			came, quiet = now, -1
		}
	}
}
