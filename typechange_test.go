package warmwatch_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/request"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/httpserver"
)

func unchanged(obj any) (any, error) { return obj, nil }

// metadataOfNamed is toMetadata, but panics for an empty object.
func metadataOfNamed(obj any) (any, error) {
	_ = accessor(obj).GetName()[0]
	return toMetadata(obj)
}

// TestATransformThatReturnsAnotherTypeThanTheFileHas: the store becomes that of the new type, and durable
// handlers hear of deletions.
func TestATransformThatReturnsAnotherTypeThanTheFileHas(t *testing.T) {
	same := unchanged
	refuse := metadataOfNamed
	checkpoint, objects := []string{"checkpoint"}, []string{"checkpoint", "objects", "store", "index"}
	all := append([]string{"cursors", "queue", "deltas", "tombstones"}, objects...)
	for name, c := range map[string]struct {
		before, now cache.TransformFunc
		lost        []string // Buckets.
		damaged     bool     // Something else is damaged.
		forgets     bool     // Nobody can know of the deletion.
		mixed       bool     // What the file has is told first.
	}{
		"the type cannot be learnt":                   {before: refuse, now: refuse},
		"checkpoint lost":                             {before: toMetadata, now: toMetadata, lost: checkpoint},
		"checkpoint lost, cannot be learnt":           {before: refuse, now: refuse, lost: checkpoint},
		"objects lost":                                {before: toMetadata, now: toMetadata, lost: objects, forgets: true},
		"all lost, file damaged":                      {before: toMetadata, now: toMetadata, lost: all, damaged: true, forgets: true},
		"all lost, file damaged, cannot be learnt":    {before: refuse, now: refuse, lost: all, damaged: true, forgets: true},
		"a new transform returns another type":        {before: same, now: toMetadata, mixed: true},
		"a new transform, the type cannot be learnt":  {before: same, now: refuse, mixed: true},
		"a new transform returns the type as it came": {before: toMetadata, now: same},
		"there was no transform":                      {now: toMetadata},
		"there is no transform any more":              {before: toMetadata},
	} {
		for _, durable := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/durable=%t", name, durable), func(t *testing.T) {
				api, path := httpserver.New(t, "one"), testsupport.Path(t)
				api.Change(func(w *httpserver.World) { w.Put("a", "1", ""); w.Put("b", "2", "") })
				r, stop := newTypeOf(t, path, api, c.before, &typeChecker{t: t}, durable, "ns/a@1", "ns/b@2")
				until(func() bool { return r.heard("add ns/a@1") && r.heard("add ns/b@2") })
				stop()
				loseBuckets(t, path, c.lost...)
				if c.damaged {
					testsupport.DamageFreelist(t, path)
				}
				api.Change(func(w *httpserver.World) { w.Delete("b"); w.Put("a", "1", "changed") })
				r, stop = newTypeOf(t, path, api, c.now, &typeChecker{t: t, any: c.mixed}, durable, "ns/a@4")
				defer stop()
				if durable && !c.forgets {
					until(func() bool { return r.heard("lost ns/b") })
				}
				until(func() bool { return r.heard("ns/a@4") || r.heard("→4") })
			})
		}
	}
}

// newTypeOf runs an informer until it has objects of the type that the transform returns.
func newTypeOf(t *testing.T, path string, api *httpserver.Server, transform cache.TransformFunc, handler *typeChecker, durable bool, want ...string) (*recorder, func()) {
	t.Helper()
	a, r := newAgent(t, path, api), &recorder{}
	informer := a.make(a.configMaps("ns", noTweak), &corev1.ConfigMap{})
	expected := reflect.TypeFor[*corev1.ConfigMap]()
	if transform != nil {
		if err := informer.SetTransform(transform); err != nil {
			t.Fatal(err)
		}
		transformed, _ := transform(configMap("a"))
		expected = reflect.TypeOf(transformed)
	}
	handler.recorder, handler.expected = r, expected
	add := func() (err error) { _, err = informer.AddEventHandler(handler); return err }
	if durable {
		add = func() (err error) { _, err = informer.AddDurableEventHandler("d", handler); return err }
	}
	if err := add(); err != nil {
		t.Fatal(err)
	}
	a.run(informer)
	until(func() bool {
		list := informer.GetStore().List()
		isOther := func(obj any) bool { return reflect.TypeOf(obj) != expected }
		return slices.Equal(versions(list), want) && !slices.ContainsFunc(list, isOther) && informer.Status().Phase == warmwatch.PhaseLive
	})
	if byIndex, err := informer.GetIndexer().ByIndex("namespace", "ns"); err != nil || !slices.Equal(versions(byIndex), want) {
		t.Errorf("by index %v (%v)", versions(byIndex), err)
	}
	return r, a.stop
}

