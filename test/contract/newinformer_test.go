package contract_test

import (
	"context"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/httpserver"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/recorder"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

// TestNewInformerTakesItsIdentityFromTheRequest, for each kind of client: the next process
// serves from the file, and asks for no list.
func TestNewInformerTakesItsIdentityFromTheRequest(t *testing.T) {
	for name, listerWatcher := range listerWatchers(func(o *metav1.ListOptions) { o.LabelSelector = "x in (2,1)" }) {
		t.Run(name, func(t *testing.T) {
			api, path := httpserver.New(t, "one"), testsupport.Path(t)
			const list = "LIST /api/v1/namespaces/ns/configmaps?labelSelector=x+in+%282%2C1%29"
			const get, schema = "GET /api/v1/namespaces/kube-system", "GET /openapi/v3"
			for _, want := range [][]string{{get, schema, list}, {get, "LIST limit=1"}} {
				a := process.NewAgent(t, path, api)
				informer := a.Make(listerWatcher(a.Config))
				r, registration := recorder.Add(t, informer)
				a.Run(informer)
				<-registration.HasSyncedChecker().Done()
				process.ExpectOne(t, informer)
				process.Until(func() bool { return informer.Status().Phase == warmwatch.PhaseLive })
				if err := informer.Status().Err; err != nil {
					t.Error(err)
				}
				a.Stop()
				got := slices.DeleteFunc(api.Take(), func(s string) bool { return strings.HasPrefix(s, "WATCH") })
				slices.Sort(got) // Some are asked beside each other.
				if slices.Sort(want); cmp.Diff(want, got) != "" {
					d := cmp.Diff(want, got)
					t.Errorf("requests (-want +got):\n%s", d)
				}
				r.Expect(t, "add ns/a@4 initial")
			}
		})
	}
}

// TestAnInformerWithoutAResourceLearnsItFromItsRequest, also two that ask for the same and have different names (A3):
// the next process resumes both.
func TestAnInformerWithoutAResourceLearnsItFromItsRequest(t *testing.T) {
	api, path := httpserver.New(t, ""), testsupport.Path(t)
	for _, resumes := range []int{0, 1} {
		a := process.NewAgent(t, path, api)
		lw := a.ConfigMaps("ns", process.NoTweak)
		first, err := a.Cache.NewSharedIndexInformer(lw, &corev1.ConfigMap{}, warmwatch.InformerOptions{Indexers: cache.Indexers{"namespace": cache.MetaNamespaceIndexFunc}})
		if err != nil {
			t.Fatal(err)
		}
		second := a.Cache.NewInformerFunc(warmwatch.InformerOptions{Name: "second"})(lw, &corev1.ConfigMap{}, 0, cache.Indexers{"namespace": cache.MetaNamespaceIndexFunc})
		for _, informer := range []*warmwatch.SharedIndexInformer{first, second.(*warmwatch.SharedIndexInformer)} {
			a.Run(informer)
			process.ExpectOne(t, informer)
			process.Until(func() bool { return informer.Status().Phase == warmwatch.PhaseLive })
			if st := informer.Status(); st.Err != nil || st.Resumes != resumes {
				t.Errorf("%d resumes, expected %d: %v", st.Resumes, resumes, st.Err)
			}
		}
		a.Stop()
	}
}

func TestNewInformerFuncPanicsIfItIsGivenWhatIsListed(t *testing.T) {
	c, err := warmwatch.Open(t.Context(), testsupport.Path(t), warmwatch.Options{Logger: &testsupport.Quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, o := range []warmwatch.InformerOptions{{Resource: process.ConfigMaps}, {LabelSelector: "x=1"}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%+v was accepted", o)
				}
			}()
			c.NewInformerFunc(o)
		}()
	}
}

// TestNewInformersThatAskForDifferentThingsShareNothing.
func TestNewInformersThatAskForDifferentThingsShareNothing(t *testing.T) {
	api := httpserver.New(t, "")
	a := process.NewAgent(t, testsupport.Path(t), api)
	var informers []*warmwatch.SharedIndexInformer
	for _, tweak := range []func(*metav1.ListOptions){
		process.NoTweak,
		func(o *metav1.ListOptions) { o.LabelSelector = "x=1" },
		func(o *metav1.ListOptions) { o.LabelSelector = "x" },
		func(o *metav1.ListOptions) { o.FieldSelector = "metadata.name=a" },
		func(o *metav1.ListOptions) { o.ShardSelector = "shardRange(object.metadata.uid, '0x0', '0x8')" },
	} {
		for _, listerWatcher := range listerWatchers(tweak) {
			informers = append(informers, a.Make(listerWatcher(a.Config)))
		}
		informers = append(informers, a.Make(a.ConfigMaps("other", tweak), &corev1.ConfigMap{}))
	}
	for _, informer := range informers {
		a.Run(informer)
		process.ExpectOne(t, informer)
		if err := informer.Status().Err; err != nil {
			t.Error(err)
		}
	}
	if st := a.Cache.Status().Informers; len(st) != len(informers) {
		t.Errorf("%d informers have %d identities: %v", len(informers), len(st), slices.Sorted(maps.Keys(st)))
	}
}

