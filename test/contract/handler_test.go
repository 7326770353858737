package contract_test

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/recorder"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

// The tests in the contract_*_test.go files are of client-go's contract: each
// runs against client-go's informer and against warmwatch's.

func TestHandlersHearOfEveryChangeInTheOrderOfTheWatch(t *testing.T) { // D1
	contract(t, func(t *testing.T, impl implementation) {
		f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"))
		informer := impl.new(t, f)
		r, _ := recorder.Add(t, informer)
		bubble.Start(t, informer)
		r.ExpectInAnyOrder(t, "add ns/a@1 initial", "add ns/b@2 initial")
		for i := range 3 { // One by one, and together.
			f.Put(source.ConfigMap("c"), source.ConfigMap("a"))
			if i == 0 {
				synctest.Wait()
			}
			f.Remove("c")
			f.Put(source.ConfigMap("c"), source.ConfigMap("b"))
			f.Remove("c")
		}
		synctest.Wait()
		r.Expect(t,
			"add ns/c@3", "update ns/a@1→4", "delete ns/c@5", "add ns/c@6", "update ns/b@2→7", "delete ns/c@8",
			"add ns/c@9", "update ns/a@4→10", "delete ns/c@11", "add ns/c@12", "update ns/b@7→13", "delete ns/c@14",
			"add ns/c@15", "update ns/a@10→16", "delete ns/c@17", "add ns/c@18", "update ns/b@13→19", "delete ns/c@20")
		process.ExpectStore(t, informer, f)
	})
}

func TestHandlersRunSequentially(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := source.New(t)
		for i := range 50 {
			f.Put(source.ConfigMap(fmt.Sprint(i)))
		}
		informer := impl.new(t, f)
		running, calls := atomic.Int32{}, atomic.Int32{}
		r := &recorder.Recorder{During: func(string) {
			if running.Add(1) != 1 {
				t.Error("two callbacks of one handler at a time")
			}
			calls.Add(1)
			time.Sleep(time.Millisecond)
			running.Add(-1)
		}}
		if _, err := informer.AddEventHandler(r); err != nil {
			t.Fatal(err)
		}
		bubble.Start(t, informer)
		for i := range 50 {
			f.Put(source.ConfigMap(fmt.Sprint(i)))
			time.Sleep(300 * time.Microsecond)
		}
		bubble.Settle()
		if calls.Load() != 100 {
			t.Errorf("%d callbacks, expected 100", calls.Load())
		}
	})
}

func TestEachHandlerHasItsOwnGoroutine(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := source.New(t, source.ConfigMap("a"))
		informer := impl.new(t, f)
		release := make(chan struct{})
		stuck := &recorder.Recorder{During: func(string) { <-release }}
		twice, err := informer.AddEventHandler(stuck)
		if err != nil {
			t.Fatal(err)
		}
		r, registration := recorder.Add(t, informer)
		bubble.Start(t, informer)
		f.Put(source.ConfigMap("a"), source.ConfigMap("b"))
		synctest.Wait()
		r.Expect(t, "add ns/a@1 initial", "update ns/a@1→2", "add ns/b@3")
		if !informer.HasSynced() || !registration.HasSynced() || twice.HasSynced() {
			t.Error("a handler that hangs keeps more than its own registration from being synced")
		}
		process.ExpectStore(t, informer, f)
		close(release)
		synctest.Wait()
		stuck.Expect(t, "add ns/a@1 initial", "update ns/a@1→2", "add ns/b@3")
		if !twice.HasSynced() {
			t.Error("not synced after all initial items were handled")
		}
	})
}

func TestAHandlerCanBeRegisteredTwice(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := source.New(t, source.ConfigMap("a"))
		informer := impl.new(t, f)
		r := &recorder.Recorder{}
		for range 2 {
			if _, err := informer.AddEventHandler(r); err != nil {
				t.Fatal(err)
			}
		}
		bubble.Start(t, informer)
		r.Expect(t, "add ns/a@1 initial", "add ns/a@1 initial")
	})
}

func TestLateHandlersJoinWithTheInitialItems(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"))
		informer := impl.new(t, f)
		bubble.Start(t, informer)
		f.Put(source.ConfigMap("a"))
		synctest.Wait()
		r, registration := recorder.Add(t, informer)
		synctest.Wait()
		r.ExpectInAnyOrder(t, "add ns/a@3 initial", "add ns/b@2 initial")
		if !registration.HasSynced() {
			t.Error("not synced after the initial items were handled")
		}
		f.Remove("a")
		synctest.Wait()
		r.Expect(t, "delete ns/a@4")
	})
}

