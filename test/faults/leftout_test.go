package faults_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/cachefile"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/recorder"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

// refuseBad is a transform that refuses bad objects, and returns another Go type for others.
func refuseBad(obj any) (any, error) {
	switch cm := obj.(*corev1.ConfigMap); cm.Data["v"] {
	case "bad":
		return nil, process.ErrTransform
	case "secret":
		return &corev1.Secret{ObjectMeta: cm.ObjectMeta}, nil
	}
	return obj, nil
}

// spoiled has the ways in which an informer with the transform refuseBad leaves an object out.
var spoiled = map[string]func(name string) runtime.Object{
	"the transform refuses it":           func(name string) runtime.Object { return source.ConfigMap(name, "bad") },
	"it is of another type":              func(name string) runtime.Object { return &corev1.Secret{ObjectMeta: source.ConfigMap(name).ObjectMeta} },
	"the transform returns another type": func(name string) runtime.Object { return source.ConfigMap(name, "secret") },
}

// launchRefusing is launch with the transform refuseBad.
func launchRefusing(t *testing.T, path string, f *source.Source, change ...process.Setup) *process.Process {
	t.Helper()
	p := process.Launch(t, path, f, func(o *warmwatch.Options, io *warmwatch.InformerOptions) {
		io.TransformVersion = "1"
		for _, c := range change {
			c(o, io)
		}
	})
	if err := p.Informer.SetTransform(refuseBad); err != nil {
		t.Fatal(err)
	}
	return p
}

// TestWhatIsLeftOutIsNotWhatHadItsNameBefore: the deletion of that has happened.
func TestWhatIsLeftOutIsNotWhatHadItsNameBefore(t *testing.T) { // D2
	for name, spoil := range spoiled {
		t.Run(name, func(t *testing.T) {
			bubble.Run(t, func(t *testing.T) {
				f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"))
				p := launchRefusing(t, testsupport.Path(t), f)
				r, d := process.AddBoth(t, p)
				p.Run()
				bubble.Settle()
				r.Take()
				d.Take()
				source.Relisted(f, func() {
					f.Remove("b")
					f.Put(spoil("b"))
				})
				r.Expect(t, "lost ns/b@2")
				d.Expect(t, "lost ns/b@2")
				p.ExpectVersions("ns/a@1")
				f.Remove("b")
				f.Put(source.ConfigMap("b"))
				bubble.Settle()
				d.Expect(t, "add ns/b@7")
			})
		})
	}
}

// TestWhatIsLeftOutUnderTheNameThatATransformHasGivenAnotherObject: that object is gone.
func TestWhatIsLeftOutUnderTheNameThatATransformHasGivenAnotherObject(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"))
		informer := process.Launch(t, testsupport.Path(t), f, nil).Informer
		if err := informer.SetTransform(renames); err != nil {
			t.Fatal(err)
		}
		r, _ := recorder.Add(t, informer)
		bubble.Start(t, informer)
		r.ExpectInAnyOrder(t, "add ns/x-a@1 initial", "add ns/x-b@2 initial")
		source.Relisted(f, func() {
			f.Remove("b")
			f.Put(source.ConfigMap("x-b", "bad"))
		})
		r.Expect(t, "lost ns/x-b@2")
	})
}

// TestWhatAnotherClusterHasLeftOutIsNotServed, although names and uids are the same.
func TestWhatAnotherClusterHasLeftOutIsNotServed(t *testing.T) {
	for name, spoil := range spoiled {
		t.Run(name, func(t *testing.T) {
			bubble.Run(t, func(t *testing.T) {
				f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b", "of one"))
				p := launchRefusing(t, testsupport.Path(t), f, process.IsCluster("one", nil))
				d := process.AddDurable(t, p, "d")
				p.Run()
				bubble.Settle()
				p.Stop()
				d.Take()

				other := source.New(t, source.ConfigMap("x"), spoil("b"))
				p = launchRefusing(t, p.Path, other, process.IsCluster("two", nil))
				d = process.AddDurable(t, p, "d")
				p.Run()
				bubble.Settle()
				d.Expect(t, "lost ns/a@1", "lost ns/b@2", "add ns/x@1")
				p.ExpectVersions("ns/x@1")
				p.Stop()

				other.SetDown(source.ErrUnreachable)
				p = launchRefusing(t, p.Path, other, process.IsCluster("two", nil)).Run()
				bubble.Settle()
				p.ExpectVersions("ns/x@1")
			})
		})
	}
}

