package contract_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/recorder"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

func TestARelistSendsOnlyWhatChanged(t *testing.T) { // D1
	changed := []string{"update ns/b@2→4", "add ns/d@5", "lost ns/c@3"}
	all := append([]string{"update ns/a@1→1"}, changed...)
	for _, c := range []struct {
		name string
		impl implementation
		want []string
	}{
		{"client-go", clientGo, all},
		{"warmwatch", ours, changed},
	} {
		t.Run("impl="+c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"), source.ConfigMap("c"))
				informer := c.impl.new(t, f)
				r, _ := recorder.Add(t, informer)
				bubble.Start(t, informer)
				r.ExpectInAnyOrder(t, "add ns/a@1 initial", "add ns/b@2 initial", "add ns/c@3 initial")
				source.Relisted(f, func() {
					f.Put(source.ConfigMap("b"), source.ConfigMap("d"))
					f.Remove("c")
				})
				r.ExpectInAnyOrder(t, c.want...)
				process.ExpectStore(t, informer, f)
			})
		})
	}
}

// TestAListThatHasAnObjectTwice is delivered once. Pages of a list may be of
// different moments.
func TestAListThatHasAnObjectTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"))
		informer := ours.new(t, f, config{})
		r, _ := recorder.Add(t, informer)
		bubble.Start(t, informer)
		r.ExpectInAnyOrder(t, "add ns/a@1 initial", "add ns/b@2 initial")
		f.OnList = func(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
			var list runtime.Object
			var err error
			f.With(func() { list, err = f.ListLocked(o) })
			if err != nil {
				return nil, err
			}
			items, err := meta.ExtractList(list)
			if err != nil {
				return nil, err
			}
			return list, meta.SetList(list, append(items, items...))
		}
		source.Relisted(f, func() { f.Put(source.ConfigMap("b"), source.ConfigMap("c")) })
		r.ExpectInAnyOrder(t, "update ns/b@2→3", "add ns/c@4")
		process.ExpectStore(t, informer, f)
	})
}

func TestTheSameKeyWithANewUIDInARelistIsOneUpdate(t *testing.T) { // D1
	contract(t, func(t *testing.T, impl implementation) {
		f := source.New(t, source.ConfigMap("a"))
		informer := impl.new(t, f)
		r, _ := recorder.Add(t, informer)
		var uids []string
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			UpdateFunc: func(old, obj any) {
				uids = append(uids, string(source.Meta(old).GetUID()), string(source.Meta(obj).GetUID()))
			},
		}); err != nil {
			t.Fatal(err)
		}
		bubble.Start(t, informer)
		r.Expect(t, "add ns/a@1 initial")
		source.Relisted(f, func() {
			f.Remove("a")
			f.Put(source.ConfigMap("a"))
		})
		r.Expect(t, "update ns/a@1→3")
		if diff := cmp.Diff([]string{"uid-1", "uid-2"}, uids); diff != "" {
			t.Error(diff)
		}
		process.ExpectStore(t, informer, f)
	})
}

func TestAMissedDeletionIsATombstoneByValueWithTheLastKnownObject(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := source.New(t, source.ConfigMap("a", "last known"))
		informer := impl.new(t, f)
		var deleted []any
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(obj any) { deleted = append(deleted, obj) }}); err != nil {
			t.Fatal(err)
		}
		bubble.Start(t, informer)
		source.Relisted(f, func() { f.Remove("a") })
		if len(deleted) != 1 {
			t.Fatalf("%d deletions", len(deleted))
		}
		lost, ok := deleted[0].(cache.DeletedFinalStateUnknown)
		if !ok || lost.Key != "ns/a" || lost.Obj.(*corev1.ConfigMap).Data["v"] != "last known" {
			t.Errorf("deleted %#v", deleted[0])
		}
		// The store's resourceVersion is the list's, not the tombstone's.
		if rv := informer.GetStore().LastStoreSyncResourceVersion(); rv != "3" {
			t.Errorf("the store is at %q", rv)
		}
	})
}

