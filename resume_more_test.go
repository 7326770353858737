package warmwatch_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch"
)

func TestAnotherIndexVersionRebuildsTheIndicesAndResumes(t *testing.T) {
	index := func(version string, f cache.IndexFunc) setup {
		return func(_ *warmwatch.Options, o *warmwatch.InformerOptions) {
			o.Indexers, o.IndexVersion = cache.Indexers{"i": f}, version
		}
	}
	byName := func(obj any) ([]string, error) { return []string{accessor(obj).GetName()}, nil }
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a", "x"), configMap("b", "x"))
		path := filled(t, f, index("1", byContent))
		for _, c := range []struct {
			version, value string
			index          cache.IndexFunc
			want           []string
		}{
			{"1", "x", byContent, []string{"ns/a", "ns/b"}},
			{"2", "a", byName, []string{"ns/a"}},
			{"3", "x", byContent, []string{"ns/a", "ns/b"}},
		} {
			p := launch(t, path, f, index(c.version, c.index)).run()
			keys, err := p.informer.GetIndexer().IndexKeys("i", c.value)
			if err != nil || !slices.Equal(keys, c.want) {
				t.Errorf("version %s: %q, %v", c.version, keys, err)
			}
			p.expectRequests(f, "LIST rv=2 limit=1", "WATCH rv=2")
			p.stop()
		}
	})
}

// interrupt runs a process that ends between two pages of a list, and returns its file.
func interrupt(f *source, p *process) (crashed string) {
	f.onList = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		switch {
		case o.ResourceVersion != "": // So that the list comes in pages.
			return nil, apierrors.NewResourceExpired("too old resource version")
		case o.Continue == "" || len(f.pages) < 3:
			return nil, nil
		}
		<-ctx.Done()
		return nil, ctx.Err()
	}
	p.run()
	settle()
	f.with(func() { f.onList = nil })
	crashed = p.crash()
	p.stop()
	clear(f.pages)
	return crashed
}

// TestIndicesAfterAnInterruptedList: the list left entries that other index
// functions may have made.
func TestIndicesAfterAnInterruptedList(t *testing.T) {
	index := func(version, prefix string) setup {
		return func(_ *warmwatch.Options, o *warmwatch.InformerOptions) {
			o.IndexVersion = version
			o.Indexers = cache.Indexers{"i": func(obj any) ([]string, error) {
				return []string{prefix + accessor(obj).GetName()}, nil
			}}
		}
	}
	bubble(t, func(t *testing.T) {
		for _, c := range []struct{ version, prefix, other string }{{"1", "old ", "new "}, {"2", "new ", "old "}} {
			f := newSource(t)
			for i := range 2000 {
				f.put(configMap(fmt.Sprintf("o%04d", i)))
			}
			path := interrupt(f, launch(t, newPath(t), f, index("1", "old ")))
			f.remove("o0000") // It was on the first page.
			p := launch(t, path, f, index(c.version, c.prefix)).run()
			settle()
			expectEqual(t, p.informer, f)
			for name, want := range map[string]int{c.prefix + "o0001": 1, c.prefix + "o1999": 1, c.prefix + "o0000": 0, c.other + "o0001": 0} {
				if keys, err := p.informer.GetIndexer().IndexKeys("i", name); err != nil || len(keys) != want {
					t.Errorf("version %s: %q has %d keys, %v", c.version, name, len(keys), err)
				}
			}
			p.stop()
		}
	})
}

