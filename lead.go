package warmwatch

import (
	"sync"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"github.com/warmwatch/warmwatch/internal/checkpoint"
)

const (
	// leadAnswers is how often in a row the server has to answer that it is below what a file has seen: a cache
	// between here and the server may be behind for a while.
	leadAnswers = 6
	// leadPause is the time before the server is asked, and asked again: usually the watch comes to what the file has
	// seen within a second.
	leadPause = 10 * time.Second
	// leadHolds is how long that holds after the last answer: the server goes on.
	leadHolds = time.Minute
)

// A lead is what a file that can be taken over has seen of the server, and the store has not. Either the watch or
// a list will bring it; or the server has another history since, in which it does not exist. The server says which:
// it is asked for its version. Time alone does not tell, because a link may be slow, and a watch silent.
type lead struct {
	mu      sync.Mutex
	ask     func() (version string, err error) // Nil before the informer runs.
	seen    string                             // The version that the file has seen, empty if there is no lead.
	below   int                                // How many answers in a row were below it.
	belowAt time.Time                          // When the last of them came.
	askAt   time.Time
	pending bool // The server was asked, and has not answered.
}

func (l *lead) setAsk(ask func() (string, error)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ask = ask
}

// isOfOtherHistory reports whether the server does not have what the file has seen.
func (l *lead) isOfOtherHistory() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.below >= leadAnswers && time.Since(l.belowAt) < leadHolds
}

// found notes that the file has seen a version, and asks the server if it is time for that. It does not wait for
// the answer.
func (l *lead) found(version string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if l.seen != version {
		l.seen, l.below, l.askAt = version, 0, now.Add(leadPause)
	}
	if l.ask == nil || l.pending || now.Before(l.askAt) {
		return
	}
	l.pending = true
	go func() { // Nothing waits for it, because its List may never return.
		defer utilruntime.HandleCrash()
		answer, err := l.ask()
		l.answered(version, answer, err)
	}()
}

func (l *lead) answered(version, answer string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.pending, l.askAt = false, now.Add(leadPause)
	order, ok := checkpoint.CompareVersions(answer, version)
	switch {
	case err != nil || !ok || l.seen != version:
	case order < 0:
		l.below, l.belowAt = l.below+1, now
	default:
		l.below = 0
	}
}
