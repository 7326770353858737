package warmwatch_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// TestWhatIsInFlightWhileTheCacheIsBeingClosedFindsTheObjects: a program may close the Cache without
// waiting for Run. A handler or a reconcile that syncs all that it lists must not find nothing then.
func TestWhatIsInFlightWhileTheCacheIsBeingClosedFindsTheObjects(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"), configMap("b"))
		// Nothing is kept in memory, so that List reads the file.
		p := launch(t, testsupport.Path(t), f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.MemoryBudget = 1 })
		var mu sync.Mutex
		found := map[string]int{}
		work := func(who string) {
			time.Sleep(time.Second)
			mu.Lock()
			defer mu.Unlock()
			found[who] = len(p.informer.GetStore().List())
		}
		w := addReconciler(t, p, 1)
		r := addDurable(t, p, "d")
		plain, _ := add(t, p.informer)
		p.run()
		settle()
		w.set(func(context.Context, string) error { work("reconciler"); return nil })
		r.during = func(string) { work("durable handler") }
		plain.during = func(string) { work("handler") }
		f.put(configMap("c"))
		time.Sleep(100 * time.Millisecond)
		if err := p.cache.Close(); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, who := range []string{"reconciler", "durable handler", "handler"} {
			if found[who] != 3 {
				t.Errorf("the %s has listed %d objects, want 3", who, found[who])
			}
		}
	})
}
