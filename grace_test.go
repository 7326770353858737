package warmwatch_test

import (
	"os"
	"testing"
	"time"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// TestADurableHandlerWaitsForTheDiskOrForTheGrace: nothing can be written, because another file has
// the name of ours.
func TestADurableHandlerWaitsForTheDiskOrForTheGrace(t *testing.T) {
	for name, grace := range map[string]time.Duration{"for the disk": 0, "for the grace": 10 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f, path := newSource(t, configMap("a")), testsupport.Path(t)
				withGrace := func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.DurableGrace = grace }
				p := launch(t, path, f, withGrace)
				d := addDurable(t, p, "d")
				p.run()
				settle()
				d.expect(t, "add ns/a@1 initial")
				if err := os.Rename(path, path+".moved"); err != nil {
					t.Fatal(err)
				}
				if err := os.Mkdir(path, 0o700); err != nil {
					t.Fatal(err)
				}
				f.put(configMap("a"), configMap("b"))
				settle()
				d.expect(t)
				advance(10 * time.Minute)
				first := addDurable(t, p, "first")
				advance(time.Second)
				f.put(configMap("b"))
				advance(time.Second)
				if grace > 0 {
					d.expect(t, "update ns/a@1→2", "add ns/b@3", "update ns/b@3→4")
					first.expect(t, "add ns/a@2 initial", "add ns/b@3 initial", "update ns/b@3→4")
				} else {
					d.expect(t)
					first.expect(t)
				}
				if p.informer.Status().Err == nil {
					t.Error("status says nothing")
				}
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
				settle()
				if grace == 0 {
					d.expect(t, "update ns/a@1→2", "add ns/b@3", "update ns/b@3→4")
				} else {
					d.expect(t)
				}
				p.stop()

				p = launch(t, path, f, withGrace)
				d = addDurable(t, p, "d")
				p.run()
				settle()
				d.expect(t) // Nothing again, and nothing is missing.
				expectStore(t, p.informer, f)
			})
		})
	}
}
