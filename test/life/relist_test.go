package life_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/google/go-cmp/cmp"
	bolt "go.etcd.io/bbolt"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/cachefile"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/recorder"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

// convert changes the content of an object at the same resourceVersion, as a new default in
// a CustomResourceDefinition does.
func convert(f *source.Source, name, content string) {
	f.With(func() { f.Objects["ns/"+name].(*corev1.ConfigMap).Data = map[string]string{"v": content} })
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
		setup   process.Setup
	}{
		{"in the running process", false, nil},
		{"after a restart", true, nil},
		{"nothing in memory", false, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.MemoryBudget = 1 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble.Run(t, func(t *testing.T) {
				f := source.New(t, source.ConfigMap("a", "old"), source.ConfigMap("b"))
				p := process.Launch(t, testsupport.Path(t), f, c.setup)
				durable := process.AddDurable(t, p, "d")
				p.Run()
				bubble.Settle()
				durable.Take()
				if c.restart {
					p.Stop()
					convert(f, "a", "new")
					f.Compact()
					p = process.Launch(t, p.Path, f, c.setup)
					durable = process.AddDurable(t, p, "d")
					p.Run()
					bubble.Settle()
				} else {
					source.Relisted(f, func() { convert(f, "a", "new") })
				}
				if got := contentOf(t, p.Informer, "ns/a"); got != "new" {
					t.Errorf("the store has the content %q", got)
				}
				durable.Expect(t, "update ns/a@1→1")
			})
		})
	}
}

// cut makes lists end after so many pages, of one item each.
func cut(f *source.Source, pages int) {
	f.With(func() {
		f.OnList = func(_ context.Context, o metav1.ListOptions) (list runtime.Object, err error) {
			if o.Limit == 1 && o.Continue == "" { // The question before a resume.
				return nil, nil
			}
			f.With(func() {
				if pages == 0 {
					err = apierrors.NewServiceUnavailable("cut")
					return
				}
				pages--
				o.Limit = 1
				list, err = f.ListLocked(o)
			})
			return list, err
		}
	})
}

func TestARelistThatIsCutLeavesNothingBehind(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"), source.ConfigMap("c"))
		p := process.Launch(t, testsupport.Path(t), f, nil)
		r, _ := recorder.Add(t, p.Informer)
		durable := process.AddDurable(t, p, "d")
		p.Run()
		bubble.Settle()
		before := f.Contents()
		r.Take()
		durable.Take()

		cut(f, 1)
		source.Relisted(f, func() {
			f.Put(source.ConfigMap("a"), source.ConfigMap("b"), source.ConfigMap("c"))
			f.Remove("c")
		})
		if diff := cmp.Diff(before, source.Versions(p.Informer.GetStore().List())); diff != "" {
			t.Errorf("after half a relist the store has changed (-before +after):\n%s", diff)
		}
		r.Expect(t)
		durable.Expect(t)

		f.With(func() { f.OnList = nil })
		bubble.Settle()
		want := []string{"lost ns/c@3", "update ns/a@1→4", "update ns/b@2→5"}
		r.Expect(t, want...)
		durable.Expect(t, want...)
		process.ExpectStore(t, p.Informer, f)
	})
}

func TestAStoreThatIsNotWholeIsNotServed(t *testing.T) {
	for name, missing := range map[string][][2]string{
		"an object":                   {{"objects", "ns/b"}},
		"the count":                   {{"store", "state"}},
		"the count, with all objects": {{"store", "state"}, {"objects", "ns/a"}, {"objects", "ns/b"}, {"objects", "ns/c"}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Run(t, func(t *testing.T) {
				f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"), source.ConfigMap("c"))
				p := process.Launch(t, testsupport.Path(t), f, nil)
				p.Run()
				bubble.Settle()
				p.Stop()
				for _, m := range missing {
					cachefile.ChangeBucket(t, p.Path, m[0], func(b *bolt.Bucket) error { return b.Delete([]byte("k" + m[1])) })
				}
				f.SetDown(source.ErrUnreachable)
				var r *recorder.Recorder
				for range 2 { // The second finds what the first has made of it.
					p.Stop()
					p = process.Launch(t, p.Path, f, nil)
					p.Damaged = true
					r, _ = recorder.Add(t, p.Informer)
					p.Run()
					bubble.Settle()
					if p.Informer.HasSynced() || len(p.Informer.GetStore().List()) > 0 {
						t.Errorf("synced %v, with %q", p.Informer.HasSynced(), source.Versions(p.Informer.GetStore().List()))
					}
					r.Expect(t)
				}
				f.SetDown(nil)
				bubble.Settle()
				process.ExpectStore(t, p.Informer, f)
				r.ExpectInAnyOrder(t, "add ns/a@1 initial", "add ns/b@2 initial", "add ns/c@3 initial")
				p.Stop()
				f.SetDown(source.ErrUnreachable)
				p = process.Launch(t, p.Path, f, nil)
				p.Run()
				bubble.Settle()
				if !p.Informer.HasSynced() {
					t.Error("a store that is whole again is not served")
				}
			})
		})
	}
}

