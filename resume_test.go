package warmwatch_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// bubble runs a test of warmwatch alone.
func bubble(t *testing.T, test func(*testing.T)) {
	t.Helper()
	synctest.Test(t, test)
}

// filled begins a file: one life that has seen these objects and ended in
// order.
func filled(t *testing.T, f *source, change setup) (path string) {
	t.Helper()
	path = testsupport.Path(t)
	fill(t, path, f, change)
	return path
}

func fill(t *testing.T, path string, f *source, change setup) {
	t.Helper()
	p := launch(t, path, f, change).run()
	settle()
	expectStore(t, p.informer, f)
	p.stop()
	f.takeRequests()
}

func (p *process) expectRequests(f *source, want ...string) {
	p.t.Helper()
	if diff := cmp.Diff(want, f.takeRequestsInOrder()); diff != "" {
		p.t.Errorf("unexpected requests (-want +got):\n%s", diff)
	}
}

// takeRequestsInOrder is takeRequests. A watch is opened beside the question, and comes after it here.
func (f *source) takeRequestsInOrder() []string {
	got := f.takeRequests()
	for i := range max(0, len(got)-1) {
		if strings.HasPrefix(got[i], "WATCH") && got[i+1] == "LIST limit=1" {
			got[i], got[i+1] = got[i+1], got[i]
		}
	}
	return got
}

func TestAColdStartListsOnceAndWatches(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"))
		p := launch(t, testsupport.Path(t), f, nil)
		if st := p.informer.Status(); st.Phase != warmwatch.PhaseLoading || st.StartedFrom != "" {
			t.Errorf("before the start: %+v", st)
		}
		r, _ := add(t, p.informer)
		p.run()
		f.put(configMap("b"))
		synctest.Wait()
		p.expectRequests(f, "LIST rv=0 limit=500", "WATCH rv=1")
		r.expect(t, "add ns/a@1 initial", "add ns/b@2")
		st := p.informer.Status()
		want := warmwatch.InformerStatus{
			Phase: warmwatch.PhaseLive, StartedFrom: "server", Cause: warmwatch.CauseFirstStart, ResourceVersion: "2",
			LastContact: time.Now(), Objects: 2, Relists: 1,
			Handlers: []warmwatch.HandlerStatus{{Name: fmt.Sprintf("%T", r), Undelivered: undelivered(st), UndeliveredBytes: st.Handlers[0].UndeliveredBytes}},
		}
		if diff := cmp.Diff(want, st); diff != "" {
			t.Errorf("status (-want +got):\n%s", diff)
		}
		p.stop()
		if st := p.informer.Status(); st.Phase != warmwatch.PhaseStopped {
			t.Errorf("after the stop: %+v", st)
		}
	})
}

func TestAWarmStartServesAsksOnceAndResumes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a", "x"), configMap("b"), configMap("c"))
		path := filled(t, f, nil)
		f.put(configMap("a", "y"), configMap("d"))
		f.remove("b")

		f.hold = make(chan struct{})
		p := launch(t, path, f, nil)
		r, registration := add(t, p.informer)
		p.run()
		// The server has not said a word.
		if !p.informer.HasSynced() || !registration.HasSynced() {
			t.Error("not synced from disk")
		}
		r.expectInAnyOrder(t, "add ns/a@1 initial", "add ns/b@2 initial", "add ns/c@3 initial")
		if st := p.informer.Status(); st.StartedFrom != "disk" || st.Objects != 3 || st.ResourceVersion != "3" {
			t.Errorf("before the server answers: %+v", st)
		}
		close(f.hold)
		synctest.Wait()
		p.expectRequests(f, "LIST limit=1", "WATCH rv=3")
		r.expect(t, "update ns/a@1→4", "add ns/d@5", "delete ns/b@6")
		expectStore(t, p.informer, f)
		if st := p.informer.Status(); st.Phase != warmwatch.PhaseLive || st.Resumes != 1 || st.Relists != 0 || st.Cause != warmwatch.CauseResumed {
			t.Errorf("after it: %+v", st)
		}
	})
}