// TestANewInformerWhoseRequestCannotBeSeenWorksFromMemory, and leaves nothing in the file.
func TestANewInformerWhoseRequestCannotBeSeenWorksFromMemory(t *testing.T) {
	for name, listerWatcher := range map[string]func(*process.Agent, *httpserver.Server) cache.ListerWatcher{
		"not wrapped": func(_ *process.Agent, api *httpserver.Server) cache.ListerWatcher {
			client := kubernetes.NewForConfigOrDie(api.Config())
			return cache.NewFilteredListWatchFromClient(client.CoreV1().RESTClient(), "configmaps", "ns", process.NoTweak)
		},
		"context dropped": func(a *process.Agent, _ *httpserver.Server) cache.ListerWatcher {
			lw, ctx := cache.ToListerWatcherWithContext(a.ConfigMaps("ns", process.NoTweak)), a.Ctx
			return &cache.ListWatch{
				ListWithContextFunc: func(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
					return lw.ListWithContext(ctx, o)
				},
				WatchFuncWithContext: func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
					return lw.WatchWithContext(ctx, o)
				},
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			api, path := httpserver.New(t, ""), testsupport.Path(t)
			for range 2 {
				a := process.NewAgent(t, path, api)
				informer := a.Make(listerWatcher(a, api), &corev1.ConfigMap{})
				r := &recorder.Recorder{}
				registration, err := informer.AddDurableEventHandler("durable", r, warmwatch.DurableOptions{})
				if err != nil {
					t.Fatal(err)
				}
				a.Run(informer)
				<-registration.HasSyncedChecker().Done()
				process.ExpectOne(t, informer)
				if err := informer.Status().Err; err == nil || !strings.Contains(err.Error(), "working from memory") {
					t.Errorf("the error is %v", err)
				}
				a.Stop()
				r.Expect(t, "add ns/a@4 initial")
			}
		})
	}
}

