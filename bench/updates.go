package main

import (
	"context"
	"errors"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/warmwatch/warmwatch/bench/micro"
	"github.com/warmwatch/warmwatch/bench/report"
	"github.com/warmwatch/warmwatch/bench/result"
	"github.com/warmwatch/warmwatch/test/e2e/agent"
)

// writers are how many updates may be under way at once.
const writers = 64

// Turns of durable handlers are fewer: a full run is to end within half an hour.
const (
	durableTurns       = 2
	durableUpdateTurns = 1
)

// besideRate is measured once more where the agent and the API server share their
// processors.
const besideRate = 1000

// updateRates are updates a second.
func (s *suite) updateRates() []int {
	if s.options.Short {
		return []int{100, 1000}
	}
	return []int{100, 1000, 5000}
}

// updateTurn is one agent: client-go's and warmwatch's take turns, and one of
// warmwatch with a durable handler, which is compared with the first, too.
type updateTurn struct {
	impl       string
	durable    bool
	withStock  bool // client-go's figures stand beside those of a durable handler, which has this turn.
	run, of    int
	population string
	objects    int
}

// updateTurns calls measure for each turn.
func (s *suite) updateTurns(title string, objects int, measure func(updateTurn) error) error {
	runs := min(s.options.Runs, 3) // Of two, one stall of the machine moves the median.
	for run := range runs {
		for _, t := range []updateTurn{{impl: agent.ClientGo}, {impl: agent.Warmwatch}, {impl: agent.Warmwatch, durable: true}} {
			t.withStock = run < durableUpdateTurns
			if t.durable && !t.withStock {
				continue
			}
			t.run, t.of, t.population, t.objects = run+1, runs, title, objects
			if err := measure(t); err != nil {
				return err
			}
		}
	}
	return nil
}

// A naming is what a rate of updates is called as a scenario.
type naming func(perSecond int, durable bool) string

func (s *suite) showUpdates(title string, objects int, name naming) {
	for _, durable := range []bool{false, true} {
		for _, rate := range s.updateRates() {
			s.show(name(rate, durable), title, objects)
		}
	}
}

// addUpdates notes the figures of one rate in a turn.
func (s *suite) addUpdates(t updateTurn, name naming, rate int, figures map[string]float64) {
	s.samples.Add(name(rate, t.durable), t.population, t.objects, t.impl, figures)
	if t.impl == agent.ClientGo && t.withStock {
		s.samples.Add(name(rate, true), t.population, t.objects, t.impl, figures)
	}
}

// quantiles are the figures of a rate.
func quantiles(r *agent.Report, events int) map[string]float64 {
	figures := map[string]float64{result.CPUPerEvent: float64(r.CPU.Microseconds()) / float64(events)}
	latency := r.Informers[0].Latency
	for _, q := range []struct {
		at           float64
		event, write string
	}{
		{0.5, result.EventP50, result.WriteP50}, {0.99, result.EventP99, result.WriteP99}, {0.999, result.EventP999, result.WriteP999},
	} {
		figures[q.event] = result.Quantile(latency.Event, q.at)
		if len(latency.Write) > 0 {
			figures[q.write] = result.Quantile(latency.Write, q.at)
		}
	}
	return figures
}