// heard reports whether it was told of an event with this in it.
func (r *recorder) heard(what string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(r.events, func(event string) bool { return strings.Contains(event, what) })
}

// typeChecker is a handler that looks at the Go type of what it is given.
type typeChecker struct {
	*recorder
	t        *testing.T
	expected reflect.Type
	any      bool // It may be given any.
}

func (c *typeChecker) check(event string, obj any) {
	if lost, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = lost.Obj
	}
	if got := reflect.TypeOf(obj); obj != nil && got != c.expected && !c.any {
		c.t.Errorf("%s is given a %v, expected a %v", event, got, c.expected)
	}
}

func (c *typeChecker) OnAdd(obj any, initial bool) {
	c.check("OnAdd", obj)
	c.recorder.OnAdd(obj, initial)
}

func (c *typeChecker) OnUpdate(old, obj any) {
	c.check("OnUpdate", old)
	c.check("OnUpdate", obj)
	c.recorder.OnUpdate(old, obj)
}

func (c *typeChecker) OnDelete(obj any) { c.check("OnDelete", obj); c.recorder.OnDelete(obj) }

// TestANewTypeWhereAnotherIsServed: the first list that has it makes the store right. What is served until
// then stays.
func TestANewTypeWhereAnotherIsServed(t *testing.T) {
	for name, c := range map[string]struct {
		between func(t *testing.T, path string, api *httpserver.Server) *httpserver.Server
		options func(*warmwatch.Options)
		want    []string
		stays   bool // Until a list is answered.
	}{
		"an object has changed": {
			between: func(_ *testing.T, _ string, api *httpserver.Server) *httpserver.Server {
				api.Change(func(w *httpserver.World) { w.Put("a", "1", "changed"); w.Meddle = noList })
				return api
			},
			want: []string{"ns/a@3", "ns/b@2"}, stays: true,
		},
		"an object has changed, and HasSynced waits for the server": {
			between: func(_ *testing.T, _ string, api *httpserver.Server) *httpserver.Server {
				api.Change(func(w *httpserver.World) { w.Put("a", "1", "changed"); w.Meddle = noList })
				return api
			},
			options: func(o *warmwatch.Options) { o.SyncPolicy = warmwatch.SyncFromServer },
			want:    []string{"ns/a@3", "ns/b@2"}, stays: true,
		},
		"the server is of another cluster now": {
			between: func(_ *testing.T, _ string, api *httpserver.Server) *httpserver.Server {
				api.SetUID("two")
				api.Change(func(w *httpserver.World) { clear(w.Objects); w.Put("x", "9", "") })
				return api
			},
			want: []string{"ns/x@3"},
		},
		"another server is of another cluster": {
			between: func(t *testing.T, _ string, _ *httpserver.Server) *httpserver.Server {
				api := httpserver.New(t, "two")
				api.Change(func(w *httpserver.World) { w.Put("x", "9", "") })
				return api
			},
			want: []string{"ns/x@1"},
		},
		"a stored object is damaged": {
			between: func(t *testing.T, path string, api *httpserver.Server) *httpserver.Server {
				change(t, path, "objects", func(b *bolt.Bucket) error { return b.Put([]byte("kns/a"), []byte("garbage")) })
				return api
			},
			want: []string{"ns/a@1", "ns/b@2"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			api, path := httpserver.New(t, "one"), testsupport.Path(t)
			api.Change(func(w *httpserver.World) { w.Put("a", "1", ""); w.Put("b", "2", "") })
			_, stop := newTypeOf(t, path, api, unchanged, &typeChecker{t: t}, false, "ns/a@1", "ns/b@2")
			stop()
			api = c.between(t, path, api)
			a := newAgentWith(t, path, api, func(o *warmwatch.Options) {
				if c.options != nil {
					c.options(o)
				}
			})
			informer := a.make(a.configMaps("ns", noTweak), &corev1.ConfigMap{})
			if err := informer.SetTransform(toMetadata); err != nil {
				t.Fatal(err)
			}
			a.wg.Go(func() { informer.RunWithContext(a.ctx) })
			until(func() bool { return len(informer.GetStore().ListKeys()) > 0 })
			_, _, _ = informer.GetStore().GetByKey("ns/a") // Where it is damaged, that is found.
			if c.stays {
				until(func() bool { return slices.Contains(api.Take(), "all") })
				if got := versions(informer.GetStore().List()); !slices.Equal(got, []string{"ns/a@1", "ns/b@2"}) {
					t.Errorf("the store has %v before a list is answered", got)
				}
				api.Change(func(w *httpserver.World) { w.Meddle = nil })
			}
			until(func() bool {
				list := informer.GetStore().List()
				isOther := func(obj any) bool { _, ok := obj.(*metav1.PartialObjectMetadata); return !ok }
				return slices.Equal(versions(list), c.want) && !slices.ContainsFunc(list, isOther) && informer.HasSynced()
			})
		})
	}
}

