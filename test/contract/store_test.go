package contract_test

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

	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/recorder"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

func TestTheIndexerIsReadAsClientGos(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := source.New(t, source.ConfigMap("a", "x"), source.ConfigMap("b", "y"), source.ConfigMap("c", "x"))
		informer := impl.new(t, f, config{indexers: cache.Indexers{"content": source.ByContent}})
		ix := informer.GetIndexer()
		if got := ix.List(); len(got) != 0 {
			t.Errorf("before the start there is %v", got)
		}
		bubble.Start(t, informer)
		f.Put(source.ConfigMap("b", "x"), source.ConfigMap("d", "z"))
		f.Remove("c")
		synctest.Wait()
		keys, _ := ix.IndexKeys("content", "x")
		listed, values := ix.ListKeys(), ix.ListIndexFuncValues("content")
		for _, s := range [][]string{keys, listed, values} {
			slices.Sort(s)
		}
		_, missing := ix.ByIndex("nonsense", "x")
		_, _, noKey := ix.Get("not an object")
		gotA, existsA, err := ix.Get(source.ConfigMap("a"))
		_, existsC, _ := ix.GetByKey("ns/c")
		got := map[string]any{
			"List":                source.Names(ix.List(), nil),
			"ListKeys":            listed,
			"ByIndex":             source.Names(ix.ByIndex("content", "x")),
			"Index":               source.Names(ix.Index("content", source.ConfigMap("like this", "z"))),
			"IndexKeys":           keys,
			"ListIndexFuncValues": values,
			"GetIndexers":         len(ix.GetIndexers()),
			"missing index":       fmt.Sprint(missing),
			"no key":              errors.As(noKey, new(cache.KeyError)),
			"Get":                 []any{source.Meta(gotA).GetResourceVersion(), existsA, err},
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
		f := source.New(t, source.ConfigMap("a", "x"))
		informer := impl.new(t, f, config{indexers: cache.Indexers{"namespace": cache.MetaNamespaceIndexFunc}})
		if err := informer.AddIndexers(cache.Indexers{"name": func(obj any) ([]string, error) { return []string{source.Meta(obj).GetName()}, nil }}); err != nil {
			t.Fatal(err)
		}
		bubble.Start(t, informer)
		if err := informer.AddIndexers(cache.Indexers{"content": source.ByContent}); err != nil {
			t.Fatal(err)
		}
		if got := source.Names(informer.GetIndexer().ByIndex("content", "x")); !slices.Equal(got, []string{"a"}) {
			t.Errorf("what was there is not indexed: %q", got)
		}
		f.Put(source.ConfigMap("a", "y"), source.ConfigMap("b", "x"))
		synctest.Wait()
		if got := source.Names(informer.GetIndexer().ByIndex("content", "x")); !slices.Equal(got, []string{"b"}) {
			t.Errorf("what came later is not indexed: %q", got)
		}
		if got := source.Names(informer.GetIndexer().ByIndex("name", "a")); !slices.Equal(got, []string{"a"}) {
			t.Errorf("what was added before the start is not indexed: %q", got)
		}
		if err := informer.AddIndexers(cache.Indexers{"new": source.ByContent, "content": source.ByContent}); err == nil || !strings.HasPrefix(err.Error(), "indexer conflict: ") {
			t.Errorf("an index of a name that is taken: %v", err)
		}
		if _, exists := informer.GetIndexer().GetIndexers()["new"]; exists {
			t.Error("one of several was added although another is in conflict")
		}
	})
}