// updates measures latencies at steady rates of updates. The agents have processors
// of their own, as on a node: where they share those of an API server that is busy, a
// percentile says how long the kernel lets them run at a time.
func (s *suite) updates(ctx context.Context) error {
	p, err := s.grow(ctx, "pods", s.options.Objects)
	if err != nil {
		return err
	}
	servers, agents, err := halves()
	divided := err == nil
	if !divided {
		s.skip("updates where the agent has processors of its own: %v", err)
	}
	err = s.updateTurns(p.title, p.objects, func(t updateTurn) (err error) {
		s.screen.tell("updates: run %d of %d, %s, durable: %t", t.run, t.of, t.impl, t.durable)
		u := &updater{suite: s, population: p, turn: t}
		spec := s.spec(p, t.impl)
		spec.Handlers, spec.Stamped = handlers(1, t.durable), true
		if spec.File, err = s.cacheFile(""); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, remove(spec.File)) }()
		return withChild(ctx, func(c *agent.Child) (err error) {
			u.child = c
			_, err = c.Do(ctx, agent.Command{
				Start: []agent.Spec{spec}, Expect: &agent.Expect{Initial: p.objects}, Await: []string{agent.Told}, Pause: settle,
			})
			switch {
			case err != nil:
				return err
			case !divided:
				return u.phases(ctx, report.UpdatesBeside, s.updateRates()...)
			case !t.durable: // A durable handler waits for commits, wherever it runs.
				beside := *u
				beside.turn.withStock = false // Nothing durable is measured there.
				if err := beside.phases(ctx, report.UpdatesBeside, besideRate); err != nil {
					return err
				}
				u.sent = beside.sent
			}
			defer func() { err = errors.Join(err, s.confineServers(servers.and(agents))) }()
			if err := errors.Join(s.confineServers(servers), agents.confine(c.PID())); err != nil {
				return err
			}
			return u.phases(ctx, report.Updates, s.updateRates()...)
		})
	})
	s.showUpdates(p.title, p.objects, report.Updates)
	s.showUpdates(p.title, p.objects, report.UpdatesBeside)
	return err
}

// confineServers has the control plane and the writers run there.
func (s *suite) confineServers(p processors) error {
	return errors.Join(p.confine(s.controlPlane.APIServerPID()), p.confine(s.controlPlane.EtcdPID()), p.confine(os.Getpid()))
}

// updater updates objects for one agent.
type updater struct {
	*suite
	population *population
	turn       updateTurn
	child      *agent.Child
	sent       int // No phase updates what one before has left in an agent's memory.
}

// phases are rates, each for some seconds.
func (u *updater) phases(ctx context.Context, name naming, rates ...int) error {
	for _, rate := range rates {
		if err := u.controlPlane.CollectGarbage(ctx); err != nil { // Each phase begins with the same server.
			return err
		}
		if _, err := u.child.Do(ctx, agent.Command{Expect: &agent.Expect{}}); err != nil {
			return err
		}
		n, achieved, err := u.update(ctx, rate, time.Duration(u.options.choose(1, 4))*time.Second)
		if err != nil {
			return err
		}
		u.sent += n
		answer, err := u.child.Do(ctx, agent.Command{Updates: n, Await: []string{agent.Told}, Pause: settle, Report: true})
		if err == nil {
			err = check(answer.Report, anything)
		}
		if err != nil {
			return err
		}
		i := answer.Report.Informers[0]
		figures := quantiles(answer.Report, n)
		figures[result.AchievedRate] = achieved
		figures[result.WrittenPerByte] = answer.Report.DiskWritten / i.Latency.BytesChanged
		figures[result.CommitRate] = i.Commits / answer.Report.Elapsed.Seconds()
		u.addUpdates(u.turn, name, rate, figures)
	}
	return nil
}

// update sends updates at the rate, or as fast as the server takes them, and returns
// how many there were.
func (u *updater) update(ctx context.Context, perSecond int, duration time.Duration) (n int, achieved float64, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	due := make(chan int)
	var running sync.WaitGroup
	for range writers {
		running.Go(func() {
			for i := range due {
				sent := strconv.FormatInt(time.Now().UnixNano(), 10)
				// Neighbours in the order of keys are not updated together.
				object := (u.sent + i) * 7919 % u.population.objects
				if err := u.clients.Annotate(ctx, u.population.resource, namespace, object, agent.AnnotationSent, sent); err != nil {
					cancel(err)
				}
			}
		})
	}
	begin := time.Now()
	for ctx.Err() == nil && time.Since(begin) < duration {
		time.Sleep(time.Until(begin.Add(time.Duration(n) * time.Second / time.Duration(perSecond))))
		select {
		case due <- n:
			n++
		case <-ctx.Done():
		}
	}
	close(due)
	running.Wait()
	return n, float64(n) / time.Since(begin).Seconds(), context.Cause(ctx)
}

