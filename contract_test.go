package warmwatch_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// The tests in the contract_*_test.go files are of client-go's contract: each
// runs against client-go's informer and against warmwatch's.

func TestHandlersHearOfEveryChangeInTheOrderOfTheWatch(t *testing.T) { // D1
	contract(t, func(t *testing.T, impl implementation) {
		f := newSource(t, configMap("a"), configMap("b"))
		informer := impl.new(t, f)
		r, _ := add(t, informer)
		start(t, informer)
		r.expectInAnyOrder(t, "add ns/a@1 initial", "add ns/b@2 initial")
		for i := range 3 { // One by one, and together.
			f.put(configMap("c"), configMap("a"))
			if i == 0 {
				synctest.Wait()
			}
			f.remove("c")
			f.put(configMap("c"), configMap("b"))
			f.remove("c")
		}
		synctest.Wait()
		r.expect(t,
			"add ns/c@3", "update ns/a@1→4", "delete ns/c@5", "add ns/c@6", "update ns/b@2→7", "delete ns/c@8",
			"add ns/c@9", "update ns/a@4→10", "delete ns/c@11", "add ns/c@12", "update ns/b@7→13", "delete ns/c@14",
			"add ns/c@15", "update ns/a@10→16", "delete ns/c@17", "add ns/c@18", "update ns/b@13→19", "delete ns/c@20")
		expectStore(t, informer, f)
	})
}

func TestHandlersRunSequentially(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := newSource(t)
		for i := range 50 {
			f.put(configMap(fmt.Sprint(i)))
		}
		informer := impl.new(t, f)
		running, calls := atomic.Int32{}, atomic.Int32{}
		r := &recorder{during: func(string) {
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
		start(t, informer)
		for i := range 50 {
			f.put(configMap(fmt.Sprint(i)))
			time.Sleep(300 * time.Microsecond)
		}
		settle()
		if calls.Load() != 100 {
			t.Errorf("%d callbacks, expected 100", calls.Load())
		}
	})
}

func TestEachHandlerHasItsOwnGoroutine(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := newSource(t, configMap("a"))
		informer := impl.new(t, f)
		release := make(chan struct{})
		stuck := &recorder{during: func(string) { <-release }}
		twice, err := informer.AddEventHandler(stuck)
		if err != nil {
			t.Fatal(err)
		}
		r, registration := add(t, informer)
		start(t, informer)
		f.put(configMap("a"), configMap("b"))
		synctest.Wait()
		r.expect(t, "add ns/a@1 initial", "update ns/a@1→2", "add ns/b@3")
		if !informer.HasSynced() || !registration.HasSynced() || twice.HasSynced() {
			t.Error("a handler that hangs keeps more than its own registration from being synced")
		}
		expectStore(t, informer, f)
		close(release)
		synctest.Wait()
		stuck.expect(t, "add ns/a@1 initial", "update ns/a@1→2", "add ns/b@3")
		if !twice.HasSynced() {
			t.Error("not synced after all initial items were handled")
		}
	})
}

func TestAHandlerCanBeRegisteredTwice(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := newSource(t, configMap("a"))
		informer := impl.new(t, f)
		r := &recorder{}
		for range 2 {
			if _, err := informer.AddEventHandler(r); err != nil {
				t.Fatal(err)
			}
		}
		start(t, informer)
		r.expect(t, "add ns/a@1 initial", "add ns/a@1 initial")
	})
}

func TestLateHandlersJoinWithTheInitialItems(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := newSource(t, configMap("a"), configMap("b"))
		informer := impl.new(t, f)
		start(t, informer)
		f.put(configMap("a"))
		synctest.Wait()
		r, registration := add(t, informer)
		synctest.Wait()
		r.expectInAnyOrder(t, "add ns/a@3 initial", "add ns/b@2 initial")
		if !registration.HasSynced() {
			t.Error("not synced after the initial items were handled")
		}
		f.remove("a")
		synctest.Wait()
		r.expect(t, "delete ns/a@4")
	})
}

