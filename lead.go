package warmwatch

import (
	"errors"
	"sync"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"github.com/warmwatch/warmwatch/internal/checkpoint"
)

const (
	// leadAnswers is how many answers in a row have to be below the file's version: a cache between here and the server
	// may be behind for a while. If it is for longer, objects that exist are told as deleted, and then as added.
	leadAnswers = 6
	// leadPause is the time before the server is asked, and asked again: usually the watch comes to the file's version
	// within a second. A server that has come to it is asked less often, each leadHolds.
	leadPause = 10 * time.Second
	// leadHolds is how long the verdict holds after the last answer: a server that was put back goes on, and its versions
	// pass the file's.
	leadHolds = time.Minute
)

// A lead is how far a file that waits to be taken over is ahead of the informer's store. Either the watch or a list
// will bring what the store lacks; or the server was put back, and does not have it any more. The server says which:
// it is asked for its version. Time alone does not tell, because a link may be slow, and a watch silent.
type lead struct {
	mu      sync.Mutex
	ask     func() (version string, err error) // Nil before the informer runs.
	seen    string                             // The latest version in the file that the store has not come to, if any.
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

// forget forgets the verdict, which is about a file that is not the same any more.
func (l *lead) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen, l.below = "", 0
}

var errNoAnswer = errors.New("the server was not asked")

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
		answer, err := "", errNoAnswer // If it panics.
		defer func() { l.answered(version, answer, err) }()
		answer, err = l.ask()
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
		l.below, l.askAt = 0, now.Add(leadHolds)
	}
}
