package warmwatch_test

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// TestTheLogAndTheStatusNameWhatDoesNotReturn: each callback and reconcile is an error, again each ten minutes.
func TestTheLogAndTheStatusNameWhatDoesNotReturn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		logger, logged := loggerOf("has not returned")
		f := newSource(t, configMap("a"))
		p := launch(t, testsupport.Path(t), f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.Logger = logger })
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
		for i, after := range []time.Duration{2 * hangs, 7 * hangs, 3 * hangs, 10 * hangs} {
			time.Sleep(after)
			lines := logged()
			if want := []int{2, 2, 4, 6}[i]; len(lines) != want {
				t.Errorf("logged, expected %d: %q", want, lines)
				break // What hangs is to end.
			}
			for n, what := range []string{`"handler"="slow"`, `"reconciler"="r"`} {
				line := lines[len(lines)-2+n]
				if !strings.Contains(line, what+` "object"="ns/a" "running"=`) || strings.Contains(line, `"level"=`) { // Errors have none.
					t.Errorf("logged: %s", line)
				}
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
		if lines := logged(); len(lines) != 8 { // Of the next callback and the next reconcile.
			t.Errorf("logged: %q", lines)
		}
	})
}

// hangs is how long a callback runs before it is logged.
const hangs = time.Minute

// TestWaitForHandlerSync waits for each handler that was not told of all objects, unless it is removed.
func TestWaitForHandlerSync(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"))
		p := launch(t, testsupport.Path(t), f, nil)
		other, err := p.cache.NewSharedIndexInformer(f, &corev1.ConfigMap{}, warmwatch.InformerOptions{Resource: configMaps, Name: "never runs"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := other.AddEventHandler(&recorder{}); err != nil {
			t.Fatal(err)
		}
		waited := func(patience time.Duration) bool {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			return p.cache.WaitForHandlerSync(ctx)
		}
		if !waited(time.Second) {
			t.Error("it waits for an informer that does not run")
		}
		p.run()
		settle()
		slow := &recorder{during: func(string) { time.Sleep(time.Minute) }}
		if _, err := p.informer.AddEventHandler(slow); err != nil {
			t.Fatal(err)
		}
		if waited(time.Second) {
			t.Error("it does not wait for a handler")
		}
		if !waited(time.Hour) {
			t.Error("the handler has not synced")
		}
		slow.expect(t, "add ns/a@1 initial")
		_, hung, release := addHung(t, p, "hangs", "add ns/a@1 initial")
		go func() {
			time.Sleep(time.Minute)
			remove(t, p, hung)
		}()
		if waited(time.Second) || !waited(time.Hour) {
			t.Error("it waits for a handler that was removed, or not for one that was not")
		}
		close(release)
		if !waited(time.Second) {
			t.Error("it waits although all have synced")
		}
	})
}