// TestATransformThatReturnsTwoTypes is refused what is of another type than the first list, which it has for
// another first list to decide.
func TestATransformThatReturnsTwoTypes(t *testing.T) {
	api, path := httpserver.New(t, "one"), testsupport.Path(t)
	api.Change(func(w *httpserver.World) { w.Put("a", "1", ""); w.Put("b", "2", "") })
	a := newAgent(t, path, api)
	informer := a.make(a.configMaps("ns", noTweak), &corev1.ConfigMap{})
	err := informer.SetTransform(func(obj any) (any, error) {
		if accessor(obj).GetName() == "a" {
			return toMetadata(obj)
		}
		return obj, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	a.wg.Go(func() { informer.RunWithContext(a.ctx) })
	until(func() bool { return informer.Status().Err != nil })
	if informer.HasSynced() {
		t.Error("a list of two types was taken")
	}
	api.Change(func(w *httpserver.World) { w.Delete("a") })
	until(func() bool { return informer.HasSynced() })
	if got := versions(informer.GetStore().List()); !slices.Equal(got, []string{"ns/b@2"}) {
		t.Errorf("the store has %v", got)
	}
}

// TestATransformIsCalledWithAnEmptyObjectWhereTheTypeMayBeAnother, and only there. What it returns for that
// may mislead, which costs one list.
func TestATransformIsCalledWithAnEmptyObjectWhereTheTypeMayBeAnother(t *testing.T) {
	api, path := httpserver.New(t, "one"), testsupport.Path(t)
	api.Change(func(w *httpserver.World) { w.Put("a", "1", "") })
	for _, c := range []struct {
		lost         []string
		version      string
		empty, lists int
	}{{lists: 1}, {}, {lost: []string{"checkpoint"}, empty: 1, lists: 1}, {}, {version: "2", empty: 1, lists: 1}, {version: "2"}} {
		if len(c.lost) > 0 {
			loseBuckets(t, path, c.lost...)
		}
		var empty atomic.Int64
		a := newAgentWith(t, path, api, func(o *warmwatch.Options) { o.TransformVersion = c.version })
		informer := a.make(a.configMaps("ns", noTweak), &corev1.ConfigMap{})
		err := informer.SetTransform(func(obj any) (any, error) {
			if accessor(obj).GetName() == "" {
				empty.Add(1)
				return toMetadata(obj)
			}
			return obj, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		api.Take()
		a.run(informer)
		until(func() bool { return informer.Status().Phase == warmwatch.PhaseLive })
		a.stop()
		lists := 0
		for _, request := range api.Take() {
			if request == "all" {
				lists++
			}
		}
		if int(empty.Load()) != c.empty || lists != c.lists {
			t.Errorf("%+v: called with %d empty objects, %d lists", c, empty.Load(), lists)
		}
	}
}

// TestADeletedObjectOfAnotherTypeIsNotGiven: where the type cannot be learnt, and the list is empty, the
// file's deletions are told by their keys.
func TestADeletedObjectOfAnotherTypeIsNotGiven(t *testing.T) {
	for name, c := range map[string]struct {
		before, now cache.TransformFunc
		version     string // Of the second; the first has "1".
	}{
		"the type cannot be learnt": {metadataOfNamed, metadataOfNamed, "1"},
		"a new transform":           {unchanged, toMetadata, "2"},
	} {
		t.Run(name, func(t *testing.T) {
			api, path := httpserver.New(t, "one"), testsupport.Path(t)
			api.Change(func(w *httpserver.World) { w.Put("a", "1", ""); w.Put("b", "2", "") })
			life := func(transform cache.TransformFunc, version string, handler *typeChecker, want ...string) {
				t.Helper()
				a := newAgentWith(t, path, api, func(o *warmwatch.Options) { o.TransformVersion = version })
				informer := a.make(a.configMaps("ns", noTweak), &corev1.ConfigMap{})
				if err := informer.SetTransform(transform); err != nil {
					t.Fatal(err)
				}
				if handler != nil {
					if _, err := informer.AddDurableEventHandler("d", handler); err != nil {
						t.Fatal(err)
					}
				}
				a.run(informer)
				until(func() bool {
					told := handler == nil || !slices.ContainsFunc(want, func(event string) bool { return !handler.heard(event) })
					return told && informer.Status().Phase == warmwatch.PhaseLive
				})
				a.stop()
			}
			checker := func(transform cache.TransformFunc) *typeChecker {
				transformed, err := transform(configMap("a"))
				if err != nil {
					t.Fatal(err)
				}
				return &typeChecker{recorder: &recorder{}, t: t, expected: reflect.TypeOf(transformed)}
			}
			life(c.before, "1", checker(c.before), "add ns/a@1", "add ns/b@2")
			api.Change(func(w *httpserver.World) { w.Delete("b") })
			life(c.before, "1", nil)
			api.Change(func(w *httpserver.World) { w.Delete("a") })
			life(c.now, c.version, checker(c.now), "lost ns/a", "lost ns/b")
		})
	}
}

// TestWhileANewTypeIsAdoptedNothingIsMissing, and a process that finds the file as it is then serves nothing
// before it has listed.
func TestWhileANewTypeIsAdoptedNothingIsMissing(t *testing.T) {
	const n = 2000
	for _, damaged := range []bool{false, true} { // Whether a stored object is why all is written anew.
		t.Run(fmt.Sprintf("damaged=%t", damaged), func(t *testing.T) {
			api, path, crashed := httpserver.New(t, "one"), testsupport.Path(t), testsupport.Path(t)
			api.Change(func(w *httpserver.World) {
				for i := range n {
					w.Put(fmt.Sprintf("o%04d", i), fmt.Sprint(i+1), "")
				}
			})
			life := func(path string, transform cache.TransformFunc, each func(*warmwatch.SharedIndexInformer, any)) (*agent, *warmwatch.SharedIndexInformer) {
				a := newAgentWith(t, path, api, func(o *warmwatch.Options) { o.CommitInterval, o.MemoryBudget = time.Millisecond, 1 })
				informer := a.make(a.configMaps("ns", noTweak), &corev1.ConfigMap{})
				err := errors.Join(informer.SetTransform(transform), informer.AddIndexers(cache.Indexers{"each": func(obj any) ([]string, error) {
					each(informer, obj)
					return nil, nil
				}}))
				if err != nil {
					t.Fatal(err)
				}
				a.wg.Go(func() { informer.RunWithContext(a.ctx) })
				return a, informer
			}
			live := func(informer *warmwatch.SharedIndexInformer) bool {
				return informer.Status().Phase == warmwatch.PhaseLive
			}
			ignore := func(*warmwatch.SharedIndexInformer, any) {}
			a, informer := life(path, unchanged, ignore)
			until(func() bool { return live(informer) })
			a.stop()
			if damaged {
				change(t, path, "objects", func(b *bolt.Bucket) error { return b.Put([]byte("kns/o0000"), []byte("garbage")) })
			} else {
				api.Change(func(w *httpserver.World) { w.Put("o0000", "1", "changed") })
			}

			var made atomic.Int64
			a, informer = life(path, toMetadata, func(informer *warmwatch.SharedIndexInformer, obj any) {
				if _, isNew := obj.(*metav1.PartialObjectMetadata); !isNew || made.Add(1) != 1200 {
					return
				}
				time.Sleep(100 * time.Millisecond) // What is applied is committed.
				list, byIndex := informer.GetStore().List(), 0
				if objs, err := informer.GetIndexer().ByIndex("namespace", "ns"); err == nil {
					byIndex = len(objs)
				}
				if _, exists, err := informer.GetStore().GetByKey("ns/o1999"); len(list) < n-1 || byIndex < n-1 || !exists || err != nil {
					t.Errorf("%d objects are listed, %d by index, the last one exists: %t (%v)", len(list), byIndex, exists, err)
				}
				b, err := os.ReadFile(path)
				if err = errors.Join(err, os.WriteFile(crashed, b, 0o600)); err != nil {
					t.Error(err)
				}
			})
			until(func() bool { return len(informer.GetStore().ListKeys()) > 0 })
			_, _, _ = informer.GetStore().GetByKey("ns/o0000") // Where it is damaged, that is found.
			until(func() bool { return made.Load() >= n && live(informer) })
			a.stop()

			_ = api.Take()
			api.Change(func(w *httpserver.World) { w.Meddle = noList })
			a, informer = life(crashed, toMetadata, ignore)
			until(func() bool { return slices.Contains(api.Take(), "all") })
			if got := len(informer.GetStore().List()); informer.HasSynced() || got > 0 {
				t.Errorf("synced: %t, with %d objects", informer.HasSynced(), got)
			}
			api.Change(func(w *httpserver.World) { w.Meddle = nil })
			until(func() bool { return informer.HasSynced() && live(informer) })
			if got := len(informer.GetStore().List()); got != n {
				t.Errorf("after its list it has %d of %d objects", got, n)
			}
			a.stop()
		})
	}
}

// noList refuses lists of all objects.
func noList(name string, w http.ResponseWriter) bool {
	if name == "all" {
		http.Error(w, "no list", http.StatusServiceUnavailable)
	}
	return name == "all"
}

// TestAListOfANewTypeThatIsAppliedInPart, because an index function has panicked, is followed by one that tells
// nobody of objects of the old type.
func TestAListOfANewTypeThatIsAppliedInPart(t *testing.T) {
	defer func(crash bool) { utilruntime.ReallyCrash = crash }(utilruntime.ReallyCrash)
	utilruntime.ReallyCrash = false
	bubble(t, func(t *testing.T) {
		f, path := newSource(t), testsupport.Path(t)
		for i := range 1200 {
			f.put(configMap(fmt.Sprintf("o%04d", i)))
		}
		life := func(transform cache.TransformFunc, handler cache.ResourceEventHandler, each func(any)) (*warmwatch.SharedIndexInformer, func()) {
			c, err := warmwatch.Open(path, warmwatch.Options{Logger: &testsupport.Quiet})
			if err != nil {
				t.Fatal(err)
			}
			informer := newSeen(c, f, cache.Indexers{"each": func(obj any) ([]string, error) { each(obj); return nil, nil }})
			_, err = informer.AddEventHandler(handler)
			if err = errors.Join(err, informer.SetTransform(transform)); err != nil {
				t.Fatal(err)
			}
			end := start(t, informer)
			settle()
			return informer, func() {
				end()
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			}
		}
		_, stop := life(unchanged, cache.ResourceEventHandlerFuncs{}, func(any) {})
		stop()
		handler := &typeChecker{recorder: &recorder{}, t: t, expected: reflect.TypeFor[*metav1.PartialObjectMetadata](), any: true}
		made := 0
		informer, stop := life(toMetadata, handler, func(obj any) {
			if _, isNew := obj.(*metav1.PartialObjectMetadata); !isNew {
				return
			}
			if made++; made == 1 {
				handler.any = false
			}
			if made == 700 { // Behind the first chunk.
				f.remove("o1199")
				panic("an index function that fails once")
			}
		})
		f.put(configMap("o0000", "changed"))
		settle()
		settle()
		if !handler.heard("lost ns/o1199") || made <= 1200 {
			t.Errorf("the deletion was told: %t, %d objects were indexed", handler.heard("lost ns/o1199"), made)
		}
		expectStore(t, informer, f)
		stop()
		if !slices.Contains(handler.events, "add ns/o0001@2") { // It has not changed.
			t.Error("objects of the old type were not told anew")
		}
	})
}

func init() {
	programs["panicsTransformed"] = func([]string) error {
		f := newSourceOf(configMap("a"), configMap("b"))
		f.remove("a")
		c, err := warmwatch.Open(os.Getenv("WARMWATCH_TEST_FILE"), warmwatch.Options{Logger: &testsupport.Quiet, MaxPanics: 1})
		if err != nil {
			return err
		}
		informer := newSeen(c, f, nil)
		_, err = informer.AddDurableEventHandler("d", &recorder{during: func(event string) { panic("poison: " + event) }})
		if err = errors.Join(err, informer.SetTransform(toMetadata)); err != nil {
			return err
		}
		endIfHanging()
		informer.RunWithContext(context.Background())
		return errors.New("Run has returned")
	}
}

// TestADeletionThatIsSetAsideKeepsItsObject over restarts, of the type that the transform returns.
func TestADeletionThatIsSetAsideKeepsItsObject(t *testing.T) {
	path := testsupport.Path(t)
	life := func(during func(*warmwatch.SharedIndexInformer, *source, *typeChecker), removed ...string) {
		bubble(t, func(t *testing.T) {
			f := newSource(t, configMap("a"), configMap("b"))
			f.remove(removed...)
			c, closed := openQuietly(t, path, func(o *warmwatch.Options) { o.MaxPanics = 1 })
			defer closed()
			d := &typeChecker{recorder: &recorder{}, t: t, expected: reflect.TypeFor[*metav1.PartialObjectMetadata]()}
			informer := newTransformed(t, c, f, toMetadata, d)
			defer start(t, informer)()
			settle()
			during(informer, f, d)
			settle()
		})
	}
	life(func(*warmwatch.SharedIndexInformer, *source, *typeChecker) {})
	if out := crash(t, "panicsTransformed", "WARMWATCH_TEST_FILE="+path); !strings.Contains(out, "poison: lost ns/a@1") {
		t.Fatalf("the process did not die in the deletion:\n%s", out)
	}
	for i := range 2 {
		life(func(informer *warmwatch.SharedIndexInformer, f *source, _ *typeChecker) {
			if got := informer.Status().Handlers[0].SetAside; !slices.Equal(got, []string{"ns/a"}) {
				t.Errorf("%q are set aside", got)
			}
			if got := f.takeRequests(); i > 0 && slices.Contains(got, "LIST rv=3") { // The first goes on with that of the crash.
				t.Errorf("%q: what is set aside was taken for damage", got)
			}
		}, "a")
	}
	life(func(informer *warmwatch.SharedIndexInformer, _ *source, d *typeChecker) {
		if err := informer.RedeliverSetAside("d"); err != nil {
			t.Fatal(err)
		}
		settle()
		d.expect(t, "lost ns/a@1")
	}, "a")
}

// TestAFirstListThatIsCutIsFollowedByOneMore, also where the transform returns another type.
func TestAFirstListThatIsCutIsFollowedByOneMore(t *testing.T) {
	for name, transform := range map[string]cache.TransformFunc{"the type of the example": unchanged, "another type": toMetadata} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t)
				for i := range 1500 {
					f.put(configMap(fmt.Sprintf("o%04d", i)))
				}
				c, closed := openQuietly(t, testsupport.Path(t), func(o *warmwatch.Options) { o.CommitInterval, o.MemoryBudget = time.Millisecond, 1 })
				defer closed()
				informer := newSeen(c, f, cache.Indexers{"namespace": cache.MetaNamespaceIndexFunc})
				if err := informer.SetTransform(transform); err != nil {
					t.Fatal(err)
				}
				f.cut(1200)
				defer start(t, informer)()
				time.Sleep(500 * time.Millisecond)
				f.with(func() { f.onList = nil })
				f.put(configMap("o0000", "changed"))
				f.takeRequests()
				settle()
				if got := f.takeRequests(); len(got) != 4 { // Three pages and the watch.
					t.Errorf("%q", got)
				}
				expectStore(t, informer, f)
			})
		})
	}
}

