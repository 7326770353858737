package main

import (
	"context"
	"errors"

	"github.com/warmwatch/warmwatch/bench/report"
	"github.com/warmwatch/warmwatch/bench/result"
	"github.com/warmwatch/warmwatch/test/e2e/agent"
)

func (s *suite) starts(ctx context.Context) error {
	for _, objects := range s.options.sizes() {
		if err := s.startsAt(ctx, objects); err != nil {
			return err
		}
	}
	return nil
}

// variedStarts measures starts with Pods that have as little in common as in a real cluster.
func (s *suite) variedStarts(ctx context.Context) error {
	if err := s.startControlPlane(ctx, report.Varied); err != nil {
		return err
	}
	return s.startsAt(ctx, s.options.largest())
}

// start is one scenario.
type start struct {
	scenario string
	golden   string       // warmwatch starts with a copy of this file. Empty: with none.
	changed  agent.Expect // Of the objects that were changed meanwhile.
	stale    bool         // HasSynced does not wait for the server.
	want     outcome
}

// startsAt measures all starts with so many objects. What was changed while the
// agents were down is there for the rest.
func (s *suite) startsAt(ctx context.Context, objects int) (err error) {
	if err := errors.Join(s.grow(ctx, objects), s.warmUp(ctx)); err != nil {
		return err
	}
	if err := s.measureStart(ctx, start{scenario: report.ColdStart}); err != nil {
		return err
	}
	golden, err := s.goldenFile(ctx)
	defer func() { err = errors.Join(err, remove(golden)) }()
	if err != nil {
		return err
	}
	for _, m := range []start{
		{scenario: report.WarmStart, golden: golden, stale: true, want: resume},
		{scenario: report.CaughtUpStart, golden: golden, want: resume},
	} {
		if err := s.measureStart(ctx, m); err != nil {
			return err
		}
	}
	changed, err := s.change(ctx)
	if err != nil {
		return err
	}
	if err := s.measureStart(ctx, start{scenario: report.ChangedStart, golden: golden, changed: changed, want: resume}); err != nil {
		return err
	}
	if err := errors.Join(s.loseHistory(ctx), s.warmUp(ctx)); err != nil {
		return err
	}
	return s.measureStart(ctx, start{scenario: report.GoneStart, golden: golden, changed: changed, want: relist})
}

// warmUp lists once, and forgets it: the first list of an API server is slow, and
// must not be the one of client-go, which comes first.
func (s *suite) warmUp(ctx context.Context) error {
	_, err := s.start(ctx, s.spec(agent.ClientGo, false), agent.Expect{Initial: s.objects})
	return err
}

// goldenFile is a cache of warmwatch as it is now.
func (s *suite) goldenFile(ctx context.Context) (path string, err error) {
	spec := s.spec(agent.Warmwatch, false)
	_, err = s.start(ctx, spec, agent.Expect{Initial: s.objects})
	return spec.File, err
}

// measureStart measures one scenario, in turns.
func (s *suite) measureStart(ctx context.Context, m start) error {
	s.screen.tell("%s, %s %s: %d runs", m.scenario, thousands(s.objects), s.kind, s.options.Runs)
	for range s.options.Runs {
		for _, impl := range impls {
			figures, err := s.startOnce(ctx, m, impl)
			if err != nil {
				return err
			}
			s.samples.Add(m.scenario, s.kind, s.objects, impl, figures)
		}
	}
	s.show(m.scenario, s.objects)
	return nil
}

// startOnce is one start of one implementation.
func (s *suite) startOnce(ctx context.Context, m start, impl string) (figures map[string]float64, err error) {
	spec, e := s.spec(impl, false), m.changed
	e.Initial = s.objects
	if m.stale {
		spec.ServeStaleAfter = -1
	}
	defer func() { err = errors.Join(err, remove(spec.File)) }()
	if impl == agent.Warmwatch && m.golden != "" {
		if err := copyFile(m.golden, spec.File); err != nil {
			return nil, err
		}
	}
	server, err := s.watchServer(ctx)
	if err != nil {
		return nil, err
	}
	defer server.stop()
	r, err := s.start(ctx, spec, e)
	cpu, _ := server.stop()
	if err == nil {
		err = check(r, m.want)
	}
	if err != nil {
		return nil, err
	}
	i := r.Informers[0]
	figures = map[string]float64{
		result.HasSynced: millis(i.Synced.Sub(r.Begin)), result.AllAdded: millis(i.Added.Sub(r.Begin)),
		result.Received: float64(i.BytesReceived), result.ServerCPU: cpu, result.CPU: r.CPU.Seconds(),
		result.PeakAnon: r.PeakAnon, result.SteadyAnon: r.SteadyAnon, result.FileSize: i.FileSize,
	}
	if e.Changed > 0 {
		figures[result.CaughtUp] = millis(i.DeliveredAll.Sub(r.Begin))
	}
	return figures, nil
}
