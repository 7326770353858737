package warmwatch_test

import (
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
)

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