func TestAFirstListIsIndexedOnce(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := source.New(t)
		for i := range 2000 {
			f.Put(source.ConfigMap(fmt.Sprintf("o%04d", i), "x"))
		}
		var indexed atomic.Int64
		informer := impl.new(t, f, config{indexers: cache.Indexers{"content": func(obj any) ([]string, error) {
			indexed.Add(1)
			return source.ByContent(obj)
		}}})
		bubble.Start(t, informer)
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
		f := source.New(t)
		for i := range 700 {
			f.Put(source.ConfigMap(fmt.Sprint(i), "even"))
		}
		informer := impl.new(t, f, config{indexers: cache.Indexers{}}) // client-go panics without.
		bubble.Start(t, informer)
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := range 700 {
				f.Put(source.ConfigMap(fmt.Sprint(i), []string{"even", "odd"}[i%2]))
			}
		})
		for i := range 5 {
			if err := informer.AddIndexers(cache.Indexers{fmt.Sprint("content", i): source.ByContent}); err != nil {
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
		f := source.New(t, source.ConfigMap("a"))
		informer := impl.new(t, f, config{indexers: cache.Indexers{}}) // client-go panics without.
		transforming, adding := make(chan struct{}), make(chan struct{})
		err := informer.SetTransform(func(obj any) (any, error) {
			if source.Meta(obj).GetName() == "b" {
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
		bubble.Start(t, informer)
		f.Put(source.ConfigMap("b"))
		<-transforming
		signal := sync.OnceFunc(func() { close(adding) })
		err = informer.AddIndexers(cache.Indexers{"content": func(obj any) ([]string, error) {
			signal()
			return source.ByContent(obj)
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
		c.calls[source.Version(cm)]++
		cm.Annotations = map[string]string{"transformed": "once" + cm.Annotations["transformed"]}
	default:
		c.calls[fmt.Sprintf("%T", obj)]++
	}
	return obj, nil
}

func TestATransformRunsOncePerObjectAndNeverOnTombstonesOrResyncs(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) { // kubernetes#124344
		f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"), source.ConfigMap("c"))
		informer := impl.new(t, f, config{resync: time.Hour})
		c := counted{calls: map[string]int{}}
		if err := informer.SetTransform(c.transform); err != nil {
			t.Fatal(err)
		}
		check := func(obj any) {
			if lost, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = lost.Obj
			}
			if got := source.Meta(obj).GetAnnotations()["transformed"]; got != "once" {
				t.Errorf("%s is transformed %q", source.Version(obj), got)
			}
		}
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    check,
			UpdateFunc: func(old, obj any) { check(old); check(obj) },
			DeleteFunc: check,
		}); err != nil {
			t.Fatal(err)
		}
		bubble.Start(t, informer)
		f.Put(source.ConfigMap("a"), source.ConfigMap("d"))
		f.Remove("b")
		bubble.Advance(2 * time.Hour) // Resyncs.
		source.Relisted(f, func() {
			f.Remove("c")
			f.Put(source.ConfigMap("e"), source.ConfigMap("a"))
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
		f := source.New(t, source.ConfigMap("a"))
		informer := impl.new(t, f)
		if err := informer.SetTransform(func(obj any) (any, error) {
			if obj.(*corev1.ConfigMap).Data["v"] == "bad" {
				return nil, errors.New("cannot be transformed")
			}
			return obj, nil
		}); err != nil {
			t.Fatal(err)
		}
		r, _ := recorder.Add(t, informer)
		bubble.Start(t, informer)
		f.Put(source.ConfigMap("a", "bad"), source.ConfigMap("a", "good"))
		bubble.Settle()
		r.Expect(t, "add ns/a@1 initial", "update ns/a@1→3")
	})
}

func TestDeleteThenAddIsTwoNotifications(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) { // kubernetes#83810
		f := source.New(t, source.ConfigMap("a"))
		informer := impl.new(t, f)
		release := make(chan struct{})
		r := &recorder.Recorder{During: func(string) { <-release }}
		if _, err := informer.AddEventHandler(r); err != nil {
			t.Fatal(err)
		}
		bubble.Start(t, informer)
		f.Remove("a")
		f.Put(source.ConfigMap("a"))
		f.Remove("a")
		f.Put(source.ConfigMap("a"))
		synctest.Wait()
		close(release)
		synctest.Wait()
		r.Expect(t, "add ns/a@1 initial", "delete ns/a@2", "add ns/a@3", "delete ns/a@4", "add ns/a@5")
	})
}

func TestWhatIsPutIntoTheStoreByHandIsThere(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := source.New(t, source.ConfigMap("a"))
		informer := impl.new(t, f)
		if err := informer.GetStore().Add(source.ConfigMap("by hand")); err != nil {
			t.Fatal(err)
		}
		if _, exists, err := informer.GetStore().GetByKey("ns/by hand"); err != nil || !exists {
			t.Errorf("before the start: %v, %v", exists, err)
		}
		bubble.Start(t, informer)
		process.ExpectStore(t, informer, f) // The list does not have it.
		if err := informer.GetIndexer().Add(source.ConfigMap("by hand")); err != nil {
			t.Fatal(err)
		}
		if _, exists, err := informer.GetStore().GetByKey("ns/by hand"); err != nil || !exists {
			t.Errorf("after the start: %v, %v", exists, err)
		}
		f.Emit(watch.Deleted, source.ConfigMap("by hand"))
		synctest.Wait()
		process.ExpectStore(t, informer, f)
	})
}