// TestATransformThatStripsTheVersionDoesNotTakeTheCheckpoint: what the server sent had one.
func TestATransformThatStripsTheVersionDoesNotTakeTheCheckpoint(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f, path := newSource(t, configMap("a"), configMap("b")), testsupport.Path(t)
		life := func() *process {
			return transforming(t, path, f, func(obj any) (any, error) {
				accessor(obj).SetResourceVersion("")
				return obj, nil
			})
		}
		p := life()
		f.put(configMap("a", "new"))
		settle()
		p.stop()
		f.takeRequests()
		p = life()
		p.expectRequests(f, "LIST limit=1", "WATCH rv=3")
		f.remove("b")
		settle()
		p.stop()
		f.takeRequests()
		p = life()
		p.expectRequests(f, "LIST limit=1", "WATCH rv=4")
		p.expectVersions("ns/a@")
		if st := p.informer.Status(); st.ResourceVersion != "4" || st.Resumes != 1 {
			t.Errorf("status %+v", st)
		}
	})
}

func TestASecondInformerLifeInTheSameCacheIsWarmToo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"))
		p := launch(t, testsupport.Path(t), f, nil)
		d := addDurable(t, p, "d")
		p.run()
		settle()
		d.expect(t, "add ns/a@1 initial")
		for life := range 3 {
			p.end()
			f.takeRequests()
			f.put(configMap("a"))
			var err error
			if p.informer, err = p.cache.NewSharedIndexInformer(f, &corev1.ConfigMap{}, warmwatch.InformerOptions{Resource: configMaps}); err != nil {
				t.Fatal(err)
			}
			_, d := add2(t, p)
			p.run()
			settle()
			d.expect(t, fmt.Sprintf("update ns/a@%d→%d", life+1, life+2))
			p.expectRequests(f, "LIST limit=1", fmt.Sprintf("WATCH rv=%d", life+1))
			if n := undelivered(p.informer.Status()); n != 0 {
				t.Errorf("%d deltas are kept", n)
			}
		}
	})
}

func TestAServerWithoutTheHistoryMeansARelistWithADiff(t *testing.T) {
	gone := apierrors.NewResourceExpired("too old resource version")
	for name, c := range map[string]struct {
		prepare  func(*source)
		requests []string
	}{
		"the watch answers 410": {
			func(f *source) { f.compact() },
			[]string{"LIST limit=1", "WATCH rv=3", "LIST rv=3", "WATCH rv=7"},
		},
		"the request to watch answers 410": {
			func(f *source) {
				f.onWatch = func(context.Context, metav1.ListOptions) (watch.Interface, error) {
					f.with(func() { f.onWatch = nil })
					return nil, gone
				}
			},
			[]string{"LIST limit=1", "WATCH rv=3", "LIST rv=3", "WATCH rv=6"},
		},
		"the watch closes at once": {
			func(f *source) {
				f.onWatch = func(context.Context, metav1.ListOptions) (watch.Interface, error) {
					f.with(func() { f.onWatch = nil })
					w := watch.NewFake()
					w.Stop()
					return w, nil
				}
			},
			[]string{"LIST limit=1", "WATCH rv=3", "LIST rv=3", "WATCH rv=6"},
		},
		"a relist at the old version answers 410 too": {
			func(f *source) {
				f.compact()
				f.onList = func(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
					if o.ResourceVersion != "" && o.Limit != 1 {
						return nil, gone
					}
					return nil, nil
				}
			},
			[]string{"LIST limit=1", "WATCH rv=3", "LIST rv=3", "LIST limit=500", "WATCH rv=7"},
		},
		"a relist at the old version leads nowhere": { // kubernetes#133810
			func(f *source) {
				stale, _ := f.listLocked(metav1.ListOptions{})
				f.onList = func(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
					if o.ResourceVersion != "" && o.Limit != 1 {
						return stale.DeepCopyObject(), nil
					}
					return nil, nil
				}
			},
			[]string{"LIST limit=1", "WATCH rv=3", "LIST rv=3", "WATCH rv=3", "LIST limit=500", "WATCH rv=7"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t, configMap("a"), configMap("b"), configMap("c"))
				path := filled(t, f, nil)
				leadsNowhere := name == "a relist at the old version leads nowhere"
				if leadsNowhere {
					c.prepare(f)
				}
				f.put(configMap("b"), configMap("d"))
				f.remove("c")
				if leadsNowhere {
					f.compact()
				} else {
					c.prepare(f)
				}
				f.hold = make(chan struct{})
				p := launch(t, path, f, nil)
				r, registration := add(t, p.informer)
				p.run()
				if !registration.HasSynced() {
					t.Error("not synced from disk")
				}
				close(f.hold)
				if leadsNowhere {
					settle()
				} else {
					advance(500 * time.Millisecond) // The Reflector would wait for 0.8 s at least.
				}
				got := r.take()
				slices.Sort(got[3:])
				want := []string{"add ns/a@1 initial", "add ns/b@2 initial", "add ns/c@3 initial", "add ns/d@5", "lost ns/c@3", "update ns/b@2→4"}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("unexpected notifications (-want +got):\n%s", diff)
				}
				p.expectRequests(f, c.requests...)
				expectStore(t, p.informer, f)
				relists := 1
				if leadsNowhere {
					relists = 2
				}
				if st := p.informer.Status(); st.Relists != relists || st.Resumes != 0 || st.StartedFrom != "disk" {
					t.Errorf("status: %+v", st)
				}
			})
		})
	}
}

