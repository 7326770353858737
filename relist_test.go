package warmwatch_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/google/go-cmp/cmp"
	bolt "go.etcd.io/bbolt"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// convert changes the content of an object at the same resourceVersion, as a new default in
// a CustomResourceDefinition does.
func (f *source) convert(name, content string) {
	f.with(func() { f.objects["ns/"+name].(*corev1.ConfigMap).Data = map[string]string{"v": content} })
}

func contentOf(t *testing.T, informer cache.SharedInformer, key string) string {
	t.Helper()
	obj, exists, err := informer.GetStore().GetByKey(key)
	if err != nil || !exists {
		t.Fatalf("%s: exists %v, %v", key, exists, err)
	}
	return obj.(*corev1.ConfigMap).Data["v"]
}

func TestARelistFindsOtherContentOfTheSameVersion(t *testing.T) {
	for _, c := range []struct {
		name    string
		restart bool
		setup   setup
	}{
		{"in the running process", false, nil},
		{"after a restart", true, nil},
		{"nothing in memory", false, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.MemoryBudget = 1 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t, configMap("a", "old"), configMap("b"))
				p := launch(t, testsupport.Path(t), f, c.setup)
				durable := addDurable(t, p, "d")
				p.run()
				settle()
				durable.take()
				if c.restart {
					p.stop()
					f.convert("a", "new")
					f.compact()
					p = launch(t, p.path, f, c.setup)
					durable = addDurable(t, p, "d")
					p.run()
					settle()
				} else {
					relisted(f, func() { f.convert("a", "new") })
				}
				if got := contentOf(t, p.informer, "ns/a"); got != "new" {
					t.Errorf("the store has the content %q", got)
				}
				durable.expect(t, "update ns/a@1→1")
			})
		})
	}
}

// cut makes lists end after so many pages, of one item each.
func (f *source) cut(pages int) {
	f.with(func() {
		f.onList = func(_ context.Context, o metav1.ListOptions) (list runtime.Object, err error) {
			if o.Limit == 1 && o.Continue == "" { // The question before a resume.
				return nil, nil
			}
			f.with(func() {
				if pages == 0 {
					err = apierrors.NewServiceUnavailable("cut")
					return
				}
				pages--
				o.Limit = 1
				list, err = f.listLocked(o)
			})
			return list, err
		}
	})
}

func TestARelistThatIsCutLeavesNothingBehind(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"), configMap("b"), configMap("c"))
		p := launch(t, testsupport.Path(t), f, nil)
		r, _ := add(t, p.informer)
		durable := addDurable(t, p, "d")
		p.run()
		settle()
		before := f.contents()
		r.take()
		durable.take()

		f.cut(1)
		relisted(f, func() {
			f.put(configMap("a"), configMap("b"), configMap("c"))
			f.remove("c")
		})
		if diff := cmp.Diff(before, versions(p.informer.GetStore().List())); diff != "" {
			t.Errorf("after half a relist the store has changed (-before +after):\n%s", diff)
		}
		r.expect(t)
		durable.expect(t)

		f.with(func() { f.onList = nil })
		settle()
		want := []string{"lost ns/c@3", "update ns/a@1→4", "update ns/b@2→5"}
		r.expect(t, want...)
		durable.expect(t, want...)
		expectStore(t, p.informer, f)
	})
}

func TestARelistTellsOfDeletionsFirst(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		// Names so that in the order of keys the deletions come last.
		f := newSource(t, configMap("m"), configMap("x"), configMap("y"))
		informer := impl.new(t, f)
		r, _ := add(t, informer)
		start(t, informer)
		r.take()
		relisted(f, func() {
			f.remove("x", "y")
			f.put(configMap("a"), configMap("m"))
		})
		got := r.take()
		if len(got) != 4 || !strings.HasPrefix(got[0], "lost ns/") || !strings.HasPrefix(got[1], "lost ns/") {
			t.Errorf("told %q", got)
		}
	})
}

var errTransform = errors.New("cannot be transformed")

// transforming begins a life with a transform, and runs it.
func transforming(t *testing.T, path string, f *source, transform cache.TransformFunc) *process {
	t.Helper()
	p := launch(t, path, f, func(_ *warmwatch.Options, o *warmwatch.InformerOptions) { o.TransformVersion = "1" })
	if err := p.informer.SetTransform(transform); err != nil {
		t.Fatal(err)
	}
	p.run()
	settle()
	return p
}