// TestAPlainHandlerGetsWhatThereIsWhenItJoins (D1), before the start, at the start or later, and then every
// change. It gets nothing of the objects that handlers of an earlier process knew and that are gone.
func TestAPlainHandlerGetsWhatThereIsWhenItJoins(t *testing.T) {
	type begun struct {
		informer cache.SharedIndexInformer
		run      func() (stop func())
	}
	for name, begin := range map[string]func(*testing.T, string, *source) begun{
		"client-go": func(t *testing.T, _ string, f *source) begun {
			informer := clientGo.new(t, f)
			return begun{informer, func() func() { return start(t, informer) }}
		},
		"warmwatch": func(t *testing.T, path string, f *source) begun {
			p := launch(t, path, f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.ServeStaleAfter = 0 })
			return begun{p.informer, func() func() { return p.run().stop }}
		},
	} {
		for _, history := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, history=%t", name, history), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					f, path := newSource(t, configMap("a"), configMap("b"), configMap("c")), testsupport.Path(t)
					p := begin(t, path, f)
					r, _ := add(t, p.informer)
					stop := p.run()
					settle()
					r.expectInAnyOrder(t, "add ns/a@1 initial", "add ns/b@2 initial", "add ns/c@3 initial")
					stop()
					f.remove("a", "b")
					f.put(configMap("d"), configMap("b"))
					deletion := "delete ns/c@8"
					if !history { // It is lost, and only a list tells what there is.
						f.restart()
						deletion = "delete ns/c@9"
					}
					p = begin(t, path, f)
					joined := map[string]*recorder{}
					join := func(when string) { joined[when], _ = add(t, p.informer) }
					join("before the start")
					stop = p.run()
					defer stop()
					join("at the start")
					advance(5 * time.Second)
					join("a moment later")
					settle()
					join("much later")
					settle()
					for when, r := range joined {
						t.Log(when)
						r.expectInAnyOrder(t, "add ns/b@7 initial", "add ns/c@3 initial", "add ns/d@6 initial")
					}
					f.remove("c")
					settle()
					for when, r := range joined {
						t.Log(when)
						r.expect(t, deletion)
					}
				})
			})
		}
	}
}

// chain is a handler that fails if a notification does not follow on the ones
// before: an addition of what is there, an update of something else, a deletion
// of what is not there.
type chain struct {
	t    *testing.T
	name string
	mu   sync.Mutex
	told map[string]string // resourceVersion by key.
	// forgiving: whatever comes is believed.
	forgiving bool
	// isNewName: it gets OnDelete for the deletions that are still stored (D3).
	isNewName bool
}

func newChain(t *testing.T, name string) *chain {
	return &chain{t: t, name: name, told: map[string]string{}}
}

func (c *chain) move(what, key, before, after string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if told := c.told[key]; told != before && !c.forgiving {
		c.t.Errorf("handler %s: %s of %s, from version %q to %q, but it was told of %q", c.name, what, key, before, after, told)
	}
	if c.told[key] = after; after == "" {
		delete(c.told, key)
	}
}

func (c *chain) OnAdd(obj any, _ bool) {
	c.move("addition", keyOf(obj), "", accessor(obj).GetResourceVersion())
}

func (c *chain) OnUpdate(old, obj any) {
	c.move("update", keyOf(obj), accessor(old).GetResourceVersion(), accessor(obj).GetResourceVersion())
}

func (c *chain) OnDelete(obj any) {
	key := keyOf(obj)
	c.mu.Lock()
	before, told := c.told[key]
	c.mu.Unlock()
	if !told && !c.forgiving && !c.isNewName {
		c.t.Errorf("handler %s: deletion of %s, which it was not told of", c.name, key)
	}
	c.move("deletion", key, before, "")
}

// versions is what the handler believes that there is, sorted.
func (c *chain) versions() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	vs := make([]string, 0, len(c.told))
	for key, rv := range c.told {
		vs = append(vs, key+"@"+rv)
	}
	slices.Sort(vs)
	return vs
}

func TestLateHandlersLeaveNoGapAndNoRepeat(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := newSource(t)
		informer := impl.new(t, f)
		joinWhileObjectsChange(t, f, informer, func(h cache.ResourceEventHandler) error {
			_, err := informer.AddEventHandler(h)
			return err
		})
	})
}

// joinWhileObjectsChange has handlers join an informer while many objects change
// at full speed.
func joinWhileObjectsChange(t *testing.T, f *source, informer cache.SharedInformer, join func(cache.ResourceEventHandler) error) {
	objects, changes, handlers := testsupport.Rounds(1500, 200), testsupport.Rounds(6000, 800), testsupport.Rounds(24, 8)
	name := func(i int) string { return fmt.Sprintf("o%04d", i) }
	for i := range objects {
		f.put(configMap(name(i)))
	}
	start(t, informer)
	var wg sync.WaitGroup
	wg.Go(func() {
		random := rand.New(rand.NewPCG(1, 2))
		there := map[string]bool{}
		for range changes {
			n := name(random.IntN(2 * objects))
			if there[n] && random.IntN(3) == 0 {
				f.remove(n)
				there[n] = false
			} else {
				f.put(configMap(n))
				there[n] = true
			}
		}
	})
	chains := make([]*chain, handlers)
	wg.Go(func() {
		for i := range chains {
			chains[i] = newChain(t, fmt.Sprint(i))
			if err := join(chains[i]); err != nil {
				t.Error(err)
			}
			runtime.Gosched()
		}
	})
	wg.Wait()
	settle()
	for _, c := range chains {
		if diff := cmp.Diff(f.contents(), c.versions()); diff != "" {
			t.Errorf("handler %s believes in something else (-source +handler):\n%s", c.name, diff)
		}
	}
	expectStore(t, informer, f)
}

