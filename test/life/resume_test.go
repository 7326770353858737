package life_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/recorder"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

func TestAColdStartListsOnceAndWatches(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"))
		p := process.Launch(t, testsupport.Path(t), f, nil)
		if st := p.Informer.Status(); st.Phase != warmwatch.PhaseLoading || st.StartedFrom != "" {
			t.Errorf("before the start: %+v", st)
		}
		r, _ := recorder.Add(t, p.Informer)
		p.Run()
		f.Put(source.ConfigMap("b"))
		synctest.Wait()
		p.ExpectRequests(f, "LIST rv=0 limit=500", "WATCH rv=1")
		r.Expect(t, "add ns/a@1 initial", "add ns/b@2")
		st := p.Informer.Status()
		want := warmwatch.InformerStatus{
			Phase: warmwatch.PhaseLive, StartedFrom: "server", Cause: warmwatch.CauseFirstStart, ResourceVersion: "2",
			LastContact: time.Now(), Objects: 2, Relists: 1,
			Handlers: []warmwatch.HandlerStatus{{Name: fmt.Sprintf("%T", r), Undelivered: process.Undelivered(st), UndeliveredBytes: st.Handlers[0].UndeliveredBytes, Restarts: map[string]int64{"New": 1}}},
		}
		if diff := cmp.Diff(want, st); diff != "" {
			t.Errorf("status (-want +got):\n%s", diff)
		}
		p.Stop()
		if st := p.Informer.Status(); st.Phase != warmwatch.PhaseStopped {
			t.Errorf("after the stop: %+v", st)
		}
	})
}

func TestAWarmStartServesAsksOnceAndResumes(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a", "x"), source.ConfigMap("b"), source.ConfigMap("c"))
		path := process.Filled(t, f, nil)
		f.Put(source.ConfigMap("a", "y"), source.ConfigMap("d"))
		f.Remove("b")

		f.Hold = make(chan struct{})
		p := process.Launch(t, path, f, nil)
		r, registration := recorder.Add(t, p.Informer)
		p.Run()
		// The server has not said a word.
		if !p.Informer.HasSynced() || !registration.HasSynced() {
			t.Error("not synced from disk")
		}
		r.ExpectInAnyOrder(t, "add ns/a@1 initial", "add ns/b@2 initial", "add ns/c@3 initial")
		if st := p.Informer.Status(); st.StartedFrom != "disk" || st.Objects != 3 || st.ResourceVersion != "3" {
			t.Errorf("before the server answers: %+v", st)
		}
		close(f.Hold)
		synctest.Wait()
		p.ExpectRequests(f, "LIST limit=1", "WATCH rv=3")
		r.Expect(t, "update ns/a@1→4", "add ns/d@5", "delete ns/b@6")
		process.ExpectStore(t, p.Informer, f)
		if st := p.Informer.Status(); st.Phase != warmwatch.PhaseLive || st.Resumes != 1 || st.Relists != 0 || st.Cause != warmwatch.CauseResumed {
			t.Errorf("after it: %+v", st)
		}
	})
}

// TestATransformThatStripsTheVersionDoesNotTakeTheCheckpoint: what the server sent had one.
func TestATransformThatStripsTheVersionDoesNotTakeTheCheckpoint(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f, path := source.New(t, source.ConfigMap("a"), source.ConfigMap("b")), testsupport.Path(t)
		life := func() *process.Process {
			return process.LaunchTransforming(t, path, f, func(obj any) (any, error) {
				source.Meta(obj).SetResourceVersion("")
				return obj, nil
			})
		}
		p := life()
		f.Put(source.ConfigMap("a", "new"))
		bubble.Settle()
		p.Stop()
		f.TakeRequests()
		p = life()
		p.ExpectRequests(f, "LIST limit=1", "WATCH rv=3")
		f.Remove("b")
		bubble.Settle()
		p.Stop()
		f.TakeRequests()
		p = life()
		p.ExpectRequests(f, "LIST limit=1", "WATCH rv=4")
		p.ExpectVersions("ns/a@")
		if st := p.Informer.Status(); st.ResourceVersion != "4" || st.Resumes != 1 {
			t.Errorf("status %+v", st)
		}
	})
}

