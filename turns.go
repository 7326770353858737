package warmwatch

import (
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"github.com/warmwatch/warmwatch/queue"
)

// turns has one element for each durable name, taken by the listener whose handler
// runs. RemoveEventHandler does not wait for the callback in flight, and the name
// can be used again at once: the next handler's first callback waits here.
type turns map[string]chan struct{}

// of returns the element of a name.
func (ts turns) of(name string) chan struct{} {
	turn, known := ts[name]
	if !known {
		turn = make(chan struct{}, 1)
		ts[name] = turn
	}
	return turn
}

// forget drops the element of a name, unless a handler still runs.
func (ts turns) forget(name string) {
	if len(ts[name]) == 0 {
		delete(ts, name)
	}
}

// takeTurn waits until no other handler of the durable name runs, and reports
// whether to go on. Then endTurn must be called.
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

// crashed handles the panic of a callback as client-go does, and says in the same
// line of the log which delta it was told of.
func (l *listener) crashed(r any, d *queue.Delta) {
	logger := l.logger.WithValues("handler", l.name, "key", d.Key, "type", d.Type, "seq", d.Seq)
	if l.durable {
		logger = logger.WithValues("wayPast", "If it panics here in every process, call ForgetDurableEventHandler with this name: the next handler of the name then begins with all objects")
	}
	defer utilruntime.HandleCrashWithLogger(logger)
	panic(r)
}
