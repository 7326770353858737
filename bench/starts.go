package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/warmwatch/warmwatch/bench/report"
	"github.com/warmwatch/warmwatch/bench/result"
	"github.com/warmwatch/warmwatch/test/e2e/agent"
	"github.com/warmwatch/warmwatch/test/e2e/link"
	"github.com/warmwatch/warmwatch/test/e2e/workload"
)

// startPlan says how often starts are measured with so many objects, directly or over a
// bad link.
type startPlan struct {
	resource      string
	objects, runs int
	link          *badLink
}

// Pods of a short run.
const fewPods, morePods = 1000, 4000

func (s *suite) startPlans() []startPlan {
	gadgets, runs, fewer := workload.Gadgets.Resource, s.options.Runs, min(s.options.Runs, 2)
	plan := func(resource string, objects, runs int) startPlan { return startPlan{resource, objects, runs, nil} }
	switch {
	case s.options.Short:
		return []startPlan{plan("pods", fewPods, runs), plan("pods", morePods, runs), plan("configmaps", 300, runs), plan(gadgets, 500, runs)}
	case s.options.Large && !s.varied:
		return []startPlan{
			plan("pods", 1000, fewer), plan("pods", 10_000, fewer), plan("pods", 50_000, runs), plan("pods", 200_000, runs),
			plan("configmaps", 1000, fewer), plan("configmaps", 10_000, fewer), plan("configmaps", 50_000, fewer),
			plan(gadgets, 1000, fewer), plan(gadgets, 10_000, fewer), plan(gadgets, 50_000, fewer),
		}
	}
	return []startPlan{
		plan("pods", 1000, fewer), plan("pods", 10_000, fewer), plan("pods", 50_000, runs),
		plan("configmaps", 1000, fewer), plan("configmaps", 10_000, fewer),
		plan(gadgets, 1000, fewer), plan(gadgets, 10_000, fewer),
	}
}

func (s *suite) starts(ctx context.Context) error {
	if s.options.Short {
		s.skip("starts with other than 1,000 and 4,000 Pods: left out by SHORT=1")
	}
	if !s.options.Short && !s.options.Large {
		s.skip("starts with 200,000 Pods, and with 50,000 ConfigMaps or custom resources: LARGE=1 measures them")
	}
	return s.measurePlans(ctx, s.startPlans())
}

func (s *suite) measurePlans(ctx context.Context, plans []startPlan) error {
	for _, plan := range plans {
		p, err := s.grow(ctx, plan.resource, plan.objects)
		if err != nil {
			return err
		}
		if err := s.startsAt(ctx, p, plan); err != nil {
			return err
		}
	}
	return nil
}

// startMeasurement is one scenario of starts.
type startMeasurement struct {
	scenario string
	golden   string       // warmwatch starts with a copy of this file. Empty: with none.
	changed  agent.Expect // Of the objects that were changed meanwhile.
	evicted  bool         // warmwatch's file is not in the page cache, as after a boot.
	stale    bool         // HasSynced does not wait for the server.
	durable  bool         // warmwatch's handler is a durable one, which the file knows.
	gone     bool         // The server has lost its history since.
	link     *link.Link   // nil: directly.
	cut      bool         // The link is, again and again.
}

// startsAt measures all starts with so many objects. What was changed while the
// agents were down is there for the rest.
func (s *suite) startsAt(ctx context.Context, p *population, plan startPlan) (err error) {
	measure := func(m startMeasurement) error { return s.measureStarts(ctx, p, m, plan) }
	if err := s.warmUp(ctx, p); err != nil {
		return err
	}
	if err := measure(startMeasurement{scenario: report.ColdStart}); err != nil {
		return err
	}
	// Varied objects, and bad links, show no more of other starts.
	allStarts, arePods := plan.link == nil && !s.varied, plan.resource == "pods"
	var golden, goldenDurable string
	defer func() { err = errors.Join(err, remove(golden), remove(goldenDurable)) }()
	if golden, err = s.goldenFile(ctx, p, false); err != nil {
		return err
	}
	if plan.link == nil && arePods { // Only Pods are measured with durable handlers.
		if goldenDurable, err = s.goldenFile(ctx, p, true); err != nil {
			return err
		}
	}
	if plan.link == nil || !plan.link.cut { // It asks for nearly nothing.
		if err := measure(startMeasurement{scenario: report.WarmStart, golden: golden, stale: true}); err != nil {
			return err
		}
		if err := measure(startMeasurement{scenario: report.CaughtUpStart, golden: golden}); err != nil {
			return err
		}
	}
	if allStarts && arePods {
		if err := measure(startMeasurement{scenario: report.BootStart, golden: golden, stale: true, evicted: true}); err != nil {
			return err
		}
	}
	changed, err := s.change(ctx, p)
	if err != nil {
		return err
	}
	if allStarts {
		if err := measure(startMeasurement{scenario: report.ChangedStart, golden: golden, changed: changed}); err != nil {
			return err
		}
	}
	if err := errors.Join(s.loseHistory(ctx, p), s.warmUp(ctx, p)); err != nil {
		return err
	}
	err = measure(startMeasurement{scenario: report.GoneStart, golden: golden, changed: changed, gone: true})
	if err != nil || goldenDurable == "" || s.options.Short && plan.objects != morePods {
		return err
	}
	return measure(startMeasurement{scenario: report.GoneStartDurable, golden: goldenDurable, changed: changed, durable: true, gone: true})
}

