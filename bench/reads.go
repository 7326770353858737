package main

import (
	"context"
	"errors"
	"time"

	"github.com/warmwatch/warmwatch/bench/micro"
	"github.com/warmwatch/warmwatch/bench/report"
	"github.com/warmwatch/warmwatch/bench/result"
	"github.com/warmwatch/warmwatch/test/e2e/agent"
)

// reads measures Get, ByIndex and List of objects that come from memory, with all of them decoded there and with none.
func (s *suite) reads(ctx context.Context) error {
	objects := s.options.largest()
	s.screen.tell("reads, %s %s: %d runs", thousands(objects), report.Plain, s.options.Runs)
	scenarios := []struct {
		name   string
		budget int64
	}{{report.HotReads, -1}, {report.ColdReads, 1}}
	for range s.options.Runs {
		for _, impl := range impls {
			for _, r := range scenarios {
				spec := micro.Spec(impl, s.cacheFile(), objects)
				spec.MemoryBudget = r.budget
				figures, err := s.readsOf(ctx, spec)
				if err = errors.Join(err, remove(spec.File)); err != nil {
					return err
				}
				s.samples.Add(r.name, report.Plain, objects, impl, figures)
			}
		}
	}
	for _, r := range scenarios {
		s.show(r.name, objects)
	}
	return nil
}

func (s *suite) readsOf(ctx context.Context, spec agent.Spec) (figures map[string]float64, err error) {
	figures = map[string]float64{}
	err = withChild(ctx, func(c *agent.Child) error {
		_, err := c.Do(ctx, agent.Command{
			Start: []agent.Spec{spec}, Expect: &agent.Expect{Initial: spec.Made}, Await: []string{agent.Synced, agent.Delivered},
			Pause: settle, // What is pending is in memory, whatever the budget.
		})
		if err != nil {
			return err
		}
		for _, read := range []struct {
			benchmark, metric string
			unit              time.Duration
		}{{"Get", result.GetTime, time.Microsecond}, {"ByIndex", result.ByIndexTime, time.Microsecond}, {"List", result.ListTime, time.Millisecond}} {
			answer, err := c.Do(ctx, agent.Command{Benchmark: read.benchmark, BenchTime: time.Duration(s.options.choose(1, 3)) * time.Second / 7})
			if err != nil {
				return err
			}
			figures[read.metric] = answer.Benchmark.NanosPerOp / float64(read.unit)
		}
		return nil
	})
	return figures, err
}
