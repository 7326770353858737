package contract_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/recorder"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

func TestHasSyncedOfTheInformerAndOfEachRegistrationAreSeparateThings(t *testing.T) { // A6
	contract(t, func(t *testing.T, impl implementation) {
		f := source.New(t, source.ConfigMap("a"))
		listed, handled := make(chan struct{}), make(chan struct{})
		f.OnList = func(context.Context, metav1.ListOptions) (runtime.Object, error) { <-listed; return nil, nil }
		informer := impl.new(t, f)
		_, quick := recorder.Add(t, informer)
		slow, err := informer.AddEventHandler(&recorder.Recorder{During: func(string) { <-handled }})
		if err != nil {
			t.Fatal(err)
		}
		expect := func(when string, wantInformer, wantQuick, wantSlow bool) {
			t.Helper()
			synctest.Wait()
			for _, c := range []struct {
				name    string
				want    bool
				has     func() bool
				checker cache.DoneChecker
			}{
				{"the informer", wantInformer, informer.HasSynced, informer.HasSyncedChecker()},
				{"the controller", wantInformer, informer.GetController().HasSynced, informer.GetController().HasSyncedChecker()},
				{"the quick handler", wantQuick, quick.HasSynced, quick.HasSyncedChecker()},
				{"the slow handler", wantSlow, slow.HasSynced, slow.HasSyncedChecker()},
			} {
				if got, done := c.has(), cache.IsDone(c.checker); got != c.want || done != c.want {
					t.Errorf("%s: %s: HasSynced is %v and its checker %v, expected %v", when, c.name, got, done, c.want)
				}
				if !strings.HasPrefix(c.checker.Name(), "SharedIndexInformer *v1.ConfigMap") {
					t.Errorf("%s: checker is called %q", c.name, c.checker.Name())
				}
			}
		}
		expect("before the start", false, false, false)
		bubble.Start(t, informer)
		expect("before the list", false, false, false)
		close(listed)
		expect("after the list", true, true, false)
		close(handled)
		expect("after the slow handler has returned", true, true, true)
	})
}

func TestHasSyncedOfAnEmptyListIsTrue(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := source.New(t)
		informer := impl.new(t, f)
		_, registration := recorder.Add(t, informer)
		bubble.Start(t, informer)
		_, late := recorder.Add(t, informer)
		synctest.Wait()
		if !informer.HasSynced() || !registration.HasSynced() || !late.HasSynced() {
			t.Error("not synced")
		}
		if !cache.WaitFor(t.Context(), "", informer.HasSyncedChecker(), registration.HasSyncedChecker(), late.HasSyncedChecker()) {
			t.Error("WaitFor")
		}
	})
}

func TestALateRegistrationHasSyncedOnceItsInitialItemsWereHandled(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"))
		informer := impl.new(t, f)
		bubble.Start(t, informer)
		next := make(chan struct{})
		r := &recorder.Recorder{During: func(string) { <-next }}
		late, err := informer.AddEventHandler(r)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			synctest.Wait()
			if late.HasSynced() {
				t.Fatal("synced before its initial items were handled")
			}
			next <- struct{}{}
		}
		synctest.Wait()
		if !late.HasSynced() {
			t.Error("not synced after its initial items were handled")
		}
		close(next)
	})
}

func TestRemoveEventHandlerIsIdempotentAndAsynchronous(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := source.New(t, source.ConfigMap("a"))
		informer := impl.new(t, f)
		release := make(chan struct{})
		var registration cache.ResourceEventHandlerRegistration
		removed := &recorder.Recorder{}
		removed.During = func(string) {
			// Twice from inside of its callback, which then goes on.
			for range 2 {
				if err := informer.RemoveEventHandler(registration); err != nil {
					t.Error(err)
				}
			}
			<-release
		}
		registration, err := informer.AddEventHandler(removed)
		if err != nil {
			t.Fatal(err)
		}
		r, _ := recorder.Add(t, informer)
		bubble.Start(t, informer)
		f.Put(source.ConfigMap("a"))
		synctest.Wait()
		if err := informer.RemoveEventHandler(registration); err != nil {
			t.Error(err)
		}
		close(release)
		synctest.Wait()
		removed.Expect(t, "add ns/a@1 initial") // What was queued is dropped.
		r.Expect(t, "add ns/a@1 initial", "update ns/a@1→2")
	})
}

type foreignRegistration struct {
	cache.ResourceEventHandlerRegistration
}

