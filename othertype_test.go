package warmwatch_test

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// TestAnObjectOfAnotherTypeInAListIsNoDeletion: what the store has of its key stays, and the
// next process asks again.
func TestAnObjectOfAnotherTypeInAListIsNoDeletion(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"), configMap("b"))
		p := launch(t, testsupport.Path(t), f, nil)
		r, _ := add(t, p.informer)
		p.run()
		r.expectInAnyOrder(t, "add ns/a@1 initial", "add ns/b@2 initial")
		relisted(f, func() {
			f.put(configMap("c"), &corev1.Secret{ObjectMeta: configMap("b").ObjectMeta})
			f.remove("a")
		})
		r.expect(t, "lost ns/a@1", "add ns/c@3")
		if diff := cmp.Diff([]string{"ns/b@2", "ns/c@3"}, versions(p.informer.GetStore().List())); diff != "" {
			t.Errorf("the store (-want +got):\n%s", diff)
		}
		if st := p.informer.Status(); st.Phase != warmwatch.PhaseLive || !namesBothTypes(st.Err, "*v1.Secret") {
			t.Errorf("status %+v", st)
		}
		p.stop()
		f.put(configMap("b"))
		p = launch(t, p.path, f, nil).run()
		settle()
		expectStore(t, p.informer, f)
		if st := p.informer.Status(); st.Err != nil || st.Relists != 1 {
			t.Errorf("status %+v", st)
		}
	})
}

func namesBothTypes(err error, other string) bool {
	return err != nil && strings.Contains(err.Error(), other) && strings.Contains(err.Error(), "*v1.ConfigMap")
}