// TestAHandlerIsToldOfAllWhileANewTypeIsWritten: it reads the file, where the objects are of the old type until
// they are written, which is no damage.
func TestAHandlerIsToldOfAllWhileANewTypeIsWritten(t *testing.T) {
	readInChunksOf(t, 25)
	for _, delay := range []time.Duration{time.Millisecond, 30 * time.Second, time.Hour} {
		bubble(t, func(t *testing.T) {
			const n = 300
			f, path := newSource(t), testsupport.Path(t)
			for i := range n {
				f.put(configMap(fmt.Sprintf("o%03d", i)))
			}
			life := func(transform cache.TransformFunc, d cache.ResourceEventHandler, delay time.Duration) (*warmwatch.SharedIndexInformer, func()) {
				c, closed := openQuietly(t, path, func(o *warmwatch.Options) { o.MemoryBudget, o.CommitInterval, o.DurableDelay = 1, delay, delay })
				informer := newTransformed(t, c, f, transform, d)
				end := start(t, informer)
				return informer, func() { end(); closed() }
			}
			_, stop := life(unchanged, nil, time.Millisecond)
			settle()
			stop()
			var told atomic.Int64
			r := &recorder{during: func(string) {
				if i := told.Add(1); i%10 == 0 && i < n {
					time.Sleep(time.Second)
				}
			}}
			f.takeRequests()
			informer, stop := life(toMetadata, r, delay)
			defer stop()
			for told.Load() == 0 {
				time.Sleep(time.Second)
			}
			f.put(configMap("o000", "changed"))
			for range 60 {
				settle()
			}
			if got := f.takeRequests(); slices.Contains(got, "LIST rv=301") {
				t.Errorf("delay %v: %q: what the file has was taken for damage", delay, got)
			}
			expectStore(t, informer, f)
		})
	}
}

