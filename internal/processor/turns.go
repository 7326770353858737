package processor

import (
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"github.com/warmwatch/warmwatch/queue"
)

// turns has one semaphore for each durable name, held by the listener whose handler
// runs. RemoveEventHandler does not wait for the callback in flight, and the name can
// be used again at once: the first callback of the next handler waits for its turn.
type turns map[string]chan struct{}

// of returns the semaphore of a name.
func (ts turns) of(name string) chan struct{} {
	turn, known := ts[name]
	if !known {
		turn = make(chan struct{}, 1)
		ts[name] = turn
	}
	return turn
}

// forget drops the semaphore of a name, unless a handler still runs.
func (ts turns) forget(name string) {
	if len(ts[name]) == 0 {
		delete(ts, name)
	}
}

// takeTurn waits until no other handler of the durable name runs. It reports false if
// the listener is stopped; else endTurn must follow.
func (l *listener) takeTurn() bool {
	if !l.durable {
		return true
	}
	select {
	case l.turn <- struct{}{}:
		return true
	case <-l.stopCh:
		return false
	}
}

func (l *listener) endTurn() {
	if l.durable {
		<-l.turn
	}
}

// crashed handles the panic of a callback as client-go does, and logs in the same line
// which delta the handler was told of.
func (l *listener) crashed(r any, d *queue.Delta) {
	logger := l.log().WithValues("handler", l.name, "key", d.Key, "type", d.Type, "seq", d.Seq)
	if l.durable {
		logger = logger.WithValues("panics", l.notePanic(d.Key),
			"wayPast", "If it panics here in every process, the object is set aside (Options.MaxPanics); or call ForgetDurableEventHandler with this name: the next handler of the name then begins with all objects")
	}
	defer utilruntime.HandleCrashWithLogger(logger)
	panic(r)
}