// TestWhatIsLeftOutAndCannotBeReadIsLost: the next list leaves it out again, so if it stayed
// there would be a relist whenever somebody finds that it cannot be read.
func TestWhatIsLeftOutAndCannotBeReadIsLost(t *testing.T) {
	for name, spoil := range spoiled {
		for who, read := range map[string]func(*process.Process){
			"a reader":            func(p *process.Process) { p.Informer.GetStore().List() },
			"a reader by its key": func(p *process.Process) { _, _, _ = p.Informer.GetStore().GetByKey("ns/b") },
		} {
			t.Run(fmt.Sprintf("%s, found by %s", name, who), func(t *testing.T) {
				bubble.Run(t, func(t *testing.T) {
					f, path := source.New(t, source.ConfigMap("a"), source.ConfigMap("b", "needle")), testsupport.Path(t)
					p := launchRefusing(t, path, f)
					process.AddDurable(t, p, "d")
					p.Run()
					bubble.Settle()
					p.Stop()
					cachefile.FlipBits(t, path, "needle")
					f.Put(spoil("b"))
					p = launchRefusing(t, path, f)
					p.Damaged = true
					d := process.AddDurable(t, p, "d")
					p.Run()
					for range 18 { // Less than FullRelistEvery.
						read(p)
						f.Bookmark()
						bubble.Advance(time.Hour)
					}
					d.Expect(t, "lost ns/b")
					p.ExpectVersions("ns/a@1")
					if st := p.Informer.Status(); st.Relists != 1 {
						t.Errorf("%d relists, status %+v", st.Relists, st)
					}
				})
			})
		}
	}
}

// TestAListLogsOnceThatItLeavesObjectsOut, however many they are.
func TestAListLogsOnceThatItLeavesObjectsOut(t *testing.T) {
	for name, spoil := range spoiled {
		t.Run(name, func(t *testing.T) {
			bubble.Run(t, func(t *testing.T) {
				var mu sync.Mutex
				var lines []string
				logger := funcr.New(func(_, args string) {
					mu.Lock()
					defer mu.Unlock()
					if strings.Contains(args, "out of the cache") {
						lines = append(lines, args)
					}
				}, funcr.Options{})
				f := source.New(t, source.ConfigMap("a"))
				for i := range 1000 {
					f.Put(spoil(fmt.Sprintf("o%d", i)))
				}
				p := launchRefusing(t, testsupport.Path(t), f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.Logger = &logger }).Run()
				bubble.Settle()
				p.Stop()
				if len(lines) != 1 || !strings.Contains(lines[0], `"objects"=1000`) || !strings.Contains(lines[0], "ns/o999") {
					t.Errorf("%d lines, the last is %q", len(lines), lines[max(len(lines)-1, 0):])
				}
			})
		})
	}
}

// TestWhatIsLeftOutAndDeletedInTheWatch: the transform fails on the last version of an object, and so
// on the event of its deletion.
func TestWhatIsLeftOutAndDeletedInTheWatch(t *testing.T) { // A5, D2
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"))
		p := process.Launch(t, testsupport.Path(t), f, nil)
		if err := p.Informer.SetTransform(refuseBad); err != nil {
			t.Fatal(err)
		}
		durable := process.AddDurable(t, p, "d")
		p.Run()
		bubble.Settle()
		durable.Take()
		f.Put(source.ConfigMap("a", "bad"))
		f.Remove("a")
		f.Put(source.ConfigMap("b", "good"))
		bubble.Settle()
		durable.Expect(t, "lost ns/a@1", "update ns/b@2→5")
		process.ExpectStore(t, p.Informer, f)
		f.Put(source.ConfigMap("b", "bad"))
		f.With(func() { // One that the store does not have.
			other := source.ConfigMap("b", "bad")
			other.UID = "other"
			f.RecordLocked(watch.Deleted, other)
		})
		bubble.Settle()
		durable.Expect(t)
		if got := source.Versions(p.Informer.GetStore().List()); !slices.Equal(got, []string{"ns/b@5"}) {
			t.Errorf("the store has %q", got)
		}
	})
}

func TestAnObjectThatTheTransformRefusesDoesNotEndARelist(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"))
		path := testsupport.Path(t)
		refuse := true
		life := func() *process.Process {
			return process.LaunchTransforming(t, path, f, func(obj any) (any, error) {
				if refuse {
					return refuseBad(obj)
				}
				return obj, nil
			})
		}
		p := life()
		source.Relisted(f, func() { f.Put(source.ConfigMap("c"), source.ConfigMap("x", "bad"), source.ConfigMap("b", "bad")) })
		want := []string{"ns/a@1", "ns/b@2", "ns/c@3"} // b stays as it was, as after an event.
		if diff := cmp.Diff(want, source.Versions(p.Informer.GetStore().List())); diff != "" {
			t.Errorf("the store (-want +got):\n%s", diff)
		}
		if st := p.Informer.Status(); st.Phase != warmwatch.PhaseLive || !errors.Is(st.Err, process.ErrTransform) {
			t.Errorf("status %+v", st)
		}
		p.Stop()
		refuse = false
		p = life() // Tries again.
		process.ExpectStore(t, p.Informer, f)
		if st := p.Informer.Status(); st.Err != nil || st.StartedFrom != "disk" {
			t.Errorf("status %+v", st)
		}
	})
}

