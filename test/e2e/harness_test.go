package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/warmwatch/warmwatch"
)

var (
	pods       = corev1.SchemeGroupVersion.WithResource("pods")
	configMaps = corev1.SchemeGroupVersion.WithResource("configmaps")
	secrets    = corev1.SchemeGroupVersion.WithResource("secrets")
	events     = corev1.SchemeGroupVersion.WithResource("events")
)

const (
	// patience is for conditions that come true at once on an idle machine.
	patience = 3 * time.Minute
	pollEach = 10 * time.Millisecond
)

// eventually waits until check has nothing to object to.
func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), pollEach, patience, true, func(context.Context) (bool, error) {
		last = check()
		return last == nil, nil
	})
	if err != nil {
		t.Fatalf("waited in vain (%v) for: %s\n%v", err, what, last)
	}
}

func eventuallyTrue(t *testing.T, what string, check func() bool) {
	t.Helper()
	eventually(t, what, func() error {
		if !check() {
			return errors.New("not true")
		}
		return nil
	})
}

// newHTTPClient makes what clients of the test share; nothing of it is left over.
func newHTTPClient[C any](t *testing.T, cfg *rest.Config, newClient func(*rest.Config) (C, error)) C {
	t.Helper()
	cfg = rest.CopyConfig(cfg)
	cfg.WarningHandler = rest.NoWarnings{}
	httpClient, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(httpClient.CloseIdleConnections)
	client, err := newClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// newClient returns a typed client that speaks protobuf.
func newClient(t *testing.T, cfg *rest.Config) kubernetes.Interface {
	t.Helper()
	cfg = rest.CopyConfig(cfg)
	cfg.ContentType = runtime.ContentTypeProtobuf
	cfg.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	return newHTTPClient(t, cfg, func(cfg *rest.Config) (kubernetes.Interface, error) { return kubernetes.NewForConfig(cfg) })
}

// newNamespace is where the objects of one test are.
func newNamespace(t *testing.T, client kubernetes.Interface) string {
	t.Helper()
	ns, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return ns.Name
}

// newListWatch is the ListerWatcher of client-go's generated informers.
func newListWatch[L runtime.Object](
	client any,
	list func(context.Context, metav1.ListOptions) (L, error),
	open func(context.Context, metav1.ListOptions) (watch.Interface, error),
	tweak func(*metav1.ListOptions),
) cache.ListerWatcher {
	if tweak == nil {
		tweak = func(*metav1.ListOptions) {}
	}
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			tweak(&o)
			return list(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			tweak(&o)
			return open(ctx, o)
		},
	}, client)
}

func podsIn(client kubernetes.Interface, namespace string) cache.ListerWatcher {
	c := client.CoreV1().Pods(namespace)
	return newListWatch(client, c.List, c.Watch, nil)
}

func configMapsIn(client kubernetes.Interface, namespace string) cache.ListerWatcher {
	c := client.CoreV1().ConfigMaps(namespace)
	return newListWatch(client, c.List, c.Watch, nil)
}

// newPath is where the cache file of a test is.
func newPath(t *testing.T) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "cache", "warmwatch.db")
}

// program is one life of a program that has a Cache.
type program struct {
	t       *testing.T
	ctx     context.Context
	end     context.CancelFunc
	cache   *warmwatch.Cache
	all     []*warmwatch.SharedIndexInformer
	running sync.WaitGroup
	stopped bool
}

// launch begins a life. Add informers and handlers, then run.
func launch(t *testing.T, path string, o warmwatch.Options) *program {
	t.Helper()
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.Verbosity(2)))
	o.Logger = &logger
	c, err := warmwatch.Open(t.Context(), path, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(klog.NewContext(context.Background(), logger))
	p := &program{t: t, ctx: ctx, end: end, cache: c}
	t.Cleanup(p.stop)
	return p
}