func TestARelistAlsoNoticesTheDeletionOfWhatAHandlerHasNotHeardOfYet(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) { // kubernetes#115658
		f := source.New(t)
		informer := impl.new(t, f)
		release := make(chan struct{})
		r := &recorder.Recorder{During: func(string) { <-release }}
		if _, err := informer.AddEventHandler(r); err != nil {
			t.Fatal(err)
		}
		bubble.Start(t, informer)
		f.Put(source.ConfigMap("a"), source.ConfigMap("b"))
		synctest.Wait()
		source.Relisted(f, func() { f.Remove("b") })
		f.Put(source.ConfigMap("b"))
		close(release)
		synctest.Wait()
		got := r.Take()
		want := []string{"add ns/a@1", "add ns/b@2", "lost ns/b@2", "update ns/a@1→1", "add ns/b@5"}
		if impl.name != clientGo.name {
			want = []string{"add ns/a@1", "add ns/b@2", "lost ns/b@2", "add ns/b@5"}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("unexpected notifications (-want +got):\n%s", diff)
		}
		process.ExpectStore(t, informer, f)
	})
}

func TestUpdatesWithTheSameResourceVersionAreSyncs(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"))
		informer := impl.new(t, f, config{resync: 2 * time.Second})
		two, _ := recorder.Add(t, informer)
		four, _ := recorder.Add(t, informer, 4*time.Second)
		never, _ := recorder.Add(t, informer, 0)
		bubble.Start(t, informer)
		same := source.ConfigMap("a", "other content")
		same.ResourceVersion = "1"
		take := func() (got [3]int) {
			for i, r := range []*recorder.Recorder{two, four, never} {
				for _, event := range r.Take() {
					if event == "update ns/a@1→1" {
						got[i]++
					}
				}
			}
			return got
		}
		for _, step := range []struct {
			when  string
			after time.Duration
			want  [3]int
		}{
			{"before the first tick every handler counts as syncing", time.Second, [3]int{1, 1, 1}},
			{"after a tick those that were due", 2 * time.Second, [3]int{2, 0, 0}},
			{"after the next tick all that were due then", 2 * time.Second, [3]int{2, 2, 0}},
		} {
			bubble.Advance(step.after)
			f.Emit(watch.Modified, same)
			synctest.Wait()
			// Where a tick lies in between, the resync itself adds one.
			if got := take(); got != step.want {
				t.Errorf("%s: delivered %v times, expected %v", step.when, got, step.want)
			}
		}
		obj, _, err := informer.GetStore().GetByKey("ns/a")
		if err != nil || obj.(*corev1.ConfigMap).Data["v"] != "other content" {
			t.Errorf("the store has %v, %v", obj, err)
		}
	})
}

func TestATransformThatDropsTheResourceVersionMakesEveryUpdateASync(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := source.New(t, source.ConfigMap("a"))
		informer := impl.new(t, f, config{resync: time.Hour})
		if err := informer.SetTransform(func(obj any) (any, error) {
			source.Meta(obj).SetResourceVersion("")
			return obj, nil
		}); err != nil {
			t.Fatal(err)
		}
		resyncs, _ := recorder.Add(t, informer)
		never, _ := recorder.Add(t, informer, 0)
		bubble.Start(t, informer)
		f.Put(source.ConfigMap("a"))
		synctest.Wait()
		resyncs.Expect(t, "add ns/a@ initial", "update ns/a@→")
		never.Expect(t, "add ns/a@ initial", "update ns/a@→")
		bubble.Advance(time.Hour)
		resyncs.Expect(t, "update ns/a@→")
		f.Put(source.ConfigMap("a"))
		synctest.Wait()
		resyncs.Expect(t, "update ns/a@→")
		never.Expect(t)
	})
}