func TestRemoveEventHandlerOfOthersDoesNothing(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := source.New(t, source.ConfigMap("a"))
		informer, other := impl.new(t, f), impl.new(t, f)
		r, registration := recorder.Add(t, informer)
		_, foreign := recorder.Add(t, other)
		if err := informer.RemoveEventHandler(foreign); err != nil {
			t.Errorf("the handle of another informer: %v", err)
		}
		if err := informer.RemoveEventHandler(nil); err == nil {
			t.Error("no error for nil")
		}
		if err := informer.RemoveEventHandler(foreignRegistration{registration}); err == nil {
			t.Error("no error for what cannot be a handle")
		}
		stop := bubble.Start(t, informer)
		r.Expect(t, "add ns/a@1 initial")
		stop()
		if err := informer.RemoveEventHandler(registration); err != nil {
			t.Errorf("after the stop: %v", err)
		}
	})
}

func TestShutDownEventHandlerWaitsForTheCallbackInFlight(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"))
		informer := impl.new(t, f)
		release, calls := make(chan struct{}), atomic.Int32{}
		registration, err := informer.AddEventHandler(&recorder.Recorder{During: func(string) { calls.Add(1); <-release }})
		if err != nil {
			t.Fatal(err)
		}
		bubble.Start(t, informer)
		down := atomic.Bool{}
		var wg sync.WaitGroup
		wg.Go(func() {
			for range 2 { // Idempotent.
				if err := cache.ShutDownEventHandler(informer, registration); err != nil {
					t.Error(err)
				}
			}
			down.Store(true)
		})
		synctest.Wait()
		if down.Load() {
			t.Error("did not wait")
		}
		close(release)
		wg.Wait()
		if n := calls.Load(); n != 1 {
			t.Errorf("%d callbacks, expected the one in flight", n)
		}
	})
}

func TestShutDownEventHandlerBeforeTheStartAndAfterTheStop(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := source.New(t, source.ConfigMap("a"))
		informer := impl.new(t, f)
		before, registration := recorder.Add(t, informer)
		if err := cache.ShutDownEventHandler(informer, registration); err != nil {
			t.Error(err)
		}
		_, registration = recorder.Add(t, informer)
		stop := bubble.Start(t, informer)
		stop()
		if err := cache.ShutDownEventHandler(informer, registration); err != nil {
			t.Error(err)
		}
		before.Expect(t)
	})
}

func TestAHandlerCanAddAHandler(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := source.New(t, source.ConfigMap("a"))
		informer := impl.new(t, f)
		inner, once := &recorder.Recorder{}, sync.Once{}
		_, err := informer.AddEventHandler(&recorder.Recorder{During: func(string) {
			once.Do(func() {
				if _, err := informer.AddEventHandler(inner); err != nil {
					t.Error(err)
				}
			})
		}})
		if err != nil {
			t.Fatal(err)
		}
		bubble.Start(t, informer)
		inner.Expect(t, "add ns/a@1 initial")
	})
}

func TestAfterTheStopNothingCanBeAdded(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := source.New(t, source.ConfigMap("a"))
		informer := impl.new(t, f)
		if informer.IsStopped() {
			t.Error("stopped before the start")
		}
		stop := bubble.Start(t, informer)
		if informer.IsStopped() {
			t.Error("stopped while it runs")
		}
		stop()
		if !informer.IsStopped() {
			t.Error("not stopped")
		}
		if _, err := informer.AddEventHandler(&recorder.Recorder{}); err == nil || !strings.Contains(err.Error(), "was not added to shared informer because it has stopped already") {
			t.Errorf("AddEventHandler: %v", err)
		}
		if err := informer.AddIndexers(cache.Indexers{"x": cache.MetaNamespaceIndexFunc}); err == nil || !strings.Contains(err.Error(), "stopped already") {
			t.Errorf("AddIndexers: %v", err)
		}
		if !informer.HasSynced() {
			t.Error("HasSynced is false after the stop")
		}
	})
}

func TestAnInformerRunsOnce(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := source.New(t, source.ConfigMap("a"))
		informer := impl.new(t, f)
		r, _ := recorder.Add(t, informer)
		stop := bubble.Start(t, informer)
		informer.RunWithContext(t.Context()) // Returns at once.
		informer.GetController().RunWithContext(t.Context())
		informer.GetController().Run(t.Context().Done())
		f.Put(source.ConfigMap("a"))
		synctest.Wait()
		r.Expect(t, "add ns/a@1 initial", "update ns/a@1→2")
		stop()
		informer.Run(t.Context().Done())
		want := 2
		if impl.name == oursFromMemory.name {
			want = 3
		}
		if got := len(f.TakeRequests()); got != want {
			t.Errorf("%d requests, expected a list and a watch, and one to look at", got)
		}
	})
}

