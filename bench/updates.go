package main

import (
	"context"
	"errors"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/warmwatch/warmwatch/bench/agent"
	"github.com/warmwatch/warmwatch/bench/report"
	"github.com/warmwatch/warmwatch/bench/result"
)

// writers are how many updates may be under way at once.
const writers = 64

// updateRates are updates a second.
func (s *suite) updateRates() []int {
	if s.options.Short {
		return []int{100, 1000}
	}
	return []int{100, 1000, 5000}
}

// updateVariant is one kind of agent.
type updateVariant struct {
	impl    string
	durable bool
}

// updateVariants take turns. The last is compared with the first, too.
var updateVariants = []updateVariant{{result.ClientGo, false}, {result.Warmwatch, false}, {result.Warmwatch, true}}

// Turns of durable handlers are fewer: a full run is to end within half an hour.
const (
	durableTurns       = 2
	durableUpdateTurns = 1
)

// besideRate is measured once more where the agent and the API server share their
// processors.
const besideRate = 1000

// division is who runs where.
type division struct{ servers, agents, all processors }

// divide is nil where processors cannot be divided.
func (s *suite) divide() *division {
	servers, agents, err := halves()
	if err != nil {
		s.skip("updates where the agent has processors of its own: %v", err)
		return nil
	}
	return &division{servers: servers, agents: agents, all: servers.and(agents)}
}

// confineServers has the control plane and the writers run there.
func (s *suite) confineServers(p processors) error {
	return errors.Join(p.confine(s.controlPlane.APIServerPID()), p.confine(s.controlPlane.EtcdPID()), p.confine(os.Getpid()))
}

// updates measures latencies at steady rates of updates. The agents have processors
// of their own, as on a node: where they share those of an API server that is busy, a
// percentile says how long the kernel lets them run at a time.
func (s *suite) updates(ctx context.Context) error {
	p, err := s.grow(ctx, "pods", s.options.Objects)
	if err != nil {
		return err
	}
	d := s.divide()
	runs := min(s.options.Runs, 3) // Of two, one stall of the machine moves the median.
	for run := range runs {
		durableToo := run < durableUpdateTurns
		for _, v := range updateVariants {
			if v.durable && !durableToo {
				continue
			}
			s.screen.tell("updates: run %d of %d, %s, durable: %t", run+1, runs, v.impl, v.durable)
			if err := s.updatesOnce(ctx, p, d, v, durableToo); err != nil {
				return err
			}
		}
	}
	s.showUpdates(p.kind, p.objects, report.Updates)
	s.showUpdates(p.kind, p.objects, report.UpdatesBeside)
	return nil
}

// A naming is what a rate of updates is called as a scenario.
type naming func(perSecond int, durable bool) string

func (s *suite) showUpdates(kind string, objects int, name naming) {
	for _, durable := range []bool{false, true} {
		for _, rate := range s.updateRates() {
			s.show(name(rate, durable), kind, objects)
		}
	}
}

// addUpdates notes the figures of one rate in a turn. Those of client-go stand beside
// durable handlers too, where these have had the same turn.
func (s *suite) addUpdates(kind string, objects int, name naming, rate int, v updateVariant, durableToo bool, figures map[string]float64) {
	s.samples.Add(name(rate, v.durable), kind, objects, v.impl, figures)
	if v.impl == result.ClientGo && durableToo {
		s.samples.Add(name(rate, true), kind, objects, v.impl, figures)
	}
}

func (s *suite) updatesOnce(ctx context.Context, p *population, d *division, v updateVariant, durableToo bool) (err error) {
	spec := s.spec(p, agent.ModeLatency, v.impl)
	spec.Durable = v.durable
	if spec.File, err = s.cacheFile(""); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove(spec.File)) }()
	c, err := startChild(ctx, spec)
	if err != nil {
		return err
	}
	if err := s.updatePhases(ctx, p, c, d, v, durableToo); err != nil {
		return errors.Join(err, c.kill())
	}
	return c.finish()
}

// updatePhases measures all rates with one agent.
func (s *suite) updatePhases(ctx context.Context, p *population, c *child, d *division, v updateVariant, durableToo bool) (err error) {
	if err := c.awaitReady(ctx); err != nil {
		return err
	}
	sent := 0 // No phase updates what one before has left in an agent's memory.
	phases := func(name naming, durableToo bool, rates ...int) error {
		for _, rate := range rates {
			n, figures, err := s.updatePhase(ctx, p, c, sent, rate)
			if err != nil {
				return err
			}
			sent += n
			s.addUpdates(p.kind, p.objects, name, rate, v, durableToo, figures)
		}
		return nil
	}
	if d == nil {
		return phases(report.UpdatesBeside, durableToo, s.updateRates()...)
	}
	if !v.durable { // A durable handler waits for commits, wherever it runs.
		if err := phases(report.UpdatesBeside, false, besideRate); err != nil {
			return err
		}
	}
	defer func() { err = errors.Join(err, s.confineServers(d.all)) }()
	if err := errors.Join(s.confineServers(d.servers), d.agents.confine(c.cmd.Process.Pid)); err != nil {
		return err
	}
	return phases(report.Updates, durableToo, s.updateRates()...)
}

