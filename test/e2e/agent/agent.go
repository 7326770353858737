package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/warmwatch/warmwatch"
)

// Agent is some informers that run. Its methods are called from one goroutine.
type Agent struct {
	tell      func(*Event)
	informers []*Informer
	running   sync.WaitGroup
	cancel    context.CancelFunc

	mu     sync.Mutex
	caches map[string]*warmwatch.Cache // By path.
	close  []func() error              // In reverse order.

	begin   time.Time
	cpu     time.Duration
	disk    float64
	sampler *sampler
}

// New returns an agent that has no informer yet. tell may be nil if no handler tells.
func New(tell func(*Event)) *Agent {
	return &Agent{tell: tell, caches: map[string]*warmwatch.Cache{}, cancel: func() {}}
}

// Start opens and runs the informers, all at once. The first measurement begins when
// clients are made, just before files are opened.
func (a *Agent) Start(ctx context.Context, specs []Spec, e Expect) error {
	ctx, a.cancel = context.WithCancel(ctx)
	for _, s := range specs {
		i := &Informer{spec: s, hasSynced: make(chan struct{})}
		if err := a.connect(i); err != nil {
			return err
		}
		a.informers = append(a.informers, i)
	}
	a.restart(e.SampleMemory)
	var opening sync.WaitGroup
	errs := make([]error, len(specs))
	for n, i := range a.informers {
		opening.Go(func() { errs[n] = a.open(ctx, i, e) })
	}
	opening.Wait()
	return errors.Join(errs...)
}

// cacheOf opens each file once.
func (a *Agent) cacheOf(s Spec) (*warmwatch.Cache, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.caches[s.File]; c != nil {
		return c, nil
	}
	o := warmwatch.Options{MemoryBudget: s.MemoryBudget, ServeStaleAfter: s.ServeStaleAfter}
	path := s.File
	if s.MemoryOnly { // No file can be in a file: that is one of the ways in which it comes to work from memory.
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			return nil, err
		}
		path = filepath.Join(path, "none")
	}
	c, err := warmwatch.Open(context.Background(), path, o)
	if err != nil {
		return nil, err
	}
	a.close = append(a.close, c.Close)
	if status := c.Status(); status.MemoryOnly != s.MemoryOnly {
		return nil, errors.Join(fmt.Errorf("memory only: %t, want %t", status.MemoryOnly, s.MemoryOnly), status.Err)
	}
	a.caches[s.File] = c
	return c, nil
}

// Informers are those of Start, in order.
func (a *Agent) Informers() []*Informer { return a.informers }

// Await waits until all informers are as wanted: Synced, Delivered or Live.
func (a *Agent) Await(ctx context.Context, wanted ...string) error {
	for _, i := range a.informers {
		for _, w := range wanted {
			var err error
			switch w {
			case Synced:
				err = wait(ctx, i.hasSynced)
			case Delivered:
				err = i.awaitDelivered(ctx)
			case Live:
				err = i.poll(ctx, 20*time.Millisecond, nil, func() bool { return i.warm == nil || i.warm.Status().Phase == warmwatch.PhaseLive })
			default:
				err = fmt.Errorf("nobody can wait for %q", w)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// Expect begins another measurement.
func (a *Agent) Expect(e Expect) {
	runtime.SetDefaultGOMAXPROCS() // The parent may have changed where this process runs.
	if e.Collect {
		steadyMemory()
	}
	for _, i := range a.informers {
		i.before = counts{
			received: i.meter.BytesReceived(), requests: i.meter.Requests(), relists: i.relists(),
		}
		for _, r := range i.recorders {
			r.begin(e)
		}
	}
	a.restart(e.SampleMemory)
	for _, i := range a.informers {
		if i.Source != nil && e.Updates > 0 {
			i.Source.send(e.Updates)
		}
		if i.tap != nil && i.tap.begin != nil {
			i.tap.begin()
		}
	}
}

// expectUpdates is for a measurement that has begun.
func (a *Agent) expectUpdates(n int) {
	for _, i := range a.informers {
		for _, r := range i.recorders {
			r.mu.Lock()
			r.expect.Updates, r.deliveredAll, r.done = n, time.Time{}, make(chan struct{})
			r.checkLocked()
			r.mu.Unlock()
		}
	}
}

// Drain has a Source send n updates, and waits until all handlers have heard of them.
func (a *Agent) Drain(ctx context.Context, n int) error {
	for _, i := range a.informers {
		i.before.relists = i.relists()
		for _, r := range i.recorders {
			r.begin(Expect{Updates: n})
		}
		i.Source.send(n)
	}
	return a.Await(ctx, Delivered)
}

// restart begins the measurement of the process.
func (a *Agent) restart(sampleMemory bool) {
	a.sampler.peak()
	if a.sampler = nil; sampleMemory {
		a.sampler = startSampler()
	}
	a.cpu, a.disk, a.begin = CPUTime(), diskWritten(), time.Now()
}

// Report says what was measured.
func (a *Agent) Report() *Report {
	r := &Report{
		Begin: a.begin, Elapsed: time.Since(a.begin), CPU: CPUTime() - a.cpu, DiskWritten: diskWritten() - a.disk,
		PeakResident: PeakResident(os.Getpid()),
	}
	r.PeakAnon = a.sampler.peak()
	for _, i := range a.informers {
		r.Informers = append(r.Informers, i.measured())
	}
	r.SteadyAnon = steadyMemory()
	return r
}

// Contents says what the stores contain. Each index is compared with its objects (A5).
func (a *Agent) Contents() []Contents {
	var all []Contents
	for _, i := range a.informers {
		c := Contents{Resource: i.spec.Resource.Resource, Objects: map[string]string{}}
		for _, obj := range i.GetStore().List() {
			c.Objects[KeyOf(obj)] = ContentOf(obj, i.spec.Sums)
		}
		if i.warm != nil {
			c.Status = statusOf(i.warm.Status())
		}
		if err := i.checkIndex(); err != nil {
			c.IndexErr = err.Error()
		}
		all = append(all, c)
	}
	return all
}

// Stop ends the informers and closes the files. It is idempotent.
func (a *Agent) Stop() error {
	a.sampler.peak()
	a.cancel()
	a.running.Wait()
	var errs []error
	for _, closeFile := range slices.Backward(a.close) {
		errs = append(errs, closeFile())
	}
	a.close = nil
	return errors.Join(errs...)
}
