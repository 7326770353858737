package contract_test

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
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/recorder"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

// TestAnObjectOfAnotherTypeInAListIsNoDeletion: what the store has of its key stays, and the
// next process asks again.
func TestAnObjectOfAnotherTypeInAListIsNoDeletion(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"))
		p := process.Launch(t, testsupport.Path(t), f, nil)
		r, _ := recorder.Add(t, p.Informer)
		p.Run()
		r.ExpectInAnyOrder(t, "add ns/a@1 initial", "add ns/b@2 initial")
		source.Relisted(f, func() {
			f.Put(source.ConfigMap("c"), &corev1.Secret{ObjectMeta: source.ConfigMap("b").ObjectMeta})
			f.Remove("a")
		})
		r.Expect(t, "lost ns/a@1", "add ns/c@3")
		if diff := cmp.Diff([]string{"ns/b@2", "ns/c@3"}, source.Versions(p.Informer.GetStore().List())); diff != "" {
			t.Errorf("the store (-want +got):\n%s", diff)
		}
		if st := p.Informer.Status(); st.Phase != warmwatch.PhaseLive || !namesBothTypes(st.Err, "*v1.Secret") {
			t.Errorf("status %+v", st)
		}
		p.Stop()
		f.Put(source.ConfigMap("b"))
		p = process.Launch(t, p.Path, f, nil).Run()
		bubble.Settle()
		process.ExpectStore(t, p.Informer, f)
		if st := p.Informer.Status(); st.Err != nil || st.Relists != 1 {
			t.Errorf("status %+v", st)
		}
	})
}

func namesBothTypes(err error, other string) bool {
	return err != nil && strings.Contains(err.Error(), other) && strings.Contains(err.Error(), "*v1.ConfigMap")
}

