package faults_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

// TestAnIndexFunctionThatFailsOnWhatIsLeftOut: as long as the object stays, no index is right.
func TestAnIndexFunctionThatFailsOnWhatIsLeftOut(t *testing.T) { // A5
	for name, spoil := range spoiled {
		t.Run(name, func(t *testing.T) {
			bubble.Run(t, func(t *testing.T) {
				f := source.New(t, source.ConfigMap("a", "x"), source.ConfigMap("b", "ancient"))
				p := launchRefusing(t, testsupport.Path(t), f)
				process.AddDurable(t, p, "d")
				p.Run()
				bubble.Settle()
				p.Stop()
				f.Put(spoil("b"))
				p = launchRefusing(t, p.Path, f, func(_ *warmwatch.Options, io *warmwatch.InformerOptions) {
					io.Indexers = cache.Indexers{"v": func(obj any) ([]string, error) {
						v := obj.(*corev1.ConfigMap).Data["v"]
						if v == "ancient" {
							return nil, errors.New("not understood any more")
						}
						return []string{v}, nil
					}}
				})
				d := process.AddDurable(t, p, "d")
				p.Run()
				bubble.Settle()
				d.Expect(t, "lost ns/b@2")
				p.ExpectVersions("ns/a@1")
				if keys, err := p.Informer.GetIndexer().IndexKeys("v", "x"); err != nil || len(keys) != 1 || !p.Informer.HasSynced() {
					t.Errorf("synced: %v, index: %q, %v", p.Informer.HasSynced(), keys, err)
				}
			})
		})
	}
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
			bubble.Run(t, func(t *testing.T) {
				f := source.New(t, source.ConfigMap("a", "ancient"), source.ConfigMap("b", "x"))
				path := testsupport.Path(t)
				launch := func(version string, index cache.IndexFunc, late bool) *process.Process {
					indexers := cache.Indexers{"v": index}
					p := process.Launch(t, path, f, func(_ *warmwatch.Options, o *warmwatch.InformerOptions) {
						if o.IndexVersion = version; !late {
							o.Indexers = indexers
						}
					})
					if late {
						if err := p.Informer.AddIndexers(indexers); err != nil {
							t.Fatal(err)
						}
					}
					p.Run()
					bubble.Settle()
					return p
				}
				launch(c.from, lenient, false).Stop()
				f.Remove("a")
				f.Compact()
				p := launch("2", c.index, c.late)
				process.ExpectStore(t, p.Informer, f)
				for value, want := range map[string]int{"x": 1, "ancient": 0} {
					if objects, err := p.Informer.GetIndexer().ByIndex("v", value); err != nil || len(objects) != want {
						t.Errorf("%d objects of %q, %v", len(objects), value, err)
					}
				}
				if values := p.Informer.GetIndexer().ListIndexFuncValues("v"); len(values) != 1 {
					t.Errorf("the values are %q", values)
				}
			})
		})
	}
}

// TestAnIndexFunctionThatFailsWhileTheServerIsAway: the stored objects are compared with
// their index entries soon after the start.
func TestAnIndexFunctionThatFailsWhileTheServerIsAway(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a", "ancient"), source.ConfigMap("b", "x"))
		p := process.Launch(t, testsupport.Path(t), f, nil)
		p.Run()
		bubble.Settle()
		p.Stop()
		f.SetDown(source.ErrUnreachable)
		p = process.Launch(t, p.Path, f, func(_ *warmwatch.Options, o *warmwatch.InformerOptions) {
			o.Indexers = cache.Indexers{"v": func(obj any) ([]string, error) {
				if v := obj.(*corev1.ConfigMap).Data["v"]; v != "ancient" {
					return []string{v}, nil
				}
				return nil, errors.New("not understood any more")
			}}
		})
		p.Run()
		bubble.Advance(time.Minute)
		f.Remove("a")
		f.SetDown(nil)
		bubble.Settle()
		process.ExpectStore(t, p.Informer, f)
	})
}

// TestAnIndexFunctionThatPanicsOnWhatAnOlderTransformMade: the function needs a field that
// the transform of the last program left out.
func TestAnIndexFunctionThatPanicsOnWhatAnOlderTransformMade(t *testing.T) {
	for _, gone := range []bool{false, true} {
		t.Run(fmt.Sprintf("gone=%t", gone), func(t *testing.T) {
			bubble.Run(t, func(t *testing.T) {
				f := source.New(t, source.ConfigMap("a", "x"), source.ConfigMap("b", "y"))
				path := testsupport.Path(t)
				p := process.Launch(t, path, f, func(_ *warmwatch.Options, o *warmwatch.InformerOptions) { o.TransformVersion = "1" })
				if err := p.Informer.SetTransform(func(obj any) (any, error) {
					obj.(*corev1.ConfigMap).Data = nil
					return obj, nil
				}); err != nil {
					t.Fatal(err)
				}
				p.Run()
				bubble.Settle()
				p.Stop()
				if gone {
					f.Remove("a")
				}
				p = process.Launch(t, path, f, func(_ *warmwatch.Options, o *warmwatch.InformerOptions) {
					o.TransformVersion = "2"
					o.Indexers = cache.Indexers{"v": func(obj any) ([]string, error) {
						if obj.(*corev1.ConfigMap).Data == nil {
							panic("there is no data")
						}
						return []string{obj.(*corev1.ConfigMap).Data["v"]}, nil
					}}
				})
				p.Run()
				bubble.Settle()
				process.ExpectEqual(t, p.Informer, f)
				for value, want := range map[string]bool{"x": !gone, "y": true} {
					if keys, err := p.Informer.GetIndexer().IndexKeys("v", value); err != nil || (len(keys) == 1) != want {
						t.Errorf("index value %q: %q, %v", value, keys, err)
					}
				}
			})
		})
	}
}
