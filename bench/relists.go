package main

import (
	"context"
	"errors"
	"syscall"

	"github.com/warmwatch/warmwatch/bench/agent"
	"github.com/warmwatch/warmwatch/bench/report"
	"github.com/warmwatch/warmwatch/bench/result"
)

// relists measures running informers whose server loses its history.
func (s *suite) relists(ctx context.Context) error {
	p, err := s.grow(ctx, "pods", s.options.Objects)
	if err != nil {
		return err
	}
	runs := min(s.options.Runs, 2)
	s.screen.tell("%s, %s %s: %d runs", report.RunningGone, thousands(p.objects), p.kind, runs)
	for range runs {
		if err := s.relistOnce(ctx, p); err != nil {
			return err
		}
	}
	s.show(report.RunningGone, p.kind, p.objects)
	return nil
}

// relistOnce suspends an agent of each implementation, lets the server lose its
// history, and wakes the agents one after the other: so each has the machine for
// itself.
func (s *suite) relistOnce(ctx context.Context, p *population) (err error) {
	changed := p.objects / 100
	asleep := map[string]*child{}
	defer func() {
		for _, c := range asleep {
			err = errors.Join(err, c.kill())
		}
	}()
	for _, impl := range result.Impls {
		spec := s.spec(p, agent.ModeRelist, impl)
		spec.Changed, spec.Round, spec.Relists = changed, s.nextRound(), true
		if impl == result.Warmwatch {
			if spec.File, err = s.cacheFile(""); err != nil {
				return err
			}
			defer func() { err = errors.Join(err, remove(spec.File)) }()
		}
		c, err := startChild(ctx, spec)
		if err != nil {
			return err
		}
		asleep[impl] = c
		if err := c.awaitReady(ctx); err != nil {
			return err
		}
		if err := c.signal(syscall.SIGSTOP); err != nil {
			return err
		}
	}
	// In this order: what the old server sends reaches the sleepers' sockets.
	if err := errors.Join(s.loseHistory(ctx, p.resource), s.warmUp(ctx, p)); err != nil {
		return err
	}
	if _, err := s.change(ctx, p, changed); err != nil {
		return err
	}
	for _, impl := range result.Impls {
		c := asleep[impl]
		if err := errors.Join(c.say(agent.CommandGo), c.signal(syscall.SIGCONT)); err != nil {
			return err
		}
		figures, err := c.awaitFigures(ctx)
		delete(asleep, impl)
		if skipped := skippedError(""); errors.As(err, &skipped) {
			s.skip("one run of %s: %v", report.RunningGone, skipped)
			err = nil
		}
		if err != nil {
			return errors.Join(err, c.kill())
		}
		if err := c.finish(); err != nil {
			return err
		}
		// Nothing is added for one that was skipped.
		s.samples.Add(report.RunningGone, p.kind, p.objects, impl, figures)
	}
	return nil
}
