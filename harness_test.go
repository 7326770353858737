package warmwatch_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/watchlist"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/request"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/persist"
)

var configMaps = corev1.SchemeGroupVersion.WithResource("configmaps")

// config is what an informer of the contract tests is made with.
type config struct {
	resync   time.Duration
	indexers cache.Indexers
	example  runtime.Object
}

// An implementation of SharedIndexInformer that the contract is tested of.
// client-go's own is one: so what the tests say is client-go's contract.
type implementation struct {
	name string
	make func(*testing.T, cache.ListerWatcher, config) cache.SharedIndexInformer
}

var (
	clientGo = implementation{"client-go", func(_ *testing.T, lw cache.ListerWatcher, c config) cache.SharedIndexInformer {
		return cache.NewSharedIndexInformerWithOptions(lw, c.example, cache.SharedIndexInformerOptions{
			ResyncPeriod: c.resync, Indexers: c.indexers,
		})
	}}
	ours = implementation{"warmwatch", func(t *testing.T, lw cache.ListerWatcher, c config) cache.SharedIndexInformer {
		p := launch(t, filepath.Join(t.TempDir(), "cache.db"), lw, func(_ *warmwatch.Options, o *warmwatch.InformerOptions) {
			o.ResyncPeriod, o.Indexers = c.resync, c.indexers
		}, c.example)
		return p.informer
	}}
	// What NewInformer makes is identified by a request: these tests' ListerWatchers make none,
	// so that it works from memory.
	oursFromMemory = implementation{"NewInformer from memory", func(t *testing.T, lw cache.ListerWatcher, c config) cache.SharedIndexInformer {
		cache := cacheOf(t)
		cache.WrapTransport(nil)
		return cache.NewInformer(lw, c.example, c.resync, c.indexers)
	}}
	// The same with a request that is seen, so that the informer moves to the file.
	oursMoved = implementation{"NewInformer", func(t *testing.T, lw cache.ListerWatcher, c config) cache.SharedIndexInformer {
		opened := cacheOf(t)
		transport := opened.WrapTransport(mute{}).(request.Transport)
		informer := opened.NewInformer(seenListerWatcher{cache.ToListerWatcherWithContext(lw), lw, transport}, c.example, c.resync, c.indexers)
		t.Cleanup(func() {
			if err := informer.(*warmwatch.SharedIndexInformer).Status().Err; err != nil && strings.Contains(err.Error(), "from memory") {
				t.Error(err)
			}
		})
		return informer
	}}
)

func cacheOf(t *testing.T) *warmwatch.Cache {
	opened, err := warmwatch.Open(t.Context(), filepath.Join(t.TempDir(), "cache.db"), warmwatch.Options{Logger: &testsupport.Quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := opened.Close(); err != nil {
			t.Error(err)
		}
	})
	return opened
}

// mute is a server that says nothing of itself, and answers no question.
type mute struct{}

func (mute) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Request: r, ProtoMajor: 1, ProtoMinor: 1, Body: http.NoBody}, nil
}

// seenListerWatcher shows a transport what its watches ask for.
type seenListerWatcher struct {
	cache.ListerWatcherWithContext
	lw        cache.ListerWatcher
	transport request.Transport
}

func (lw seenListerWatcher) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://server/api/v1/configmaps", nil)
	if err == nil {
		err = lw.transport.Show(r)
	}
	if err != nil {
		return nil, err
	}
	return lw.ListerWatcherWithContext.WatchWithContext(ctx, o)
}

func (lw seenListerWatcher) List(o metav1.ListOptions) (runtime.Object, error) {
	return lw.ListWithContext(context.Background(), o)
}

func (lw seenListerWatcher) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return lw.WatchWithContext(context.Background(), o)
}

func (lw seenListerWatcher) IsWatchListSemanticsUnSupported() bool {
	return watchlist.DoesClientNotSupportWatchListSemantics(lw.lw)
}

func (i implementation) new(t *testing.T, lw cache.ListerWatcher, cs ...config) cache.SharedIndexInformer {
	c := config{}
	if len(cs) > 0 {
		c = cs[0]
	}
	if c.example == nil {
		c.example = &corev1.ConfigMap{}
	}
	return i.make(t, lw, c)
}

// contract runs a test against client-go and against warmwatch, in a bubble.
func contract(t *testing.T, test func(*testing.T, implementation)) {
	t.Helper()
	for _, impl := range []implementation{clientGo, ours, oursFromMemory, oursMoved} {
		t.Run("impl="+impl.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, impl) })
		})
	}
}

// start runs an informer until stop is called, or the test ends.
func start(t *testing.T, informer cache.SharedInformer) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		informer.RunWithContext(ctx)
	}()
	stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(stop)
	synctest.Wait()
	return stop
}