func TestStoppingDropsWhatIsQueuedAndWaitsForTheCallbackInFlight(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := source.New(t, source.ConfigMap("a"))
		informer := impl.new(t, f)
		release := make(chan struct{})
		r := &recorder.Recorder{During: func(string) { <-release }}
		if _, err := informer.AddEventHandler(r); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		returned := make(chan struct{})
		go func() {
			informer.RunWithContext(ctx)
			close(returned)
		}()
		synctest.Wait()
		f.Put(source.ConfigMap("a"), source.ConfigMap("a"))
		synctest.Wait()
		cancel()
		bubble.Settle()
		select {
		case <-returned:
			t.Error("Run has returned before the callback")
		default:
		}
		close(release)
		<-returned
		r.Expect(t, "add ns/a@1 initial")
	})
}

func TestStoppingBeforeTheListIsThere(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := source.New(t, source.ConfigMap("a"))
		release := make(chan struct{})
		defer close(release)
		f.OnList = func(context.Context, metav1.ListOptions) (runtime.Object, error) { <-release; return nil, nil }
		informer := impl.new(t, f)
		r, registration := recorder.Add(t, informer)
		stop := bubble.Start(t, informer)
		stop() // Although the list hangs, and heeds no context.
		r.Expect(t)
		if informer.HasSynced() || registration.HasSynced() {
			t.Error("synced without a list")
		}
	})
}

func TestAPanickingHandlerPausesOneSecondAndTheItemIsSkipped(t *testing.T) {
	defer func(handlers []func(context.Context, any), crash bool) {
		utilruntime.PanicHandlers, utilruntime.ReallyCrash = handlers, crash
	}(utilruntime.PanicHandlers, utilruntime.ReallyCrash)
	utilruntime.ReallyCrash = false
	contract(t, func(t *testing.T, impl implementation) {
		var panics atomic.Int32
		utilruntime.PanicHandlers = []func(context.Context, any){func(context.Context, any) { panics.Add(1) }}
		f := source.New(t, source.ConfigMap("a"))
		informer := impl.new(t, f)
		var at []time.Duration
		begin := time.Now()
		r := &recorder.Recorder{During: func(event string) {
			at = append(at, time.Since(begin))
			if event == "add ns/a@1 initial" || event == "update ns/a@2→3" {
				panic("the handler's")
			}
		}}
		if _, err := informer.AddEventHandler(r); err != nil {
			t.Fatal(err)
		}
		bubble.Start(t, informer)
		f.Put(source.ConfigMap("a"), source.ConfigMap("a"), source.ConfigMap("b"), source.ConfigMap("c"))
		bubble.Settle()
		r.Expect(t, "update ns/a@1→2", "add ns/b@4", "add ns/c@5")
		if want := []time.Duration{0, time.Second, time.Second, 2 * time.Second, 2 * time.Second}; !slices.Equal(at, want) {
			t.Errorf("called at %v, expected %v", at, want)
		}
		if panics.Load() != 2 {
			t.Errorf("%d panics were handled, expected 2", panics.Load())
		}
	})
}

func TestSettingsFailAfterTheStart(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		informer := impl.new(t, source.New(t))
		settings := map[string]func() error{
			"SetTransform": func() error { return informer.SetTransform(func(obj any) (any, error) { return obj, nil }) },
			"SetWatchErrorHandler": func() error {
				return informer.SetWatchErrorHandler(func(*cache.Reflector, error) {})
			},
			"SetWatchErrorHandlerWithContext": func() error {
				return informer.SetWatchErrorHandlerWithContext(func(context.Context, *cache.Reflector, error) {})
			},
		}
		for name, set := range settings {
			if err := set(); err != nil {
				t.Errorf("%s before the start: %v", name, err)
			}
		}
		stop := bubble.Start(t, informer)
		for range 2 {
			for name, set := range settings {
				if err := set(); err == nil || err.Error() != "informer has already started" {
					t.Errorf("%s: %v", name, err)
				}
			}
			stop()
		}
	})
}

var errList = errors.New("the list is refused")

func TestTheWatchErrorHandlerIsGivenTheReflector(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := source.New(t, source.ConfigMap("a"))
		f.SetDown(errList)
		informer := impl.new(t, f)
		var errs []error
		if err := informer.SetWatchErrorHandler(func(r *cache.Reflector, err error) {
			if r.TypeDescription() != "*v1.ConfigMap" || r.LastSyncResourceVersion() != "" || r.Name() == "" {
				t.Errorf("not the reflector: %q, %q", r.TypeDescription(), r.LastSyncResourceVersion())
			}
			errs = append(errs, err)
		}); err != nil {
			t.Fatal(err)
		}
		r, _ := recorder.Add(t, informer)
		bubble.Start(t, informer)
		bubble.Settle()
		if len(errs) < 3 || !errors.Is(errs[0], errList) {
			t.Errorf("notified of %v", errs)
		}
		if informer.HasSynced() {
			t.Error("synced without a list")
		}
		f.SetDown(nil)
		bubble.Settle()
		r.Expect(t, "add ns/a@1 initial")
	})
}
