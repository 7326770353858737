package main

import (
	"context"
	"errors"

	"github.com/warmwatch/warmwatch/bench/agent"
	"github.com/warmwatch/warmwatch/bench/report"
	"github.com/warmwatch/warmwatch/bench/result"
	"github.com/warmwatch/warmwatch/test/e2e/link"
	"github.com/warmwatch/warmwatch/test/e2e/workload"
)

// The slow link.
const (
	linkKilobytes = 1250 // A second: 10 Mbit/s.
	linkMillis    = 50

	podKilobytes = 3.5
)

// startPlan is one resource, and how often it is measured at which size.
type startPlan struct {
	resource string
	sizes    []plannedSize
}

// plannedSize says how often starts are measured directly, and over the slow link.
type plannedSize struct{ objects, runs, linkRuns int }

// shortSizes are Pods.
var shortSizes = [2]int{1000, 4000}

func (s *suite) startPlans() []startPlan {
	runs, fewer := s.options.Runs, min(s.options.Runs, 2)
	if s.options.Short {
		return []startPlan{
			{"pods", []plannedSize{{shortSizes[0], runs, 1}, {shortSizes[1], runs, 0}}},
			{"configmaps", []plannedSize{{300, runs, 0}}},
			{workload.Gadgets.Resource, []plannedSize{{500, runs, 0}}},
		}
	}
	plans := []startPlan{
		{"pods", []plannedSize{{1000, fewer, fewer}, {10_000, fewer, 1}, {50_000, runs, 0}}},
		{"configmaps", []plannedSize{{1000, fewer, 0}, {10_000, fewer, 0}}},
		{workload.Gadgets.Resource, []plannedSize{{1000, fewer, 0}, {10_000, fewer, 0}}},
	}
	if s.options.Large {
		plans[0].sizes = append(plans[0].sizes, plannedSize{200_000, runs, 0})
		plans[1].sizes = append(plans[1].sizes, plannedSize{50_000, fewer, 0})
		plans[2].sizes = append(plans[2].sizes, plannedSize{50_000, fewer, 0})
	}
	return plans
}

func (s *suite) starts(ctx context.Context) error {
	if s.options.Short {
		s.skip("starts with other than 1,000 and 4,000 Pods, most of them over the slow link, ConfigMaps and custom resources after changes: left out by SHORT=1")
	} else {
		s.skip("starts over the slow link with 10,000 Pods, other than warm ones: 1,000 Pods show them")
	}
	if !s.options.Short && !s.options.Large {
		s.skip("starts with 200,000 Pods, and with 50,000 ConfigMaps or custom resources: LARGE=1 measures them")
	}
	for _, plan := range s.startPlans() {
		for _, size := range plan.sizes {
			if size.linkRuns == 0 && plan.resource == "pods" {
				s.skip("starts over the slow link with %s Pods: each list takes %.0f s there; fewer Pods show the same",
					thousands(size.objects), float64(size.objects)*podKilobytes/linkKilobytes)
			}
			if err := s.startsAt(ctx, plan.resource, size); err != nil {
				return err
			}
		}
	}
	return nil
}

// startMeasurement is one scenario of starts.
type startMeasurement struct {
	scenario string
	golden   string // warmwatch starts with a copy of this file. Empty: with none.
	round    string // Of the objects that were changed meanwhile.
	changed  int
	evicted  bool // warmwatch's file is not in the page cache, as after a boot.
	durable  bool // warmwatch's handler is a durable one, which the file knows.
	gone     bool // The server has lost its history since.
}

// startsAt measures all starts with so many objects. What was changed while the
// agents were down is there for the rest.
func (s *suite) startsAt(ctx context.Context, resource string, size plannedSize) (err error) {
	p, err := s.grow(ctx, resource, size.objects)
	if err != nil {
		return err
	}
	measure := func(m startMeasurement) error { return s.measureStarts(ctx, p, m, size) }
	if err := s.warmUp(ctx, p); err != nil {
		return err
	}
	if err := measure(startMeasurement{scenario: report.ColdStart}); err != nil {
		return err
	}
	golden, goldenDurable, err := s.goldenFiles(ctx, p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove(golden, goldenDurable)) }()
	err = measure(startMeasurement{scenario: report.WarmStart, golden: golden})
	if err != nil || s.options.Short && resource != "pods" {
		return err
	}
	if resource == "pods" {
		if err := measure(startMeasurement{scenario: report.BootStart, golden: golden, evicted: true}); err != nil {
			return err
		}
	}
	changed := p.objects / 100
	round, err := s.change(ctx, p, changed)
	if err != nil {
		return err
	}
	if err := measure(startMeasurement{scenario: report.ChangedStart, golden: golden, round: round, changed: changed}); err != nil {
		return err
	}
	if err := errors.Join(s.loseHistory(ctx, resource), s.warmUp(ctx, p)); err != nil {
		return err
	}
	err = measure(startMeasurement{scenario: report.GoneStart, golden: golden, round: round, changed: changed, gone: true})
	if err != nil || resource != "pods" || s.options.Short && size.objects != shortSizes[1] {
		return err
	}
	return measure(startMeasurement{
		scenario: report.GoneStartDurable, golden: goldenDurable, round: round, changed: changed, durable: true, gone: true,
	})
}