func TestAnObjectThatTheTransformRefusesDoesNotEndARelist(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"), configMap("b"))
		path := testsupport.Path(t)
		refuse := true
		life := func() *process {
			return transforming(t, path, f, func(obj any) (any, error) {
				if refuse {
					return refuseBad(obj)
				}
				return obj, nil
			})
		}
		p := life()
		relisted(f, func() { f.put(configMap("c"), configMap("x", "bad"), configMap("b", "bad")) })
		want := []string{"ns/a@1", "ns/b@2", "ns/c@3"} // b stays as it was, as after an event.
		if diff := cmp.Diff(want, versions(p.informer.GetStore().List())); diff != "" {
			t.Errorf("the store (-want +got):\n%s", diff)
		}
		if st := p.informer.Status(); st.Phase != warmwatch.PhaseLive || !errors.Is(st.Err, errTransform) {
			t.Errorf("status %+v", st)
		}
		p.stop()
		refuse = false
		p = life() // Tries again.
		expectStore(t, p.informer, f)
		if st := p.informer.Status(); st.Err != nil || st.StartedFrom != "disk" {
			t.Errorf("status %+v", st)
		}
	})
}

// TestAnObjectThatCannotBeEncodedIsRefused, of an event and of a list: the store keeps the version that it has.
func TestAnObjectThatCannotBeEncodedIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"), configMap("b"))
		path := testsupport.Path(t)
		life := func() *process {
			return transforming(t, path, f, func(obj any) (any, error) {
				cm := obj.(*corev1.ConfigMap).DeepCopy()
				if cm.Data["v"] == "bad" {
					cm.Name = strings.Repeat("n", 33_000)
				}
				return cm, nil
			})
		}
		p := life()
		f.put(configMap("b", "bad"), configMap("c"))
		want := []string{"ns/a@1", "ns/b@2", "ns/c@4"}
		for range 2 {
			settle()
			if diff := cmp.Diff(want, versions(p.informer.GetStore().List())); diff != "" {
				t.Errorf("the store (-want +got):\n%s", diff)
			}
			if st := p.informer.Status(); len(st.Problems) != 1 || st.Problems[0].Code != warmwatch.CodeRefused || !strings.Contains(st.Problems[0].Message, "too long") {
				t.Errorf("status %+v", st)
			}
			p.stop()
			p = life() // Tries again.
		}
		f.put(configMap("b", "good"))
		settle()
		expectStore(t, p.informer, f)
	})
}

// TestAReplacedObjectThatCannotBeEncodedIsGone: a list tells that the old one was deleted, although its key is listed.
func TestAReplacedObjectThatCannotBeEncodedIsGone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		thing := func(name, uid, content string) *unstructured.Unstructured {
			return &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "v1", "kind": "Thing", "spec": content,
				"metadata": map[string]any{"namespace": "ns", "name": name, "uid": uid},
			}}
		}
		f := newSource(t)
		f.put(thing("a", "1", "good"), thing("b", "2", "good"))
		c, err := warmwatch.Open(t.Context(), testsupport.Path(t), warmwatch.Options{Logger: &testsupport.Quiet})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		informer, err := c.NewSharedIndexInformer(f, thing("", "", ""), warmwatch.InformerOptions{
			Resource: schema.GroupVersionResource{Version: "v1", Resource: "things"}, TransformVersion: "1",
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := informer.SetTransform(func(obj any) (any, error) {
			u := obj.(*unstructured.Unstructured).DeepCopy()
			if u.Object["spec"] == "bad" {
				u.Object["spec"] = make(chan int)
			}
			return u, nil
		}); err != nil {
			t.Fatal(err)
		}
		r, _ := add(t, informer)
		defer start(t, informer)()
		settle()
		relisted(f, func() {
			f.remove("a")
			f.put(thing("a", "3", "bad"), thing("b", "2", "bad"))
		})
		r.expect(t, "add ns/a@1 initial", "add ns/b@2 initial", "lost ns/a@1")
		if diff := cmp.Diff([]string{"ns/b@2"}, versions(informer.GetStore().List())); diff != "" {
			t.Errorf("the store (-want +got):\n%s", diff)
		}
	})
}

// renames is a transform that stores each object under another name, and refuses bad ones.
func renames(obj any) (any, error) {
	cm := obj.(*corev1.ConfigMap).DeepCopy()
	if cm.Name = "x-" + cm.Name; cm.Data["v"] == "bad" {
		return nil, errTransform
	}
	return cm, nil
}

