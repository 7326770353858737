package main

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/warmwatch/warmwatch/bench/report"
	"github.com/warmwatch/warmwatch/bench/result"
	"github.com/warmwatch/warmwatch/test/e2e/agent"
)

// relists measures running informers whose server loses its history.
func (s *suite) relists(ctx context.Context) error {
	p, err := s.grow(ctx, "pods", s.options.Objects)
	if err != nil {
		return err
	}
	runs := min(s.options.Runs, 2)
	s.screen.tell("%s, %s %s: %d runs", report.RunningGone, thousands(p.objects), p.title, runs)
	for range runs {
		if err := s.relistOnce(ctx, p); err != nil {
			return err
		}
	}
	s.show(report.RunningGone, p.title, p.objects)
	return nil
}

// relistOnce suspends an agent of each implementation, lets the server lose its
// history, and wakes the agents one after the other: so each has the machine for
// itself.
func (s *suite) relistOnce(ctx context.Context, p *population) (err error) {
	e := agent.Expect{Changed: p.objects / 100, Round: s.nextRound(), Collect: true, SampleMemory: true}
	file, err := s.cacheFile("")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove(file)) }()
	asleep := map[string]*agent.Child{}
	defer func() {
		for _, c := range asleep {
			err = errors.Join(err, c.Kill())
		}
	}()
	for _, impl := range impls {
		spec := s.spec(p, impl)
		spec.File = file
		c, err := agent.StartChild(ctx)
		if err != nil {
			return err
		}
		asleep[impl] = c
		_, err = c.Do(ctx, agent.Command{
			Start: []agent.Spec{spec}, Expect: &agent.Expect{Initial: p.objects}, Await: []string{agent.Told, agent.Live}, Pause: settle,
		})
		if err != nil {
			return err
		}
		if _, err := c.Do(ctx, agent.Command{Expect: &e}); err != nil {
			return err
		}
		if err := c.Signal(syscall.SIGSTOP); err != nil {
			return err
		}
	}
	// In this order: what the old server sends reaches the sleepers' sockets.
	if err := errors.Join(s.loseHistory(ctx, p), s.warmUp(ctx, p)); err != nil {
		return err
	}
	if _, err := s.change(ctx, p); err != nil {
		return err
	}
	for _, impl := range impls {
		server, err := s.watchServer(ctx)
		if err != nil {
			return err
		}
		figures, err := wake(ctx, asleep[impl], e, impl)
		cpu, _ := server.stop()
		if err == nil {
			figures[result.ServerCPU] = cpu
		}
		if err := s.add("one run of "+report.RunningGone, report.RunningGone, p.title, p.objects, impl, figures, err); err != nil {
			return err
		}
		if err := asleep[impl].Kill(); err != nil {
			return err
		}
	}
	return nil
}

// wake measures how an agent gets over what it finds.
func wake(ctx context.Context, c *agent.Child, e agent.Expect, impl string) (map[string]float64, error) {
	woken := time.Now()
	if err := c.Signal(syscall.SIGCONT); err != nil {
		return nil, err
	}
	// Notifications that say nothing new come until it has settled.
	answer, err := c.Do(ctx, agent.Command{Await: []string{agent.Told}, Pause: settle, Report: true})
	if err == nil && impl == agent.Warmwatch {
		err = check(answer.Report, relist)
	}
	if err != nil {
		return nil, err
	}
	return figuresOf(answer.Report, woken, e), nil
}