func TestResourceVersionsAreSimplyTheLastOnesSeen(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := source.New(t, source.ConfigMap("a"))
		informer := impl.new(t, f)
		expect := func(when, want string) {
			t.Helper()
			synctest.Wait()
			for name, got := range map[string]string{
				"LastSyncResourceVersion":      informer.LastSyncResourceVersion(),
				"that of the controller":       informer.GetController().LastSyncResourceVersion(),
				"LastStoreSyncResourceVersion": informer.GetStore().LastStoreSyncResourceVersion(),
			} {
				if got != want {
					t.Errorf("%s: %s is %q, expected %q", when, name, got, want)
				}
			}
		}
		expect("before the start", "")
		r, _ := recorder.Add(t, informer)
		bubble.Start(t, informer)
		expect("after the list", "1")
		f.Put(source.ConfigMap("a"), source.ConfigMap("b"))
		expect("after an update and an addition", "3")
		f.Remove("b")
		expect("after a deletion", "4")
		f.Bookmark()
		expect("after a bookmark", "5")
		r.Take()
		for _, rv := range []string{"9", "7", ""} {
			cm := source.ConfigMap("a")
			cm.ResourceVersion = rv
			f.Emit(watch.Modified, cm)
			expect("after an event at "+rv, rv)
		}
		r.Expect(t, "update ns/a@2→9", "update ns/a@9→7", "update ns/a@7→")
	})
}

func TestTheWatchGoesOnAfterFaults(t *testing.T) {
	status := func(err *apierrors.StatusError) func(*source.Source) {
		return func(f *source.Source) { f.Emit(watch.Error, &err.ErrStatus) }
	}
	for name, fault := range map[string]func(*source.Source){
		"the watch is closed": (*source.Source).CloseWatches,
		"the history is gone": (*source.Source).Restart,
		"the watch expires":   status(apierrors.NewResourceExpired("too old resource version")),
		"too many requests":   status(apierrors.NewTooManyRequests("slow down", 1)),
		"an internal error":   status(apierrors.NewInternalError(source.ErrUnreachable)),
		"a timeout":           status(apierrors.NewTimeoutError("timeout", 1)),
		"the link is down":    func(f *source.Source) { f.SetDown(source.ErrUnreachable); bubble.Settle(); f.SetDown(nil) },
		"requests are forbidden": func(f *source.Source) {
			f.SetDown(apierrors.NewForbidden(process.ConfigMaps.GroupResource(), "", nil))
			bubble.Settle()
			f.SetDown(nil)
		},
		"the server has no version": func(f *source.Source) {
			f.SetDown(apierrors.NewGone("gone")) //nolint:staticcheck // What servers before 1.18 said.
			bubble.Settle()
			f.SetDown(nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			contract(t, func(t *testing.T, impl implementation) {
				f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"))
				informer := impl.new(t, f)
				c := recorder.NewChain(t, name)
				if _, err := informer.AddEventHandler(c); err != nil {
					t.Fatal(err)
				}
				bubble.Start(t, informer)
				for range 3 {
					fault(f)
					f.Put(source.ConfigMap("a"), source.ConfigMap("c"))
					f.Remove("b", "c")
					f.Put(source.ConfigMap("b"))
					bubble.Settle()
					process.ExpectStore(t, informer, f)
					if diff := cmp.Diff(f.Contents(), c.Versions()); diff != "" {
						t.Errorf("the handler believes in something else (-source +handler):\n%s", diff)
					}
				}
			})
		})
	}
}

// TestAnErrorOfTheServerEndsWhatItDoesNotDelete: after the unsafe deletion of a corrupt object a watch ends with an
// error event, and no DELETED comes.
func TestAnErrorOfTheServerEndsWhatItDoesNotDelete(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"))
		informer := impl.new(t, f)
		r, _ := recorder.Add(t, informer)
		bubble.Start(t, informer)
		bubble.Settle()
		r.Take()
		f.Lose(func() { f.Remove("b") })
		f.Emit(watch.Error, &apierrors.NewInternalError(source.ErrUnreachable).ErrStatus)
		bubble.Settle()
		process.ExpectStore(t, informer, f)
		if delivered := r.Take(); !slices.Contains(delivered, "lost ns/b@2") { // client-go delivers a once more.
			t.Errorf("delivered %q", delivered)
		}
	})
}