func TestAnEventThatCouldNotBeAppliedDoesNotTurnBackTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"))
		path := testsupport.Path(t)
		life := func(refuse bool) *recorder {
			p := launch(t, path, f, func(_ *warmwatch.Options, o *warmwatch.InformerOptions) { o.TransformVersion = "1" })
			if err := p.informer.SetTransform(func(obj any) (any, error) {
				if refuse && accessor(obj).GetName() == "b" {
					return nil, errTransform
				}
				return obj, nil
			}); err != nil {
				t.Fatal(err)
			}
			r := addDurable(t, p, "d")
			p.run()
			settle()
			if refuse {
				f.put(configMap("b"), configMap("a"), configMap("a"), configMap("c"))
				f.remove("c")
				settle()
			}
			p.stop()
			return r
		}
		life(true).expect(t, "add ns/a@1 initial", "update ns/a@1→3", "update ns/a@3→4", "add ns/c@5", "delete ns/c@6")
		life(false).expect(t, "add ns/b@2")
	})
}

func TestAnIndexFunctionThatFailsOnAStoredObjectDoesNotEndTheProgram(t *testing.T) {
	strict := func(obj any) ([]string, error) {
		v := obj.(*corev1.ConfigMap).Data["v"]
		if v == "ancient" {
			return nil, errors.New("not understood any more")
		}
		return []string{v}, nil
	}
	panics := func(obj any) ([]string, error) {
		values, err := strict(obj)
		if err != nil {
			panic(err)
		}
		return values, nil
	}
	lenient := func(obj any) ([]string, error) { return []string{obj.(*corev1.ConfigMap).Data["v"]}, nil }
	for _, c := range []struct {
		name  string
		index cache.IndexFunc
		late  bool // The indexers are added by AddIndexers.
		from  string
	}{
		{"the indices are rebuilt", strict, false, "1"},
		{"an index is added before the start", strict, true, "1"},
		{"the version is said to be the same", strict, false, "2"},
		{"the indices are rebuilt, and it panics", panics, false, "1"},
		{"an index is added before the start, and it panics", panics, true, "1"},
		{"the version is said to be the same, and it panics", panics, false, "2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t, configMap("a", "ancient"), configMap("b", "x"))
				path := testsupport.Path(t)
				launch := func(version string, index cache.IndexFunc, late bool) *process {
					indexers := cache.Indexers{"v": index}
					p := launch(t, path, f, func(_ *warmwatch.Options, o *warmwatch.InformerOptions) {
						if o.IndexVersion = version; !late {
							o.Indexers = indexers
						}
					})
					if late {
						if err := p.informer.AddIndexers(indexers); err != nil {
							t.Fatal(err)
						}
					}
					p.run()
					settle()
					return p
				}
				launch(c.from, lenient, false).stop()
				f.remove("a")
				f.compact()
				p := launch("2", c.index, c.late)
				expectStore(t, p.informer, f)
				for value, want := range map[string]int{"x": 1, "ancient": 0} {
					if objects, err := p.informer.GetIndexer().ByIndex("v", value); err != nil || len(objects) != want {
						t.Errorf("%d objects of %q, %v", len(objects), value, err)
					}
				}
				if values := p.informer.GetIndexer().ListIndexFuncValues("v"); len(values) != 1 {
					t.Errorf("the values are %q", values)
				}
			})
		})
	}
}

// TestAnIndexFunctionThatFailsWhileTheServerIsAway: the stored objects are compared with
// their index entries soon after the start.
func TestAnIndexFunctionThatFailsWhileTheServerIsAway(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a", "ancient"), configMap("b", "x"))
		p := launch(t, testsupport.Path(t), f, nil)
		p.run()
		settle()
		p.stop()
		f.setDown(errUnreachable)
		p = launch(t, p.path, f, func(_ *warmwatch.Options, o *warmwatch.InformerOptions) {
			o.Indexers = cache.Indexers{"v": func(obj any) ([]string, error) {
				if v := obj.(*corev1.ConfigMap).Data["v"]; v != "ancient" {
					return []string{v}, nil
				}
				return nil, errors.New("not understood any more")
			}}
		})
		p.run()
		advance(time.Minute)
		f.remove("a")
		f.setDown(nil)
		settle()
		expectStore(t, p.informer, f)
	})
}