// fromMemory is updates without a server: what the informer itself adds.
func (s *suite) fromMemory(ctx context.Context) error {
	const title, seconds = "Pods", 3
	if s.options.Short {
		s.skip("updates from memory: left out by SHORT=1")
		return nil
	}
	err := s.updateTurns(title, s.options.Objects, func(t updateTurn) error {
		s.screen.tell("updates from memory: run %d of %d, %s, durable: %t", t.run, t.of, t.impl, t.durable)
		return s.fromSource(ctx, t.impl, func(spec *agent.Spec) {
			spec.Handlers, spec.Stamped = handlers(1, t.durable), true
		}, func(c *agent.Child) error {
			for _, rate := range s.updateRates() {
				// The source is most of the heap. A collection of it is not the informer's.
				e := agent.Expect{Updates: rate * seconds, Rate: rate, Collect: true}
				answer, err := c.Do(ctx, agent.Command{Expect: &e, Await: []string{agent.Told}, Pause: settle, Report: true})
				if err != nil {
					return err
				}
				s.addUpdates(t, report.UpdatesFromMemory, rate, quantiles(answer.Report, e.Updates))
			}
			return nil
		})
	})
	s.showUpdates(title, s.options.Objects, report.UpdatesFromMemory)
	return err
}

// fromSource runs an agent whose objects come from memory.
func (s *suite) fromSource(ctx context.Context, impl string, change func(*agent.Spec), measure func(*agent.Child) error) error {
	file, err := s.cacheFile("")
	if err != nil {
		return err
	}
	spec := micro.Spec(impl, file, s.options.Objects)
	change(&spec)
	err = withChild(ctx, func(c *agent.Child) error {
		_, err := c.Do(ctx, agent.Command{
			Start: []agent.Spec{spec}, Expect: &agent.Expect{Initial: spec.Made}, Await: []string{agent.Synced, agent.Told},
			Pause: settle, // What is pending is in memory, whatever the budget.
		})
		if err != nil {
			return err
		}
		return measure(c)
	})
	return errors.Join(err, remove(file))
}

// reads measures Get, ByIndex and List, with all objects decoded in memory and with
// none, and Get while events pass.
func (s *suite) reads(ctx context.Context) error {
	const title = "Pods"
	objects, runs := s.options.Objects, min(s.options.Runs, 2)
	benchTime := time.Duration(s.options.choose(1, 3)) * time.Second / 7
	scenarios := []struct {
		name       string
		budget     int64
		benchmarks []string
	}{
		{report.HotReads, -1, []string{"Get", "ByIndex", "List"}},
		{report.ColdReads, 1, []string{"Get", "ByIndex", "List"}},
		{report.BusyReads, 0, []string{"Readers"}},
	}
	s.screen.tell("reads, %s %s: %d runs", thousands(objects), title, runs)
	for range runs {
		for _, impl := range impls {
			for _, r := range scenarios {
				figures := map[string]float64{}
				err := s.fromSource(ctx, impl, func(spec *agent.Spec) { spec.MemoryBudget = r.budget }, func(c *agent.Child) error {
					for _, name := range r.benchmarks {
						answer, err := c.Do(ctx, agent.Command{Benchmark: name, BenchTime: benchTime})
						if err != nil {
							return err
						}
						addRead(figures, name, answer.Benchmark)
					}
					return nil
				})
				if err != nil {
					return err
				}
				s.samples.Add(r.name, title, objects, impl, figures)
			}
		}
	}
	for _, r := range scenarios {
		s.show(r.name, title, objects)
	}
	return nil
}

func addRead(figures map[string]float64, name string, b *agent.Benchmark) {
	switch name {
	case "Get":
		figures[result.GetTime] = b.NanosPerOp / 1e3
	case "ByIndex":
		figures[result.ByIndexTime] = b.NanosPerOp / 1e3
	case "List":
		figures[result.ListTime] = b.NanosPerOp / 1e6
	case "Readers":
		figures[result.ReadersRate], figures[result.ReadersEvent] = b.Extra["gets/s"], b.Extra["events/s"]
	}
}