func TestAServerBehindTheCheckpointMeansARelistByContent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("same", "x"), configMap("reused", "x"), configMap("older", "x"), configMap("lost", "x"))
		f.put(configMap("older", "newer"))
		path := filled(t, f, nil)
		// A server restored from a backup. It uses version 2 again, for
		// something else.
		same, reused, older := f.objects["ns/same"], f.objects["ns/reused"].DeepCopyObject().(*corev1.ConfigMap), configMap("older", "x")
		reused.Data["v"] = "other content"
		older.ResourceVersion, older.UID = "3", "uid-3"
		f.rewind(4, same, reused, older)
		f.hold = make(chan struct{})
		p := launch(t, path, f, nil)
		r, _ := add(t, p.informer)
		d := addDurable(t, p, "d")
		p.run()
		settle()
		close(f.hold)
		settle()
		for _, r := range []*recorder{r, d} {
			got := r.take()
			slices.Sort(got[4:])
			want := []string{
				"add ns/lost@4 initial", "add ns/older@5 initial", "add ns/reused@2 initial", "add ns/same@1 initial",
				"lost ns/lost@4", "update ns/older@5→3", "update ns/reused@2→2",
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("unexpected notifications (-want +got):\n%s", diff)
			}
		}
		expectStore(t, p.informer, f)
		obj, _, err := p.informer.GetStore().GetByKey("ns/reused")
		if err != nil || obj.(*corev1.ConfigMap).Data["v"] != "other content" {
			t.Errorf("the store has %v, %v", obj, err)
		}
		f.put(configMap("same", "y"))
		settle()
		expectStore(t, p.informer, f)
	})
}

func TestACheckpointThatDoesNotMatchIsNotResumed(t *testing.T) {
	initial := []string{"add ns/a@1 initial", "add ns/b@2 initial"}
	drop := func(obj any) (any, error) {
		obj.(*corev1.ConfigMap).Data = nil
		return obj, nil
	}
	for _, c := range []struct {
		name          string
		first, second setup
		prepare       func(*testing.T, *process)
		pause         time.Duration
		requests      []string
		served        bool
		told          []string
	}{
		{
			name:     "it is the same",
			requests: []string{"LIST limit=1", "WATCH rv=3"},
			served:   true, told: append(slices.Clone(initial), "add ns/d@4"),
		},
		{
			name:     "the server has not vouched for it for long",
			second:   every(-1),
			pause:    1000 * time.Hour,
			requests: []string{"LIST limit=1", "WATCH rv=3"},
			served:   true, told: append(slices.Clone(initial), "add ns/d@4"),
		},
		{
			name:     "the resource is never resumed",
			second:   func(_ *warmwatch.Options, o *warmwatch.InformerOptions) { o.NeverResume = true },
			requests: []string{"LIST rv=3", "WATCH rv=4"},
			served:   true, told: append(slices.Clone(initial), "add ns/d@4"),
		},
		{
			name:   "another transform",
			second: func(_ *warmwatch.Options, o *warmwatch.InformerOptions) { o.TransformVersion = "2" },
			prepare: func(t *testing.T, p *process) {
				if err := p.informer.SetTransform(drop); err != nil {
					t.Fatal(err)
				}
			},
			requests: []string{"LIST rv=3", "WATCH rv=4"},
			told:     append(slices.Clone(initial), "add ns/d@4 initial"),
		},
		{
			name:     "another namespace is another informer",
			second:   func(_ *warmwatch.Options, o *warmwatch.InformerOptions) { o.Namespace = "ns" },
			requests: []string{"LIST rv=0 limit=500", "WATCH rv=4"},
			told:     append(slices.Clone(initial), "add ns/d@4 initial"),
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t, configMap("a", "x"), configMap("b", "x"))
				f.bookmark()
				path := filled(t, f, c.first)
				f.put(configMap("d", "x"))
				time.Sleep(c.pause)
				f.hold = make(chan struct{})
				p := launch(t, path, f, c.second)
				if c.prepare != nil {
					c.prepare(t, p)
				}
				r, _ := add(t, p.informer)
				p.run()
				if got := p.informer.HasSynced() && len(p.informer.GetStore().ListKeys()) == 2; got != c.served {
					t.Errorf("served before the server answered: %v, expected %v", got, c.served)
				}
				close(f.hold)
				settle()
				p.expectRequests(f, c.requests...)
				r.expect(t, c.told...)
				expectStore(t, p.informer, f)
			})
		})
	}
}