// TestWhatIsPutIntoTheStoreByHandDoesNotMoveTheCheckpoint (A2): a controller that puts the answers to its own updates
// into the store is ahead of the watch.
func TestWhatIsPutIntoTheStoreByHandDoesNotMoveTheCheckpoint(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f, path := source.New(t, source.ConfigMap("a"), source.ConfigMap("b")), testsupport.Path(t)
		p := process.Launch(t, path, f, nil).Run()
		bubble.Settle()
		f.SetDown(errors.New("the connection of the watch is lost"))
		f.Put(source.ConfigMap("b", "new"))
		f.Put(source.ConfigMap("a", "new"))
		if err := p.Informer.GetStore().Update(f.Objects["ns/a"]); err != nil {
			t.Fatal(err)
		}
		p.Stop()
		f.SetDown(nil)
		f.TakeRequests()
		p = process.Launch(t, path, f, nil).Run()
		bubble.Settle()
		p.ExpectRequests(f, "LIST limit=1", "WATCH rv=2")
		process.ExpectStore(t, p.Informer, f)
	})
}

func TestASecondInformerLifeInTheSameCacheIsWarmToo(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"))
		p := process.Launch(t, testsupport.Path(t), f, nil)
		d := process.AddDurable(t, p, "d")
		p.Run()
		bubble.Settle()
		d.Expect(t, "add ns/a@1 initial")
		for life := range 3 {
			p.End()
			f.TakeRequests()
			f.Put(source.ConfigMap("a"))
			var err error
			if p.Informer, err = p.Cache.NewSharedIndexInformer(f, &corev1.ConfigMap{}, warmwatch.InformerOptions{Resource: process.ConfigMaps}); err != nil {
				t.Fatal(err)
			}
			_, d := process.AddBoth(t, p)
			p.Run()
			bubble.Settle()
			d.Expect(t, fmt.Sprintf("update ns/a@%d→%d", life+1, life+2))
			p.ExpectRequests(f, "LIST limit=1", fmt.Sprintf("WATCH rv=%d", life+1))
			if n := process.Undelivered(p.Informer.Status()); n != 0 {
				t.Errorf("%d deltas are kept", n)
			}
		}
	})
}

func TestAServerWithoutTheHistoryMeansARelistWithADiff(t *testing.T) {
	gone := apierrors.NewResourceExpired("too old resource version")
	for name, c := range map[string]struct {
		prepare  func(*source.Source)
		requests []string
	}{
		"the watch answers 410": {
			func(f *source.Source) { f.Compact() },
			[]string{"LIST limit=1", "WATCH rv=3", "LIST rv=3", "WATCH rv=7"},
		},
		"the request to watch answers 410": {
			func(f *source.Source) {
				f.OnWatch = func(context.Context, metav1.ListOptions) (watch.Interface, error) {
					f.With(func() { f.OnWatch = nil })
					return nil, gone
				}
			},
			[]string{"LIST limit=1", "WATCH rv=3", "LIST rv=3", "WATCH rv=6"},
		},
		"the watch closes at once": {
			func(f *source.Source) {
				f.OnWatch = func(context.Context, metav1.ListOptions) (watch.Interface, error) {
					f.With(func() { f.OnWatch = nil })
					w := watch.NewFake()
					w.Stop()
					return w, nil
				}
			},
			[]string{"LIST limit=1", "WATCH rv=3", "LIST rv=3", "WATCH rv=6"},
		},
		"a relist at the old version answers 410 too": {
			func(f *source.Source) {
				f.Compact()
				f.OnList = func(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
					if o.ResourceVersion != "" && o.Limit != 1 {
						return nil, gone
					}
					return nil, nil
				}
			},
			[]string{"LIST limit=1", "WATCH rv=3", "LIST rv=3", "LIST limit=500", "WATCH rv=7"},
		},
		"a relist at the old version leads nowhere": { // kubernetes#133810
			func(f *source.Source) {
				stale, _ := f.ListLocked(metav1.ListOptions{})
				f.OnList = func(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
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
			bubble.Run(t, func(t *testing.T) {
				f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"), source.ConfigMap("c"))
				path := process.Filled(t, f, nil)
				leadsNowhere := name == "a relist at the old version leads nowhere"
				if leadsNowhere {
					c.prepare(f)
				}
				f.Put(source.ConfigMap("b"), source.ConfigMap("d"))
				f.Remove("c")
				if leadsNowhere {
					f.Compact()
				} else {
					c.prepare(f)
				}
				f.Hold = make(chan struct{})
				p := process.Launch(t, path, f, nil)
				r, registration := recorder.Add(t, p.Informer)
				p.Run()
				if !registration.HasSynced() {
					t.Error("not synced from disk")
				}
				close(f.Hold)
				if leadsNowhere {
					bubble.Settle()
				} else {
					bubble.Advance(500 * time.Millisecond) // The Reflector would wait for 0.8 s at least.
				}
				got := r.Take()
				slices.Sort(got[3:])
				want := []string{"add ns/a@1 initial", "add ns/b@2 initial", "add ns/c@3 initial", "add ns/d@5", "lost ns/c@3", "update ns/b@2→4"}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("unexpected notifications (-want +got):\n%s", diff)
				}
				p.ExpectRequests(f, c.requests...)
				process.ExpectStore(t, p.Informer, f)
				relists := 1
				if leadsNowhere {
					relists = 2
				}
				if st := p.Informer.Status(); st.Relists != relists || st.Resumes != 0 || st.StartedFrom != "disk" {
					t.Errorf("status: %+v", st)
				}
			})
		})
	}
}