func TestAServerThatCannotWatchIsListedFromItsCache(t *testing.T) {
	contract(t, func(t *testing.T, i implementation) {
		f := source.New(t, source.ConfigMap("a"))
		f.OnWatch = func(context.Context, metav1.ListOptions) (watch.Interface, error) {
			return nil, apierrors.NewMethodNotSupported(process.ConfigMaps.GroupResource(), "watch")
		}
		informer := i.new(t, f)
		bubble.Start(t, informer)
		bubble.Settle()
		f.Put(source.ConfigMap("a"))
		bubble.Settle()
		process.ExpectStore(t, informer, f)
		f.TakeRequests()
		bubble.Advance(10 * time.Minute)
		for n, request := range f.TakeRequests() {
			if want := []string{"LIST rv=2", "WATCH rv=2"}[n%2]; request != want {
				t.Fatalf("request %d is %q, expected %q", n+1, request, want)
			}
		}
	})
}

// TestABusyRateLimiterDelaysAndDoesNotPrevent: informers share a client, which refuses a
// request at once if its deadline comes before its turn.
func TestABusyRateLimiterDelaysAndDoesNotPrevent(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := source.New(t, source.ConfigMap("a"))
		limiter := flowcontrol.NewTokenBucketRateLimiter(5, 10)
		f.With(func() {
			f.OnList = func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) { return nil, limiter.Wait(ctx) }
			f.OnWatch = func(ctx context.Context, _ metav1.ListOptions) (watch.Interface, error) {
				return nil, limiter.Wait(ctx)
			}
		})
		informer := impl.new(t, f)
		bubble.Start(t, informer)
		bubble.Settle()
		for range 40 { // Eight seconds of the limiter.
			go func() {
				for {
					if limiter.Wait(t.Context()) != nil {
						return
					}
				}
			}()
		}
		bubble.Advance(20 * time.Second)
		f.CloseWatches()
		f.Put(source.ConfigMap("b"))
		bubble.Advance(5 * time.Minute)
		if keys := informer.GetStore().ListKeys(); len(keys) != 2 {
			t.Errorf("it has not caught up: %q", keys)
		}
	})
}

// closesOnce is a watch whose Stop must be called once.
type closesOnce struct {
	watch.Interface
	stopped chan struct{}
}

func (c *closesOnce) Stop() {
	close(c.stopped)
	c.Interface.Stop()
}

func TestAWatchIsStoppedOnce(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := source.New(t, source.ConfigMap("a"))
		inner := false
		f.OnWatch = func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if inner {
				return nil, nil
			}
			inner = true
			defer func() { inner = false }()
			w, err := f.WatchWithContext(ctx, o)
			return &closesOnce{w, make(chan struct{})}, err
		}
		informer := impl.new(t, f)
		stop := bubble.Start(t, informer)
		bubble.Settle()
		stop()
	})
}

// plainListerWatcher has the methods without a context only.
type plainListerWatcher struct{ f *source.Source }

func (lw plainListerWatcher) List(o metav1.ListOptions) (runtime.Object, error) { return lw.f.List(o) }

func (lw plainListerWatcher) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return lw.f.Watch(o)
}

func (lw plainListerWatcher) IsWatchListSemanticsUnSupported() bool { return true }

func TestAListerWatcherWithoutContexts(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := source.New(t, source.ConfigMap("a"))
		informer := impl.new(t, plainListerWatcher{f})
		r, _ := recorder.Add(t, informer)
		bubble.Start(t, informer)
		bubble.Settle()
		f.Put(source.ConfigMap("b"))
		bubble.Settle()
		r.Expect(t, "add ns/a@1 initial", "add ns/b@2")
	})
}

func TestARelistTellsOfDeletionsFirst(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		// Names so that in the order of keys the deletions come last.
		f := source.New(t, source.ConfigMap("m"), source.ConfigMap("x"), source.ConfigMap("y"))
		informer := impl.new(t, f)
		r, _ := recorder.Add(t, informer)
		bubble.Start(t, informer)
		r.Take()
		source.Relisted(f, func() {
			f.Remove("x", "y")
			f.Put(source.ConfigMap("a"), source.ConfigMap("m"))
		})
		got := r.Take()
		if len(got) != 4 || !strings.HasPrefix(got[0], "lost ns/") || !strings.HasPrefix(got[1], "lost ns/") {
			t.Errorf("delivered %q", got)
		}
	})
}
