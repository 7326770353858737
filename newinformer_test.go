package warmwatch_test

import (
	"context"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/httpserver"
)

// agent is a process whose informers NewInformer makes.
type agent struct {
	t      *testing.T
	cache  *warmwatch.Cache
	config *rest.Config
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

func newAgent(t *testing.T, path string, api *httpserver.Server) *agent {
	return newAgentWith(t, path, api, func(*warmwatch.Options) {})
}

func newAgentWith(t *testing.T, path string, api *httpserver.Server, change func(*warmwatch.Options)) *agent {
	o := warmwatch.Options{ServeStaleAfter: -1, Logger: &testsupport.Quiet}
	change(&o)
	c, err := warmwatch.Open(t.Context(), path, o)
	if err != nil {
		t.Fatal(err)
	}
	a := &agent{t: t, cache: c, config: api.Config()}
	a.config.Wrap(c.WrapTransport)
	a.ctx, a.cancel = context.WithCancel(context.Background())
	t.Cleanup(a.stop)
	return a
}

// configMaps returns a ListerWatcher of the ConfigMaps in a namespace.
func (a *agent) configMaps(namespace string, tweak func(*metav1.ListOptions)) cache.ListerWatcher {
	client := kubernetes.NewForConfigOrDie(a.config)
	return cache.NewFilteredListWatchFromClient(client.CoreV1().RESTClient(), "configmaps", namespace, tweak)
}

func noTweak(*metav1.ListOptions) {}

// make returns an informer that does not run yet.
func (a *agent) make(lw cache.ListerWatcher, example runtime.Object) *warmwatch.SharedIndexInformer {
	return a.cache.NewInformer(lw, example, 0, cache.Indexers{"namespace": cache.MetaNamespaceIndexFunc}).(*warmwatch.SharedIndexInformer)
}

// run runs an informer until it has synced, and then until stop is called, or the agent stops.
func (a *agent) run(informer *warmwatch.SharedIndexInformer) (stop func()) {
	ctx, cancel := context.WithCancel(a.ctx)
	done := make(chan struct{})
	a.wg.Go(func() {
		defer close(done)
		informer.RunWithContext(ctx)
	})
	<-informer.HasSyncedChecker().Done()
	return func() {
		cancel()
		<-done
	}
}

func (a *agent) stop() {
	a.cancel()
	a.wg.Wait()
	if err := a.cache.Close(); err != nil {
		a.t.Error(err)
	}
}

// expectOne checks that the informer has the server's object, by name and by index.
func expectOne(t *testing.T, informer *warmwatch.SharedIndexInformer) {
	t.Helper()
	byIndex, err := informer.GetIndexer().ByIndex("namespace", "ns")
	if keys := informer.GetStore().ListKeys(); err != nil || len(byIndex) != 1 || !slices.Equal(keys, []string{"ns/a"}) {
		t.Errorf("%v, %d by index (%v)", keys, len(byIndex), err)
	}
}

// until waits for what the server's answers bring about.
func until(done func() bool) {
	for !done() {
		time.Sleep(time.Millisecond)
	}
}

// TestNewInformerTakesItsIdentityFromTheRequest, for each kind of client: the next process
// serves from the file, and asks for no list.
func TestNewInformerTakesItsIdentityFromTheRequest(t *testing.T) {
	for name, listerWatcher := range listerWatchers(func(o *metav1.ListOptions) { o.LabelSelector = "x in (2,1)" }) {
		t.Run(name, func(t *testing.T) {
			api, path := httpserver.New(t, "one"), testsupport.Path(t)
			const list = "LIST /api/v1/namespaces/ns/configmaps?labelSelector=x+in+%282%2C1%29"
			const get, schema = "GET /api/v1/namespaces/kube-system", "GET /openapi/v3"
			for _, want := range [][]string{{get, schema, list}, {get, "LIST limit=1"}} {
				a := newAgent(t, path, api)
				informer := a.make(listerWatcher(a.config))
				r, registration := add(t, informer)
				a.run(informer)
				<-registration.HasSyncedChecker().Done()
				expectOne(t, informer)
				until(func() bool { return informer.Status().Phase == warmwatch.PhaseLive })
				if err := informer.Status().Err; err != nil {
					t.Error(err)
				}
				a.stop()
				got := slices.DeleteFunc(api.Take(), func(s string) bool { return strings.HasPrefix(s, "WATCH") })
				slices.Sort(got) // Some are asked beside each other.
				if slices.Sort(want); cmp.Diff(want, got) != "" {
					d := cmp.Diff(want, got)
					t.Errorf("requests (-want +got):\n%s", d)
				}
				r.expect(t, "add ns/a@4 initial")
			}
		})
	}
}

// TestAnInformerWithoutAResourceLearnsItFromItsRequest, also two that ask for the same and have different names (A3): the
// next process resumes both.
func TestAnInformerWithoutAResourceLearnsItFromItsRequest(t *testing.T) {
	api, path := httpserver.New(t, ""), testsupport.Path(t)
	for _, resumes := range []int{0, 1} {
		a := newAgent(t, path, api)
		lw := a.configMaps("ns", noTweak)
		first, err := a.cache.NewSharedIndexInformer(lw, &corev1.ConfigMap{}, warmwatch.InformerOptions{Indexers: cache.Indexers{"namespace": cache.MetaNamespaceIndexFunc}})
		if err != nil {
			t.Fatal(err)
		}
		second := a.cache.NewInformerFunc(warmwatch.InformerOptions{Name: "second"})(lw, &corev1.ConfigMap{}, 0, cache.Indexers{"namespace": cache.MetaNamespaceIndexFunc})
		for _, informer := range []*warmwatch.SharedIndexInformer{first, second.(*warmwatch.SharedIndexInformer)} {
			a.run(informer)
			expectOne(t, informer)
			until(func() bool { return informer.Status().Phase == warmwatch.PhaseLive })
			if st := informer.Status(); st.Err != nil || st.Resumes != resumes {
				t.Errorf("%d resumes, expected %d: %v", st.Resumes, resumes, st.Err)
			}
		}
		a.stop()
	}
}

func TestNewInformerFuncPanicsIfItIsToldWhatIsListed(t *testing.T) {
	c, err := warmwatch.Open(t.Context(), testsupport.Path(t), warmwatch.Options{Logger: &testsupport.Quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, o := range []warmwatch.InformerOptions{{Resource: configMaps}, {LabelSelector: "x=1"}} {
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
	a := newAgent(t, testsupport.Path(t), api)
	var informers []*warmwatch.SharedIndexInformer
	for _, tweak := range []func(*metav1.ListOptions){
		noTweak,
		func(o *metav1.ListOptions) { o.LabelSelector = "x=1" },
		func(o *metav1.ListOptions) { o.LabelSelector = "x" },
		func(o *metav1.ListOptions) { o.FieldSelector = "metadata.name=a" },
		func(o *metav1.ListOptions) { o.ShardSelector = "shardRange(object.metadata.uid, '0x0', '0x8')" },
	} {
		for _, listerWatcher := range listerWatchers(tweak) {
			informers = append(informers, a.make(listerWatcher(a.config)))
		}
		informers = append(informers, a.make(a.configMaps("other", tweak), &corev1.ConfigMap{}))
	}
	for _, informer := range informers {
		a.run(informer)
		expectOne(t, informer)
		if err := informer.Status().Err; err != nil {
			t.Error(err)
		}
	}
	if st := a.cache.Status().Informers; len(st) != len(informers) {
		t.Errorf("%d informers have %d identities: %v", len(informers), len(st), slices.Sorted(maps.Keys(st)))
	}
}

// TestANewInformerWhoseRequestCannotBeSeenWorksFromMemory, and leaves nothing in the file.
func TestANewInformerWhoseRequestCannotBeSeenWorksFromMemory(t *testing.T) {
	for name, listerWatcher := range map[string]func(*agent, *httpserver.Server) cache.ListerWatcher{
		"not wrapped": func(_ *agent, api *httpserver.Server) cache.ListerWatcher {
			client := kubernetes.NewForConfigOrDie(api.Config())
			return cache.NewFilteredListWatchFromClient(client.CoreV1().RESTClient(), "configmaps", "ns", noTweak)
		},
		"context dropped": func(a *agent, _ *httpserver.Server) cache.ListerWatcher {
			lw, ctx := cache.ToListerWatcherWithContext(a.configMaps("ns", noTweak)), a.ctx
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
				a := newAgent(t, path, api)
				informer := a.make(listerWatcher(a, api), &corev1.ConfigMap{})
				r := &recorder{}
				registration, err := informer.AddDurableEventHandler("durable", r, warmwatch.DurableOptions{})
				if err != nil {
					t.Fatal(err)
				}
				a.run(informer)
				<-registration.HasSyncedChecker().Done()
				expectOne(t, informer)
				if err := informer.Status().Err; err == nil || !strings.Contains(err.Error(), "working from memory") {
					t.Errorf("the error is %v", err)
				}
				a.stop()
				r.expect(t, "add ns/a@4 initial")
			}
		})
	}
}

// TestANewInformerWaitsForOneThatIsStopping, and works from memory beside one that runs.
func TestANewInformerWaitsForOneThatIsStopping(t *testing.T) {
	api := httpserver.New(t, "")
	a := newAgent(t, testsupport.Path(t), api)
	informer := func() *warmwatch.SharedIndexInformer {
		return a.make(a.configMaps("ns", noTweak), &corev1.ConfigMap{})
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
	ctx, cancel := context.WithCancel(a.ctx)
	a.wg.Go(func() { first.RunWithContext(ctx) })
	<-hangs

	beside := informer()
	stop := a.run(beside)
	expectOne(t, beside)
	if err := beside.Status().Err; !errors.Is(err, warmwatch.ErrInUse) {
		t.Errorf("the error is %v", err)
	}
	stop()

	cancel()
	api.Take()
	second := informer()
	a.wg.Go(func() { second.RunWithContext(a.ctx) })
	advanceReal()
	close(goOn)
	<-second.HasSyncedChecker().Done()
	expectOne(t, second)
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
	a := newAgent(t, testsupport.Path(t), api)
	stop := a.run(a.make(a.configMaps("ns", noTweak), &corev1.ConfigMap{}))
	api.Take()
	second := a.make(a.configMaps("ns", noTweak), &corev1.ConfigMap{})
	a.wg.Go(func() { second.RunWithContext(a.ctx) })
	advanceReal()
	stop()
	<-second.HasSyncedChecker().Done()
	expectOne(t, second)
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
	a := newAgent(t, path, api)
	a.run(a.make(a.configMaps("ns", noTweak), &corev1.ConfigMap{}))
	a.stop()
	api.Close()

	a = newAgent(t, path, api)
	informer := a.make(a.configMaps("ns", noTweak), &corev1.ConfigMap{})
	store := informer.GetIndexer() // As listers do.
	if err := store.AddIndexers(cache.Indexers{"uid": func(obj any) ([]string, error) { return []string{string(accessor(obj).GetUID())}, nil }}); err != nil {
		t.Fatal(err)
	}
	r, registration := add(t, informer)
	a.run(informer)
	<-registration.HasSyncedChecker().Done()
	expectOne(t, informer)
	if objs, err := store.ByIndex("uid", "1"); err != nil || len(objs) != 1 {
		t.Errorf("%d objects, %v", len(objs), err)
	}
	r.expect(t, "add ns/a@4 initial")
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
		a := newAgent(t, path, api)
		informer := a.make(a.configMaps("ns", noTweak), &corev1.ConfigMap{})
		if c.forget {
			if err := informer.ForgetDurable("name"); err != nil {
				t.Error(err)
			}
		}
		r := &recorder{}
		registration, err := informer.AddDurableEventHandler("name", r, warmwatch.DurableOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := informer.AddDurableEventHandler("name", r, warmwatch.DurableOptions{}); !errors.Is(err, warmwatch.ErrInUse) {
			t.Errorf("a second handler of the name: %v", err)
		}
		a.run(informer)
		<-registration.HasSyncedChecker().Done()
		a.stop()
		r.expect(t, c.want...)
	}
}

// TestANewInformerCanEndBeforeItIsIdentified: by its context, and by Close.
func TestANewInformerCanEndBeforeItIsIdentified(t *testing.T) {
	for name, end := range map[string]func(*agent){
		"context": func(a *agent) { a.cancel() },
		"close":   func(a *agent) { _ = a.cache.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			a := newAgent(t, testsupport.Path(t), httpserver.New(t, ""))
			a.configMaps("ns", noTweak) // A client, whose transport is wrapped.
			failed := make(chan struct{}, 1)
			informer := a.make(&cache.ListWatch{WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
				select {
				case failed <- struct{}{}:
				default:
				}
				return nil, errors.New("no credentials")
			}}, &corev1.ConfigMap{})
			r, registration := add(t, informer)
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				informer.RunWithContext(a.ctx)
			}()
			<-failed
			until(func() bool { return informer.Status().ServerErr != nil })
			if err := informer.Status().ServerErr; !strings.Contains(err.Error(), "no credentials") {
				t.Error(err)
			}
			end(a)
			<-ended
			<-registration.(interface{ ShutdownChan() <-chan struct{} }).ShutdownChan()
			if !informer.IsStopped() || informer.HasSynced() {
				t.Errorf("stopped %v, synced %v", informer.IsStopped(), informer.HasSynced())
			}
			r.expect(t)
		})
	}
}