func TestAServerBehindTheCheckpointMeansARelistByContent(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("same", "x"), source.ConfigMap("reused", "x"), source.ConfigMap("older", "x"), source.ConfigMap("lost", "x"))
		f.Put(source.ConfigMap("older", "newer"))
		path := process.Filled(t, f, nil)
		// A server restored from a backup. It uses version 2 again, for
		// something else.
		same, reused, older := f.Objects["ns/same"], f.Objects["ns/reused"].DeepCopyObject().(*corev1.ConfigMap), source.ConfigMap("older", "x")
		reused.Data["v"] = "other content"
		older.ResourceVersion, older.UID = "3", "uid-3"
		f.Rewind(4, same, reused, older)
		f.Hold = make(chan struct{})
		p := process.Launch(t, path, f, nil)
		r, _ := recorder.Add(t, p.Informer)
		d := process.AddDurable(t, p, "d")
		p.Run()
		bubble.Settle()
		close(f.Hold)
		bubble.Settle()
		for _, r := range []*recorder.Recorder{r, d} {
			got := r.Take()
			slices.Sort(got[4:])
			want := []string{
				"add ns/lost@4 initial", "add ns/older@5 initial", "add ns/reused@2 initial", "add ns/same@1 initial",
				"lost ns/lost@4", "update ns/older@5→3", "update ns/reused@2→2",
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("unexpected notifications (-want +got):\n%s", diff)
			}
		}
		process.ExpectStore(t, p.Informer, f)
		obj, _, err := p.Informer.GetStore().GetByKey("ns/reused")
		if err != nil || obj.(*corev1.ConfigMap).Data["v"] != "other content" {
			t.Errorf("the store has %v, %v", obj, err)
		}
		f.Put(source.ConfigMap("same", "y"))
		bubble.Settle()
		process.ExpectStore(t, p.Informer, f)
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
		first, second process.Setup
		prepare       func(*testing.T, *process.Process)
		pause         time.Duration
		requests      []string
		served        bool
		delivered     []string
	}{
		{
			name:     "it is the same",
			requests: []string{"LIST limit=1", "WATCH rv=3"},
			served:   true, delivered: append(slices.Clone(initial), "add ns/d@4"),
		},
		{
			name:     "the server has not vouched for it for long",
			second:   every(-1),
			pause:    1000 * time.Hour,
			requests: []string{"LIST limit=1", "WATCH rv=3"},
			served:   true, delivered: append(slices.Clone(initial), "add ns/d@4"),
		},
		{
			name:     "the resource is never resumed",
			second:   func(_ *warmwatch.Options, o *warmwatch.InformerOptions) { o.NeverResume = true },
			requests: []string{"LIST rv=3", "WATCH rv=4"},
			served:   true, delivered: append(slices.Clone(initial), "add ns/d@4"),
		},
		{
			name:   "another transform",
			second: func(_ *warmwatch.Options, o *warmwatch.InformerOptions) { o.TransformVersion = "2" },
			prepare: func(t *testing.T, p *process.Process) {
				if err := p.Informer.SetTransform(drop); err != nil {
					t.Fatal(err)
				}
			},
			requests:  []string{"LIST rv=3", "WATCH rv=4"},
			delivered: append(slices.Clone(initial), "add ns/d@4 initial"),
		},
		{
			name:      "another namespace is another informer",
			second:    func(_ *warmwatch.Options, o *warmwatch.InformerOptions) { o.Namespace = "ns" },
			requests:  []string{"LIST rv=0 limit=500", "WATCH rv=4"},
			delivered: append(slices.Clone(initial), "add ns/d@4 initial"),
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble.Run(t, func(t *testing.T) {
				f := source.New(t, source.ConfigMap("a", "x"), source.ConfigMap("b", "x"))
				f.Bookmark()
				path := process.Filled(t, f, c.first)
				f.Put(source.ConfigMap("d", "x"))
				time.Sleep(c.pause)
				f.Hold = make(chan struct{})
				p := process.Launch(t, path, f, c.second)
				if c.prepare != nil {
					c.prepare(t, p)
				}
				r, _ := recorder.Add(t, p.Informer)
				p.Run()
				if got := p.Informer.HasSynced() && len(p.Informer.GetStore().ListKeys()) == 2; got != c.served {
					t.Errorf("served before the server answered: %v, expected %v", got, c.served)
				}
				close(f.Hold)
				bubble.Settle()
				p.ExpectRequests(f, c.requests...)
				r.Expect(t, c.delivered...)
				process.ExpectStore(t, p.Informer, f)
			})
		})
	}
}

