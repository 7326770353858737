package warmwatch_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/google/go-cmp/cmp"
)

// byContent indexes configMaps by what is in them.
func byContent(obj any) ([]string, error) {
	var values []string
	for _, v := range obj.(*corev1.ConfigMap).Data {
		values = append(values, v)
	}
	return values, nil
}

func names[T any](objs []T, err error) []string {
	if err != nil {
		return []string{err.Error()}
	}
	ns := make([]string, 0, len(objs))
	for _, obj := range objs {
		ns = append(ns, accessor(obj).GetName())
	}
	slices.Sort(ns)
	return ns
}

func TestTheIndexerIsReadAsClientGos(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := newSource(t, configMap("a", "x"), configMap("b", "y"), configMap("c", "x"))
		informer := impl.new(t, f, config{indexers: cache.Indexers{"content": byContent}})
		ix := informer.GetIndexer()
		if got := ix.List(); len(got) != 0 {
			t.Errorf("before the start there is %v", got)
		}
		start(t, informer)
		f.put(configMap("b", "x"), configMap("d", "z"))
		f.remove("c")
		synctest.Wait()
		keys, _ := ix.IndexKeys("content", "x")
		listed, values := ix.ListKeys(), ix.ListIndexFuncValues("content")
		for _, s := range [][]string{keys, listed, values} {
			slices.Sort(s)
		}
		_, missing := ix.ByIndex("nonsense", "x")
		_, _, noKey := ix.Get("not an object")
		gotA, existsA, err := ix.Get(configMap("a"))
		_, existsC, _ := ix.GetByKey("ns/c")
		got := map[string]any{
			"List":                names(ix.List(), nil),
			"ListKeys":            listed,
			"ByIndex":             names(ix.ByIndex("content", "x")),
			"Index":               names(ix.Index("content", configMap("like this", "z"))),
			"IndexKeys":           keys,
			"ListIndexFuncValues": values,
			"GetIndexers":         len(ix.GetIndexers()),
			"missing index":       fmt.Sprint(missing),
			"no key":              errors.As(noKey, new(cache.KeyError)),
			"Get":                 []any{accessor(gotA).GetResourceVersion(), existsA, err},
			"GetByKey deleted":    existsC,
		}
		want := map[string]any{
			"List":                []string{"a", "b", "d"},
			"ListKeys":            []string{"ns/a", "ns/b", "ns/d"},
			"ByIndex":             []string{"a", "b"},
			"Index":               []string{"d"},
			"IndexKeys":           []string{"ns/a", "ns/b"},
			"ListIndexFuncValues": []string{"x", "z"},
			"GetIndexers":         1,
			"missing index":       "Index with name nonsense does not exist",
			"no key":              true,
			"Get":                 []any{"1", true, nil},
			"GetByKey deleted":    false,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func TestAddIndexersWorksAfterTheStart(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) { // kubernetes#117046
		f := newSource(t, configMap("a", "x"))
		informer := impl.new(t, f, config{indexers: cache.Indexers{"namespace": cache.MetaNamespaceIndexFunc}})
		if err := informer.AddIndexers(cache.Indexers{"name": func(obj any) ([]string, error) { return []string{accessor(obj).GetName()}, nil }}); err != nil {
			t.Fatal(err)
		}
		start(t, informer)
		if err := informer.AddIndexers(cache.Indexers{"content": byContent}); err != nil {
			t.Fatal(err)
		}
		if got := names(informer.GetIndexer().ByIndex("content", "x")); !slices.Equal(got, []string{"a"}) {
			t.Errorf("what was there is not indexed: %q", got)
		}
		f.put(configMap("a", "y"), configMap("b", "x"))
		synctest.Wait()
		if got := names(informer.GetIndexer().ByIndex("content", "x")); !slices.Equal(got, []string{"b"}) {
			t.Errorf("what came later is not indexed: %q", got)
		}
		if got := names(informer.GetIndexer().ByIndex("name", "a")); !slices.Equal(got, []string{"a"}) {
			t.Errorf("what was added before the start is not indexed: %q", got)
		}
		if err := informer.AddIndexers(cache.Indexers{"new": byContent, "content": byContent}); err == nil || !strings.HasPrefix(err.Error(), "indexer conflict: ") {
			t.Errorf("an index of a name that is taken: %v", err)
		}
		if _, exists := informer.GetIndexer().GetIndexers()["new"]; exists {
			t.Error("one of several was added although another is in conflict")
		}
	})
}

