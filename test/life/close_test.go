package life_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/recorder"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

func TestAClosedCacheSaysSo(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"))
		p := process.Launch(t, testsupport.Path(t), f, nil).Run()
		never, err := p.Cache.NewSharedIndexInformer(f, &corev1.ConfigMap{}, warmwatch.InformerOptions{Resource: process.ConfigMaps, Name: "never run"})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := p.Cache.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		}
		if _, err := p.Cache.NewSharedIndexInformer(f, &corev1.ConfigMap{}, warmwatch.InformerOptions{Resource: process.ConfigMaps, Name: "late"}); !errors.Is(err, warmwatch.ErrClosed) {
			t.Errorf("a new informer: %v", err)
		}
		if !p.Informer.IsStopped() || !never.IsStopped() {
			t.Error("the informers are not stopped")
		}
		never.RunWithContext(t.Context())
		if err := p.Informer.GetStore().Add(source.ConfigMap("a")); err == nil {
			t.Errorf("write: %v", err)
		}
		if _, _, err := p.Informer.GetStore().GetByKey("ns/none"); err != nil {
			t.Logf("read: %v", err) // Nothing, or an error.
		}
		p.Cache.Status()
	})
}

func TestClosingDoesNotWaitForAHandlerThatHangs(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"))
		path := testsupport.Path(t)
		p := process.Launch(t, path, f, nil)
		release := make(chan struct{})
		d := &recorder.Recorder{During: func(event string) {
			if event == "add ns/b@2" {
				<-release
			}
		}}
		if _, err := p.Informer.AddDurableEventHandler("d", d, warmwatch.DurableOptions{}); err != nil {
			t.Fatal(err)
		}
		p.Run()
		bubble.Settle()
		f.Put(source.ConfigMap("b"), source.ConfigMap("c"))
		bubble.Settle()
		if err := p.Cache.Close(); err != nil {
			t.Fatal(err)
		}
		q := process.Launch(t, path, f, nil)
		again := process.AddDurable(t, q, "d")
		q.Run()
		bubble.Settle()
		again.Expect(t, "add ns/b@2", "add ns/c@3")
		close(release)
		q.Stop()
	})
}

// TestWhatIsInFlightWhileTheCacheIsBeingClosedFindsTheObjects: a program may close the Cache without
// waiting for Run. A handler or a reconcile that syncs all that it lists must not find nothing then.
func TestWhatIsInFlightWhileTheCacheIsBeingClosedFindsTheObjects(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"))
		// Nothing is kept in memory, so that List reads the file.
		p := process.Launch(t, testsupport.Path(t), f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.MemoryBudget = 1 })
		var mu sync.Mutex
		found := map[string]int{}
		work := func(who string) {
			time.Sleep(time.Second)
			mu.Lock()
			defer mu.Unlock()
			found[who] = len(p.Informer.GetStore().List())
		}
		w := addReconciler(t, p, 1)
		r := process.AddDurable(t, p, "d")
		plain, _ := recorder.Add(t, p.Informer)
		p.Run()
		bubble.Settle()
		w.set(func(context.Context, string) error { work("reconciler"); return nil })
		r.During = func(string) { work("durable handler") }
		plain.During = func(string) { work("handler") }
		f.Put(source.ConfigMap("c"))
		time.Sleep(100 * time.Millisecond)
		if err := p.Cache.Close(); err != nil {
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
		f := source.New(t, source.ConfigMap("a"))
		for range before {
			c.NewInformer(f, &corev1.ConfigMap{}, 0, nil)
		}
		var made sync.WaitGroup
		for range 10 {
			made.Go(func() {
				informer := c.NewInformer(f, &corev1.ConfigMap{}, 0, cache.Indexers{"none": func(any) ([]string, error) { return nil, nil }})
				r, _ := recorder.Add(t, informer)
				if err := c.Close(); err != nil {
					t.Error(err)
				}
				informer.RunWithContext(t.Context())
				r.Expect(t)
			})
		}
		made.Wait()
		informer := c.NewInformer(f, &corev1.ConfigMap{}, 0, nil)
		r, _ := recorder.Add(t, informer)
		informer.RunWithContext(t.Context())
		r.Expect(t)
		if got := informer.GetStore().List(); len(got) != 0 || informer.HasSynced() {
			t.Errorf("the store has %v, synced %v", got, informer.HasSynced())
		}
	}
}
