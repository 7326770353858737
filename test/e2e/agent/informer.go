package agent

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/test/e2e/link"
	"github.com/warmwatch/warmwatch/test/e2e/meter"
)

// Informer is one of either implementation.
type Informer struct {
	cache.SharedIndexInformer
	Source *Source // nil: there is an API server.

	spec      Spec
	lw        cache.ListerWatcher
	meter     meter.Meter
	tap       *tap
	stamps    *stamps
	cache     *warmwatch.Cache
	warm      *warmwatch.SharedIndexInformer // nil: client-go.
	recorders []*recorder

	hasSynced chan struct{} // Closed when synced is set.
	synced    time.Time

	before counts // When the measurement began.
}

// counts are those that only grow.
type counts struct {
	received int64
	requests map[string]int
	relists  int
}

// connect makes the ListerWatcher, metered, over the link if there is one.
func (a *Agent) connect(i *Informer) (err error) {
	s := i.spec
	if s.Stamped {
		i.stamps = &stamps{times: map[string]time.Time{}}
	}
	i.Source = s.Source
	if s.Made > 0 {
		i.Source = NewSource(s.Made)
	}
	if i.Source == nil {
		cfg, err := LoadConfig(s.Kubeconfig, s.Context)
		if err != nil {
			return err
		}
		if s.Dial != "" {
			cfg = link.Attach(cfg, s.Dial)
		}
		cfg = i.meter.Attach(cfg)
		if s.Wrapped {
			if i.cache, err = a.cacheOf(s); err != nil {
				return err
			}
			cfg.Wrap(i.cache.WrapTransport)
		}
		if i.lw, err = ListWatch(cfg, s.Resource, s.Namespace); err != nil {
			return err
		}
	}
	switch {
	case i.Source != nil:
		i.lw = i.Source
	case s.From != "":
		gate := make(chan struct{})
		i.tap = &tap{ListerWatcher: i.lw, from: s.From, gate: gate, begin: sync.OnceFunc(func() { close(gate) }), stamps: i.stamps}
		i.lw = i.tap
	case s.Stamped:
		i.tap = &tap{ListerWatcher: i.lw, stamps: i.stamps}
		i.lw = i.tap
	}
	return nil
}

// open makes the informer, adds its handlers and runs it.
func (a *Agent) open(ctx context.Context, i *Informer, e Expect) (err error) {
	s := i.spec
	example, err := exampleOf(s.Resource.GroupVersion().WithKind(s.Kind))
	if err != nil {
		return err
	}
	indexers := cache.Indexers{}
	if s.Index != "" {
		indexers[s.Index] = byLabel(s.Index)
	}
	if s.Impl == ClientGo {
		i.SharedIndexInformer = cache.NewSharedIndexInformer(i.lw, example, 0, indexers)
	} else {
		if i.cache, err = a.cacheOf(s); err != nil {
			return err
		}
		i.warm, err = i.cache.NewSharedIndexInformer(i.lw, example, warmwatch.InformerOptions{
			Resource: s.Resource, Namespace: s.Namespace, Indexers: indexers, IndexVersion: "1",
		})
		if err != nil {
			return err
		}
		i.SharedIndexInformer = i.warm
	}
	if len(s.Handlers) == 0 {
		s.Handlers = []Handler{{}}
	}
	for n, h := range s.Handlers {
		r := &recorder{Handler: h, resource: s.Resource.Resource, sums: s.Sums, tell: a.tell}
		if n == 0 {
			r.stamps = i.stamps
		}
		r.begin(e)
		if h.Late > 0 {
			a.running.Go(func() { a.addLate(ctx, i, r) })
			continue
		}
		i.recorders = append(i.recorders, r)
		if err := i.add(r); err != nil {
			return err
		}
	}
	if s.Children {
		if err := i.addController(ctx); err != nil {
			return err
		}
	}
	for _, r := range s.Reconcilers {
		if err := i.addReconciler(r, a.tell); err != nil {
			return err
		}
	}
	a.running.Go(func() { i.RunWithContext(ctx) })
	a.running.Go(func() {
		if wait(ctx, i.HasSyncedChecker().Done()) == nil {
			i.synced = time.Now()
			close(i.hasSynced)
		}
	})
	return nil
}