// updatePhase is one rate for some seconds. The first of its n updates is that of the
// object whose turn it is after so many others.
func (s *suite) updatePhase(ctx context.Context, p *population, c *child, after, rate int) (n int, figures map[string]float64, err error) {
	if err := s.controlPlane.CollectGarbage(ctx); err != nil { // Each phase begins with the same server.
		return 0, nil, err
	}
	if err := c.say(agent.CommandPhase); err != nil {
		return 0, nil, err
	}
	if err := c.awaitReady(ctx); err != nil {
		return 0, nil, err
	}
	duration := time.Duration(s.options.choose(1, 4)) * time.Second
	n, achieved, err := s.updateAt(ctx, p, after, rate, duration)
	if err != nil {
		return 0, nil, err
	}
	if err := c.say(agent.CommandCollect, n); err != nil {
		return 0, nil, err
	}
	if figures, err = c.awaitFigures(ctx); err != nil {
		return 0, nil, err
	}
	figures[result.AchievedRate] = achieved
	return n, figures, c.awaitReady(ctx) // For the next phase.
}

// updateAt sends updates at the rate, or as fast as the server takes them, and
// returns how many there were.
func (s *suite) updateAt(ctx context.Context, p *population, after, perSecond int, duration time.Duration) (n int, achieved float64, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	due := make(chan int)
	var running sync.WaitGroup
	for range writers {
		running.Go(func() {
			for i := range due {
				sent := strconv.FormatInt(time.Now().UnixNano(), 10)
				// Neighbours in the order of keys are not updated together.
				if err := s.clients.Annotate(ctx, p.resource, namespace, (after+i)*7919%p.objects, agent.AnnotationSent, sent); err != nil {
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
	const kind = "Pods"
	if s.options.Short {
		s.skip("updates from memory: left out by SHORT=1")
		return nil
	}
	objects, runs := s.options.Objects, min(s.options.Runs, 3)
	for run := range runs {
		durableToo := run < durableUpdateTurns
		for _, v := range updateVariants {
			if v.durable && !durableToo {
				continue
			}
			s.screen.tell("updates from memory: run %d of %d, %s, durable: %t", run+1, runs, v.impl, v.durable)
			spec := agent.Spec{
				Mode: agent.ModeMemory, Impl: v.impl, Durable: v.durable, Objects: objects,
				Rates: s.updateRates(), Seconds: 3,
			}
			all, err := s.several(ctx, spec, len(s.updateRates()))
			if err != nil {
				return err
			}
			for i, rate := range s.updateRates() {
				s.addUpdates(kind, objects, report.UpdatesFromMemory, rate, v, durableToo, all[i])
			}
		}
	}
	s.showUpdates(kind, objects, report.UpdatesFromMemory)
	return nil
}

// reads measures Get, ByIndex and List.
func (s *suite) reads(ctx context.Context) error {
	const kind = "Pods"
	scenarios := []string{report.HotReads, report.ColdReads, report.BusyReads}
	objects, runs := s.options.Objects, min(s.options.Runs, 2)
	s.screen.tell("reads, %s %s: %d runs", thousands(objects), kind, runs)
	for range runs {
		for _, impl := range result.Impls {
			spec := agent.Spec{Mode: agent.ModeMemory, Impl: impl, Objects: objects, Seconds: float64(s.options.choose(1, 3))}
			all, err := s.several(ctx, spec, len(scenarios))
			if err != nil {
				return err
			}
			for i, scenario := range scenarios {
				s.samples.Add(scenario, kind, objects, impl, all[i])
			}
		}
	}
	for _, scenario := range scenarios {
		s.show(scenario, kind, objects)
	}
	return nil
}

// several runs an agent that reports n times.
func (s *suite) several(ctx context.Context, spec agent.Spec, n int) (all []map[string]float64, err error) {
	if spec.File, err = s.cacheFile(""); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, remove(spec.File)) }()
	c, err := startChild(ctx, spec)
	if err != nil {
		return nil, err
	}
	for range n {
		figures, err := c.awaitFigures(ctx)
		if err != nil {
			return nil, errors.Join(err, c.kill())
		}
		all = append(all, figures)
	}
	return all, c.finish()
}