func TestAFirstListIsIndexedOnce(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := newSource(t)
		for i := range 2000 {
			f.put(configMap(fmt.Sprintf("o%04d", i), "x"))
		}
		var indexed atomic.Int64
		informer := impl.new(t, f, config{indexers: cache.Indexers{"content": func(obj any) ([]string, error) {
			indexed.Add(1)
			return byContent(obj)
		}}})
		start(t, informer)
		if keys, err := informer.GetIndexer().IndexKeys("content", "x"); err != nil || len(keys) != 2000 {
			t.Errorf("%d keys, %v", len(keys), err)
		}
		if n := indexed.Load(); n != 2000 {
			t.Errorf("2,000 objects were indexed %d times", n)
		}
	})
}

func TestAddIndexersWhileObjectsChange(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := newSource(t)
		for i := range 700 {
			f.put(configMap(fmt.Sprint(i), "even"))
		}
		informer := impl.new(t, f, config{indexers: cache.Indexers{}}) // client-go panics without.
		start(t, informer)
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := range 700 {
				f.put(configMap(fmt.Sprint(i), []string{"even", "odd"}[i%2]))
			}
		})
		for i := range 5 {
			if err := informer.AddIndexers(cache.Indexers{fmt.Sprint("content", i): byContent}); err != nil {
				t.Error(err)
			}
		}
		wg.Wait()
		synctest.Wait()
		for i := range 5 {
			keys, err := informer.GetIndexer().IndexKeys(fmt.Sprint("content", i), "odd")
			if err != nil || len(keys) != 350 {
				t.Errorf("index %d has %d keys: %v", i, len(keys), err)
			}
		}
	})
}

// TestATransformMayAskTheInformerWhileIndexersAreAdded hangs where AddIndexers waits for the
// transform with a lock that the transform needs.
func TestATransformMayAskTheInformerWhileIndexersAreAdded(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := newSource(t, configMap("a"))
		informer := impl.new(t, f, config{indexers: cache.Indexers{}}) // client-go panics without.
		transforming, adding := make(chan struct{}), make(chan struct{})
		err := informer.SetTransform(func(obj any) (any, error) {
			if accessor(obj).GetName() == "b" {
				close(transforming)
				<-adding
				if informer.IsStopped() {
					t.Error("the informer has stopped")
				}
			}
			return obj, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		start(t, informer)
		f.put(configMap("b"))
		<-transforming
		signal := sync.OnceFunc(func() { close(adding) })
		err = informer.AddIndexers(cache.Indexers{"content": func(obj any) ([]string, error) {
			signal()
			return byContent(obj)
		}})
		if err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if keys := informer.GetStore().ListKeys(); len(keys) != 2 {
			t.Errorf("objects %q, want two", keys)
		}
	})
}

// counted is a transform that counts its calls for each version.
type counted struct {
	mu    sync.Mutex
	calls map[string]int
}

func (c *counted) transform(obj any) (any, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch cm := obj.(type) {
	case *corev1.ConfigMap:
		c.calls[version(cm)]++
		cm.Annotations = map[string]string{"transformed": "once" + cm.Annotations["transformed"]}
	default:
		c.calls[fmt.Sprintf("%T", obj)]++
	}
	return obj, nil
}