// TestEventsAreNotResumed: the server keeps no history of them.
func TestEventsAreNotResumed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f, path := newSource(t, &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}}), testsupport.Path(t)
		for _, requests := range [][]string{{"LIST rv=0 limit=500", "WATCH rv=1"}, {"LIST rv=1", "WATCH rv=1"}} {
			p := launch(t, path, f, func(_ *warmwatch.Options, o *warmwatch.InformerOptions) {
				o.Resource = corev1.SchemeGroupVersion.WithResource("events")
			}, &corev1.Event{}).run()
			settle()
			p.expectRequests(f, requests...)
			expectStore(t, p.informer, f)
			p.stop()
		}
	})
}

// TestWhatHasSyncedCanBeRead: a program that waits for HasSynced may take absence for deletion.
func TestWhatHasSyncedCanBeRead(t *testing.T) {
	f := newSource(t, configMap("a"))
	path := testsupport.Path(t)
	bubble(t, func(t *testing.T) {
		p := launch(t, path, f, nil).run()
		settle()
		p.stop()
	})
	c, err := warmwatch.Open(t.Context(), path, warmwatch.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 100 {
		informer, err := c.NewSharedIndexInformer(f, &corev1.ConfigMap{}, warmwatch.InformerOptions{Resource: configMaps})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); informer.RunWithContext(ctx) }()
		for synced := informer.HasSyncedChecker().Done(); !isClosed(synced); {
			time.Sleep(time.Microsecond)
		}
		if _, exists, err := informer.GetStore().GetByKey("ns/a"); !exists || err != nil {
			t.Fatalf("HasSynced, and what is stored is not found: %v", err)
		}
		cancel()
		<-done
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
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
		if st := p.informer.Status(); st.Phase != warmwatch.PhaseDisconnected || st.StartedFrom != "disk" || st.Objects != 2 || !errors.Is(st.ServerErr, errUnreachable) ||
			st.LastContact.IsZero() || time.Since(st.LastContact) < 2*time.Minute {
			t.Errorf("while it is unreachable: %+v", st)
		}
		f.put(configMap("a"))
		f.remove("b")
		f.setDown(nil)
		settle()
		if err := p.informer.Status().ServerErr; err != nil {
			t.Errorf("once it can be reached: %v", err)
		}
		r.expect(t, "update ns/a@1→3", "delete ns/b@4")
		if st := p.informer.Status(); st.Phase != warmwatch.PhaseLive || st.Resumes != 1 || st.Relists != 0 {
			t.Errorf("after the link is back: %+v", st)
		}
	})
}

