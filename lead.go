package warmwatch

import "sync"

// leadPatience: the informer lists once its file was found ahead this often, a second apart, while the server was heard.
// Usually the watch comes to what the file has seen within a second, but a cache between here and the server may be
// behind for a while.
const leadPatience = 60

// A lead is how far a file that waits to be taken over is ahead of the informer's store. Either the watch, or a list that
// is under way, will bring what the store lacks; or the server was put back, and does not have it any more. What decides
// is a list of the newest state that began after the file was found: the store has what exists then.
type lead struct {
	mu       sync.Mutex
	found    bool
	heard    int  // How often the file was found ahead while the server was heard.
	listing  bool // Such a list has begun.
	complete bool // It was complete.
}

// isDecided reports whether a list has shown that what the file has, and the store lacks, does not exist.
func (l *lead) isDecided() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.complete
}

// see notes that the file was found ahead, and reports whether it is time for a list. hears says that the server is
// heard, and no list is under way.
func (l *lead) see(hears bool) (list bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.found = true
	if hears {
		l.heard++
	}
	return hears && l.heard == leadPatience
}

// forget is called when the file has changed.
func (l *lead) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.found, l.heard, l.listing, l.complete = false, 0, false, false
}

// relistBegun is told whether the list is of the newest state.
func (l *lead) relistBegun(newest bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.listing = l.found && newest
}

func (l *lead) relistEnded(complete bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.complete = l.complete || l.listing && complete
	l.listing = false
}
