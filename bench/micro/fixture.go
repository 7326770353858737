package micro

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/bench/result"
)

// IndexApp is the name of the index over the label "app".
const IndexApp = "app"

// Options configures New.
type Options struct {
	Impl         string // One of result.Impls.
	Path         string // Of warmwatch's file.
	Objects      int
	Handlers     int   // Default 1.
	Durable      bool  // warmwatch's handler is a durable one.
	MemoryOnly   bool  // warmwatch does without its file.
	MemoryBudget int64 // Of warmwatch.
}

// Fixture is a running informer that has synced.
type Fixture struct {
	Source   *Source
	Informer cache.SharedIndexInformer

	handlers  []*handler
	cancel    context.CancelFunc
	running   sync.WaitGroup
	closeFile func() error // nil: there is none.
}

// handler counts updates.
type handler struct {
	updates atomic.Int64
	mu      sync.Mutex
	want    int64
	reached chan struct{} // nil: nobody waits.
	onEach  func(pod *corev1.Pod)
}

// OnAdd implements cache.ResourceEventHandler.
func (h *handler) OnAdd(any, bool) {}

// OnDelete implements cache.ResourceEventHandler.
func (h *handler) OnDelete(any) {}

// OnUpdate implements cache.ResourceEventHandler.
func (h *handler) OnUpdate(_, obj any) {
	if h.onEach != nil {
		if pod, ok := obj.(*corev1.Pod); ok {
			h.onEach(pod)
		}
	}
	n := h.updates.Add(1)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.reached != nil && n >= h.want {
		close(h.reached)
		h.reached = nil
	}
}

// await waits until n updates have come since the beginning.
func (h *handler) await(ctx context.Context, n int64) error {
	h.mu.Lock()
	if h.updates.Load() >= n {
		h.mu.Unlock()
		return nil
	}
	reached := make(chan struct{})
	h.want, h.reached = n, reached
	h.mu.Unlock()
	select {
	case <-reached:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// New starts an informer and waits until its handlers know all objects. The caller
// calls Close.
func New(ctx context.Context, o Options) (*Fixture, error) {
	return newFixture(ctx, o, NewSource(o.Objects), nil)
}

func newFixture(ctx context.Context, o Options, source *Source, onEach func(*corev1.Pod)) (*Fixture, error) {
	ctx, cancel := context.WithCancel(ctx)
	f := &Fixture{Source: source, cancel: cancel}
	registrations, err := f.open(o, onEach)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	f.running.Go(func() { f.Informer.RunWithContext(ctx) })
	for _, r := range registrations {
		select {
		case <-r.HasSyncedChecker().Done():
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), f.Close())
		}
	}
	return f, nil
}

func (f *Fixture) open(o Options, onEach func(*corev1.Pod)) ([]cache.ResourceEventHandlerRegistration, error) {
	indexers := cache.Indexers{IndexApp: func(obj any) ([]string, error) {
		return []string{obj.(*corev1.Pod).Labels["app"]}, nil
	}}
	var durable func(string, cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error)
	switch o.Impl {
	case result.ClientGo:
		f.Informer = cache.NewSharedIndexInformer(f.Source, &corev1.Pod{}, 0, indexers)
	case result.Warmwatch:
		file, closeFile, err := OpenFile(o.Path, o.MemoryOnly, o.MemoryBudget)
		if err != nil {
			return nil, err
		}
		f.closeFile = closeFile
		informer, err := file.NewSharedIndexInformer(f.Source, &corev1.Pod{}, warmwatch.InformerOptions{
			Resource: corev1.SchemeGroupVersion.WithResource("pods"), Indexers: indexers, IndexVersion: "1",
		})
		if err != nil {
			return nil, err
		}
		f.Informer, durable = informer, informer.AddDurableEventHandler
	default:
		return nil, fmt.Errorf("unknown implementation %q", o.Impl)
	}
	var registrations []cache.ResourceEventHandlerRegistration
	for i := range max(o.Handlers, 1) {
		h := &handler{}
		if i == 0 {
			h.onEach = onEach
		}
		f.handlers = append(f.handlers, h)
		var r cache.ResourceEventHandlerRegistration
		var err error
		if o.Durable && durable != nil {
			r, err = durable("bench-"+strconv.Itoa(i), h)
		} else {
			r, err = f.Informer.AddEventHandler(h)
		}
		if err != nil {
			return nil, err
		}
		registrations = append(registrations, r)
	}
	return registrations, nil
}

// OpenFile opens a cache file, in silence. If warmwatch is to do without its file,
// it finds it held: that is one of the ways in which it comes to work from memory.
func OpenFile(path string, memoryOnly bool, memoryBudget int64) (file *warmwatch.Cache, closeAll func() error, err error) {
	silent := logr.Discard()
	options := warmwatch.Options{MemoryBudget: memoryBudget, Logger: &silent, LockTimeout: time.Millisecond}
	closeAll = func() error { return nil }
	if memoryOnly {
		holder, err := warmwatch.Open(path, options)
		if err != nil {
			return nil, nil, err
		}
		closeAll = holder.Close
	}
	if file, err = warmwatch.Open(path, options); err != nil {
		return nil, nil, errors.Join(err, closeAll())
	}
	closeHolder := closeAll
	closeAll = func() error { return errors.Join(file.Close(), closeHolder()) }
	if s := file.Status(); s.MemoryOnly != memoryOnly {
		return nil, nil, errors.Join(fmt.Errorf("memory only: %t, want %t", s.MemoryOnly, memoryOnly), s.Err, closeAll())
	}
	return file, closeAll, nil
}

// Drain sends n updates and waits until all handlers have heard of them.
func (f *Fixture) Drain(ctx context.Context, n int) error {
	total := f.Source.Updates() + n
	f.Source.Send(n)
	return f.await(ctx, int64(total))
}

func (f *Fixture) await(ctx context.Context, n int64) error {
	for _, h := range f.handlers {
		if err := h.await(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// Close ends the informer and closes the file.
func (f *Fixture) Close() error {
	f.cancel()
	f.running.Wait()
	if f.closeFile == nil {
		return nil
	}
	return f.closeFile()
}