// warmUp lists once, and forgets it: the first list of an API server is slow, and
// must not be the one of client-go, which comes first.
func (s *suite) warmUp(ctx context.Context, p *population) error {
	_, err := s.one(ctx, s.spec(p, agent.ModeStart, result.ClientGo))
	return err
}

// goldenFiles are a cache of warmwatch as it is now, and one with a durable handler.
func (s *suite) goldenFiles(ctx context.Context, p *population) (plain, durable string, err error) {
	for _, file := range []*string{&plain, &durable} {
		if *file, err = s.cacheFile(""); err != nil {
			return "", "", err
		}
		spec := s.spec(p, agent.ModeStart, result.Warmwatch)
		spec.File, spec.Durable = *file, file == &durable
		if _, err := s.one(ctx, spec); err != nil {
			return "", "", err
		}
		if p.resource != "pods" {
			break // Only Pods are measured with durable handlers.
		}
	}
	return plain, durable, nil
}

// measureStarts measures one scenario, directly and over the slow link.
func (s *suite) measureStarts(ctx context.Context, p *population, m startMeasurement, size plannedSize) error {
	runs := size.runs
	if m.durable {
		runs = min(runs, durableTurns)
	}
	if err := s.alternateStarts(ctx, p, m, m.scenario, "", runs); err != nil {
		return err
	}
	if size.linkRuns == 0 || m.durable || m.evicted || !s.overLink(m, size.objects) {
		return nil
	}
	slow, err := link.To(s.controlPlane.Config())
	if err != nil {
		return err
	}
	defer slow.Down()
	if err := errors.Join(slow.Bandwidth(linkKilobytes), slow.Latency(linkMillis)); err != nil {
		return err
	}
	return s.alternateStarts(ctx, p, m, m.scenario+report.OverLink, slow.Addr(), size.linkRuns)
}

// overLink spares what shows nothing new: a list of 10,000 Pods takes half a minute
// there, whoever lists.
func (s *suite) overLink(m startMeasurement, objects int) bool {
	return m.scenario == report.WarmStart || !s.options.Short && objects < 10_000
}

func (s *suite) alternateStarts(ctx context.Context, p *population, m startMeasurement, scenario, dial string, runs int) error {
	s.screen.tell("%s, %s %s: %d runs", scenario, thousands(p.objects), p.kind, runs)
	for range runs {
		for _, impl := range result.Impls {
			spec := s.spec(p, agent.ModeStart, impl)
			spec.Dial, spec.Round, spec.Changed, spec.Durable = dial, m.round, m.changed, m.durable
			spec.Resumes, spec.Relists = m.golden != "" && !m.gone, m.gone
			if m.durable && impl == result.Warmwatch {
				spec.Initial = 0
			}
			figures, err := s.withFile(ctx, spec, m.golden, m.evicted)
			if skipped := skippedError(""); errors.As(err, &skipped) {
				s.skip("one run of %s with %s %s: %v", scenario, thousands(p.objects), p.kind, skipped)
				continue
			}
			if err != nil {
				return err
			}
			s.samples.Add(scenario, p.kind, p.objects, impl, figures)
		}
	}
	s.show(scenario, p.kind, p.objects)
	return nil
}

// withFile runs an agent that reports once, with a file of its own.
func (s *suite) withFile(ctx context.Context, spec agent.Spec, golden string, evicted bool) (figures map[string]float64, err error) {
	if spec.Impl == result.Warmwatch {
		if spec.File, err = s.cacheFile(golden); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, remove(spec.File)) }()
		if evicted {
			if err := evict(spec.File); err != nil {
				return nil, err
			}
		}
	}
	return s.one(ctx, spec)
}