// TestANewInformerWithoutAnExampleIsClientGosOwn: its objects may be of any type.
func TestANewInformerWithoutAnExampleIsClientGosOwn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, err := warmwatch.Open(t.Context(), testsupport.Path(t), warmwatch.Options{Logger: &testsupport.Quiet})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		f := newSource(t, configMap("a"))
		informer := c.NewInformer(f, nil, 0, nil)
		stop := start(t, informer)
		settle()
		expectStore(t, informer, f)
		stop()
	})
}

// TestAReaderFindsWhatIsThereWhileAnInformerFromMemoryEnds, and frees that memory.
func TestAReaderFindsWhatIsThereWhileAnInformerFromMemoryEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		informer := oursFromMemory.new(t, newSource(t, configMap("a")))
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
		stop := start(t, informer)
		settle()
		reads.Store(true)
		found := make(chan []any)
		go func() {
			objs, err := informer.GetIndexer().Index("all", configMap("a"))
			if err != nil {
				t.Error(err)
			}
			found <- objs
		}()
		<-reading
		reads.Store(false)
		go stop()
		settle()
		close(goOn)
		if objs := <-found; len(objs) != 1 {
			t.Errorf("the reader finds %v", objs)
		}
		settle()
		if keys := informer.GetStore().ListKeys(); !slices.Equal(keys, []string{"ns/a"}) {
			t.Errorf("after the end the store has %v", keys)
		}
	})
}