// TestANewInformerWaitsForOneThatIsStopping, and works from memory beside one that runs.
func TestANewInformerWaitsForOneThatIsStopping(t *testing.T) {
	api := httpserver.New(t, "")
	a := process.NewAgent(t, testsupport.Path(t), api)
	informer := func() *warmwatch.SharedIndexInformer {
		return a.Make(a.ConfigMaps("ns", process.NoTweak), &corev1.ConfigMap{})
	}
	first := informer()
	hangs, goOn := make(chan struct{}), make(chan struct{})
	_, err := first.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(any) {
		close(hangs)
		<-goOn
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(a.Ctx)
	a.Wg.Go(func() { first.RunWithContext(ctx) })
	<-hangs

	beside := informer()
	stop := a.Run(beside)
	process.ExpectOne(t, beside)
	if err := beside.Status().Err; !errors.Is(err, warmwatch.ErrInUse) {
		t.Errorf("the error is %v", err)
	}
	stop()

	cancel()
	api.Take()
	second := informer()
	a.Wg.Go(func() { second.RunWithContext(a.Ctx) })
	advanceReal()
	close(goOn)
	<-second.HasSyncedChecker().Done()
	process.ExpectOne(t, second)
	if err := second.Status().Err; err != nil {
		t.Error(err)
	}
	if got := api.TakeLists(); len(got) > 0 {
		t.Errorf("the second one does not go on from the file: %s", got)
	}
}

// TestANewInformerWaitsForOneThatIsToldToStopAMomentLater, as controller-runtime does when an
// informer is removed and asked for again.
func TestANewInformerWaitsForOneThatIsToldToStopAMomentLater(t *testing.T) {
	api := httpserver.New(t, "")
	a := process.NewAgent(t, testsupport.Path(t), api)
	stop := a.Run(a.Make(a.ConfigMaps("ns", process.NoTweak), &corev1.ConfigMap{}))
	api.Take()
	second := a.Make(a.ConfigMaps("ns", process.NoTweak), &corev1.ConfigMap{})
	a.Wg.Go(func() { second.RunWithContext(a.Ctx) })
	advanceReal()
	stop()
	<-second.HasSyncedChecker().Done()
	process.ExpectOne(t, second)
	if err := second.Status().Err; err != nil {
		t.Error(err)
	}
	if got := api.TakeLists(); len(got) > 0 {
		t.Errorf("the second one does not go on from the file: %s", got)
	}
}

// advanceReal gives a goroutine time to begin what it then does or does not.
func advanceReal() { time.Sleep(50 * time.Millisecond) }

// TestANewInformerServesFromTheFileWithoutAServer, what was added before it ran included.
func TestANewInformerServesFromTheFileWithoutAServer(t *testing.T) {
	api, path := httpserver.New(t, ""), testsupport.Path(t)
	a := process.NewAgent(t, path, api)
	a.Run(a.Make(a.ConfigMaps("ns", process.NoTweak), &corev1.ConfigMap{}))
	a.Stop()
	api.Close()

	a = process.NewAgent(t, path, api)
	informer := a.Make(a.ConfigMaps("ns", process.NoTweak), &corev1.ConfigMap{})
	store := informer.GetIndexer() // As listers do.
	if err := store.AddIndexers(cache.Indexers{"uid": func(obj any) ([]string, error) { return []string{string(source.Meta(obj).GetUID())}, nil }}); err != nil {
		t.Fatal(err)
	}
	r, registration := recorder.Add(t, informer)
	a.Run(informer)
	<-registration.HasSyncedChecker().Done()
	process.ExpectOne(t, informer)
	if objs, err := store.ByIndex("uid", "1"); err != nil || len(objs) != 1 {
		t.Errorf("%d objects, %v", len(objs), err)
	}
	r.Expect(t, "add ns/a@4 initial")
}

// TestHandlersOfANewInformerAreDurable: names are known, and forgotten, before it runs.
func TestHandlersOfANewInformerAreDurable(t *testing.T) {
	api, path := httpserver.New(t, ""), testsupport.Path(t)
	for _, c := range []struct {
		forget bool
		want   []string
	}{
		{false, []string{"add ns/a@4 initial"}},
		{false, nil},
		{true, []string{"add ns/a@4 initial"}},
	} {
		a := process.NewAgent(t, path, api)
		informer := a.Make(a.ConfigMaps("ns", process.NoTweak), &corev1.ConfigMap{})
		if c.forget {
			if err := informer.ForgetDurable("name"); err != nil {
				t.Error(err)
			}
		}
		r := &recorder.Recorder{}
		registration, err := informer.AddDurableEventHandler("name", r, warmwatch.DurableOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := informer.AddDurableEventHandler("name", r, warmwatch.DurableOptions{}); !errors.Is(err, warmwatch.ErrInUse) {
			t.Errorf("a second handler of the name: %v", err)
		}
		a.Run(informer)
		<-registration.HasSyncedChecker().Done()
		a.Stop()
		r.Expect(t, c.want...)
	}
}

// TestANewInformerCanEndBeforeItIsIdentified: by its context, and by Close.
func TestANewInformerCanEndBeforeItIsIdentified(t *testing.T) {
	for name, end := range map[string]func(*process.Agent){
		"context": func(a *process.Agent) { a.Cancel() },
		"close":   func(a *process.Agent) { _ = a.Cache.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			a := process.NewAgent(t, testsupport.Path(t), httpserver.New(t, ""))
			a.ConfigMaps("ns", process.NoTweak) // A client, whose transport is wrapped.
			failed := make(chan struct{}, 1)
			informer := a.Make(&cache.ListWatch{WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
				select {
				case failed <- struct{}{}:
				default:
				}
				return nil, errors.New("no credentials")
			}}, &corev1.ConfigMap{})
			r, registration := recorder.Add(t, informer)
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				informer.RunWithContext(a.Ctx)
			}()
			<-failed
			process.Until(func() bool { return informer.Status().ServerErr != nil })
			if err := informer.Status().ServerErr; !strings.Contains(err.Error(), "no credentials") {
				t.Error(err)
			}
			end(a)
			<-ended
			<-registration.(interface{ ShutdownChan() <-chan struct{} }).ShutdownChan()
			if !informer.IsStopped() || informer.HasSynced() {
				t.Errorf("stopped %v, synced %v", informer.IsStopped(), informer.HasSynced())
			}
			r.Expect(t)
		})
	}
}