func (i *Informer) add(r *recorder) (err error) {
	if r.Durable && i.warm != nil {
		_, err = i.warm.AddDurableEventHandler(r.Name, r, warmwatch.DurableOptions{})
	} else {
		_, err = i.AddEventHandler(r)
	}
	return err
}

// addLate adds a handler as controller-runtime does.
func (a *Agent) addLate(ctx context.Context, i *Informer, r *recorder) {
	select {
	case <-time.After(r.Late):
	case <-ctx.Done():
		return
	}
	if err := i.add(r); err != nil && ctx.Err() == nil {
		panic(err)
	}
}

func byLabel(name string) cache.IndexFunc {
	return func(obj any) ([]string, error) {
		object, err := meta.Accessor(obj)
		if err != nil {
			return nil, err
		}
		return []string{object.GetLabels()[name]}, nil
	}
}

// awaitDelivered also returns when warmwatch has relisted where updates are expected: they
// are fewer then.
func (i *Informer) awaitDelivered(ctx context.Context) error {
	for _, r := range i.recorders {
		r.mu.Lock()
		updates := r.expect.Updates
		r.mu.Unlock()
		err := i.poll(ctx, time.Second, r.delivered(), func() bool {
			return updates > 0 && i.relists() > i.before.relists
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// poll waits until done is closed or enough is true.
func (i *Informer) poll(ctx context.Context, each time.Duration, done <-chan struct{}, enough func() bool) error {
	tick := time.NewTicker(each)
	defer tick.Stop()
	for !enough() {
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
	return nil
}

// relists of client-go are all of its lists.
func (i *Informer) relists() int {
	if i.warm != nil {
		return i.warm.Status().Relists
	}
	requests := i.meter.Requests()
	return requests["list"] + requests["watchlist"]
}

func (i *Informer) measured() Measured {
	m := Measured{BytesReceived: i.meter.BytesReceived() - i.before.received, Requests: i.meter.Requests(), Relists: i.relists() - i.before.relists}
	for kind, n := range i.before.requests {
		if m.Requests[kind] -= n; m.Requests[kind] == 0 {
			delete(m.Requests, kind)
		}
	}
	if i.warm != nil {
		m.Status = statusOf(i.warm.Status())
		m.FileSize = fileSize(i.spec.File)
	}
	select {
	case <-i.hasSynced:
		m.Synced = i.synced
	default:
	}
	for n, r := range i.recorders {
		r.mu.Lock()
		if n == 0 {
			m.Added, m.DeliveredAll, m.Calls = r.added, r.deliveredAll, r.calls
			m.Latency = Latency{slices.Clone(r.latency.Event), r.latency.BytesChanged}
		} else if r.deliveredAll.After(m.DeliveredAll) {
			m.DeliveredAll = r.deliveredAll
		}
		r.mu.Unlock()
	}
	return m
}

// checkIndex compares the index with a recomputation. Objects may change meanwhile,
// but not their label.
func (i *Informer) checkIndex() error {
	if i.spec.Index == "" {
		return nil
	}
	indexed := map[string]bool{}
	for _, value := range i.GetIndexer().ListIndexFuncValues(i.spec.Index) {
		keys, err := i.GetIndexer().IndexKeys(i.spec.Index, value)
		if err != nil {
			return err
		}
		for _, key := range keys {
			obj, exists, err := i.GetIndexer().GetByKey(key)
			if err != nil {
				return err
			}
			if values, err := byLabel(i.spec.Index)(obj); exists && (err != nil || values[0] != value) {
				return fmt.Errorf("%s with %q is indexed under %q: %w", key, values, value, err)
			}
			indexed[key] = true
		}
	}
	for _, key := range i.GetIndexer().ListKeys() {
		if _, exists, err := i.GetIndexer().GetByKey(key); exists && err == nil && !indexed[key] {
			return fmt.Errorf("%s is not indexed", key)
		}
	}
	return nil
}
