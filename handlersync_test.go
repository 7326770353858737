package warmwatch_test

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
)

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
