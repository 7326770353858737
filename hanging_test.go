package warmwatch_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// TestTheLogAndTheStatusNameWhatDoesNotReturn, each callback and reconcile once.
func TestTheLogAndTheStatusNameWhatDoesNotReturn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		logger, logged := loggerOf("has not returned")
		f := newSource(t, configMap("a"))
		p := launch(t, testsupport.Path(t), f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.Logger = &logger })
		w := addReconciler(t, p, 1)
		hang := make(chan struct{})
		w.set(func(context.Context, string) error { <-hang; return nil })
		addDurable(t, p, "slow").during = func(string) { <-hang }
		addDurable(t, p, "quick").during = func(string) { time.Sleep(hangs / 2) }
		began := time.Now()
		p.run()
		time.Sleep(hangs / 2)
		if lines := logged(); len(lines) > 0 {
			t.Errorf("logged at once: %q", lines)
		}
		for range 3 { // Once.
			time.Sleep(2 * hangs)
			lines := logged()
			if len(lines) != 2 || !strings.Contains(lines[0], `"handler"="slow" "object"="ns/a" "running"=`) ||
				!strings.Contains(lines[1], `"reconciler"="r" "object"="ns/a" "running"=`) {
				t.Fatalf("logged: %q", lines)
			}
		}
		for _, h := range p.informer.Status().Handlers {
			if slow := h.Name == "slow"; slow != (h.Callback == "ns/a") || slow != (!h.CallbackSince.IsZero() && h.CallbackSince.Sub(began) < hangs) {
				t.Errorf("status: %+v", h)
			}
		}
		close(hang)
		settle()
		if h := p.informer.Status().Handlers; h[1].Callback != "" || !h[1].CallbackSince.IsZero() {
			t.Errorf("afterwards: %+v", h)
		}
		hang = make(chan struct{})
		f.put(configMap("a"))
		time.Sleep(3 * hangs)
		close(hang)
		settle()
		if lines := logged(); len(lines) != 4 { // Of the next callback and the next reconcile.
			t.Errorf("logged: %q", lines)
		}
	})
}

// hangs is how long a callback runs before it is logged.
const hangs = time.Minute