func (p *program) informer(lw cache.ListerWatcher, example runtime.Object, resource schema.GroupVersionResource, o warmwatch.InformerOptions) *warmwatch.SharedIndexInformer {
	p.t.Helper()
	o.Resource = resource
	informer, err := p.cache.NewSharedIndexInformer(lw, example, o)
	if err != nil {
		p.t.Fatal(err)
	}
	p.all = append(p.all, informer)
	return informer
}

func (p *program) run() {
	for _, informer := range p.all {
		p.running.Go(func() { informer.RunWithContext(p.ctx) })
	}
}

// stop ends the life in order and checks what it leaves. It is idempotent.
func (p *program) stop() {
	p.t.Helper()
	if p.stopped {
		return
	}
	p.stopped = true
	status := p.cache.Status()
	p.end()
	p.running.Wait()
	if err := p.cache.Close(); err != nil {
		p.t.Errorf("close the cache: %v", err)
	}
	if status.MemoryOnly || status.Err != nil {
		p.t.Errorf("persistence was degraded: %v", status.Err)
	}
	for name, s := range status.Informers {
		if s.Err != nil {
			p.t.Errorf("persistence of %s was degraded: %v", name, s.Err)
		}
	}
	checkFile(p.t, status.Path)
}

// checkFile runs bbolt's own check on a file that nobody has open.
func checkFile(t *testing.T, path string) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, Timeout: 10 * time.Second})
	if err != nil {
		t.Errorf("open the cache file: %v", err)
		return
	}
	defer db.Close()
	err = db.View(func(tx *bolt.Tx) error {
		for err := range tx.Check() {
			t.Errorf("bbolt: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	aside, err := filepath.Glob(path + ".corrupt-*")
	if err != nil || len(aside) > 0 {
		t.Errorf("files were set aside: %v %v", aside, err)
	}
}

func addHandler(t *testing.T, informer cache.SharedInformer, h cache.ResourceEventHandler) cache.ResourceEventHandlerRegistration {
	t.Helper()
	registration, err := informer.AddEventHandler(h)
	if err != nil {
		t.Fatal(err)
	}
	return registration
}

func addDurable(t *testing.T, informer *warmwatch.SharedIndexInformer, name string, h cache.ResourceEventHandler) cache.ResourceEventHandlerRegistration {
	t.Helper()
	registration, err := informer.AddDurableEventHandler(name, h, warmwatch.DurableOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return registration
}

func awaitSync(t *testing.T, synced interface{ HasSynced() bool }) {
	t.Helper()
	eventuallyTrue(t, "HasSynced", synced.HasSynced)
}

func awaitPhase(t *testing.T, informer *warmwatch.SharedIndexInformer, phase warmwatch.Phase) {
	t.Helper()
	eventually(t, "phase "+string(phase), func() error {
		if s := informer.Status(); s.Phase != phase {
			return fmt.Errorf("status: %+v", s)
		}
		return nil
	})
}

// awaitAcknowledged waits until the handlers have finished all that there is.
func awaitAcknowledged(t *testing.T, informer *warmwatch.SharedIndexInformer) {
	t.Helper()
	eventually(t, "all deltas to be acknowledged", func() error {
		for _, h := range informer.Status().Handlers {
			if h.Undelivered != 0 {
				return fmt.Errorf("%d of %s are not", h.Undelivered, h.Name)
			}
		}
		return nil
	})
}

// expectStart compares how an informer started and what it did since. It waits for
// the watch, unless it is not to have come so far.
func expectStart(t *testing.T, informer *warmwatch.SharedIndexInformer, from string, relists, resumes int) {
	t.Helper()
	if relists+resumes > 0 {
		awaitPhase(t, informer, warmwatch.PhaseLive)
	}
	s := informer.Status()
	if s.StartedFrom != from || s.Relists != relists || s.Resumes != resumes {
		t.Errorf("started from %s, relists %d, resumes %d (%s: %s), want %s, %d, %d",
			s.StartedFrom, s.Relists, s.Resumes, s.Cause, s.Reason, from, relists, resumes)
	}
}

func fileMode(t *testing.T, path string) os.FileMode {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode().Perm()
}
