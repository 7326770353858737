package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/warmwatch/warmwatch/bench/agent"
	"github.com/warmwatch/warmwatch/bench/report"
	"github.com/warmwatch/warmwatch/bench/result"
	"github.com/warmwatch/warmwatch/test/e2e/workload"
)

// eventsVariant is one kind of agent, and the scenarios that its figures belong to.
// client-go does without a file in any case.
type eventsVariant struct {
	impl       string
	handlers   int
	memoryOnly bool
	durable    bool
	scenarios  []string
}

var eventsVariants = []eventsVariant{
	{impl: result.ClientGo, handlers: 1, scenarios: []string{report.Events1, report.Events1Memory, report.Events1Durable}},
	{impl: result.Warmwatch, handlers: 1, scenarios: []string{report.Events1}},
	{impl: result.Warmwatch, handlers: 1, memoryOnly: true, scenarios: []string{report.Events1Memory}},
	{impl: result.Warmwatch, handlers: 1, durable: true, scenarios: []string{report.Events1Durable}},
	{impl: result.ClientGo, handlers: 10, scenarios: []string{report.Events10, report.Events10Memory}},
	{impl: result.Warmwatch, handlers: 10, scenarios: []string{report.Events10}},
	{impl: result.Warmwatch, handlers: 10, memoryOnly: true, scenarios: []string{report.Events10Memory}},
}

// eventsTurns there are at most. Those that show a price are fewer.
var eventsTurns = map[string]int{
	report.Events1: 3, report.Events1Memory: 2, report.Events1Durable: durableTurns, report.Events10: 1, report.Events10Memory: 1,
}

// inTurn returns the scenarios that have this turn.
func (v eventsVariant) inTurn(run int) []string {
	return slices.DeleteFunc(slices.Clone(v.scenarios), func(scenario string) bool { return run >= eventsTurns[scenario] })
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
	err = workload.Parallel(ctx, backlog, s.screen.progress("updated "+p.kind), func(ctx context.Context, i int) error {
		return s.clients.Annotate(ctx, p.resource, namespace, i%p.objects, agent.AnnotationRound, fmt.Sprintf("backlog-%d", i))
	})
	if err != nil {
		return err
	}
	if s.options.Short {
		s.skip("ten handlers: left out by SHORT=1")
	}
	runs := min(s.options.Runs, eventsTurns[report.Events1])
	for run := range runs {
		for _, v := range eventsVariants {
			scenarios := v.inTurn(run)
			if len(scenarios) == 0 || v.handlers > 1 && s.options.Short {
				continue
			}
			s.screen.tell("events: run %d of %d, %s, %d handlers, persistence off: %t, durable: %t",
				run+1, runs, v.impl, v.handlers, v.memoryOnly, v.durable)
			figures, err := s.drain(ctx, p, v, from, backlog)
			if skipped := skippedError(""); errors.As(err, &skipped) {
				s.skip("events: %s, %d handlers: %v", v.impl, v.handlers, skipped)
				continue
			}
			if err != nil {
				return err
			}
			for _, scenario := range scenarios {
				s.samples.Add(scenario, p.kind, p.objects, v.impl, figures)
			}
		}
	}
	for _, scenario := range []string{
		report.Events1, report.Events1Memory, report.Events1Durable, report.Events10, report.Events10Memory,
	} {
		s.show(scenario, p.kind, p.objects)
	}
	return nil
}

func (s *suite) drain(ctx context.Context, p *population, v eventsVariant, from string, backlog int) (figures map[string]float64, err error) {
	spec := s.spec(p, agent.ModeEvents, v.impl)
	spec.From, spec.Events = from, backlog
	spec.Handlers, spec.MemoryOnly, spec.Durable = v.handlers, v.memoryOnly, v.durable
	if spec.File, err = s.cacheFile(""); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, remove(spec.File)) }()
	c, err := startChild(ctx, spec)
	if err != nil {
		return nil, err
	}
	if err := c.awaitReady(ctx); err != nil {
		return nil, errors.Join(err, c.kill())
	}
	// The lists have left the server so much garbage that its next collection, of 3 s
	// of processor time, would fall into the drain of whoever comes at that moment.
	if err := s.controlPlane.CollectGarbage(ctx); err != nil {
		return nil, errors.Join(err, c.kill())
	}
	if err := c.say(agent.CommandGo); err != nil {
		return nil, errors.Join(err, c.kill())
	}
	if figures, err = c.awaitFigures(ctx); err != nil {
		return nil, errors.Join(err, c.kill())
	}
	return figures, c.finish()
}