// warmUp lists once, and forgets it: the first list of an API server is slow, and
// must not be the one of client-go, which comes first.
func (s *suite) warmUp(ctx context.Context, p *population) error {
	_, err := s.start(ctx, s.spec(p, agent.ClientGo), agent.Expect{Initial: p.objects})
	return err
}

// goldenFile is a cache of warmwatch as it is now.
func (s *suite) goldenFile(ctx context.Context, p *population, durable bool) (path string, err error) {
	spec := s.spec(p, agent.Warmwatch)
	spec.Handlers = handlers(1, durable)
	if spec.File, err = s.cacheFile(""); err != nil {
		return "", err
	}
	_, err = s.start(ctx, spec, agent.Expect{Initial: p.objects})
	return spec.File, err
}

// measureStarts measures one scenario, directly or over a bad link.
func (s *suite) measureStarts(ctx context.Context, p *population, m startMeasurement, plan startPlan) error {
	runs := plan.runs
	if m.durable {
		runs = min(runs, durableTurns)
	}
	if l := plan.link; l != nil {
		var err error
		if m.link, err = l.open(s.controlPlane.Config()); err != nil {
			return err
		}
		defer m.link.Down()
		m.scenario, m.cut = m.scenario+l.name, l.cut
	}
	return s.alternateStarts(ctx, p, m, runs)
}

func (s *suite) alternateStarts(ctx context.Context, p *population, m startMeasurement, runs int) error {
	s.screen.tell("%s, %s %s: %d runs", m.scenario, thousands(p.objects), p.title, runs)
	for range runs {
		for _, impl := range impls {
			figures, err := s.startOnce(ctx, p, m, impl)
			run := fmt.Sprintf("one run of %s with %s %s", m.scenario, thousands(p.objects), p.title)
			if err := s.add(run, m.scenario, p.title, p.objects, impl, figures, err); err != nil {
				return err
			}
		}
	}
	s.show(m.scenario, p.title, p.objects)
	return nil
}

// startOnce is one start of one implementation.
func (s *suite) startOnce(ctx context.Context, p *population, m startMeasurement, impl string) (figures map[string]float64, err error) {
	spec, e, want := s.spec(p, impl), m.changed, anything
	spec.Handlers, e.Initial = handlers(1, m.durable), p.objects
	if m.link != nil {
		spec.Dial = m.link.Addr()
	}
	if impl == agent.Warmwatch {
		if m.durable {
			e.Initial = 0
		}
		if spec.File, err = s.cacheFile(m.golden); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, remove(spec.File)) }()
		if m.stale {
			spec.ServeStaleAfter = -1
		}
		switch {
		case m.gone:
			want = relist
		case m.golden != "":
			want = resume
		}
		if m.evicted {
			if err := evict(spec.File); err != nil {
				return nil, err
			}
		}
	}
	server, err := s.watchServer(ctx)
	if err != nil {
		return nil, err
	}
	defer server.stop()
	if m.cut {
		heal := m.link.CutEvery(cutPeriod)
		defer func() { err = errors.Join(err, heal()) }()
	}
	r, err := s.start(ctx, spec, e)
	cpu, _ := server.stop()
	if err == nil {
		err = check(r, want)
	}
	if err != nil {
		return nil, err
	}
	figures = figuresOf(r, r.Begin, e)
	figures[result.ServerCPU] = cpu
	return figures, nil
}
