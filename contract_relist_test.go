package warmwatch_test

import (
	"context"
	"slices"
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
)

// relisted makes an informer relist after changes that its watch has missed.
func relisted(f *source, changes func()) {
	f.setDown(errUnreachable)
	settle()
	changes()
	f.compact()
	f.setDown(nil)
	settle()
}

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
				f := newSource(t, configMap("a"), configMap("b"), configMap("c"))
				informer := c.impl.new(t, f)
				r, _ := add(t, informer)
				start(t, informer)
				r.expectInAnyOrder(t, "add ns/a@1 initial", "add ns/b@2 initial", "add ns/c@3 initial")
				relisted(f, func() {
					f.put(configMap("b"), configMap("d"))
					f.remove("c")
				})
				r.expectInAnyOrder(t, c.want...)
				expectStore(t, informer, f)
			})
		})
	}
}

// TestAListThatHasAnObjectTwice is told of once. Pages of a list may be of
// different moments.
func TestAListThatHasAnObjectTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSource(t, configMap("a"), configMap("b"))
		informer := ours.new(t, f, config{})
		r, _ := add(t, informer)
		start(t, informer)
		r.expectInAnyOrder(t, "add ns/a@1 initial", "add ns/b@2 initial")
		f.onList = func(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
			var list runtime.Object
			var err error
			f.with(func() { list, err = f.listLocked(o) })
			if err != nil {
				return nil, err
			}
			items, err := meta.ExtractList(list)
			if err != nil {
				return nil, err
			}
			return list, meta.SetList(list, append(items, items...))
		}
		relisted(f, func() { f.put(configMap("b"), configMap("c")) })
		r.expectInAnyOrder(t, "update ns/b@2→3", "add ns/c@4")
		expectStore(t, informer, f)
	})
}

func TestTheSameKeyWithANewUIDInARelistIsOneUpdate(t *testing.T) { // D1
	contract(t, func(t *testing.T, impl implementation) {
		f := newSource(t, configMap("a"))
		informer := impl.new(t, f)
		r, _ := add(t, informer)
		var uids []string
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			UpdateFunc: func(old, obj any) {
				uids = append(uids, string(accessor(old).GetUID()), string(accessor(obj).GetUID()))
			},
		}); err != nil {
			t.Fatal(err)
		}
		start(t, informer)
		r.expect(t, "add ns/a@1 initial")
		relisted(f, func() {
			f.remove("a")
			f.put(configMap("a"))
		})
		r.expect(t, "update ns/a@1→3")
		if diff := cmp.Diff([]string{"uid-1", "uid-2"}, uids); diff != "" {
			t.Error(diff)
		}
		expectStore(t, informer, f)
	})
}

func TestAMissedDeletionIsATombstoneByValueWithTheLastKnownObject(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := newSource(t, configMap("a", "last known"))
		informer := impl.new(t, f)
		var deleted []any
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(obj any) { deleted = append(deleted, obj) }}); err != nil {
			t.Fatal(err)
		}
		start(t, informer)
		relisted(f, func() { f.remove("a") })
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
		f := newSource(t)
		informer := impl.new(t, f)
		release := make(chan struct{})
		r := &recorder{during: func(string) { <-release }}
		if _, err := informer.AddEventHandler(r); err != nil {
			t.Fatal(err)
		}
		start(t, informer)
		f.put(configMap("a"), configMap("b"))
		synctest.Wait()
		relisted(f, func() { f.remove("b") })
		f.put(configMap("b"))
		close(release)
		synctest.Wait()
		got := r.take()
		want := []string{"add ns/a@1", "add ns/b@2", "lost ns/b@2", "update ns/a@1→1", "add ns/b@5"}
		if impl.name != clientGo.name {
			want = []string{"add ns/a@1", "add ns/b@2", "lost ns/b@2", "add ns/b@5"}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("unexpected notifications (-want +got):\n%s", diff)
		}
		expectStore(t, informer, f)
	})
}

func TestUpdatesWithTheSameResourceVersionAreSyncs(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := newSource(t, configMap("a"), configMap("b"))
		informer := impl.new(t, f, config{resync: 2 * time.Second})
		two, _ := add(t, informer)
		four, _ := add(t, informer, 4*time.Second)
		never, _ := add(t, informer, 0)
		start(t, informer)
		same := configMap("a", "other content")
		same.ResourceVersion = "1"
		take := func() (got [3]int) {
			for i, r := range []*recorder{two, four, never} {
				for _, event := range r.take() {
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
			advance(step.after)
			f.emit(watch.Modified, same)
			synctest.Wait()
			// Where a tick lies in between, the resync itself adds one.
			if got := take(); got != step.want {
				t.Errorf("%s: told %v times, expected %v", step.when, got, step.want)
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
		f := newSource(t, configMap("a"))
		informer := impl.new(t, f, config{resync: time.Hour})
		if err := informer.SetTransform(func(obj any) (any, error) {
			accessor(obj).SetResourceVersion("")
			return obj, nil
		}); err != nil {
			t.Fatal(err)
		}
		resyncs, _ := add(t, informer)
		never, _ := add(t, informer, 0)
		start(t, informer)
		f.put(configMap("a"))
		synctest.Wait()
		resyncs.expect(t, "add ns/a@ initial", "update ns/a@→")
		never.expect(t, "add ns/a@ initial", "update ns/a@→")
		advance(time.Hour)
		resyncs.expect(t, "update ns/a@→")
		f.put(configMap("a"))
		synctest.Wait()
		resyncs.expect(t, "update ns/a@→")
		never.expect(t)
	})
}

func TestResourceVersionsAreSimplyTheLastOnesSeen(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := newSource(t, configMap("a"))
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
		r, _ := add(t, informer)
		start(t, informer)
		expect("after the list", "1")
		f.put(configMap("a"), configMap("b"))
		expect("after an update and an addition", "3")
		f.remove("b")
		expect("after a deletion", "4")
		f.bookmark()
		expect("after a bookmark", "5")
		r.take()
		for _, rv := range []string{"9", "7", ""} {
			cm := configMap("a")
			cm.ResourceVersion = rv
			f.emit(watch.Modified, cm)
			expect("after an event at "+rv, rv)
		}
		r.expect(t, "update ns/a@2→9", "update ns/a@9→7", "update ns/a@7→")
	})
}

