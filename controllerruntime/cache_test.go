package controllerruntime

import (
	"context"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/warmwatch/warmwatch"
)

// pollingCache has one informer, and polls as controller-runtime's cache does.
type pollingCache struct {
	cache.Cache

	informer *warmwatch.SharedIndexInformer
}

func (c *pollingCache) Start(ctx context.Context) error {
	c.informer.RunWithContext(ctx)
	return nil
}

func (c *pollingCache) GetInformer(ctx context.Context, _ client.Object, options ...cache.InformerGetOption) (cache.Informer, error) {
	var o cache.InformerGetOptions
	for _, option := range options {
		option(&o)
	}
	if o.BlockUntilSynced == nil || *o.BlockUntilSynced {
		if !toolscache.WaitForCacheSync(ctx.Done(), c.informer.HasSynced) {
			return nil, ctx.Err()
		}
	}
	return c.informer, nil
}

func (c *pollingCache) WaitForCacheSync(ctx context.Context) bool {
	return toolscache.WaitForCacheSync(ctx.Done(), c.informer.HasSynced)
}

// listTime is how long the list of the informer takes.
const listTime = 7 * time.Millisecond

// startPromptly starts the cache of a manager, with an informer of one ConfigMap.
func startPromptly(t *testing.T) cache.Cache {
	t.Helper()
	opened, err := warmwatch.Open(t.Context(), filepath.Join(t.TempDir(), "cache.db"), warmwatch.Options{})
	if err != nil {
		t.Fatal(err)
	}
	lw := toolscache.ToListWatcherWithWatchListSemantics(&toolscache.ListWatch{
		ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
			time.Sleep(listTime)
			return &corev1.ConfigMapList{
				ListMeta: metav1.ListMeta{ResourceVersion: "2"},
				Items:    []corev1.ConfigMap{{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: "u", ResourceVersion: "1"}}},
			}, nil
		},
		WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
			return watch.NewFake(), nil
		},
	}, noWatchList{})
	informer, err := opened.NewSharedIndexInformer(lw, &corev1.ConfigMap{}, warmwatch.InformerOptions{Resource: corev1.SchemeGroupVersion.WithResource("configmaps")})
	if err != nil {
		t.Fatal(err)
	}
	c, err := promptly(func(*rest.Config, cache.Options) (cache.Cache, error) {
		return &pollingCache{informer: informer}, nil
	}, opened)(nil, cache.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Start(ctx) }()
	synctest.Wait()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		time.Sleep(listTime) // A list that is under way is not waited for.
		if err := opened.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// noWatchList says that a ListerWatcher has no streaming lists.
type noWatchList struct{}

func (noWatchList) IsWatchListSemanticsUnSupported() bool { return true }

// TestNobodyPolls: a controller has its informer when that has synced, and begins when its handler has.
func TestNobodyPolls(t *testing.T) {
	for name, test := range map[string]struct{ callback, want time.Duration }{
		"a handler":            {callback: 33 * time.Millisecond, want: listTime + 33*time.Millisecond},
		"a handler that hangs": {callback: time.Hour, want: listTime + handlerPatience},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				c := startPromptly(t)
				informer, err := c.GetInformer(t.Context(), &corev1.ConfigMap{})
				if got := time.Since(begin); err != nil || got != listTime {
					t.Fatalf("an informer after %v, expected %v; %v", got, listTime, err)
				}
				if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: func(any) { time.Sleep(test.callback) }}); err != nil {
					t.Fatal(err)
				}
				for range 2 { // The patience is that of the start: who comes later does not wait.
					if synced := c.WaitForCacheSync(t.Context()); !synced || time.Since(begin) != test.want {
						t.Errorf("synced after %v: %v; expected after %v", time.Since(begin), synced, test.want)
					}
				}
			})
		})
	}
}

// TestAnInformerThatDoesNotSync is waited for until the context is done, or not at all.
func TestAnInformerThatDoesNotSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := startPromptly(t)
		ctx, cancel := context.WithTimeout(t.Context(), listTime/2)
		defer cancel()
		if informer, err := c.GetInformer(ctx, &corev1.ConfigMap{}, cache.BlockUntilSynced(false)); err != nil || informer.HasSynced() {
			t.Errorf("it has synced, or %v", err)
		}
		if _, err := c.GetInformer(ctx, &corev1.ConfigMap{}); err == nil {
			t.Error("no error")
		}
		if c.WaitForCacheSync(ctx) {
			t.Error("it has synced")
		}
	})
}