// TestOptionsOfTheCacheAreThoseOfInformersThatDoNotSetThem: the first life has version 1 of
// both functions.
func TestOptionsOfTheCacheAreThoseOfInformersThatDoNotSetThem(t *testing.T) {
	resumed, listed := []string{"LIST limit=1", "WATCH rv=2"}, []string{"LIST rv=2", "WATCH rv=2"}
	for _, c := range []struct {
		name     string
		second   setup
		requests []string
		indexed  int // Calls of the index function when the second life resumes.
	}{
		{name: "the same", requests: resumed},
		{
			name:     "another TransformVersion",
			second:   func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.TransformVersion = "2" },
			requests: listed,
		},
		{
			name: "another TransformVersion, and the informer has its own",
			second: func(o *warmwatch.Options, io *warmwatch.InformerOptions) {
				o.TransformVersion, io.TransformVersion = "2", "1"
			},
			requests: resumed,
		},
		{
			name:     "another IndexVersion",
			second:   func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.IndexVersion = "2" },
			requests: resumed, indexed: 2,
		},
		{
			name:     "NeverResume",
			second:   func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.NeverResume = true },
			requests: listed,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f, path := newSource(t, configMap("a"), configMap("b")), testsupport.Path(t)
				var indexed atomic.Int32 // Later they are checked.
				atStart := 0
				live := func(change setup) {
					indexed.Store(0)
					p := launch(t, path, f, func(o *warmwatch.Options, io *warmwatch.InformerOptions) {
						o.TransformVersion, o.IndexVersion = "1", "1"
						io.Indexers = cache.Indexers{"i": func(any) ([]string, error) {
							indexed.Add(1)
							return []string{"x"}, nil
						}}
						if change != nil {
							change(o, io)
						}
					})
					if err := p.informer.SetTransform(func(obj any) (any, error) { return obj, nil }); err != nil {
						t.Fatal(err)
					}
					p.run()
					atStart = int(indexed.Load())
					settle()
					p.stop()
				}
				live(nil)
				f.takeRequests()
				live(c.second)
				if diff := cmp.Diff(c.requests, f.takeRequestsInOrder()); diff != "" {
					t.Errorf("requests (-want +got):\n%s", diff)
				}
				if !slices.Equal(c.requests, listed) && atStart != c.indexed {
					t.Errorf("the index function was called %d times at the start, expected %d", atStart, c.indexed)
				}
			})
		})
	}
}

// written returns how many bytes the process has written to files and sockets.
func written(t *testing.T) (n int64) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/io")
	if err != nil {
		t.Skip("this system does not count what a process writes")
	}
	if _, err := fmt.Sscanf(string(b[strings.Index(string(b), "wchar:"):]), "wchar: %d", &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestAnIdleHourCostsManyInformersWhatItCostsOne: they get bookmarks, each at another time of a minute. A process that is
// killed then has a young checkpoint.
func TestAnIdleHourCostsManyInformersWhatItCostsOne(t *testing.T) {
	idle := func(t *testing.T, n int) (bytes int64) {
		bubble(t, func(t *testing.T) {
			path := testsupport.Path(t)
			run := func(t *testing.T, path string, sources []*source) (stop func()) {
				c := open(t, path)
				var stops []func()
				for i, f := range sources {
					s, err := c.NewSharedIndexInformer(f, &corev1.ConfigMap{}, warmwatch.InformerOptions{Resource: configMaps, Name: fmt.Sprint(i)})
					if err != nil {
						t.Fatal(err)
					}
					stops = append(stops, start(t, s))
				}
				settle()
				return func() {
					for _, stop := range stops {
						stop()
					}
					if err := c.Close(); err != nil {
						t.Error(err)
					}
				}
			}
			var sources []*source
			for range n {
				sources = append(sources, newSource(t, configMap("a")))
			}
			stop := run(t, path, sources)
			before := written(t)
			for range 60 {
				for _, f := range sources {
					f.bookmark()
					advance(time.Minute / time.Duration(n))
				}
			}
			bytes = written(t) - before
			killed := testsupport.Path(t)
			testsupport.CopyFile(t, path, killed)
			stop()
			for _, f := range sources {
				f.takeRequests()
			}
			stop = run(t, killed, sources)
			for i, f := range sources {
				rv := int64(0)
				for _, r := range f.takeRequests() {
					if _, err := fmt.Sscanf(r, "WATCH rv=%d", &rv); err == nil {
						break
					}
				}
				if rv < f.rv-2 {
					t.Errorf("informer %d resumes at %d, the server is at %d", i, rv, f.rv)
				}
			}
			stop()
		})
		return bytes
	}
	one, many := idle(t, 1), idle(t, 50)
	t.Logf("an idle hour: %d KiB for one informer, %d KiB for 50", one>>10, many>>10)
	if many > 2*one {
		t.Errorf("%d KiB for one informer, %d KiB for 50", one>>10, many>>10)
	}
}