// TestADeletionOfTheOldTypeIsNotGiven to a reconciler once there are objects of a new one, as the file has
// nothing of it then, either.
func TestADeletionOfTheOldTypeIsNotGiven(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f, path := newSource(t, configMap("a"), configMap("b"), configMap("c")), testsupport.Path(t)
		life := func(transform cache.TransformFunc, reconcile func(*warmwatch.SharedIndexInformer, context.Context) error, during func()) {
			c, closed := openQuietly(t, path, func(o *warmwatch.Options) { o.CommitInterval, o.DurableDelay = time.Hour, time.Hour })
			informer := newSeen(c, f, nil)
			err := informer.SetTransform(transform)
			if reconcile != nil {
				_, addErr := informer.AddReconciler("r", func(ctx context.Context, _ cache.ObjectName) error { return reconcile(informer, ctx) }, warmwatch.ReconcilerOptions{})
				err = errors.Join(err, addErr)
			}
			if err != nil {
				t.Fatal(err)
			}
			end := start(t, informer)
			settle()
			during()
			end()
			closed()
		}
		life(unchanged, func(*warmwatch.SharedIndexInformer, context.Context) error { return nil }, func() { time.Sleep(2 * time.Hour) })
		life(unchanged, nil, func() { f.remove("a"); settle() })
		given := map[string]bool{}
		life(toMetadata, func(informer *warmwatch.SharedIndexInformer, ctx context.Context) error {
			obj, _, err := informer.GetStore().GetByKey("ns/c")
			for _, deleted := range warmwatch.DeletedObjects(ctx) {
				given[fmt.Sprintf("%T beside %T", deleted, obj)] = true
			}
			return cmp.Or(err, errors.New("not now"))
		}, func() { f.put(configMap("c", "changed")); time.Sleep(3 * time.Hour) })
		if want := map[string]bool{"*v1.ConfigMap beside *v1.ConfigMap": true}; !maps.Equal(given, want) {
			t.Errorf("reconciled with %v, expected %v", given, want)
		}
	})
}

