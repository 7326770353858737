package contract_test

import (
	"context"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/watchlist"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/request"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
)

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
		p := process.Launch(t, filepath.Join(t.TempDir(), "cache.db"), lw, func(_ *warmwatch.Options, o *warmwatch.InformerOptions) {
			o.ResyncPeriod, o.Indexers = c.resync, c.indexers
		}, c.example)
		return p.Informer
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
