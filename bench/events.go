package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/warmwatch/warmwatch/bench/report"
	"github.com/warmwatch/warmwatch/bench/result"
	"github.com/warmwatch/warmwatch/test/e2e/agent"
	"github.com/warmwatch/warmwatch/test/e2e/workload"
)

// eventsScenarios of warmwatch. Each is compared with client-go's agent of as many
// handlers, which does without a file in any case. Those that show a price have fewer
// turns.
var eventsScenarios = []struct {
	name       string
	turns      int
	handlers   int
	memoryOnly bool
	durable    bool
}{
	{name: report.Events1, turns: 3, handlers: 1},
	{name: report.Events1Memory, turns: 2, handlers: 1, memoryOnly: true},
	{name: report.Events1Durable, turns: durableTurns, handlers: 1, durable: true},
	{name: report.Events10, turns: 1, handlers: 10},
	{name: report.Events10Memory, turns: 1, handlers: 10, memoryOnly: true},
}

// events measures how fast a backlog is delivered. All agents list the past, and
// then watch the same events, which the server holds.
func (s *suite) events(ctx context.Context) error {
	p, err := s.grow(ctx, "pods", s.options.Objects)
	if err != nil {
		return err
	}
	from, err := s.version(ctx)
	if err != nil {
		return err
	}
	// So many that client-go's large heap is collected several times: that takes half a
	// second each, and in a short backlog it happened once or not at all.
	backlog := s.options.choose(2000, 60_000)
	s.screen.tell("making a backlog of %s events", thousands(backlog))
	err = workload.Parallel(ctx, backlog, s.screen.progress("updated "+p.title), func(ctx context.Context, i int) error {
		return s.clients.Annotate(ctx, p.resource, namespace, i%p.objects, agent.AnnotationRound, fmt.Sprintf("backlog-%d", i))
	})
	if err != nil {
		return err
	}
	if s.options.Short {
		s.skip("ten handlers: left out by SHORT=1")
	}
	for run := range s.options.Runs {
		var stock map[string]float64 // Of client-go's agent in this run,
		stockHandlers := 0           // with so many handlers.
		for _, v := range eventsScenarios {
			if run >= v.turns || v.handlers > 1 && s.options.Short {
				continue
			}
			spec := s.spec(p, agent.ClientGo)
			spec.From, spec.Handlers = from, handlers(v.handlers, v.durable)
			if v.handlers != stockHandlers {
				if stock, err = s.drain(ctx, p, spec, run, backlog); err != nil {
					return err
				}
				stockHandlers = v.handlers
			}
			s.samples.Add(v.name, p.title, p.objects, agent.ClientGo, stock)
			spec.Impl, spec.MemoryOnly = agent.Warmwatch, v.memoryOnly
			warm, err := s.drain(ctx, p, spec, run, backlog)
			if err != nil {
				return err
			}
			s.samples.Add(v.name, p.title, p.objects, agent.Warmwatch, warm)
		}
	}
	for _, v := range eventsScenarios {
		s.show(v.name, p.title, p.objects)
	}
	return nil
}

// drain measures one agent. It has no figures if the server did not hold the whole
// backlog any more.
func (s *suite) drain(ctx context.Context, p *population, spec agent.Spec, run, backlog int) (figures map[string]float64, err error) {
	s.screen.tell("events: run %d, %s, %d handlers, persistence off: %t, durable: %t",
		run+1, spec.Impl, len(spec.Handlers), spec.MemoryOnly, spec.Handlers[0].Durable)
	if spec.File, err = s.cacheFile(""); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, remove(spec.File)) }()
	var r *agent.Report
	err = withChild(ctx, func(c *agent.Child) error {
		_, err := c.Do(ctx, agent.Command{
			Start: []agent.Spec{spec}, Expect: &agent.Expect{Initial: p.objects}, Await: []string{agent.Told}, Pause: settle,
		})
		if err != nil {
			return err
		}
		// The lists have left the server so much garbage that its next collection, of 3 s
		// of processor time, would fall into the drain of whoever comes at that moment.
		if err := s.controlPlane.CollectGarbage(ctx); err != nil {
			return err
		}
		answer, err := c.Do(ctx, agent.Command{
			Expect: &agent.Expect{Updates: backlog, Collect: true}, Await: []string{agent.Told},
			Pause: settle, Report: true, // What is written after the last event belongs to it.
		})
		r = answer.Report
		return err
	})
	if err != nil {
		return nil, err
	}
	i := r.Informers[0]
	if i.Relists > 0 {
		s.skip("events: %s, %d handlers: the server did not hold the whole backlog any more", spec.Impl, len(spec.Handlers))
		return nil, nil
	}
	if !spec.MemoryOnly {
		err = check(r, anything)
	}
	return map[string]float64{
		result.EventRate:   float64(backlog) / i.ToldAll.Sub(r.Begin).Seconds(),
		result.CPUPerEvent: float64(r.CPU.Microseconds()) / float64(backlog),
	}, err
}