func TestTheStoreShowsAnObjectAtLeastAsNewAsTheNotification(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := newSource(t)
		for i := range 20 {
			f.put(configMap(fmt.Sprint(i)))
		}
		byName := cache.Indexers{"name": func(obj any) ([]string, error) { return []string{accessor(obj).GetName()}, nil }}
		informer := impl.new(t, f, config{indexers: byName})
		check := func(obj any, deleted bool) {
			now, exists, err := informer.GetStore().GetByKey(keyOf(obj))
			if err != nil {
				t.Error(err)
			}
			switch {
			case exists && versionNumber(now) < versionNumber(obj):
				t.Errorf("told of %s, the store has %s", version(obj), version(now))
			case !exists && !deleted && !f.deletedAfter(obj):
				t.Errorf("told of %s, the store has nothing", version(obj))
			}
			indexed, err := informer.GetIndexer().ByIndex("name", accessor(obj).GetName())
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
		start(t, informer)
		for i := range 2000 {
			n := fmt.Sprint(i % 20)
			f.put(configMap(n))
			if i%7 == 0 {
				f.remove(n)
			}
		}
		synctest.Wait()
		expectStore(t, informer, f)
	})
}

func TestAnObjectIsToldAsItIsWhateverTheEventIsCalled(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := newSource(t, configMap("a"))
		informer := impl.new(t, f)
		r, _ := add(t, informer)
		start(t, informer)
		r.expect(t, "add ns/a@1 initial")
		versioned := func(name, rv string) *corev1.ConfigMap {
			cm := configMap(name)
			cm.ResourceVersion = rv
			return cm
		}
		f.emit(watch.Added, versioned("a", "2"))
		f.emit(watch.Modified, versioned("new", "3"))
		f.emit(watch.Deleted, versioned("unknown", "4"))
		f.emit(watch.Added, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "of another type"}})
		f.emit("nonsense", versioned("a", "5"))
		f.emit(watch.Modified, versioned("a", "6"))
		synctest.Wait()
		r.expect(t, "update ns/a@1→2", "add ns/new@3", "delete ns/unknown@4", "update ns/a@2→6")
	})
}

func TestEmptyNamesKeysVersionsAndIndexValuesAreLegal(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := newSource(t, &corev1.ConfigMap{})
		informer := impl.new(t, f, config{indexers: cache.Indexers{
			"namespace": cache.MetaNamespaceIndexFunc,
			"none":      func(any) ([]string, error) { return nil, nil },
		}})
		r, _ := add(t, informer)
		start(t, informer)
		f.put(&corev1.ConfigMap{Data: map[string]string{"v": "2"}}, configMap(""))
		f.emit(watch.Modified, &corev1.ConfigMap{})
		synctest.Wait()
		r.expect(t, "add @1 initial", "update @1→2", "add ns/@3", "update @2→")
		for _, key := range []string{"", "ns/"} {
			if _, exists, err := informer.GetStore().GetByKey(key); err != nil || !exists {
				t.Errorf("GetByKey(%q): %v, %v", key, exists, err)
			}
		}
		if objs, err := informer.GetIndexer().ByIndex("namespace", ""); err != nil || len(objs) != 1 {
			t.Errorf("ByIndex of the empty value: %v, %v", objs, err)
		}
		f.emit(watch.Deleted, &corev1.ConfigMap{})
		synctest.Wait()
		r.expect(t, "delete @")
		if keys := informer.GetStore().ListKeys(); !slices.Equal(keys, []string{"ns/"}) {
			t.Errorf("keys are %q", keys)
		}
	})
}

func TestAFakeControllerSourceWillDo(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := fcache.NewFakeControllerSource()
		defer f.Shutdown()
		cm := configMap("a")
		f.Add(cm)
		informer := impl.new(t, f)
		r, _ := add(t, informer)
		stop := start(t, informer)
		f.Modify(cm.DeepCopy())
		f.Delete(cm.DeepCopy())
		synctest.Wait()
		r.expect(t, "add ns/a@1 initial", "update ns/a@1→2", "delete ns/a@3")
		stop()
	})
}

func TestTypedInformersWrapIt(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := newSource(t, configMap("a"))
		informer := cache.NewTypedSharedIndexInformer[*corev1.ConfigMap](impl.new(t, f))
		var names []string
		if _, err := informer.AddTypedEventHandler(cache.TypedResourceEventHandlerFuncs[*corev1.ConfigMap]{
			AddFunc: func(cm *corev1.ConfigMap) { names = append(names, cm.Name) },
		}); err != nil {
			t.Fatal(err)
		}
		start(t, informer)
		if !slices.Equal(names, []string{"a"}) {
			t.Errorf("told of %q", names)
		}
	})
}
