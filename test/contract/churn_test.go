package contract_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/recorder"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

// bubbleGoroutines returns how many goroutines the bubbles of synctest have.
// runtime.NumGoroutine also counts the runtime's own while they run finalizers.
func bubbleGoroutines() int {
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	return bytes.Count(stacks, []byte("synctest bubble"))
}

// TestHandlersThatComeAndGoDoNotKeepTheInformerFromItsEvents is the idea of client-go's
// TestSharedInformerHandlerAbuse: handlers are added and removed as fast as can be,
// until the informer has handled some changes. It never does if removed handlers
// go on with what they were doing. How many handlers come and go meanwhile means
// nothing: in client-go they wait for the informer, in warmwatch they do not.
func TestHandlersThatComeAndGoDoNotKeepTheInformerFromItsEvents(t *testing.T) {
	// There are more changes than objects: client-go's version is that of an update.
	const workers, patience = 100, 10_000_000
	objects := testsupport.Rounds(100, 50)
	changes := testsupport.Rounds(600, 400)
	contract(t, func(t *testing.T, impl implementation) {
		f := source.New(t)
		informer := impl.new(t, f)
		bubble.Start(t, informer)
		before := bubbleGoroutines()
		var added atomic.Int64
		var done atomic.Bool
		var wg sync.WaitGroup
		for w := range workers {
			wg.Go(func() {
				random := rand.New(rand.NewPCG(uint64(w), 1))
				var handles []cache.ResourceEventHandlerRegistration
				for !done.Load() && added.Load() < patience {
					if random.IntN(2) == 0 {
						h, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{})
						if err != nil {
							t.Error(err)
							return
						}
						handles = append(handles, h)
						added.Add(1)
					} else if len(handles) > 0 {
						i := random.IntN(len(handles))
						if err := informer.RemoveEventHandler(handles[i]); err != nil {
							t.Error(err)
							return
						}
						handles = append(handles[:i], handles[i+1:]...)
					}
				}
				for _, h := range handles {
					if err := cache.ShutDownEventHandler(informer, h); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Go(func() {
			defer done.Store(true)
			for i := range changes {
				f.Put(source.ConfigMap(fmt.Sprint(i % objects)))
			}
			for added.Load() < patience && informer.LastSyncResourceVersion() != fmt.Sprint(changes) {
				runtime.Gosched()
			}
		})
		wg.Wait()
		if n := added.Load(); n >= patience {
			t.Errorf("the informer is at %s of %d changes after %d handlers", informer.LastSyncResourceVersion(), changes, n)
		}
		synctest.Wait()
		if n := bubbleGoroutines(); n > before {
			t.Errorf("%d goroutines, and %d before the first handler", n, before)
		}
		r, registration := recorder.Add(t, informer)
		synctest.Wait()
		if !registration.HasSynced() || len(r.Take()) != objects {
			t.Error("a handler that comes later does not get everything")
		}
		process.ExpectStore(t, informer, f)
	})
}