// advance lets time pass, and everything that it makes happen.
func advance(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// settle is longer than any delay: backoff of the Reflector, commits.
func settle() { advance(2 * time.Minute) }

// recorder is a handler that writes down what it is told:
//
//	add ns/a@1 initial     update ns/a@1→2     delete ns/a@3
//	add ns/a@1                                 lost ns/a@2 (a tombstone)
//	                                           lost ns/a (one without an object)
type recorder struct {
	mu     sync.Mutex
	events []string
	// during, if set, is called in each callback before the event is recorded.
	during func(event string)
}

func (r *recorder) record(format string, args ...any) {
	event := fmt.Sprintf(format, args...)
	if r.during != nil {
		r.during(event)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, event)
}

func (r *recorder) OnAdd(obj any, initial bool) {
	suffix := ""
	if initial {
		suffix = " initial"
	}
	r.record("add %s%s", version(obj), suffix)
}

func (r *recorder) OnUpdate(old, obj any) {
	if keyOf(old) != keyOf(obj) {
		r.record("update of %s to %s", keyOf(old), keyOf(obj))
		return
	}
	r.record("update %s→%s", version(old), accessor(obj).GetResourceVersion())
}

func (r *recorder) OnDelete(obj any) {
	if lost, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		if lost.Obj == nil {
			r.record("lost %s", lost.Key)
			return
		}
		if key := keyOf(lost.Obj); key != lost.Key {
			r.record("lost %s under the key %s", key, lost.Key)
			return
		}
		r.record("lost %s", version(lost.Obj))
		return
	}
	r.record("delete %s", version(obj))
}

// take returns what was recorded since the last call.
func (r *recorder) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	events := r.events
	r.events = nil
	return events
}

// expect compares what was recorded since the last call.
func (r *recorder) expect(t *testing.T, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, r.take()); diff != "" {
		t.Errorf("unexpected notifications (-want +got):\n%s", diff)
	}
}

// expectInAnyOrder is for what has none across objects.
func (r *recorder) expectInAnyOrder(t *testing.T, want ...string) {
	t.Helper()
	got := r.take()
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("unexpected notifications (-want +got):\n%s", diff)
	}
}

// add registers a new recorder with an informer.
func add(t *testing.T, informer cache.SharedInformer, period ...time.Duration) (*recorder, cache.ResourceEventHandlerRegistration) {
	t.Helper()
	r, o := &recorder{}, cache.HandlerOptions{}
	if len(period) > 0 {
		o.ResyncPeriod = &period[0]
	}
	registration, err := informer.AddEventHandlerWithOptions(r, o)
	if err != nil {
		t.Fatal(err)
	}
	return r, registration
}

// addDurable is add for a durable handler.
func addDurable(t *testing.T, p *process, name string) *recorder {
	t.Helper()
	r := &recorder{}
	if _, err := p.informer.AddDurableEventHandler(name, r, warmwatch.DurableOptions{}); err != nil {
		t.Fatal(err)
	}
	return r
}

// process is one life of a program that has a Cache with one informer.
type process struct {
	t        *testing.T
	path     string
	cache    *warmwatch.Cache
	informer *warmwatch.SharedIndexInformer
	end      func() // Of Run.
	stopped  bool
	damaged  bool // The file was, so that bbolt's checks may fail.
}

type setup = func(*warmwatch.Options, *warmwatch.InformerOptions)

// launch begins a life, which serves what the disk has at once. Call run to run the informer.
func launch(t *testing.T, path string, lw cache.ListerWatcher, change setup, example ...runtime.Object) *process {
	t.Helper()
	o, io := warmwatch.Options{ServeStaleAfter: -1}, warmwatch.InformerOptions{Resource: configMaps}
	if change != nil {
		change(&o, &io)
	}
	example = append(example, &corev1.ConfigMap{})
	c, err := warmwatch.Open(t.Context(), path, o)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, path: path, cache: c}
	t.Cleanup(p.stop)
	if p.informer, err = c.NewSharedIndexInformer(lw, example[0], io); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *process) run() *process {
	p.end = start(p.t, p.informer)
	return p
}

// stop ends the life in order, and checks what it left.
func (p *process) stop() {
	p.t.Helper()
	if p.stopped {
		return
	}
	p.stopped = true
	if p.end != nil {
		p.end()
	}
	if err := p.cache.Close(); err != nil && (!p.damaged || !errors.Is(err, persist.ErrCorrupt)) {
		p.t.Errorf("close: %v", err)
	}
	if !p.damaged && !p.cache.Status().MemoryOnly {
		checkFile(p.t, p.path)
	}
}

// crash copies the file as it is now, which is what a process that is killed
// now would leave, and returns the path of the copy.
func (p *process) crash() string {
	p.t.Helper()
	copied := filepath.Join(p.t.TempDir(), "cache.db")
	testsupport.CopyFile(p.t, p.path, copied)
	checkFile(p.t, copied)
	return copied
}

// expectStore compares the store with the source (A5).
func expectStore(t *testing.T, informer cache.SharedInformer, f *source) {
	t.Helper()
	if diff := cmp.Diff(f.contents(), versions(informer.GetStore().List())); diff != "" {
		t.Errorf("the store does not equal the source (-source +store):\n%s", diff)
	}
}

// undelivered returns how many deltas wait for the handler that is most behind.
func undelivered(st warmwatch.InformerStatus) (n int) {
	for _, h := range st.Handlers {
		n = max(n, h.Undelivered)
	}
	return n
}