func TestAnInterruptedListIsNotServedAnInterruptedRelistIs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t)
		for i := range 2000 {
			f.put(configMap(fmt.Sprintf("o%04d", i)))
		}
		p := launch(t, newPath(t), f, nil)
		path := interrupt(f, p)
		if p.informer.HasSynced() || len(p.informer.GetStore().List()) != 0 {
			t.Error("served before the list was complete")
		}

		f.hold = make(chan struct{})
		p = launch(t, path, f, nil)
		r, _ := add(t, p.informer)
		p.run()
		settle()
		if p.informer.HasSynced() || len(p.informer.GetStore().List()) != 0 {
			t.Error("half a list is served")
		}
		r.expect(t)
		f.remove("o0000") // It was on the first page.
		close(f.hold)
		settle()
		f.with(func() { f.hold = nil })
		expectStore(t, p.informer, f)
		if got := r.take(); len(got) != 1999 && len(got) != 2000 {
			t.Errorf("%d notifications, the first is %s", len(got), got[0])
		}
		p.stop()

		// And one that ends between two pages of a relist.
		f.put(configMap("o0001"), configMap("o1999"))
		path = interrupt(f, launch(t, p.path, f, func(_ *warmwatch.Options, o *warmwatch.InformerOptions) { o.NeverResume = true }))
		f.hold = make(chan struct{})
		p = launch(t, path, f, nil).run()
		if st := p.informer.Status(); !p.informer.HasSynced() || st.Objects != 1999 || st.StartedFrom != "disk" {
			t.Errorf("after an interrupted relist: %+v", st)
		}
		close(f.hold)
		settle()
		expectStore(t, p.informer, f)
		if st := p.informer.Status(); st.Relists != 0 || st.Resumes != 1 {
			t.Errorf("an interrupted relist has changed something: %+v", st)
		}
	})
}

func TestSyncFromServerWaitsForWhatTheServerHadWhenItWasAsked(t *testing.T) {
	fromServer := func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.SyncPolicy = warmwatch.SyncFromServer }
	for name, catchUp := range map[string]struct {
		how    func(*source, *watch.FakeWatcher)
		synced bool
	}{
		"an event reaches it":    {func(f *source, w *watch.FakeWatcher) { w.Modify(f.objects["ns/a"]) }, true},
		"a bookmark reaches it":  {func(_ *source, w *watch.FakeWatcher) { w.Action(watch.Bookmark, bookmark("3").Object) }, true},
		"an event does not":      {func(_ *source, w *watch.FakeWatcher) { w.Action(watch.Bookmark, bookmark("2").Object) }, false},
		"it is quiet for 500 ms": {func(*source, *watch.FakeWatcher) { advance(500 * time.Millisecond) }, true},
		"it is quiet for 499 ms": {func(*source, *watch.FakeWatcher) { advance(499 * time.Millisecond) }, false},
		"the watch ends in between": {func(_ *source, w *watch.FakeWatcher) {
			w.Error(&metav1.Status{Reason: metav1.StatusReasonInternalError, Code: 500})
			advance(time.Millisecond)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t, configMap("a"))
				path := filled(t, f, nil)
				f.put(configMap("a"), configMap("a"))
				w := watch.NewFake()
				once := false
				f.onWatch = func(context.Context, metav1.ListOptions) (watch.Interface, error) {
					if once {
						return nil, errList
					}
					once = true
					return w, nil
				}
				f.hold = make(chan struct{})
				p := launch(t, path, f, fromServer)
				r, registration := add(t, p.informer)
				p.run()
				settle()
				if p.informer.HasSynced() || registration.HasSynced() {
					t.Error("synced before the server has answered")
				}
				r.expect(t, "add ns/a@1 initial") // But it is served.
				close(f.hold)
				synctest.Wait()
				if p.informer.HasSynced() {
					t.Error("synced before the watch has brought anything")
				}
				catchUp.how(f, w)
				synctest.Wait()
				if got := p.informer.HasSynced(); got != catchUp.synced {
					t.Errorf("HasSynced is %v", got)
				}
				if got := registration.HasSynced(); got != catchUp.synced {
					t.Errorf("HasSynced of the registration is %v", got)
				}
			})
		})
	}
	t.Run("nothing has changed", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			f := newSource(t, configMap("a"))
			p := launch(t, filled(t, f, nil), f, fromServer).run()
			if !p.informer.HasSynced() {
				t.Error("not synced at once")
			}
		})
	})
	t.Run("it has to relist", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			f := newSource(t, configMap("a"))
			path := filled(t, f, nil)
			f.restart()
			p := launch(t, path, f, fromServer).run()
			settle()
			if st := p.informer.Status(); !p.informer.HasSynced() || st.Relists != 1 {
				t.Errorf("after the relist: %+v", st)
			}
		})
	})
}