// TestAnInformerMadeAgainWithAnotherTransform in one Cache tells a durable handler of what waits by its key, in
// memory as from the file.
func TestAnInformerMadeAgainWithAnotherTransform(t *testing.T) {
	for _, inMemory := range []bool{true, false} {
		t.Run(fmt.Sprintf("inMemory=%t", inMemory), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f, path := newSource(t, configMap("a"), configMap("b")), testsupport.Path(t)
				if inMemory {
					_, release := openQuietly(t, path)
					defer release()
				}
				c, closed := openQuietly(t, path)
				defer closed()
				life := func(transform cache.TransformFunc, handler cache.ResourceEventHandler, during func()) {
					end := start(t, newTransformed(t, c, f, transform, handler))
					settle()
					during()
					settle()
					end()
				}
				life(toMetadata, &recorder{}, settle)
				life(toMetadata, nil, func() { f.remove("a") })
				d := &typeChecker{recorder: &recorder{}, t: t, expected: reflect.TypeFor[*corev1.ConfigMap]()}
				life(nil, d, settle)
				if !d.heard("lost ns/a") {
					t.Errorf("told %q", d.events)
				}
			})
		})
	}
}

// TestADeletionThatIsAllAFileHasKeepsItsObject, where the transform returns another type.
func TestADeletionThatIsAllAFileHasKeepsItsObject(t *testing.T) {
	for _, lost := range [][]string{
		{}, {"checkpoint"}, {"checkpoint", "objects", "store", "index"},
		{"checkpoint", "objects", "store", "index", "cursors", "queue", "deltas", "tombstones"},
	} {
		bubble(t, func(t *testing.T) {
			f, path := newSource(t, configMap("a")), testsupport.Path(t)
			_, _, w, stop := transformed(t, path, f, toMetadata)
			w.set(nil)
			settle()
			w.expect(t, "ns/a@1")
			w.set(fail)
			f.remove("a")
			settle()
			stop()
			loseBuckets(t, path, lost...)
			_, informer, w, stop := transformed(t, path, f, toMetadata)
			defer stop()
			w.set(nil)
			advance(time.Hour)
			expectStore(t, informer, f)
			w.expect(t, "ns/a is gone, deleted ns/a@2")
		})
	}
}