// removeKey removes a key from a file that is not open, as damage does.
func removeKey(t *testing.T, path, bucket, key string) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	err = db.Update(func(tx *bolt.Tx) error {
		return tx.ForEach(func(_ []byte, space *bolt.Bucket) error {
			if b := space.Bucket([]byte(bucket)); b != nil {
				return b.Delete([]byte("k" + key))
			}
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestAStoreThatIsNotWholeIsNotServed(t *testing.T) {
	for name, missing := range map[string][][2]string{
		"an object":                   {{"objects", "ns/b"}},
		"the count":                   {{"store", "state"}},
		"the count, with all objects": {{"store", "state"}, {"objects", "ns/a"}, {"objects", "ns/b"}, {"objects", "ns/c"}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t, configMap("a"), configMap("b"), configMap("c"))
				p := launch(t, testsupport.Path(t), f, nil)
				p.run()
				settle()
				p.stop()
				for _, m := range missing {
					removeKey(t, p.path, m[0], m[1])
				}
				f.setDown(errUnreachable)
				var r *recorder
				for range 2 { // The second finds what the first has made of it.
					p.stop()
					p = launch(t, p.path, f, nil)
					p.damaged = true
					r, _ = add(t, p.informer)
					p.run()
					settle()
					if p.informer.HasSynced() || len(p.informer.GetStore().List()) > 0 {
						t.Errorf("synced %v, with %q", p.informer.HasSynced(), versions(p.informer.GetStore().List()))
					}
					r.expect(t)
				}
				f.setDown(nil)
				settle()
				expectStore(t, p.informer, f)
				r.expectInAnyOrder(t, "add ns/a@1 initial", "add ns/b@2 initial", "add ns/c@3 initial")
				p.stop()
				f.setDown(errUnreachable)
				p = launch(t, p.path, f, nil)
				p.run()
				settle()
				if !p.informer.HasSynced() {
					t.Error("a store that is whole again is not served")
				}
			})
		})
	}
}

// A relist that is too large for memory is staged in the file, and leaves nothing there.
func TestALargeRelistIsStagedInTheFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSource(t)
		for i := range 3000 {
			f.put(configMap(fmt.Sprintf("o%04d", i), strings.Repeat("x", 2000)))
		}
		p := launch(t, testsupport.Path(t), f, nil)
		r := addDurable(t, p, "d")
		p.run()
		settle()
		r.take()
		relisted(f, func() {
			for i := range 3000 {
				f.put(configMap(fmt.Sprintf("o%04d", i), strings.Repeat("y", 2000)))
			}
		})
		if got := r.take(); len(got) != 3000 {
			t.Errorf("%d notifications", len(got))
		}
		expectStore(t, p.informer, f)
		p.stop()
		inFile(t, p.path, func(tx *bolt.Tx) error {
			return tx.ForEach(func(name []byte, space *bolt.Bucket) error {
				if b := space.Bucket([]byte("staged")); b != nil && b.Stats().KeyN > 0 {
					t.Errorf("%d objects are still staged in %s", b.Stats().KeyN, name)
				}
				return nil
			})
		})
	})
}

// TestAnIndexFunctionThatPanicsOnWhatAnOlderTransformMade: the function needs a field that
// the transform of the last program left out.
func TestAnIndexFunctionThatPanicsOnWhatAnOlderTransformMade(t *testing.T) {
	for _, gone := range []bool{false, true} {
		t.Run(fmt.Sprintf("gone=%t", gone), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t, configMap("a", "x"), configMap("b", "y"))
				path := testsupport.Path(t)
				p := launch(t, path, f, func(_ *warmwatch.Options, o *warmwatch.InformerOptions) { o.TransformVersion = "1" })
				if err := p.informer.SetTransform(func(obj any) (any, error) {
					obj.(*corev1.ConfigMap).Data = nil
					return obj, nil
				}); err != nil {
					t.Fatal(err)
				}
				p.run()
				settle()
				p.stop()
				if gone {
					f.remove("a")
				}
				p = launch(t, path, f, func(_ *warmwatch.Options, o *warmwatch.InformerOptions) {
					o.TransformVersion = "2"
					o.Indexers = cache.Indexers{"v": func(obj any) ([]string, error) {
						if obj.(*corev1.ConfigMap).Data == nil {
							panic("there is no data")
						}
						return []string{obj.(*corev1.ConfigMap).Data["v"]}, nil
					}}
				})
				p.run()
				settle()
				expectEqual(t, p.informer, f)
				for value, want := range map[string]bool{"x": !gone, "y": true} {
					if keys, err := p.informer.GetIndexer().IndexKeys("v", value); err != nil || (len(keys) == 1) != want {
						t.Errorf("index value %q: %q, %v", value, keys, err)
					}
				}
			})
		})
	}
}