func TestAnotherClusterIsNotBelieved(t *testing.T) {
	cluster := func(id string, err error) setup {
		return func(o *warmwatch.Options, _ *warmwatch.InformerOptions) {
			o.ClusterID = func(context.Context) (string, error) { return id, err }
		}
	}
	for _, c := range []struct {
		name   string
		second setup
		told   []string
		relist int
	}{
		{"the same cluster", cluster("one", nil), []string{"add ns/a@1 initial", "add ns/b@2 initial", "update ns/a@1→3"}, 0},
		{"another cluster", cluster("two", nil), []string{"add ns/a@1 initial", "add ns/b@2 initial", "lost ns/b@2", "update ns/a@1→1"}, 1},
		{"a cluster that does not tell", cluster("", apierrors.NewForbidden(configMaps.GroupResource(), "", nil)), []string{"add ns/a@1 initial", "add ns/b@2 initial", "update ns/a@1→3"}, 1},
		{"nobody asks", nil, []string{"add ns/a@1 initial", "add ns/b@2 initial", "update ns/a@1→3"}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t, configMap("a", "x"), configMap("b"))
				path := filled(t, f, cluster("one", nil))
				f.put(configMap("a", "y"))
				other := f
				if c.name == "another cluster" {
					// It counts as the first one does.
					other = newSource(t, configMap("a", "of two"))
					other.rv = 100
				}
				other.hold = make(chan struct{})
				p := launch(t, path, other, c.second)
				r, _ := add(t, p.informer)
				p.run()
				settle()
				close(other.hold)
				settle()
				got := r.take()
				slices.Sort(got[min(2, len(got)):])
				if diff := cmp.Diff(c.told, got); diff != "" {
					t.Errorf("unexpected notifications (-want +got):\n%s", diff)
				}
				expectStore(t, p.informer, other)
				if st := p.informer.Status(); st.Relists != c.relist {
					t.Errorf("status: %+v", st)
				}
			})
		})
	}
}

func TestTheClusterIsAskedUntilItAnswers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"))
		var asked atomic.Int32
		var known atomic.Bool
		p := launch(t, newPath(t), f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) {
			o.ClusterID = func(context.Context) (string, error) {
				if asked.Add(1); known.Load() {
					return "one", nil
				}
				return "", errUnreachable
			}
		}).run()
		settle()
		p.expectRequests(f)
		if asked.Load() < 3 || p.informer.HasSynced() || p.informer.Status().Phase != warmwatch.PhaseDisconnected {
			t.Errorf("asked %d times, status %+v", asked.Load(), p.informer.Status())
		}
		known.Store(true)
		settle()
		if !p.informer.HasSynced() {
			t.Error("not synced")
		}
		asked.Store(0)
		f.restart()
		settle()
		if asked.Load() != 0 {
			t.Error("asked again")
		}
	})
}

func TestTheFormOfTheObjectIsPartOfTheIdentity(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, err := warmwatch.Open(newPath(t), warmwatch.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "u", "namespace": "ns"}}}
		m := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Name: "m", Namespace: "ns"}}
		for _, example := range []runtime.Object{&corev1.ConfigMap{}, u, m} {
			f := newSource(t)
			if _, typed := example.(*corev1.ConfigMap); typed {
				f.put(configMap("t"))
			} else {
				f.put(example)
			}
			informer, err := c.NewSharedIndexInformer(f, example, warmwatch.InformerOptions{Resource: configMaps})
			if err != nil {
				t.Fatal(err)
			}
			r, _ := add(t, informer)
			stop := start(t, informer)
			defer stop()
			if got := r.take(); len(got) != 1 {
				t.Errorf("%T: told %q", example, got)
			}
			expectStore(t, informer, f)
		}
		if n := len(c.Status().Informers); n != 3 {
			t.Errorf("%d informers", n)
		}
	})
}

