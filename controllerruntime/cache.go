package controllerruntime

import (
	"context"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/warmwatch/warmwatch"
)

// A promptCache is a cache for whose informers nobody polls. controller-runtime looks every 100 ms
// whether an informer has synced, and then whether its handler has; an informer with a file has synced a
// few milliseconds after its start.
type promptCache struct {
	cache.Cache

	opened  *warmwatch.Cache
	started atomic.Bool
	// waitUntil is when nobody waits for handlers any more, a time that the first wait sets.
	waitUntil atomic.Pointer[time.Time]
}

// promptly makes newCache, or [cache.New] if that is nil, return a promptCache.
func promptly(newCache cache.NewCacheFunc, opened *warmwatch.Cache) cache.NewCacheFunc {
	if newCache == nil {
		newCache = cache.New
	}
	return func(config *rest.Config, options cache.Options) (cache.Cache, error) {
		c, err := newCache(config, options)
		if err != nil {
			return nil, err
		}
		return &promptCache{Cache: c, opened: opened}, nil
	}
}

// Start implements [cache.Informers].
func (c *promptCache) Start(ctx context.Context) error {
	c.started.Store(true)
	return c.Cache.Start(ctx)
}

// GetInformer implements [cache.Informers].
func (c *promptCache) GetInformer(ctx context.Context, object client.Object, options ...cache.InformerGetOption) (cache.Informer, error) {
	var o cache.InformerGetOptions
	for _, option := range options {
		option(&o)
	}
	if c.started.Load() && (o.BlockUntilSynced == nil || *o.BlockUntilSynced) {
		informer, err := c.Cache.GetInformer(ctx, object, cache.BlockUntilSynced(false))
		if err != nil {
			return nil, err
		}
		select {
		case <-informer.HasSyncedChecker().Done():
		case <-ctx.Done(): // GetInformer has an error for that.
		}
	}
	return c.Cache.GetInformer(ctx, object, options...)
}

// NeedLeaderElection implements [manager.LeaderElectionRunnable], as far as the cache does.
func (c *promptCache) NeedLeaderElection() bool {
	r, ok := c.Cache.(manager.LeaderElectionRunnable)
	return !ok || r.NeedLeaderElection()
}

// handlerPatience is how long after its first call WaitForCacheSync waits for handlers.
const handlerPatience = time.Second

// WaitForCacheSync implements [cache.Informers]. A controller calls it when it has added its handler,
// and begins when the handler has synced. WaitForCacheSync waits for that too, and for the handlers of
// the other controllers, so that none that begins takes processor time from those that cannot begin
// yet. For a handler that is slow only those wait that come at the start.
func (c *promptCache) WaitForCacheSync(ctx context.Context) bool {
	if !c.Cache.WaitForCacheSync(ctx) {
		return false
	}
	until := time.Now().Add(handlerPatience)
	if !c.waitUntil.CompareAndSwap(nil, &until) {
		until = *c.waitUntil.Load()
	}
	patience, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	c.opened.WaitForHandlerSync(patience)
	return ctx.Err() == nil
}
