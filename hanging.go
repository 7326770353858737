package warmwatch

import (
	"context"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

// unreturned is a callback or a reconcile that has not returned, or, without an object, a handler
// that is between two callbacks.
type unreturned struct {
	kind, name, object string
	since              time.Time
}

func (s *SharedIndexInformer) unreturned() []unreturned {
	var all []unreturned
	for _, h := range s.processor.Unfinished() {
		all = append(all, unreturned{"handler", h.Handler, h.Key, h.Since})
	}
	return append(all, s.reconciling.unreturned()...)
}

func (u unreturned) log(s *SharedIndexInformer, what string) {
	logger := s.parts.Load().logger.WithValues(u.kind, u.name)
	if !u.since.IsZero() {
		logger = logger.WithValues("object", u.object, "running", time.Since(u.since).Round(time.Second))
	}
	logger.Info(what)
}

// hangingCallback is how long a callback or a reconcile runs before that is logged, once, and hangingLook how often it is
// looked for.
const (
	hangingCallback = time.Minute
	hangingLook     = 10 * time.Second
)

// logHanging logs what has been running for long, so that somebody finds it who does not look at the status.
func (s *SharedIndexInformer) logHanging(ctx context.Context) {
	defer utilruntime.HandleCrashWithContext(ctx)
	logged := map[unreturned]bool{}
	ticker := time.NewTicker(hangingLook)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		still := map[unreturned]bool{}
		for _, u := range s.unreturned() {
			if u.since.IsZero() || time.Since(u.since) < hangingCallback {
				continue
			}
			if !logged[u] {
				u.log(s, "A handler or a reconcile has not returned for a while")
			}
			still[u] = true
		}
		logged = still
	}
}