func TestAServerThatCannotBeReachedAtTheStart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"), configMap("b"))
		path := filled(t, f, nil)
		f.setDown(errUnreachable)
		p := launch(t, path, f, nil)
		r, registration := add(t, p.informer)
		p.run()
		settle()
		if !p.informer.HasSynced() || !registration.HasSynced() {
			t.Error("not synced from disk")
		}
		r.expectInAnyOrder(t, "add ns/a@1 initial", "add ns/b@2 initial")
		if st := p.informer.Status(); st.Phase != warmwatch.PhaseDisconnected || st.StartedFrom != "disk" || st.Objects != 2 || !st.LastContact.IsZero() {
			t.Errorf("while it is unreachable: %+v", st)
		}
		f.put(configMap("a"))
		f.remove("b")
		f.setDown(nil)
		settle()
		r.expect(t, "update ns/a@1→3", "delete ns/b@4")
		if st := p.informer.Status(); st.Phase != warmwatch.PhaseLive || st.Resumes != 1 || st.Relists != 0 {
			t.Errorf("after the link is back: %+v", st)
		}
	})
}

func TestAnEventThatCouldNotBeAppliedIsTriedAgainByTheNextProcess(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"))
		path := newPath(t)
		life := func(transform cache.TransformFunc) *recorder {
			p := launch(t, path, f, func(_ *warmwatch.Options, o *warmwatch.InformerOptions) { o.TransformVersion = "1" })
			if err := p.informer.SetTransform(transform); err != nil {
				t.Fatal(err)
			}
			r, _ := add(t, p.informer)
			f.setDown(errUnreachable) // The handler is told of what is there first.
			p.run()
			settle()
			f.setDown(nil)
			settle()
			f.put(configMap("b"), configMap("c"))
			settle()
			p.stop()
			return r
		}
		r := life(func(obj any) (any, error) {
			if accessor(obj).GetName() == "b" {
				return nil, errList
			}
			return obj, nil
		})
		r.expect(t, "add ns/a@1 initial", "add ns/c@3")
		r = life(func(obj any) (any, error) { return obj, nil })
		r.expect(t, "add ns/a@1 initial", "add ns/c@3 initial", "add ns/b@2", "update ns/b@2→4", "update ns/c@3→5")
	})
}

func TestATransformToAnotherTypeNeedsToBeSaid(t *testing.T) {
	toMetadata := func(obj any) (any, error) {
		cm := obj.(*corev1.ConfigMap)
		return &metav1.PartialObjectMetadata{ObjectMeta: *cm.ObjectMeta.DeepCopy()}, nil
	}
	for name, said := range map[string]bool{"said": true, "not said": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t, configMap("a", "x"))
				path := newPath(t)
				for range 2 {
					p := launch(t, path, f, func(_ *warmwatch.Options, o *warmwatch.InformerOptions) {
						if o.TransformVersion = "1"; said {
							o.Transformed = &metav1.PartialObjectMetadata{}
						}
					})
					if err := p.informer.SetTransform(toMetadata); err != nil {
						t.Fatal(err)
					}
					var errs []string
					if err := p.informer.SetWatchErrorHandler(func(_ *cache.Reflector, err error) { errs = append(errs, err.Error()) }); err != nil {
						t.Fatal(err)
					}
					p.run()
					settle()
					p.end()
					if said {
						expectStore(t, p.informer, f)
					} else if p.informer.HasSynced() || len(errs) == 0 || !strings.Contains(errs[0], "set InformerOptions.Transformed") {
						t.Errorf("synced: %v, errors: %q", p.informer.HasSynced(), errs)
					}
					p.stop()
				}
			})
		})
	}
}
