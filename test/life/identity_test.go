package life_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/recorder"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

func TestTheFormOfTheObjectIsPartOfTheIdentity(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		c, err := warmwatch.Open(t.Context(), testsupport.Path(t), warmwatch.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "u", "namespace": "ns"}}}
		m := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Name: "m", Namespace: "ns"}}
		for _, example := range []runtime.Object{&corev1.ConfigMap{}, u, m} {
			f := source.New(t)
			if _, typed := example.(*corev1.ConfigMap); typed {
				f.Put(source.ConfigMap("t"))
			} else {
				f.Put(example)
			}
			informer, err := c.NewSharedIndexInformer(f, example, warmwatch.InformerOptions{Resource: process.ConfigMaps})
			if err != nil {
				t.Fatal(err)
			}
			r, _ := recorder.Add(t, informer)
			stop := bubble.Start(t, informer)
			defer stop()
			if got := r.Take(); len(got) != 1 {
				t.Errorf("%T: delivered %q", example, got)
			}
			process.ExpectStore(t, informer, f)
		}
		if n := len(c.Status().Informers); n != 3 {
			t.Errorf("%d informers", n)
		}
	})
}

func TestATransformToAnotherTypeNeedsToBeSaid(t *testing.T) {
	toMetadata := func(obj any) (any, error) {
		cm := obj.(*corev1.ConfigMap)
		return &metav1.PartialObjectMetadata{ObjectMeta: *cm.ObjectMeta.DeepCopy()}, nil
	}
	for name, said := range map[string]bool{"said": true, "not said": false} {
		t.Run(name, func(t *testing.T) {
			bubble.Run(t, func(t *testing.T) {
				f := source.New(t, source.ConfigMap("a", "x"))
				path := testsupport.Path(t)
				for range 2 {
					p := process.Launch(t, path, f, func(_ *warmwatch.Options, o *warmwatch.InformerOptions) {
						if o.TransformVersion = "1"; said {
							o.Transformed = &metav1.PartialObjectMetadata{}
						}
					})
					if err := p.Informer.SetTransform(toMetadata); err != nil {
						t.Fatal(err)
					}
					p.Run()
					bubble.Settle()
					p.End()
					if said {
						process.ExpectStore(t, p.Informer, f)
					} else if err := fmt.Sprint(p.Informer.Status().Err); !strings.Contains(err, "object ns/a cannot") || !strings.Contains(err, "see InformerOptions.Transformed") {
						t.Errorf("status %s", err)
					} else if got := p.Informer.GetStore().List(); len(got) > 0 {
						t.Errorf("stored %q", source.Versions(got))
					}
					p.Stop()
				}
			})
		})
	}
}

// TestATransformThatChangesUnderItsVersion, here the default one: what the last process has stored
// is served, without a list, until an object's next event, or until contents are compared.
func TestATransformThatChangesUnderItsVersion(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f, path := source.New(t, source.ConfigMap("a"), source.ConfigMap("b")), testsupport.Path(t)
		transformBy := func(version string) cache.TransformFunc {
			return func(obj any) (any, error) {
				cm := obj.(*corev1.ConfigMap)
				cm.Data = map[string]string{"by": version}
				return cm, nil
			}
		}
		launchBy := func(version string) (*process.Process, func() map[string]string) {
			p := process.Launch(t, path, f, nil)
			if err := p.Informer.SetTransform(transformBy(version)); err != nil {
				t.Fatal(err)
			}
			return p, func() map[string]string {
				by := map[string]string{}
				for _, obj := range p.Informer.GetStore().List() {
					by[source.Key(obj)] = obj.(*corev1.ConfigMap).Data["by"]
				}
				return by
			}
		}
		p, _ := launchBy("1")
		p.Run()
		bubble.Settle()
		p.Stop()

		p, by := launchBy("2")
		r, _ := recorder.Add(t, p.Informer)
		p.Run()
		bubble.Settle()
		f.Put(source.ConfigMap("b"))
		bubble.Settle()
		if d := cmp.Diff(map[string]string{"ns/a": "1", "ns/b": "2"}, by()); d != "" {
			t.Errorf("before contents are compared (-want +got):\n%s", d)
		}
		bubble.Advance(30 * time.Hour) // A full relist.
		if d := cmp.Diff(map[string]string{"ns/a": "2", "ns/b": "2"}, by()); d != "" {
			t.Errorf("afterwards (-want +got):\n%s", d)
		}
		r.ExpectInAnyOrder(t, "add ns/a@1 initial", "add ns/b@2 initial", "update ns/b@2→3", "update ns/a@1→1")
		if st := p.Informer.Status(); st.Relists != 1 {
			t.Errorf("status %+v", st)
		}
		p.Stop()
	})
}