// A relist that is too large for memory is staged in the file, and leaves nothing there.
func TestALargeRelistIsStagedInTheFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := source.New(t)
		for i := range 3000 {
			f.Put(source.ConfigMap(fmt.Sprintf("o%04d", i), strings.Repeat("x", 2000)))
		}
		p := process.Launch(t, testsupport.Path(t), f, nil)
		r := process.AddDurable(t, p, "d")
		p.Run()
		bubble.Settle()
		r.Take()
		source.Relisted(f, func() {
			for i := range 3000 {
				f.Put(source.ConfigMap(fmt.Sprintf("o%04d", i), strings.Repeat("y", 2000)))
			}
		})
		if got := r.Take(); len(got) != 3000 {
			t.Errorf("%d notifications", len(got))
		}
		process.ExpectStore(t, p.Informer, f)
		p.Stop()
		cachefile.View(t, p.Path, func(tx *bolt.Tx) error {
			return tx.ForEach(func(name []byte, space *bolt.Bucket) error {
				if b := space.Bucket([]byte("staged")); b != nil && b.Stats().KeyN > 0 {
					t.Errorf("%d objects are still staged in %s", b.Stats().KeyN, name)
				}
				return nil
			})
		})
	})
}

// TestWhatTwoTransformsHaveMadeIsNotServed: a process whose TransformVersion is new crashes while it
// applies its relist, and the program goes back to the old one. Nor is a durable handler notified of it.
func TestWhatTwoTransformsHaveMadeIsNotServed(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		const objects = 1600 // Of which 500 are applied at once.
		f, crashed := source.New(t), ""
		for i := range objects {
			f.Put(source.ConfigMap(fmt.Sprintf("o%04d", i)))
		}
		launchBy := func(path, version string) *process.Process {
			var p *process.Process
			p = process.Launch(t, path, f, func(o *warmwatch.Options, io *warmwatch.InformerOptions) {
				o.MaxPendingBytes = 1 // Each batch is in the file before the next one is made.
				io.TransformVersion, io.IndexVersion = version, "1"
				io.Indexers = cache.Indexers{"by": func(obj any) ([]string, error) {
					cm := obj.(*corev1.ConfigMap)
					if crashed == "" && cm.Name == "o1599" && cm.Data["by"] == "2" {
						crashed = p.Crash()
					}
					return []string{cm.Data["by"]}, nil
				}}
			})
			if err := p.Informer.SetTransform(func(obj any) (any, error) {
				obj.(*corev1.ConfigMap).Data = map[string]string{"by": version}
				return obj, nil
			}); err != nil {
				t.Fatal(err)
			}
			return p
		}
		addedBy := map[string]int{}
		handler := cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) { addedBy[obj.(*corev1.ConfigMap).Data["by"]]++ }}
		handler.UpdateFunc = func(_, obj any) { handler.AddFunc(obj) }
		launchByOld := func(path string) *process.Process {
			p := launchBy(path, "1")
			if _, err := p.Informer.AddDurableEventHandler("d", handler, warmwatch.DurableOptions{}); err != nil {
				t.Fatal(err)
			}
			return p.Run()
		}
		path := testsupport.Path(t)
		p := launchByOld(path)
		bubble.Settle()
		p.Stop()
		launchBy(path, "2").Run()
		bubble.Settle()
		if crashed == "" {
			t.Fatal("it has not relisted")
		}

		f.SetDown(source.ErrUnreachable)
		p = launchByOld(crashed)
		bubble.Settle()
		for _, serves := range []bool{false, true} {
			if n := len(p.Informer.GetStore().List()); serves != (n == objects) {
				t.Errorf("%d objects", n)
			}
			for _, obj := range p.Informer.GetStore().List() {
				if cm := obj.(*corev1.ConfigMap); cm.Data["by"] != "1" {
					t.Fatalf("%s is served as version %s has made it", cm.Name, cm.Data["by"])
				}
			}
			f.SetDown(nil)
			bubble.Settle()
		}
		if addedBy["2"] > 0 || addedBy["1"] != 2*objects {
			t.Errorf("notified of so many objects, by the version that has made them: %v", addedBy)
		}
	})
}