func TestATransformRunsOncePerObjectAndNeverOnTombstonesOrResyncs(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) { // kubernetes#124344
		f := newSource(t, configMap("a"), configMap("b"), configMap("c"))
		informer := impl.new(t, f, config{resync: time.Hour})
		c := counted{calls: map[string]int{}}
		if err := informer.SetTransform(c.transform); err != nil {
			t.Fatal(err)
		}
		check := func(obj any) {
			if lost, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = lost.Obj
			}
			if got := accessor(obj).GetAnnotations()["transformed"]; got != "once" {
				t.Errorf("%s is transformed %q", version(obj), got)
			}
		}
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    check,
			UpdateFunc: func(old, obj any) { check(old); check(obj) },
			DeleteFunc: check,
		}); err != nil {
			t.Fatal(err)
		}
		start(t, informer)
		f.put(configMap("a"), configMap("d"))
		f.remove("b")
		advance(2 * time.Hour) // Resyncs.
		relisted(f, func() {
			f.remove("c")
			f.put(configMap("e"), configMap("a"))
		})
		for _, obj := range informer.GetStore().List() {
			check(obj)
		}
		// The deleted object of a watch event is transformed as well. Of the
		// relist, d is a new object for the Reflector: so its version is twice.
		want := map[string]int{
			"ns/a@1": 1, "ns/b@2": 1, "ns/c@3": 1,
			"ns/a@4": 1, "ns/d@5": 1, "ns/b@6": 1,
			"ns/e@8": 1, "ns/a@9": 1,
		}
		want["ns/d@5"]++
		if diff := cmp.Diff(want, c.calls); diff != "" {
			t.Errorf("calls of the transform (-want +got):\n%s", diff)
		}
	})
}

func TestAnObjectThatCannotBeTransformedIsLeftOut(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := newSource(t, configMap("a"))
		informer := impl.new(t, f)
		if err := informer.SetTransform(func(obj any) (any, error) {
			if obj.(*corev1.ConfigMap).Data["v"] == "bad" {
				return nil, errors.New("cannot be transformed")
			}
			return obj, nil
		}); err != nil {
			t.Fatal(err)
		}
		r, _ := add(t, informer)
		start(t, informer)
		f.put(configMap("a", "bad"), configMap("a", "good"))
		settle()
		r.expect(t, "add ns/a@1 initial", "update ns/a@1→3")
	})
}

func TestDeleteThenAddIsTwoNotifications(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) { // kubernetes#83810
		f := newSource(t, configMap("a"))
		informer := impl.new(t, f)
		release := make(chan struct{})
		r := &recorder{during: func(string) { <-release }}
		if _, err := informer.AddEventHandler(r); err != nil {
			t.Fatal(err)
		}
		start(t, informer)
		f.remove("a")
		f.put(configMap("a"))
		f.remove("a")
		f.put(configMap("a"))
		synctest.Wait()
		close(release)
		synctest.Wait()
		r.expect(t, "add ns/a@1 initial", "delete ns/a@2", "add ns/a@3", "delete ns/a@4", "add ns/a@5")
	})
}

func TestWhatIsPutIntoTheStoreByHandIsThere(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := newSource(t, configMap("a"))
		informer := impl.new(t, f)
		if err := informer.GetStore().Add(configMap("by hand")); err != nil {
			t.Fatal(err)
		}
		if _, exists, err := informer.GetStore().GetByKey("ns/by hand"); err != nil || !exists {
			t.Errorf("before the start: %v, %v", exists, err)
		}
		start(t, informer)
		expectStore(t, informer, f) // The list does not have it.
		if err := informer.GetIndexer().Add(configMap("by hand")); err != nil {
			t.Fatal(err)
		}
		if _, exists, err := informer.GetStore().GetByKey("ns/by hand"); err != nil || !exists {
			t.Errorf("after the start: %v, %v", exists, err)
		}
		f.emit(watch.Deleted, configMap("by hand"))
		synctest.Wait()
		expectStore(t, informer, f)
	})
}
