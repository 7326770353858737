package processor

import (
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/queue"
)

// knownBackoff is the pause after Known has failed.
var knownBackoff = wait.Backoff{Duration: time.Second, Cap: time.Minute, Steps: 1 << 30, Factor: 2, Jitter: 0.2}

// askKnown begins to ask for the keys that the handler knows, if it has a Known function. A handler that starts over is
// asked again.
func (l *listener) askKnown() {
	if l.named.Known != nil {
		l.p.running.Go(l.waitForKnown)
	}
}

// waitForKnown waits until the cache has caught up, then asks until there is an answer.
func (l *listener) waitForKnown() {
	if !waitFor(l, l.p.opts.CaughtUp) {
		return
	}
	ctx := wait.ContextForChannel(l.stopCh)
	for backoff := knownBackoff; ; {
		keys, err := l.named.Known(ctx)
		if err == nil {
			l.unknown.Store(&keys)
			l.consumer.Interrupt()
			return
		}
		if l.stopped() {
			return
		}
		l.logger().Error(err, "Could not find out which objects a handler knows, trying again", "handler", l.name)
		if !waitFor(l, time.After(backoff.Step())) {
			return
		}
	}
}

// deliverUnknown calls OnDelete for each of the objects that the store lacks.
func (l *listener) deliverUnknown(keys []cache.ObjectName) bool {
	for _, name := range keys {
		d := queue.Delta{Type: cache.Deleted, Key: name.String(), FinalStateUnknown: true}
		exists, err := l.exists(d.Key)
		for ; err != nil; exists, err = l.exists(d.Key) {
			if !l.failed(err) {
				return false
			}
		}
		if exists {
			continue
		}
		if !l.call(&d, func() { l.handler.OnDelete(d.Object()) }) {
			return false
		}
		l.forgetPanics(d.Key)
	}
	return true
}

// exists reports whether the store or the file has an object. If only the file has it, its deletion is not durable yet:
// the handler will get that delta.
func (l *listener) exists(key string) (bool, error) {
	if _, exists, err := l.p.store.GetByKey(key); exists || err != nil {
		return exists, err
	}
	return l.p.store.InFile(key)
}