// TestAnObjectThatCannotBeEncodedIsRefused, of an event and of a list: the store keeps the version that it has.
func TestAnObjectThatCannotBeEncodedIsRefused(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"))
		path := testsupport.Path(t)
		life := func() *process.Process {
			return process.LaunchTransforming(t, path, f, func(obj any) (any, error) {
				cm := obj.(*corev1.ConfigMap).DeepCopy()
				if cm.Data["v"] == "bad" {
					cm.Name = strings.Repeat("n", 33_000)
				}
				return cm, nil
			})
		}
		p := life()
		f.Put(source.ConfigMap("b", "bad"), source.ConfigMap("c"))
		want := []string{"ns/a@1", "ns/b@2", "ns/c@4"}
		for range 2 {
			bubble.Settle()
			if diff := cmp.Diff(want, source.Versions(p.Informer.GetStore().List())); diff != "" {
				t.Errorf("the store (-want +got):\n%s", diff)
			}
			if st := p.Informer.Status(); len(st.Problems) != 1 || st.Problems[0].Code != warmwatch.CodeRefused || !strings.Contains(st.Problems[0].Message, "too long") {
				t.Errorf("status %+v", st)
			}
			p.Stop()
			p = life() // Tries again.
		}
		f.Put(source.ConfigMap("b", "good"))
		bubble.Settle()
		process.ExpectStore(t, p.Informer, f)
	})
}

// TestAReplacedObjectThatCannotBeEncodedIsGone: a list tells that the old one was deleted, although its key is listed.
func TestAReplacedObjectThatCannotBeEncodedIsGone(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		thing := func(name, uid, content string) *unstructured.Unstructured {
			return &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "v1", "kind": "Thing", "spec": content,
				"metadata": map[string]any{"namespace": "ns", "name": name, "uid": uid},
			}}
		}
		f := source.New(t)
		f.Put(thing("a", "1", "good"), thing("b", "2", "good"))
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
		r, _ := recorder.Add(t, informer)
		defer bubble.Start(t, informer)()
		bubble.Settle()
		source.Relisted(f, func() {
			f.Remove("a")
			f.Put(thing("a", "3", "bad"), thing("b", "2", "bad"))
		})
		r.Expect(t, "add ns/a@1 initial", "add ns/b@2 initial", "lost ns/a@1")
		if diff := cmp.Diff([]string{"ns/b@2"}, source.Versions(informer.GetStore().List())); diff != "" {
			t.Errorf("the store (-want +got):\n%s", diff)
		}
	})
}

// renames is a transform that stores each object under another name, and refuses bad ones.
func renames(obj any) (any, error) {
	cm := obj.(*corev1.ConfigMap).DeepCopy()
	if cm.Name = "x-" + cm.Name; cm.Data["v"] == "bad" {
		return nil, process.ErrTransform
	}
	return cm, nil
}

// TestABookmarkBehindARefusedEventDoesNotPassIt: the next process lists, and has its object (A3).
func TestABookmarkBehindARefusedEventDoesNotPassIt(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"))
		path := testsupport.Path(t)
		life := func(refuse bool) {
			p := process.Launch(t, path, f, func(_ *warmwatch.Options, o *warmwatch.InformerOptions) { o.TransformVersion = "1" })
			if err := p.Informer.SetTransform(func(obj any) (any, error) {
				if refuse && source.Version(obj) == "ns/b@3" {
					return nil, process.ErrTransform
				}
				return obj, nil
			}); err != nil {
				t.Fatal(err)
			}
			p.Run()
			bubble.Settle()
			if refuse {
				f.Put(source.ConfigMap("b"))
				f.Bookmark()
				bubble.Settle()
			} else if diff := cmp.Diff([]string{"ns/a@1", "ns/b@3"}, source.Versions(p.Informer.GetStore().List())); diff != "" {
				t.Errorf("the store (-want +got):\n%s", diff)
			}
			p.Stop()
		}
		life(true)
		life(false)
	})
}

func TestAnEventThatCouldNotBeAppliedDoesNotTurnBackTime(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"))
		path := testsupport.Path(t)
		life := func(refuse bool) *recorder.Recorder {
			p := process.Launch(t, path, f, func(_ *warmwatch.Options, o *warmwatch.InformerOptions) { o.TransformVersion = "1" })
			if err := p.Informer.SetTransform(func(obj any) (any, error) {
				if refuse && source.Meta(obj).GetName() == "b" {
					return nil, process.ErrTransform
				}
				return obj, nil
			}); err != nil {
				t.Fatal(err)
			}
			r := process.AddDurable(t, p, "d")
			p.Run()
			bubble.Settle()
			if refuse {
				f.Put(source.ConfigMap("b"), source.ConfigMap("a"), source.ConfigMap("a"), source.ConfigMap("c"))
				f.Remove("c")
				bubble.Settle()
			}
			p.Stop()
			return r
		}
		life(true).Expect(t, "add ns/a@1 initial", "update ns/a@1→3", "update ns/a@3→4", "add ns/c@5", "delete ns/c@6")
		life(false).Expect(t, "add ns/b@2")
	})
}