func TestTheWatchGoesOnAfterFaults(t *testing.T) {
	status := func(err *apierrors.StatusError) func(*source) {
		return func(f *source) { f.emit(watch.Error, &err.ErrStatus) }
	}
	for name, fault := range map[string]func(*source){
		"the watch is closed": (*source).closeWatches,
		"the history is gone": (*source).restart,
		"the watch expires":   status(apierrors.NewResourceExpired("too old resource version")),
		"too many requests":   status(apierrors.NewTooManyRequests("slow down", 1)),
		"an internal error":   status(apierrors.NewInternalError(errUnreachable)),
		"a timeout":           status(apierrors.NewTimeoutError("timeout", 1)),
		"the link is down":    func(f *source) { f.setDown(errUnreachable); settle(); f.setDown(nil) },
		"requests are forbidden": func(f *source) {
			f.setDown(apierrors.NewForbidden(configMaps.GroupResource(), "", nil))
			settle()
			f.setDown(nil)
		},
		"the server has no version": func(f *source) {
			f.setDown(apierrors.NewGone("gone")) //nolint:staticcheck // What servers before 1.18 said.
			settle()
			f.setDown(nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			contract(t, func(t *testing.T, impl implementation) {
				f := newSource(t, configMap("a"), configMap("b"))
				informer := impl.new(t, f)
				c := newChain(t, name)
				if _, err := informer.AddEventHandler(c); err != nil {
					t.Fatal(err)
				}
				start(t, informer)
				for range 3 {
					fault(f)
					f.put(configMap("a"), configMap("c"))
					f.remove("b", "c")
					f.put(configMap("b"))
					settle()
					expectStore(t, informer, f)
					if diff := cmp.Diff(f.contents(), c.versions()); diff != "" {
						t.Errorf("the handler believes in something else (-source +handler):\n%s", diff)
					}
				}
			})
		})
	}
}

// TestAnErrorOfTheServerEndsWhatItDoesNotDelete: after the unsafe deletion of a corrupt object a watch ends with an error
// event, and no DELETED comes.
func TestAnErrorOfTheServerEndsWhatItDoesNotDelete(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := newSource(t, configMap("a"), configMap("b"))
		informer := impl.new(t, f)
		r, _ := add(t, informer)
		start(t, informer)
		settle()
		r.take()
		f.lose(func() { f.remove("b") })
		f.emit(watch.Error, &apierrors.NewInternalError(errUnreachable).ErrStatus)
		settle()
		expectStore(t, informer, f)
		if told := r.take(); !slices.Contains(told, "lost ns/b@2") { // client-go tells of a once more.
			t.Errorf("told %q", told)
		}
	})
}

func TestAServerThatCannotWatchIsListedFromItsCache(t *testing.T) {
	contract(t, func(t *testing.T, i implementation) {
		f := newSource(t, configMap("a"))
		f.onWatch = func(context.Context, metav1.ListOptions) (watch.Interface, error) {
			return nil, apierrors.NewMethodNotSupported(configMaps.GroupResource(), "watch")
		}
		informer := i.new(t, f)
		start(t, informer)
		settle()
		f.put(configMap("a"))
		settle()
		expectStore(t, informer, f)
		f.takeRequests()
		advance(10 * time.Minute)
		for n, request := range f.takeRequests() {
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
		f := newSource(t, configMap("a"))
		limiter := flowcontrol.NewTokenBucketRateLimiter(5, 10)
		f.with(func() {
			f.onList = func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) { return nil, limiter.Wait(ctx) }
			f.onWatch = func(ctx context.Context, _ metav1.ListOptions) (watch.Interface, error) {
				return nil, limiter.Wait(ctx)
			}
		})
		informer := impl.new(t, f)
		start(t, informer)
		settle()
		for range 40 { // Eight seconds of the limiter.
			go func() {
				for {
					if limiter.Wait(t.Context()) != nil {
						return
					}
				}
			}()
		}
		advance(20 * time.Second)
		f.closeWatches()
		f.put(configMap("b"))
		advance(5 * time.Minute)
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
		f := newSource(t, configMap("a"))
		inner := false
		f.onWatch = func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if inner {
				return nil, nil
			}
			inner = true
			defer func() { inner = false }()
			w, err := f.WatchWithContext(ctx, o)
			return &closesOnce{w, make(chan struct{})}, err
		}
		informer := impl.new(t, f)
		stop := start(t, informer)
		settle()
		stop()
	})
}

// plainListerWatcher has the methods without a context only.
type plainListerWatcher struct{ f *source }

func (lw plainListerWatcher) List(o metav1.ListOptions) (runtime.Object, error) { return lw.f.List(o) }
func (lw plainListerWatcher) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return lw.f.Watch(o)
}
func (lw plainListerWatcher) IsWatchListSemanticsUnSupported() bool { return true }

func TestAListerWatcherWithoutContexts(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := newSource(t, configMap("a"))
		informer := impl.new(t, plainListerWatcher{f})
		r, _ := add(t, informer)
		start(t, informer)
		settle()
		f.put(configMap("b"))
		settle()
		r.expect(t, "add ns/a@1 initial", "add ns/b@2")
	})
}
