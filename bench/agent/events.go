package agent

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/bench/result"
)

// drainPatience is how long the backlog may take.
const drainPatience = 2 * time.Minute

// counter is a handler that counts updates.
type counter struct {
	recorder *recorder // Hears everything as well. nil: of another handler.
	updates  atomic.Int64
	want     int64
	reached  chan struct{}
}

var _ cache.ResourceEventHandler = (*counter)(nil)

// OnAdd implements cache.ResourceEventHandler.
func (c *counter) OnAdd(obj any, isInInitialList bool) {
	if c.recorder != nil {
		c.recorder.OnAdd(obj, isInInitialList)
	}
}

// OnUpdate implements cache.ResourceEventHandler.
func (c *counter) OnUpdate(_, _ any) {
	if c.updates.Add(1) == c.want {
		close(c.reached)
	}
}

// OnDelete implements cache.ResourceEventHandler.
func (c *counter) OnDelete(any) {}

// events measures how fast a backlog that the server holds reaches the handlers.
func (a *agent) events(ctx context.Context) error {
	inner, err := a.listerWatcher()
	if err != nil {
		return err
	}
	gate := make(chan struct{})
	lw := &pinned{ListerWatcher: inner, from: a.From, gate: gate}
	a.recorder = newRecorder(a.Spec)
	if a.informer, err = openInformer(a.Spec, lw); err != nil {
		return err
	}
	counters, err := a.addCounters()
	if err != nil {
		return err
	}
	a.running.Go(func() { a.informer.RunWithContext(ctx) })
	if err := wait(ctx, a.recorder.done()); err != nil {
		return err
	}
	time.Sleep(settle)
	steadyMemory()
	if err := a.ready(); err != nil {
		return err
	}
	if _, err := a.hearCommand(CommandGo); err != nil {
		return err
	}

	lists := a.meter.Requests()["list"]
	cpuBefore, begin := cpuTime(), time.Now()
	close(gate)
	for _, c := range counters {
		if err := a.awaitCounter(ctx, c, lists); err != nil {
			return err
		}
	}
	elapsed := time.Since(begin)
	time.Sleep(settle) // What is written after the last event belongs to it.
	cpu := cpuTime() - cpuBefore
	if a.relistedSince(lists) {
		if err := a.out.Encode(Message{Skipped: "the server did not hold the whole backlog any more"}); err != nil {
			return err
		}
		return a.stop()
	}
	figures := map[string]float64{
		result.EventRate:   float64(a.Events) / elapsed.Seconds(),
		result.CPUPerEvent: float64(cpu.Microseconds()) / float64(a.Events),
	}
	if err := a.report(figures); err != nil {
		return err
	}
	return a.stop()
}

// awaitCounter also returns when the informer has relisted: then the events are
// fewer.
func (a *agent) awaitCounter(ctx context.Context, c *counter, lists int) error {
	deadline := time.After(drainPatience)
	for {
		select {
		case <-c.reached:
			return nil
		case <-deadline:
			return fmt.Errorf("%d of %d events have come within %v", c.updates.Load(), c.want, drainPatience)
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(time.Second):
			if a.relistedSince(lists) {
				return nil
			}
		}
	}
}

func (a *agent) relistedSince(lists int) bool {
	if a.informer.status != nil {
		return a.informer.status().Relists > 1 // The first list is one.
	}
	return a.meter.Requests()["list"] > lists
}

// addCounters adds as many handlers as there are to be. The first tells the
// recorder.
func (a *agent) addCounters() ([]*counter, error) {
	var counters []*counter
	for i := range max(a.Handlers, 1) {
		c := &counter{want: int64(a.Events), reached: make(chan struct{})}
		if i == 0 {
			c.recorder = a.recorder
		}
		counters = append(counters, c)
		var err error
		if a.Durable && a.warm() {
			err = a.informer.addDurable(c)
		} else {
			_, err = a.informer.AddEventHandler(c)
		}
		if err != nil {
			return nil, err
		}
	}
	return counters, nil
}