// TestWhatTwoTransformsHaveMadeIsNotServed: a process whose TransformVersion is new crashes while it
// applies its relist, and the program goes back to the old one. Nor is a durable handler told of it.
func TestWhatTwoTransformsHaveMadeIsNotServed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const objects = 1600 // Of which 500 are applied at once.
		f, crashed := newSource(t), ""
		for i := range objects {
			f.put(configMap(fmt.Sprintf("o%04d", i)))
		}
		launchBy := func(path, version string) *process {
			var p *process
			p = launch(t, path, f, func(o *warmwatch.Options, io *warmwatch.InformerOptions) {
				o.MaxPendingBytes = 1 // Each batch is in the file before the next one is made.
				io.TransformVersion, io.IndexVersion = version, "1"
				io.Indexers = cache.Indexers{"by": func(obj any) ([]string, error) {
					cm := obj.(*corev1.ConfigMap)
					if crashed == "" && cm.Name == "o1599" && cm.Data["by"] == "2" {
						crashed = p.crash()
					}
					return []string{cm.Data["by"]}, nil
				}}
			})
			if err := p.informer.SetTransform(func(obj any) (any, error) {
				obj.(*corev1.ConfigMap).Data = map[string]string{"by": version}
				return obj, nil
			}); err != nil {
				t.Fatal(err)
			}
			return p
		}
		toldBy := map[string]int{}
		handler := cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) { toldBy[obj.(*corev1.ConfigMap).Data["by"]]++ }}
		handler.UpdateFunc = func(_, obj any) { handler.AddFunc(obj) }
		launchByOld := func(path string) *process {
			p := launchBy(path, "1")
			if _, err := p.informer.AddDurableEventHandler("d", handler, warmwatch.DurableOptions{}); err != nil {
				t.Fatal(err)
			}
			return p.run()
		}
		path := testsupport.Path(t)
		p := launchByOld(path)
		settle()
		p.stop()
		launchBy(path, "2").run()
		settle()
		if crashed == "" {
			t.Fatal("it has not relisted")
		}

		f.setDown(errUnreachable)
		p = launchByOld(crashed)
		settle()
		for _, serves := range []bool{false, true} {
			if n := len(p.informer.GetStore().List()); serves != (n == objects) {
				t.Errorf("%d objects", n)
			}
			for _, obj := range p.informer.GetStore().List() {
				if cm := obj.(*corev1.ConfigMap); cm.Data["by"] != "1" {
					t.Fatalf("%s is served as version %s has made it", cm.Name, cm.Data["by"])
				}
			}
			f.setDown(nil)
			settle()
		}
		if toldBy["2"] > 0 || toldBy["1"] != 2*objects {
			t.Errorf("told of so many objects, by the version that has made them: %v", toldBy)
		}
	})
}

// TestAfterACrashWithinARelistNoOlderListIsAskedFor: some objects are of its version already,
// and must not go back (D2).
func TestAfterACrashWithinARelistNoOlderListIsAskedFor(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const objects = 1600 // Of which 500 are applied at once.
		f := newSource(t)
		put := func(content string) {
			for i := range objects {
				f.put(configMap(fmt.Sprintf("o%04d", i), content))
			}
		}
		put("old")
		p, crashed := (*process)(nil), ""
		p = launch(t, filled(t, f, nil), f, func(o *warmwatch.Options, io *warmwatch.InformerOptions) {
			o.MaxPendingBytes = 1 // Each batch is in the file before the next one is made.
			io.Indexers = cache.Indexers{"content": func(obj any) ([]string, error) {
				cm := obj.(*corev1.ConfigMap)
				if crashed == "" && cm.Name == "o1599" && cm.Data["v"] == "new" {
					crashed = p.crash()
				}
				return []string{cm.Data["v"]}, nil
			}}
		})
		put("new")
		f.compact()
		p.run()
		settle()
		if crashed == "" {
			t.Fatal("it has not relisted")
		}
		f.takeRequests()
		version := fmt.Sprint(2*objects + 1) // compact has taken one.

		q := launch(t, crashed, f, nil)
		if applied := q.informer.LastSyncResourceVersion(); applied == version {
			t.Fatalf("the relist was complete, at %s", applied)
		}
		q.run()
		settle()
		for _, request := range f.takeRequests() {
			if strings.HasPrefix(request, "LIST") && !strings.HasPrefix(request, "LIST rv="+version) {
				t.Errorf("%s, expected nothing older than %s", request, version)
			}
		}
		expectStore(t, q.informer, f)
	})
}