// TestANewInformerWithoutAnExampleIsClientGosOwn: its objects may be of any type.
func TestANewInformerWithoutAnExampleIsClientGosOwn(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		c, err := warmwatch.Open(t.Context(), testsupport.Path(t), warmwatch.Options{Logger: &testsupport.Quiet})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		f := source.New(t, source.ConfigMap("a"))
		informer := c.NewInformer(f, nil, 0, nil)
		stop := bubble.Start(t, informer)
		bubble.Settle()
		process.ExpectStore(t, informer, f)
		stop()
	})
}

// TestAReaderFindsWhatIsThereWhileAnInformerFromMemoryEnds, and frees that memory.
func TestAReaderFindsWhatIsThereWhileAnInformerFromMemoryEnds(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		informer := oursFromMemory.new(t, source.New(t, source.ConfigMap("a")))
		reading, goOn := make(chan struct{}), make(chan struct{})
		var reads atomic.Bool
		err := informer.AddIndexers(cache.Indexers{"all": func(any) ([]string, error) {
			if reads.Load() {
				close(reading)
				<-goOn
			}
			return []string{""}, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		stop := bubble.Start(t, informer)
		bubble.Settle()
		reads.Store(true)
		found := make(chan []any)
		go func() {
			objs, err := informer.GetIndexer().Index("all", source.ConfigMap("a"))
			if err != nil {
				t.Error(err)
			}
			found <- objs
		}()
		<-reading
		reads.Store(false)
		go stop()
		bubble.Settle()
		close(goOn)
		if objs := <-found; len(objs) != 1 {
			t.Errorf("the reader finds %v", objs)
		}
		bubble.Settle()
		if keys := informer.GetStore().ListKeys(); !slices.Equal(keys, []string{"ns/a"}) {
			t.Errorf("after the end the store has %v", keys)
		}
	})
}

// TestTheStoreOfANewInformerThatDoesNotRun has what a test puts there.
func TestTheStoreOfANewInformerThatDoesNotRun(t *testing.T) {
	a := process.NewAgent(t, filepath.Join(t.TempDir(), "cache.db"), httpserver.New(t, ""))
	informer := a.Make(a.ConfigMaps("ns", process.NoTweak), &corev1.ConfigMap{})
	if err := informer.GetIndexer().Add(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}}); err != nil {
		t.Fatal(err)
	}
	process.ExpectOne(t, informer)
	if n := len(a.Cache.Status().Informers); n != 0 {
		t.Errorf("the file has %d informers", n)
	}
}

// TestTheClusterIsKnownByTheTransport (A3): by the UID of kube-system. Another one's objects are compared by content.
func TestTheClusterIsKnownByTheTransport(t *testing.T) {
	path := testsupport.Path(t)
	plain, secure := httpserver.New(t, ""), httpserver.NewTLS(t, "")
	for i, c := range []struct {
		api  *httpserver.Server
		uid  string
		list bool
	}{
		{plain, "one", true}, {plain, "one", false}, {plain, "two", true}, {plain, "", false}, {plain, "", false},
		{secure, "", false}, {secure, "two", false}, {secure, "one", true}, {plain, "", false},
	} {
		c.api.SetUID(c.uid)
		a := process.NewAgent(t, path, c.api)
		informer := a.Make(a.ConfigMaps("ns", process.NoTweak), &corev1.ConfigMap{})
		a.Run(informer)
		process.Until(func() bool { return informer.Status().Phase == warmwatch.PhaseLive })
		process.ExpectOne(t, informer)
		a.Stop()
		if got := len(c.api.TakeLists()) > 0; got != c.list {
			t.Errorf("process %d: lists %v, expected %v", i, got, c.list)
		}
	}
}

// TestANewInformerThatIsRunAgainTakesNothingFromItsSuccessor: it runs once.
func TestANewInformerThatIsRunAgainTakesNothingFromItsSuccessor(t *testing.T) {
	a := process.NewAgent(t, testsupport.Path(t), httpserver.New(t, ""))
	informer := func() *warmwatch.SharedIndexInformer {
		return a.Make(a.ConfigMaps("ns", process.NoTweak), &corev1.ConfigMap{})
	}
	first := informer()
	a.Run(first)()
	first.RunWithContext(a.Ctx) // Returns at once.
	second := informer()
	stop := a.Run(second)
	first.RunWithContext(a.Ctx)
	for name, st := range a.Cache.Status().Informers {
		if st.Phase == warmwatch.PhaseStopped || st.Err != nil {
			t.Errorf("%s: %+v", name, st)
		}
	}
	stop()
	if n := len(a.Cache.Status().Informers); n != 0 {
		t.Errorf("%d informers after the end", n)
	}
}