// TestAPlainHandlerGetsWhatThereIsWhenItJoins (D1), before the start, at the start or later, and then every
// change. It gets nothing of the objects that handlers of an earlier process knew and that are gone.
func TestAPlainHandlerGetsWhatThereIsWhenItJoins(t *testing.T) {
	type begun struct {
		informer cache.SharedIndexInformer
		run      func() (stop func())
	}
	for name, begin := range map[string]func(*testing.T, string, *source.Source) begun{
		"client-go": func(t *testing.T, _ string, f *source.Source) begun {
			informer := clientGo.new(t, f)
			return begun{informer, func() func() { return bubble.Start(t, informer) }}
		},
		"warmwatch": func(t *testing.T, path string, f *source.Source) begun {
			p := process.Launch(t, path, f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.ServeStaleAfter = 0 })
			return begun{p.Informer, func() func() { return p.Run().Stop }}
		},
	} {
		for _, history := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, history=%t", name, history), func(t *testing.T) {
				bubble.Run(t, func(t *testing.T) {
					f, path := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"), source.ConfigMap("c")), testsupport.Path(t)
					p := begin(t, path, f)
					r, _ := recorder.Add(t, p.informer)
					stop := p.run()
					bubble.Settle()
					r.ExpectInAnyOrder(t, "add ns/a@1 initial", "add ns/b@2 initial", "add ns/c@3 initial")
					stop()
					f.Remove("a", "b")
					f.Put(source.ConfigMap("d"), source.ConfigMap("b"))
					deletion := "delete ns/c@8"
					if !history { // It is lost, and only a list tells what there is.
						f.Restart()
						deletion = "delete ns/c@9"
					}
					p = begin(t, path, f)
					joined := map[string]*recorder.Recorder{}
					join := func(when string) { joined[when], _ = recorder.Add(t, p.informer) }
					join("before the start")
					stop = p.run()
					defer stop()
					join("at the start")
					bubble.Advance(5 * time.Second)
					join("a moment later")
					bubble.Settle()
					join("much later")
					bubble.Settle()
					for when, r := range joined {
						t.Log(when)
						r.ExpectInAnyOrder(t, "add ns/b@7 initial", "add ns/c@3 initial", "add ns/d@6 initial")
					}
					f.Remove("c")
					bubble.Settle()
					for when, r := range joined {
						t.Log(when)
						r.Expect(t, deletion)
					}
				})
			})
		}
	}
}

func TestLateHandlersLeaveNoGapAndNoRepeat(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := source.New(t)
		informer := impl.new(t, f)
		process.JoinWhileObjectsChange(t, f, informer, func(h cache.ResourceEventHandler) error {
			_, err := informer.AddEventHandler(h)
			return err
		})
	})
}

func TestTheStoreShowsAnObjectAtLeastAsNewAsTheNotification(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := source.New(t)
		for i := range 20 {
			f.Put(source.ConfigMap(fmt.Sprint(i)))
		}
		byName := cache.Indexers{"name": func(obj any) ([]string, error) { return []string{source.Meta(obj).GetName()}, nil }}
		informer := impl.new(t, f, config{indexers: byName})
		check := func(obj any, deleted bool) {
			now, exists, err := informer.GetStore().GetByKey(source.Key(obj))
			if err != nil {
				t.Error(err)
			}
			switch {
			case exists && source.VersionNumber(now) < source.VersionNumber(obj):
				t.Errorf("notified of %s, the store has %s", source.Version(obj), source.Version(now))
			case !exists && !deleted && !f.DeletedAfter(obj):
				t.Errorf("notified of %s, the store has nothing", source.Version(obj))
			}
			indexed, err := informer.GetIndexer().ByIndex("name", source.Meta(obj).GetName())
			if err != nil || len(indexed) > 1 {
				t.Errorf("index: %v, %v", indexed, err)
			}
		}
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { check(obj, false) },
			UpdateFunc: func(_, obj any) { check(obj, false) },
			DeleteFunc: func(obj any) { check(obj, true) },
		}); err != nil {
			t.Fatal(err)
		}
		bubble.Start(t, informer)
		for i := range 2000 {
			n := fmt.Sprint(i % 20)
			f.Put(source.ConfigMap(n))
			if i%7 == 0 {
				f.Remove(n)
			}
		}
		synctest.Wait()
		process.ExpectStore(t, informer, f)
	})
}

func TestAnObjectIsDeliveredAsItIsWhateverTheEventIsCalled(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := source.New(t, source.ConfigMap("a"))
		informer := impl.new(t, f)
		r, _ := recorder.Add(t, informer)
		bubble.Start(t, informer)
		r.Expect(t, "add ns/a@1 initial")
		versioned := func(name, rv string) *corev1.ConfigMap {
			cm := source.ConfigMap(name)
			cm.ResourceVersion = rv
			return cm
		}
		f.Emit(watch.Added, versioned("a", "2"))
		f.Emit(watch.Modified, versioned("new", "3"))
		f.Emit(watch.Deleted, versioned("unknown", "4"))
		f.Emit(watch.Added, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "of another type"}})
		f.Emit("nonsense", versioned("a", "5"))
		f.Emit(watch.Modified, versioned("a", "6"))
		synctest.Wait()
		r.Expect(t, "update ns/a@1→2", "add ns/new@3", "delete ns/unknown@4", "update ns/a@2→6")
	})
}

func TestEmptyNamesKeysVersionsAndIndexValuesAreLegal(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := source.New(t, &corev1.ConfigMap{})
		informer := impl.new(t, f, config{indexers: cache.Indexers{
			"namespace": cache.MetaNamespaceIndexFunc,
			"none":      func(any) ([]string, error) { return nil, nil },
		}})
		r, _ := recorder.Add(t, informer)
		bubble.Start(t, informer)
		f.Put(&corev1.ConfigMap{Data: map[string]string{"v": "2"}}, source.ConfigMap(""))
		f.Emit(watch.Modified, &corev1.ConfigMap{})
		synctest.Wait()
		r.Expect(t, "add @1 initial", "update @1→2", "add ns/@3", "update @2→")
		for _, key := range []string{"", "ns/"} {
			if _, exists, err := informer.GetStore().GetByKey(key); err != nil || !exists {
				t.Errorf("GetByKey(%q): %v, %v", key, exists, err)
			}
		}
		if objs, err := informer.GetIndexer().ByIndex("namespace", ""); err != nil || len(objs) != 1 {
			t.Errorf("ByIndex of the empty value: %v, %v", objs, err)
		}
		f.Emit(watch.Deleted, &corev1.ConfigMap{})
		synctest.Wait()
		r.Expect(t, "delete @")
		if keys := informer.GetStore().ListKeys(); !slices.Equal(keys, []string{"ns/"}) {
			t.Errorf("keys are %q", keys)
		}
	})
}