// TestABookmarkDoesNotMakeUpForTheVersionOfAList: after one with an object newer than itself, or
// without a version that a watch can begin at, each start lists.
func TestABookmarkDoesNotMakeUpForTheVersionOfAList(t *testing.T) { // A3
	for _, c := range []struct {
		name, listed, object string
		resumes              int
	}{
		{"an object newer than the list", "50", "90", 0},
		{"no version", "", "40", 0},
		{"any version", "0", "40", 0},
		{"a list as new as its objects", "50", "50", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t)
				f.rv = 50
				f.onList = func(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
					listed := c.listed
					if o.Limit == 1 {
						listed = f.rvLocked()
					}
					return &corev1.ConfigMapList{
						ListMeta: metav1.ListMeta{ResourceVersion: listed}, Items: []corev1.ConfigMap{*at(c.object, "uid-1", "a", "")},
					}, nil
				}
				p := launch(t, testsupport.Path(t), f, nil).run()
				settle()
				f.bookmark()
				settle()
				p.stop()
				p = launch(t, p.path, f, nil).run()
				settle()
				if st := p.informer.Status(); st.Resumes != c.resumes || st.Relists != 1-c.resumes {
					t.Errorf("status %+v", st)
				}
			})
		})
	}
}

// TestADeletionBetweenTwoWatchesFromAnyVersionIsFoundByTheNextProcess: a watch from "0" brings the
// objects that there are, and no deletion from before it was opened.
func TestADeletionBetweenTwoWatchesFromAnyVersionIsFoundByTheNextProcess(t *testing.T) { // A3, A5
	bubble(t, func(t *testing.T) {
		f := newSource(t) // Its first list is at "0".
		p := launch(t, testsupport.Path(t), f, nil)
		addDurable(t, p, "name")
		p.run()
		settle()
		f.put(configMap("a"), configMap("b"))
		settle()
		f.closeWatches()
		f.remove("a")
		settle()
		f.bookmark()
		settle()
		p.stop()
		p = launch(t, p.path, f, nil)
		durable := addDurable(t, p, "name")
		p.run()
		settle()
		expectStore(t, p.informer, f)
		durable.expect(t, "lost ns/a@1")
	})
}

func TestADeletionIsFoundThoughTheVersionsHaveNoCommonOrder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		objects := []runtime.Object{at("7", "ua", "a", "x"), at("3", "uc", "c", "x")}
		f := newSource(t)
		f.onList = func(context.Context, metav1.ListOptions) (runtime.Object, error) {
			list := &corev1.List{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}
			err := meta.SetList(list, objects)
			return list.DeepCopy(), err
		}
		path := testsupport.Path(t)
		p := launch(t, path, f, nil).run()
		settle()
		p.stop()
		objects = objects[:1] // The version of the list stays.
		p = launch(t, path, f, nil).run()
		settle()
		if got := versions(p.informer.GetStore().List()); !slices.Equal(got, []string{"ns/a@7"}) {
			t.Errorf("the store has %v", got)
		}
		if st := p.informer.Status(); st.Relists != 1 || st.Resumes != 0 || st.StartedFrom != "disk" {
			t.Errorf("status: %+v", st)
		}
	})
}

// TestAListWithoutObjectsIsLogged with how many there were: handlers are told that all of them are gone.
func TestAListWithoutObjectsIsLogged(t *testing.T) {
	bubble(t, func(t *testing.T) {
		logger, logged := loggerOf("no objects any more")
		f := newSource(t, configMap("a"), configMap("b"))
		p := launch(t, testsupport.Path(t), f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.Logger = &logger })
		p.run()
		settle()
		f.with(func() { clear(f.objects) })
		for range 2 { // The second list changes nothing.
			if err := p.informer.Relist(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if lines := logged(); len(lines) != 1 || !strings.Contains(lines[0], `"informer"="configmaps/v1 (typed)" "objects"=2`) {
			t.Errorf("logged: %q", lines)
		}
	})
}
