package main

import (
	"context"
	"errors"
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
	durableTurns           = 2
	durableTurnsFromMemory = 1
)

// updates measures latencies at steady rates of updates.
func (s *suite) updates(ctx context.Context) error {
	p, err := s.grow(ctx, "pods", s.options.Objects)
	if err != nil {
		return err
	}
	runs := min(s.options.Runs, 3) // Of two, one stall of the machine moves the median.
	for run := range runs {
		durableToo := run < durableTurns
		for _, v := range updateVariants {
			if v.durable && !durableToo {
				continue
			}
			s.screen.tell("updates: run %d of %d, %s, durable: %t", run+1, runs, v.impl, v.durable)
			if err := s.updatesOnce(ctx, p, v, durableToo); err != nil {
				return err
			}
		}
	}
	s.showUpdates(p.kind, p.objects, false)
	return nil
}

func (s *suite) showUpdates(kind string, objects int, fromMemory bool) {
	for _, durable := range []bool{false, true} {
		for _, rate := range s.updateRates() {
			s.show(report.Updates(rate, durable, fromMemory), kind, objects)
		}
	}
}

// addUpdates notes the figures of one rate in a turn. Those of client-go stand beside
// durable handlers too, where these have had the same turn.
func (s *suite) addUpdates(kind string, objects, rate int, v updateVariant, durableToo, fromMemory bool, figures map[string]float64) {
	s.samples.Add(report.Updates(rate, v.durable, fromMemory), kind, objects, v.impl, figures)
	if v.impl == result.ClientGo && durableToo {
		s.samples.Add(report.Updates(rate, true, fromMemory), kind, objects, v.impl, figures)
	}
}

func (s *suite) updatesOnce(ctx context.Context, p *population, v updateVariant, durableToo bool) (err error) {
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
	if err := c.awaitReady(ctx); err != nil {
		return errors.Join(err, c.kill())
	}
	for _, rate := range s.updateRates() {
		figures, err := s.updatePhase(ctx, p, c, rate)
		if err != nil {
			return errors.Join(err, c.kill())
		}
		s.addUpdates(p.kind, p.objects, rate, v, durableToo, false, figures)
	}
	return c.finish()
}

// updatePhase is one rate for some seconds.
func (s *suite) updatePhase(ctx context.Context, p *population, c *child, rate int) (map[string]float64, error) {
	if err := s.controlPlane.CollectGarbage(ctx); err != nil { // Each phase begins with the same server.
		return nil, err
	}
	if err := c.say(agent.CommandPhase); err != nil {
		return nil, err
	}
	if err := c.awaitReady(ctx); err != nil {
		return nil, err
	}
	duration := time.Duration(s.options.choose(1, 4)) * time.Second
	n, achieved, err := s.updateAt(ctx, p, rate, duration)
	if err != nil {
		return nil, err
	}
	if err := c.say(agent.CommandCollect, n); err != nil {
		return nil, err
	}
	figures, err := c.awaitFigures(ctx)
	if err != nil {
		return nil, err
	}
	figures[result.AchievedRate] = achieved
	return figures, c.awaitReady(ctx) // For the next phase.
}

// updateAt sends updates at the rate, or as fast as the server takes them, and
// returns how many there were.
func (s *suite) updateAt(ctx context.Context, p *population, perSecond int, duration time.Duration) (n int, achieved float64, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	due := make(chan int)
	var running sync.WaitGroup
	for range writers {
		running.Go(func() {
			for i := range due {
				sent := strconv.FormatInt(time.Now().UnixNano(), 10)
				// Neighbours in the order of keys are not updated together.
				if err := s.clients.Annotate(ctx, p.resource, namespace, i*7919%p.objects, agent.AnnotationSent, sent); err != nil {
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
		durableToo := run < durableTurnsFromMemory
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
				s.addUpdates(kind, objects, rate, v, durableToo, true, all[i])
			}
		}
	}
	s.showUpdates(kind, objects, true)
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