// TestTheStoreOfANewInformerThatDoesNotRun has what a test puts there.
func TestTheStoreOfANewInformerThatDoesNotRun(t *testing.T) {
	a := newAgent(t, filepath.Join(t.TempDir(), "cache.db"), httpserver.New(t, ""))
	informer := a.make(a.configMaps("ns", noTweak), &corev1.ConfigMap{})
	if err := informer.GetIndexer().Add(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}}); err != nil {
		t.Fatal(err)
	}
	expectOne(t, informer)
	if n := len(a.cache.Status().Informers); n != 0 {
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
		a := newAgent(t, path, c.api)
		informer := a.make(a.configMaps("ns", noTweak), &corev1.ConfigMap{})
		a.run(informer)
		until(func() bool { return informer.Status().Phase == warmwatch.PhaseLive })
		expectOne(t, informer)
		a.stop()
		if got := len(c.api.TakeLists()) > 0; got != c.list {
			t.Errorf("process %d: lists %v, expected %v", i, got, c.list)
		}
	}
}

// TestANewInformerThatIsRunAgainTakesNothingFromItsSuccessor: it runs once.
func TestANewInformerThatIsRunAgainTakesNothingFromItsSuccessor(t *testing.T) {
	a := newAgent(t, testsupport.Path(t), httpserver.New(t, ""))
	informer := func() *warmwatch.SharedIndexInformer {
		return a.make(a.configMaps("ns", noTweak), &corev1.ConfigMap{})
	}
	first := informer()
	a.run(first)()
	first.RunWithContext(a.ctx) // Returns at once.
	second := informer()
	stop := a.run(second)
	first.RunWithContext(a.ctx)
	for name, st := range a.cache.Status().Informers {
		if st.Phase == warmwatch.PhaseStopped || st.Err != nil {
			t.Errorf("%s: %+v", name, st)
		}
	}
	stop()
	if n := len(a.cache.Status().Informers); n != 0 {
		t.Errorf("%d informers after the end", n)
	}
}