// openQuietly opens a file, unless another process has it, until closed is called.
func openQuietly(t *testing.T, path string, change ...func(*warmwatch.Options)) (c *warmwatch.Cache, closed func()) {
	t.Helper()
	o := warmwatch.Options{Logger: &testsupport.Quiet, LockTimeout: time.Millisecond}
	for _, change := range change {
		change(&o)
	}
	c, err := warmwatch.Open(path, o)
	if err != nil {
		t.Fatal(err)
	}
	return c, func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

// newSeen makes an informer of NewInformer, whose requests are seen.
func newSeen(c *warmwatch.Cache, f *source, indexers cache.Indexers) *warmwatch.SharedIndexInformer {
	transport := c.WrapTransport(&gateway{cluster: func(r *http.Request, _ int) (*http.Response, error) {
		return reply(r, http.StatusForbidden, ""), nil
	}}).(request.Transport)
	lw := seenListerWatcher{cache.ToListerWatcherWithContext(f), f, transport}
	return c.NewInformer(lw, &corev1.ConfigMap{}, 0, indexers).(*warmwatch.SharedIndexInformer)
}

// newTransformed is newSeen with a transform, and with a durable handler unless that is nil.
func newTransformed(t *testing.T, c *warmwatch.Cache, f *source, transform cache.TransformFunc, d cache.ResourceEventHandler) *warmwatch.SharedIndexInformer {
	t.Helper()
	informer := newSeen(c, f, nil)
	err := informer.SetTransform(transform)
	if d != nil {
		_, addErr := informer.AddDurableEventHandler("d", d)
		err = errors.Join(err, addErr)
	}
	if err != nil {
		t.Fatal(err)
	}
	return informer
}

// transformed runs an informer of NewInformer, and a reconciler that fails.
func transformed(t *testing.T, path string, f *source, transform cache.TransformFunc) (*warmwatch.Cache, *warmwatch.SharedIndexInformer, *works, func()) {
	t.Helper()
	c, closed := openQuietly(t, path)
	informer := newTransformed(t, c, f, transform, nil)
	w := &works{lister: informer.GetStore(), during: fail}
	if _, err := informer.AddReconciler("r", w.reconcile, warmwatch.ReconcilerOptions{}); err != nil {
		t.Fatal(err)
	}
	end := start(t, informer)
	return c, informer, w, func() { end(); closed() }
}

// loseBuckets removes buckets of the only space with objects in a file that is closed.
func loseBuckets(t *testing.T, path string, buckets ...string) {
	t.Helper()
	var space []byte
	inFile(t, path, func(tx *bolt.Tx) error {
		return tx.ForEach(func(name []byte, b *bolt.Bucket) error {
			if b.Bucket([]byte("objects")) != nil {
				space = bytes.Clone(name)
			}
			return nil
		})
	})
	for _, bucket := range buckets {
		replaceBucket(t, path, space, []byte(bucket), nil)
	}
}

// replaceBucket gives a bucket of a file that is closed the content of another one, or removes it if that is nil.
func replaceBucket(t *testing.T, path string, space, bucket []byte, content *bolt.Bucket) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		if err := tx.Bucket(space).DeleteBucket(bucket); err != nil && !errors.Is(err, bolterrors.ErrBucketNotFound) {
			return err
		}
		if content == nil {
			return nil
		}
		b, err := tx.Bucket(space).CreateBucket(bucket)
		if err != nil {
			return err
		}
		return content.ForEach(b.Put)
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}