// TestAListOfWhatHasNoMetadataFails: nobody can tell which object it is, so nothing is deleted.
func TestAListOfWhatHasNoMetadataFails(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"))
		p := process.Launch(t, testsupport.Path(t), f, nil)
		var failed error
		if err := p.Informer.SetWatchErrorHandler(func(_ *cache.Reflector, err error) { failed = err }); err != nil {
			t.Fatal(err)
		}
		r, _ := recorder.Add(t, p.Informer)
		p.Run()
		r.ExpectInAnyOrder(t, "add ns/a@1 initial", "add ns/b@2 initial")
		source.Relisted(f, func() {
			f.With(func() {
				f.OnList = func(_ context.Context, _ metav1.ListOptions) (runtime.Object, error) {
					raw := runtime.RawExtension{Raw: []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"ns"}}`)}
					return &corev1.List{ListMeta: metav1.ListMeta{ResourceVersion: "9"}, Items: []runtime.RawExtension{raw}}, nil
				}
			})
		})
		r.Expect(t)
		process.ExpectStore(t, p.Informer, f)
		if st := p.Informer.Status(); st.Phase != warmwatch.PhaseDisconnected || !namesBothTypes(failed, "<nil>") {
			t.Errorf("phase %v, error %v", st.Phase, failed)
		}
	})
}

// TestTheNextProcessListsAfterAnEventOfAnotherType: client-go skips such an event, and the
// checkpoint goes on with the next one.
func TestTheNextProcessListsAfterAnEventOfAnotherType(t *testing.T) { // A2
	secret := func(name, uid string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: source.At("", uid, name, "").ObjectMeta}
	}
	for _, c := range []struct {
		name      string
		typ       watch.EventType
		event     *corev1.Secret
		now       runtime.Object // What a list has of it.
		delivered string
	}{
		{"added", watch.Added, secret("n", "uid-n"), source.At("3", "uid-n", "n", ""), "add ns/n@3"},
		{"changed", watch.Modified, secret("b", "uid-2"), source.At("3", "uid-2", "b", ""), "update ns/b@2→3"},
		{"deleted", watch.Deleted, secret("b", "uid-2"), nil, "lost ns/b@2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble.Run(t, func(t *testing.T) {
				f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"))
				p := process.Launch(t, testsupport.Path(t), f, nil)
				d := process.AddDurable(t, p, "d")
				p.Run()
				bubble.Settle()
				d.Take()
				f.With(func() {
					f.RecordLocked(c.typ, c.event)
					if key := source.Key(c.event); c.now != nil {
						f.Objects[key] = c.now
					} else {
						delete(f.Objects, key)
					}
				})
				f.Put(source.ConfigMap("c"))
				bubble.Settle()
				d.Expect(t, "add ns/c@4")
				if st := p.Informer.Status(); st.Phase != warmwatch.PhaseLive || !namesBothTypes(st.Err, "*v1.Secret") {
					t.Errorf("status %+v", st)
				}
				path := p.Crash()
				p.Stop()
				for _, path := range []string{p.Path, path} {
					p = process.Launch(t, path, f, nil)
					d = process.AddDurable(t, p, "d")
					p.Run()
					bubble.Settle()
					d.Expect(t, c.delivered)
					process.ExpectStore(t, p.Informer, f)
					if st := p.Informer.Status(); st.Err != nil || st.StartedFrom != "disk" {
						t.Errorf("status %+v", st)
					}
				}
			})
		})
	}
}

// TestAnObjectThatFirstCameInAnotherTypeIsNoTestimony of another history.
func TestAnObjectThatFirstCameInAnotherTypeIsNoTestimony(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"))
		p := process.Launch(t, process.Filled(t, f, nil), f, nil).Run()
		bubble.Settle()
		f.Put(&corev1.Secret{ObjectMeta: source.ConfigMap("n").ObjectMeta})
		f.Put(source.ConfigMap("n"))
		bubble.Settle()
		process.ExpectStore(t, p.Informer, f)
		if st := p.Informer.Status(); st.Relists != 0 || st.Resumes != 1 {
			t.Errorf("status %+v", st)
		}
	})
}

// typeChecker is a handler that looks at the Go type of what it is given.
type typeChecker struct {
	*recorder.Recorder
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
	c.Recorder.OnAdd(obj, initial)
}

func (c *typeChecker) OnUpdate(old, obj any) {
	c.check("OnUpdate", old)
	c.check("OnUpdate", obj)
	c.Recorder.OnUpdate(old, obj)
}

func (c *typeChecker) OnDelete(obj any) { c.check("OnDelete", obj); c.Recorder.OnDelete(obj) }

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
// is gone since is delivered by its key, also what waits for a durable handler (S2, D3).
func TestAnObjectOfAnotherTypeIsNeverGiven(t *testing.T) {
	for _, inMemory := range []bool{false, true} {
		t.Run(fmt.Sprintf("inMemory=%t", inMemory), func(t *testing.T) {
			bubble.Run(t, func(t *testing.T) {
				f, path := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"), source.ConfigMap("c")), testsupport.Path(t)
				if inMemory {
					defer process.Hold(t, path)()
				}
				c, closed := openQuietly(t, path)
				defer func() { closed() }()
				life := func(metadata bool, d *recorder.Recorder, during func(*warmwatch.SharedIndexInformer)) {
					o := warmwatch.InformerOptions{Resource: process.ConfigMaps, Indexers: cache.Indexers{"namespace": cache.MetaNamespaceIndexFunc}}
					transform, expected := unchanged, reflect.TypeFor[*corev1.ConfigMap]()
					if metadata {
						o.Transformed, transform, expected = &metav1.PartialObjectMetadata{}, toMetadata, reflect.TypeFor[*metav1.PartialObjectMetadata]()
					}
					informer, err := c.NewSharedIndexInformer(f, &corev1.ConfigMap{}, o)
					if err == nil {
						err = informer.SetTransform(transform)
					}
					if d != nil && err == nil {
						_, err = informer.AddDurableEventHandler("d", &typeChecker{Recorder: d, t: t, expected: expected}, warmwatch.DurableOptions{})
					}
					if err != nil {
						t.Fatal(err)
					}
					end := bubble.Start(t, informer)
					bubble.Settle()
					during(informer)
					end()
					if !inMemory {
						closed()
						c, closed = openQuietly(t, path)
					}
				}
				nothing := func(*warmwatch.SharedIndexInformer) {}
				d := &recorder.Recorder{}
				life(false, d, nothing)
				d.Take()
				life(false, nil, func(*warmwatch.SharedIndexInformer) { f.Remove("b"); bubble.Settle() })
				f.SetDown(source.ErrUnreachable)
				life(true, d, func(informer *warmwatch.SharedIndexInformer) {
					if got := informer.GetStore().List(); len(got) > 0 {
						t.Errorf("served %q", source.Versions(got))
					}
					f.Remove("a")
					f.SetDown(nil)
					bubble.Settle()
					process.ExpectStore(t, informer, f)
					byIndex, err := informer.GetIndexer().ByIndex("namespace", "ns")
					if got := source.Versions(byIndex); err != nil || !slices.Equal(got, []string{"ns/c@3"}) {
						t.Errorf("by index %q, %v", got, err)
					}
				})
				for _, want := range []string{"lost ns/a", "lost ns/b", "add ns/c@3"} {
					if !d.Heard(want) {
						t.Errorf("delivered %q, expected %q", d.Events, want)
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
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t)
		open := watch.NewFakeWithOptions(watch.FakeOptions{ChannelSize: 1})
		f.OnWatch = func(context.Context, metav1.ListOptions) (watch.Interface, error) { return open, nil }
		f.OnList = listsUnstructured("2", unstructuredObject("v1", "ConfigMap", "a", "1"))
		example := unstructuredObject("v1", "ConfigMap", "", "")
		p := process.Launch(t, testsupport.Path(t), f, nil, example)
		example.SetKind("Changed")
		p.Run()
		bubble.Settle()
		open.Add(unstructuredObject("v1", "ConfigMap", "b", "3"))
		bubble.Settle()
		if diff := cmp.Diff([]string{"a@1", "b@3"}, source.Versions(p.Informer.GetStore().List())); diff != "" {
			t.Errorf("the store (-want +got):\n%s", diff)
		}
		if err := p.Informer.Status().Err; err != nil {
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
