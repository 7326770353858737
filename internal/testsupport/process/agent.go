package process

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/httpserver"
)

// Agent is a process whose informers NewInformer makes.
type Agent struct {
	t      *testing.T
	Cache  *warmwatch.Cache
	Config *rest.Config
	Ctx    context.Context
	Cancel context.CancelFunc
	Wg     sync.WaitGroup
}

// NewAgent begins a process that serves what the disk has at once.
func NewAgent(t *testing.T, path string, api *httpserver.Server, change ...func(*warmwatch.Options)) *Agent {
	o := warmwatch.Options{ServeStaleAfter: -1, Logger: &testsupport.Quiet}
	for _, c := range change {
		c(&o)
	}
	c, err := warmwatch.Open(t.Context(), path, o)
	if err != nil {
		t.Fatal(err)
	}
	a := &Agent{t: t, Cache: c, Config: api.Config()}
	a.Config.Wrap(c.WrapTransport)
	a.Ctx, a.Cancel = context.WithCancel(context.Background())
	t.Cleanup(a.Stop)
	return a
}

// ConfigMaps returns a ListerWatcher of the ConfigMaps in a namespace.
func (a *Agent) ConfigMaps(namespace string, tweak func(*metav1.ListOptions)) cache.ListerWatcher {
	client := kubernetes.NewForConfigOrDie(a.Config)
	return cache.NewFilteredListWatchFromClient(client.CoreV1().RESTClient(), "configmaps", namespace, tweak)
}

// NoTweak leaves a request as it is.
func NoTweak(*metav1.ListOptions) {}

// Make returns an informer that does not run yet.
func (a *Agent) Make(lw cache.ListerWatcher, example runtime.Object) *warmwatch.SharedIndexInformer {
	return a.Cache.NewInformer(lw, example, 0, cache.Indexers{"namespace": cache.MetaNamespaceIndexFunc}).(*warmwatch.SharedIndexInformer)
}

// Run runs an informer until it has synced, and then until stop is called, or the agent stops.
func (a *Agent) Run(informer *warmwatch.SharedIndexInformer) (stop func()) {
	ctx, cancel := context.WithCancel(a.Ctx)
	done := make(chan struct{})
	a.Wg.Go(func() {
		defer close(done)
		informer.RunWithContext(ctx)
	})
	<-informer.HasSyncedChecker().Done()
	return func() {
		cancel()
		<-done
	}
}

// Stop ends the informers and closes the Cache.
func (a *Agent) Stop() {
	a.Cancel()
	a.Wg.Wait()
	if err := a.Cache.Close(); err != nil {
		a.t.Error(err)
	}
}

// ExpectOne checks that the informer has the server's object, by name and by index.
func ExpectOne(t *testing.T, informer *warmwatch.SharedIndexInformer) {
	t.Helper()
	byIndex, err := informer.GetIndexer().ByIndex("namespace", "ns")
	if keys := informer.GetStore().ListKeys(); err != nil || len(byIndex) != 1 || !slices.Equal(keys, []string{"ns/a"}) {
		t.Errorf("%v, %d by index (%v)", keys, len(byIndex), err)
	}
}

// Until waits for what the server's answers bring about.
func Until(done func() bool) {
	for !done() {
		time.Sleep(time.Millisecond)
	}
}
