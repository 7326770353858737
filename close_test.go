package warmwatch_test

import (
	"context"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

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

// TestNewInformerOfAClosedCache does not run, and does not end the program: a program that ends may
// still ask for one, also while the Cache is being closed.
func TestNewInformerOfAClosedCache(t *testing.T) {
	for _, before := range []int{0, 1} {
		c, err := warmwatch.Open(t.Context(), testsupport.Path(t), warmwatch.Options{Logger: &testsupport.Quiet})
		if err != nil {
			t.Fatal(err)
		}
		f := newSource(t, configMap("a"))
		for range before {
			c.NewInformer(f, &corev1.ConfigMap{}, 0, nil)
		}
		var made sync.WaitGroup
		for range 10 {
			made.Go(func() {
				informer := c.NewInformer(f, &corev1.ConfigMap{}, 0, cache.Indexers{"none": func(any) ([]string, error) { return nil, nil }})
				r, _ := add(t, informer)
				if err := c.Close(); err != nil {
					t.Error(err)
				}
				informer.RunWithContext(t.Context())
				r.expect(t)
			})
		}
		made.Wait()
		informer := c.NewInformer(f, &corev1.ConfigMap{}, 0, nil)
		r, _ := add(t, informer)
		informer.RunWithContext(t.Context())
		r.expect(t)
		if got := informer.GetStore().List(); len(got) != 0 || informer.HasSynced() {
			t.Errorf("the store has %v, synced %v", got, informer.HasSynced())
		}
	}
}
