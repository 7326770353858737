package agent

import (
	"context"
	"fmt"
	goruntime "runtime"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/bench/result"
)

// stamper notes when each event left the decoder of client-go's watch, which both
// implementations use.
type stamper struct {
	cache.ListerWatcher

	mu    sync.Mutex
	times map[string]time.Time // By resourceVersion.
}

// IsWatchListSemanticsUnSupported makes client-go's reflector list.
func (s *stamper) IsWatchListSemanticsUnSupported() bool { return true }

// ListWithContext implements cache.ListerWithContext.
func (s *stamper) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	return cache.ToListerWatcherWithContext(s.ListerWatcher).ListWithContext(ctx, o)
}

// WatchWithContext implements cache.WatcherWithContext.
func (s *stamper) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	w, err := cache.ToListerWatcherWithContext(s.ListerWatcher).WatchWithContext(ctx, o)
	if err != nil {
		return nil, err
	}
	return watch.Filter(w, func(e watch.Event) (watch.Event, bool) {
		if object, err := meta.Accessor(e.Object); err == nil && e.Type == watch.Modified {
			s.stamp(object.GetResourceVersion())
		}
		return e, true
	}), nil
}

func (s *stamper) stamp(resourceVersion string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.times[resourceVersion] = time.Now()
}

// take returns the time of an event, once.
func (s *stamper) take(resourceVersion string) (time.Time, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.times[resourceVersion]
	delete(s.times, resourceVersion)
	return t, ok
}

// phase is what happened at one rate of updates.
type phase struct {
	mu           sync.Mutex
	write, event []float64 // Milliseconds from the writer, and from the decoder, to the handler.
	bytesChanged float64
	more         chan struct{} // Capacity 1: the number of events has grown.

	begin         time.Time
	cpu           time.Duration
	disk, commits float64
}

func (a *agent) newPhase() *phase {
	goruntime.SetDefaultGOMAXPROCS() // The parent may have changed where this process runs.
	p := &phase{more: make(chan struct{}, 1), begin: time.Now(), cpu: cpuTime(), disk: diskWritten()}
	if a.warm() {
		p.commits = commits(a.File)
	}
	return p
}

func (p *phase) add(write, event time.Duration, sizeBytes int) {
	p.mu.Lock()
	p.write, p.event = append(p.write, millis(write)), append(p.event, millis(event))
	p.bytesChanged += float64(sizeBytes)
	p.mu.Unlock()
	select {
	case p.more <- struct{}{}:
	default:
	}
}

func (p *phase) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.event)
}

// latency measures phases until the parent is gone.
func (a *agent) latency(ctx context.Context) error {
	inner, err := a.listerWatcher()
	if err != nil {
		return err
	}
	stamps := &stamper{ListerWatcher: inner, times: map[string]time.Time{}}
	a.recorder = newRecorder(a.Spec)
	if a.informer, err = openInformer(a.Spec, stamps); err != nil {
		return err
	}
	var current *phase
	var currentMu sync.Mutex
	a.recorder.onUpdated = func(obj any) {
		now := time.Now()
		pod, ok := obj.(*corev1.Pod)
		if !ok {
			return
		}
		stamped, ok := stamps.take(pod.ResourceVersion)
		sent, err := strconv.ParseInt(pod.Annotations[AnnotationSent], 10, 64)
		currentMu.Lock()
		p := current
		currentMu.Unlock()
		if ok && err == nil && p != nil {
			p.add(now.Sub(time.Unix(0, sent)), now.Sub(stamped), pod.Size())
		}
	}
	if err := a.addHandlers(); err != nil {
		return err
	}
	a.running.Go(func() { a.informer.RunWithContext(ctx) })
	if err := wait(ctx, a.recorder.done()); err != nil {
		return err
	}
	time.Sleep(settle)
	for {
		if err := a.ready(); err != nil {
			return err
		}
		if !a.in.Scan() {
			return a.stop()
		}
		currentMu.Lock()
		current = a.newPhase()
		p := current
		currentMu.Unlock()
		if err := a.ready(); err != nil {
			return err
		}
		n, err := a.hearCommand(CommandCollect)
		if err != nil {
			return err
		}
		figures, err := a.collect(ctx, p, n)
		if err != nil {
			return err
		}
		if err := a.report(figures); err != nil {
			return err
		}
	}
}

// collect waits for all events of the phase, and for what is written after them.
func (a *agent) collect(ctx context.Context, p *phase, n int) (map[string]float64, error) {
	deadline := time.After(time.Minute)
	for p.count() < n {
		select {
		case <-p.more:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-deadline:
			return nil, fmt.Errorf("%d of %d events have come within a minute", p.count(), n)
		}
	}
	seconds := time.Since(p.begin).Seconds()
	time.Sleep(settle)
	p.mu.Lock()
	defer p.mu.Unlock()
	figures := p.quantiles()
	figures[result.CPUPerEvent] = float64((cpuTime() - p.cpu).Microseconds()) / float64(n)
	figures[result.WrittenPerByte] = (diskWritten() - p.disk) / p.bytesChanged
	figures[result.CommitRate] = 0
	if a.warm() {
		figures[result.CommitRate] = (commits(a.File) - p.commits) / (seconds + settle.Seconds())
	}
	return figures, nil
}

func (p *phase) quantiles() map[string]float64 {
	return map[string]float64{
		result.EventP50:  result.Quantile(p.event, 0.5),
		result.EventP99:  result.Quantile(p.event, 0.99),
		result.EventP999: result.Quantile(p.event, 0.999),
		result.WriteP50:  result.Quantile(p.write, 0.5),
		result.WriteP99:  result.Quantile(p.write, 0.99),
		result.WriteP999: result.Quantile(p.write, 0.999),
	}
}