// TestAListOfWhatHasNoMetadataFails: nobody can tell which object it is, so nothing is deleted.
func TestAListOfWhatHasNoMetadataFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"), configMap("b"))
		p := launch(t, testsupport.Path(t), f, nil)
		var failed error
		if err := p.informer.SetWatchErrorHandler(func(_ *cache.Reflector, err error) { failed = err }); err != nil {
			t.Fatal(err)
		}
		r, _ := add(t, p.informer)
		p.run()
		r.expectInAnyOrder(t, "add ns/a@1 initial", "add ns/b@2 initial")
		relisted(f, func() {
			f.with(func() {
				f.onList = func(_ context.Context, _ metav1.ListOptions) (runtime.Object, error) {
					raw := runtime.RawExtension{Raw: []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"ns"}}`)}
					return &corev1.List{ListMeta: metav1.ListMeta{ResourceVersion: "9"}, Items: []runtime.RawExtension{raw}}, nil
				}
			})
		})
		r.expect(t)
		expectStore(t, p.informer, f)
		if st := p.informer.Status(); st.Phase != warmwatch.PhaseDisconnected || !namesBothTypes(failed, "<nil>") {
			t.Errorf("phase %v, error %v", st.Phase, failed)
		}
	})
}

// TestTheNextProcessListsAfterAnEventOfAnotherType: client-go skips such an event, and the
// checkpoint goes on with the next one.
func TestTheNextProcessListsAfterAnEventOfAnotherType(t *testing.T) { // A2
	secret := func(name, uid string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: at("", uid, name, "").ObjectMeta}
	}
	for _, c := range []struct {
		name  string
		typ   watch.EventType
		event *corev1.Secret
		now   runtime.Object // What a list has of it.
		told  string
	}{
		{"added", watch.Added, secret("n", "uid-n"), at("3", "uid-n", "n", ""), "add ns/n@3"},
		{"changed", watch.Modified, secret("b", "uid-2"), at("3", "uid-2", "b", ""), "update ns/b@2→3"},
		{"deleted", watch.Deleted, secret("b", "uid-2"), nil, "lost ns/b@2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t, configMap("a"), configMap("b"))
				p := launch(t, testsupport.Path(t), f, nil)
				d := addDurable(t, p, "d")
				p.run()
				settle()
				d.take()
				f.with(func() {
					f.recordLocked(c.typ, c.event)
					if key := keyOf(c.event); c.now != nil {
						f.objects[key] = c.now
					} else {
						delete(f.objects, key)
					}
				})
				f.put(configMap("c"))
				settle()
				d.expect(t, "add ns/c@4")
				if st := p.informer.Status(); st.Phase != warmwatch.PhaseLive || !namesBothTypes(st.Err, "*v1.Secret") {
					t.Errorf("status %+v", st)
				}
				path := p.crash()
				p.stop()
				for _, path := range []string{p.path, path} {
					p = launch(t, path, f, nil)
					d = addDurable(t, p, "d")
					p.run()
					settle()
					d.expect(t, c.told)
					expectStore(t, p.informer, f)
					if st := p.informer.Status(); st.Err != nil || st.StartedFrom != "disk" {
						t.Errorf("status %+v", st)
					}
				}
			})
		})
	}
}

// TestAnObjectThatFirstCameInAnotherTypeIsNoTestimony of another history.
func TestAnObjectThatFirstCameInAnotherTypeIsNoTestimony(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"))
		p := launch(t, filled(t, f, nil), f, nil).run()
		settle()
		f.put(&corev1.Secret{ObjectMeta: configMap("n").ObjectMeta})
		f.put(configMap("n"))
		settle()
		expectStore(t, p.informer, f)
		if st := p.informer.Status(); st.Relists != 0 || st.Resumes != 1 {
			t.Errorf("status %+v", st)
		}
	})
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
}

func (c *typeChecker) check(event string, obj any) {
	if lost, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = lost.Obj
	}
	if got := reflect.TypeOf(obj); obj != nil && got != c.expected {
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

// openQuietly opens a file, unless another process has it, until closed is called.
func openQuietly(t *testing.T, path string, change ...func(*warmwatch.Options)) (c *warmwatch.Cache, closed func()) {
	t.Helper()
	o := warmwatch.Options{Logger: &testsupport.Quiet, LockTimeout: time.Millisecond}
	for _, change := range change {
		change(&o)
	}
	c, err := warmwatch.Open(t.Context(), path, o)
	if err != nil {
		t.Fatal(err)
	}
	return c, func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestAnObjectOfAnotherTypeIsNeverGiven to a callback: a process has stored it whose transform returns that type. What
// is gone since is told by its key, also what waits for a durable handler (S2, D3).
func TestAnObjectOfAnotherTypeIsNeverGiven(t *testing.T) {
	for _, inMemory := range []bool{false, true} {
		t.Run(fmt.Sprintf("inMemory=%t", inMemory), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f, path := newSource(t, configMap("a"), configMap("b"), configMap("c")), testsupport.Path(t)
				if inMemory {
					defer holdFile(t, path)()
				}
				c, closed := openQuietly(t, path)
				defer func() { closed() }()
				life := func(metadata bool, d *recorder, during func(*warmwatch.SharedIndexInformer)) {
					o := warmwatch.InformerOptions{Resource: configMaps, Indexers: cache.Indexers{"namespace": cache.MetaNamespaceIndexFunc}}
					transform, expected := unchanged, reflect.TypeFor[*corev1.ConfigMap]()
					if metadata {
						o.Transformed, transform, expected = &metav1.PartialObjectMetadata{}, toMetadata, reflect.TypeFor[*metav1.PartialObjectMetadata]()
					}
					informer, err := c.NewSharedIndexInformer(f, &corev1.ConfigMap{}, o)
					if err == nil {
						err = informer.SetTransform(transform)
					}
					if d != nil && err == nil {
						_, err = informer.AddDurableEventHandler("d", &typeChecker{recorder: d, t: t, expected: expected}, warmwatch.DurableOptions{})
					}
					if err != nil {
						t.Fatal(err)
					}
					end := start(t, informer)
					settle()
					during(informer)
					end()
					if !inMemory {
						closed()
						c, closed = openQuietly(t, path)
					}
				}
				nothing := func(*warmwatch.SharedIndexInformer) {}
				d := &recorder{}
				life(false, d, nothing)
				d.take()
				life(false, nil, func(*warmwatch.SharedIndexInformer) { f.remove("b"); settle() })
				f.setDown(errUnreachable)
				life(true, d, func(informer *warmwatch.SharedIndexInformer) {
					if got := informer.GetStore().List(); len(got) > 0 {
						t.Errorf("served %q", versions(got))
					}
					f.remove("a")
					f.setDown(nil)
					settle()
					expectStore(t, informer, f)
					byIndex, err := informer.GetIndexer().ByIndex("namespace", "ns")
					if got := versions(byIndex); err != nil || !slices.Equal(got, []string{"ns/c@3"}) {
						t.Errorf("by index %q, %v", got, err)
					}
				})
				for _, want := range []string{"lost ns/a", "lost ns/b", "add ns/c@3"} {
					if !d.heard(want) {
						t.Errorf("told %q, expected %q", d.events, want)
					}
				}
			})
		})
	}
}

func unchanged(obj any) (any, error) { return obj, nil }

// unstructuredObject returns one of a kind.
func unstructuredObject(apiVersion, kind, name, rv string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetAPIVersion(apiVersion)
	u.SetKind(kind)
	u.SetName(name)
	u.SetResourceVersion(rv)
	return u
}

// TestTheExampleMayBeChangedAfterwards, as programs do that create the object by which they have
// asked controller-runtime for an informer.
func TestTheExampleMayBeChangedAfterwards(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t)
		open := watch.NewFakeWithOptions(watch.FakeOptions{ChannelSize: 1})
		f.onWatch = func(context.Context, metav1.ListOptions) (watch.Interface, error) { return open, nil }
		f.onList = listsUnstructured("2", unstructuredObject("v1", "ConfigMap", "a", "1"))
		example := unstructuredObject("v1", "ConfigMap", "", "")
		p := launch(t, testsupport.Path(t), f, nil, example)
		example.SetKind("Changed")
		p.run()
		settle()
		open.Add(unstructuredObject("v1", "ConfigMap", "b", "3"))
		settle()
		if diff := cmp.Diff([]string{"a@1", "b@3"}, versions(p.informer.GetStore().List())); diff != "" {
			t.Errorf("the store (-want +got):\n%s", diff)
		}
		if err := p.informer.Status().Err; err != nil {
			t.Error(err)
		}
	})
}

// listsUnstructured answers a list with these objects.
func listsUnstructured(rv string, items ...*unstructured.Unstructured) func(context.Context, metav1.ListOptions) (runtime.Object, error) {
	return func(context.Context, metav1.ListOptions) (runtime.Object, error) {
		list := &unstructured.UnstructuredList{}
		list.SetResourceVersion(rv)
		for _, item := range items {
			list.Items = append(list.Items, *item.DeepCopy())
		}
		return list, nil
	}
}