// TestAfterACrashWithinARelistNoOlderListIsAskedFor: some objects are of its version already,
// and must not go back (D2).
func TestAfterACrashWithinARelistNoOlderListIsAskedFor(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		const objects = 1600 // Of which 500 are applied at once.
		f := source.New(t)
		put := func(content string) {
			for i := range objects {
				f.Put(source.ConfigMap(fmt.Sprintf("o%04d", i), content))
			}
		}
		put("old")
		p, crashed := (*process.Process)(nil), ""
		p = process.Launch(t, process.Filled(t, f, nil), f, func(o *warmwatch.Options, io *warmwatch.InformerOptions) {
			o.MaxPendingBytes = 1 // Each batch is in the file before the next one is made.
			io.Indexers = cache.Indexers{"content": func(obj any) ([]string, error) {
				cm := obj.(*corev1.ConfigMap)
				if crashed == "" && cm.Name == "o1599" && cm.Data["v"] == "new" {
					crashed = p.Crash()
				}
				return []string{cm.Data["v"]}, nil
			}}
		})
		put("new")
		f.Compact()
		p.Run()
		bubble.Settle()
		if crashed == "" {
			t.Fatal("it has not relisted")
		}
		f.TakeRequests()
		version := fmt.Sprint(2*objects + 1) // compact has taken one.

		q := process.Launch(t, crashed, f, nil)
		if applied := q.Informer.LastSyncResourceVersion(); applied == version {
			t.Fatalf("the relist was complete, at %s", applied)
		}
		q.Run()
		bubble.Settle()
		for _, request := range f.TakeRequests() {
			if strings.HasPrefix(request, "LIST") && !strings.HasPrefix(request, "LIST rv="+version) {
				t.Errorf("%s, expected nothing older than %s", request, version)
			}
		}
		process.ExpectStore(t, q.Informer, f)
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
			bubble.Run(t, func(t *testing.T) {
				f := source.New(t)
				f.RV = 50
				f.OnList = func(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
					listed := c.listed
					if o.Limit == 1 {
						listed = fmt.Sprint(f.RV)
					}
					return &corev1.ConfigMapList{
						ListMeta: metav1.ListMeta{ResourceVersion: listed}, Items: []corev1.ConfigMap{*source.At(c.object, "uid-1", "a", "")},
					}, nil
				}
				p := process.Launch(t, testsupport.Path(t), f, nil).Run()
				bubble.Settle()
				f.Bookmark()
				bubble.Settle()
				p.Stop()
				p = process.Launch(t, p.Path, f, nil).Run()
				bubble.Settle()
				if st := p.Informer.Status(); st.Resumes != c.resumes || st.Relists != 1-c.resumes {
					t.Errorf("status %+v", st)
				}
			})
		})
	}
}

// TestADeletionBetweenTwoWatchesFromAnyVersionIsFoundByTheNextProcess: a watch from "0" brings the
// objects that there are, and no deletion from before it was opened.
func TestADeletionBetweenTwoWatchesFromAnyVersionIsFoundByTheNextProcess(t *testing.T) { // A3, A5
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t) // Its first list is at "0".
		p := process.Launch(t, testsupport.Path(t), f, nil)
		process.AddDurable(t, p, "name")
		p.Run()
		bubble.Settle()
		f.Put(source.ConfigMap("a"), source.ConfigMap("b"))
		bubble.Settle()
		f.CloseWatches()
		f.Remove("a")
		bubble.Settle()
		f.Bookmark()
		bubble.Settle()
		p.Stop()
		p = process.Launch(t, p.Path, f, nil)
		durable := process.AddDurable(t, p, "name")
		p.Run()
		bubble.Settle()
		process.ExpectStore(t, p.Informer, f)
		durable.Expect(t, "lost ns/a@1")
	})
}

func TestADeletionIsFoundThoughTheVersionsHaveNoCommonOrder(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		objects := []runtime.Object{source.At("7", "ua", "a", "x"), source.At("3", "uc", "c", "x")}
		f := source.New(t)
		f.OnList = func(context.Context, metav1.ListOptions) (runtime.Object, error) {
			list := &corev1.List{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}
			err := meta.SetList(list, objects)
			return list.DeepCopy(), err
		}
		path := testsupport.Path(t)
		p := process.Launch(t, path, f, nil).Run()
		bubble.Settle()
		p.Stop()
		objects = objects[:1] // The version of the list stays.
		p = process.Launch(t, path, f, nil).Run()
		bubble.Settle()
		if got := source.Versions(p.Informer.GetStore().List()); !slices.Equal(got, []string{"ns/a@7"}) {
			t.Errorf("the store has %v", got)
		}
		if st := p.Informer.Status(); st.Relists != 1 || st.Resumes != 0 || st.StartedFrom != "disk" {
			t.Errorf("status: %+v", st)
		}
	})
}

// TestAListWithoutObjectsIsLogged with how many there were: handlers are notified that all of them are gone.
func TestAListWithoutObjectsIsLogged(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		logger, logged := testsupport.LoggerOf("no objects any more")
		f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"))
		p := process.Launch(t, testsupport.Path(t), f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.Logger = logger })
		p.Run()
		bubble.Settle()
		f.With(func() { clear(f.Objects) })
		for range 2 { // The second list changes nothing.
			if err := p.Informer.Relist(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if lines := logged(); len(lines) != 1 || !strings.Contains(lines[0], `"informer"="configmaps/v1 (typed)" "objects"=2`) {
			t.Errorf("logged: %q", lines)
		}
	})
}