// TestEventsAreNotResumed: the server keeps no history of them.
func TestEventsAreNotResumed(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f, path := source.New(t, &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}}), testsupport.Path(t)
		for _, requests := range [][]string{{"LIST rv=0 limit=500", "WATCH rv=1"}, {"LIST rv=1", "WATCH rv=1"}} {
			p := process.Launch(t, path, f, func(_ *warmwatch.Options, o *warmwatch.InformerOptions) {
				o.Resource = corev1.SchemeGroupVersion.WithResource("events")
			}, &corev1.Event{}).Run()
			bubble.Settle()
			p.ExpectRequests(f, requests...)
			process.ExpectStore(t, p.Informer, f)
			p.Stop()
		}
	})
}

// TestWhatHasSyncedCanBeRead: a program that waits for HasSynced may take absence for deletion.
func TestWhatHasSyncedCanBeRead(t *testing.T) {
	f := source.New(t, source.ConfigMap("a"))
	path := testsupport.Path(t)
	bubble.Run(t, func(t *testing.T) {
		p := process.Launch(t, path, f, nil).Run()
		bubble.Settle()
		p.Stop()
	})
	c, err := warmwatch.Open(t.Context(), path, warmwatch.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 100 {
		informer, err := c.NewSharedIndexInformer(f, &corev1.ConfigMap{}, warmwatch.InformerOptions{Resource: process.ConfigMaps})
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
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"))
		path := process.Filled(t, f, nil)
		f.SetDown(source.ErrUnreachable)
		p := process.Launch(t, path, f, nil)
		r, registration := recorder.Add(t, p.Informer)
		p.Run()
		bubble.Settle()
		if !p.Informer.HasSynced() || !registration.HasSynced() {
			t.Error("not synced from disk")
		}
		r.ExpectInAnyOrder(t, "add ns/a@1 initial", "add ns/b@2 initial")
		if st := p.Informer.Status(); st.Phase != warmwatch.PhaseDisconnected || st.StartedFrom != "disk" || st.Objects != 2 || !errors.Is(st.ServerErr, source.ErrUnreachable) ||
			st.LastContact.IsZero() || time.Since(st.LastContact) < 2*time.Minute {
			t.Errorf("while it is unreachable: %+v", st)
		}
		f.Put(source.ConfigMap("a"))
		f.Remove("b")
		f.SetDown(nil)
		bubble.Settle()
		if err := p.Informer.Status().ServerErr; err != nil {
			t.Errorf("once it can be reached: %v", err)
		}
		r.Expect(t, "update ns/a@1→3", "delete ns/b@4")
		if st := p.Informer.Status(); st.Phase != warmwatch.PhaseLive || st.Resumes != 1 || st.Relists != 0 {
			t.Errorf("after the link is back: %+v", st)
		}
	})
}
