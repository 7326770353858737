package agent

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/warmwatch/warmwatch/bench/micro"
	"github.com/warmwatch/warmwatch/bench/result"
)

// memory measures without a server: if Rates are given, latencies at each of them,
// else reads, first with all objects decoded in memory, then with none.
func (a *agent) memory(ctx context.Context) error {
	if len(a.Rates) > 0 {
		return a.clock(ctx)
	}
	if err := a.reads(ctx, -1, a.readAll); err != nil {
		return err
	}
	if err := a.reads(ctx, 1, a.readAll); err != nil {
		return err
	}
	return a.reads(ctx, 0, a.readsWhileEventsPass)
}

func (a *agent) reads(ctx context.Context, budget int64, measure func(*micro.Fixture) error) error {
	f, err := micro.New(ctx, micro.Options{
		Impl: a.Impl, Path: fmt.Sprintf("%s%d", a.File, budget), Objects: a.Objects, MemoryBudget: budget,
	})
	if err != nil {
		return err
	}
	time.Sleep(settle) // What is pending is in memory, whatever the budget.
	return errors.Join(measure(f), f.Close())
}

// readAll reports the three kinds of reads; the parent knows which turn it is.
func (a *agent) readAll(f *micro.Fixture) error {
	perOp := func(body func(*testing.B, *micro.Fixture)) (float64, error) {
		r, err := a.benchmark(f, body)
		return float64(r.T.Nanoseconds()) / float64(max(r.N, 1)), err
	}
	get, err1 := perOp(micro.Get)
	byIndex, err2 := perOp(micro.ByIndex)
	list, err3 := perOp(micro.List)
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	return a.report(map[string]float64{
		result.GetTime: get / 1e3, result.ByIndexTime: byIndex / 1e3, result.ListTime: list / 1e6,
	})
}

func (a *agent) readsWhileEventsPass(f *micro.Fixture) error {
	r, err := a.benchmark(f, micro.Readers)
	if err != nil {
		return err
	}
	return a.report(map[string]float64{result.ReadersRate: r.Extra["gets/s"], result.ReadersEvent: r.Extra["events/s"]})
}

// benchmark runs one for its share of the time.
func (a *agent) benchmark(f *micro.Fixture, body func(*testing.B, *micro.Fixture)) (testing.BenchmarkResult, error) {
	const all = 7
	if flag.Lookup("test.benchtime") == nil {
		testing.Init()
	}
	if err := flag.Set("test.benchtime", fmt.Sprintf("%dms", int(a.Seconds*1000)/all)); err != nil {
		return testing.BenchmarkResult{}, err
	}
	r := testing.Benchmark(func(b *testing.B) { body(b, f) })
	if r.N == 0 {
		return r, errors.New("a benchmark failed")
	}
	return r, nil
}

// clock reports the latencies of one rate after the other.
func (a *agent) clock(ctx context.Context) error {
	c, err := micro.NewClock(ctx, micro.Options{Impl: a.Impl, Path: a.File, Objects: a.Objects, Durable: a.Durable})
	if err != nil {
		return err
	}
	time.Sleep(settle)
	for _, rate := range a.Rates {
		runtime.GC() // The source is most of the heap. A collection of it is not the informer's.
		before := cpuTime()
		n := int(float64(rate) * a.Seconds)
		millis, err := c.Measure(ctx, n, rate)
		if err != nil {
			return errors.Join(err, c.Close())
		}
		time.Sleep(settle)
		if err := a.report(map[string]float64{
			result.EventP50:    result.Quantile(millis, 0.5),
			result.EventP99:    result.Quantile(millis, 0.99),
			result.EventP999:   result.Quantile(millis, 0.999),
			result.CPUPerEvent: float64((cpuTime() - before).Microseconds()) / float64(n),
		}); err != nil {
			return errors.Join(err, c.Close())
		}
	}
	return c.Close()
}
