package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/warmwatch/warmwatch/bench/report"
	"github.com/warmwatch/warmwatch/bench/result"
	"github.com/warmwatch/warmwatch/test/e2e/agent"
	"github.com/warmwatch/warmwatch/test/e2e/workload"
)

// writers are how many updates may be under way at once.
const writers = 64

// turns measures agents that have started and settled: client-go's, warmwatch's, and warmwatch's with a durable
// handler. Figures of client-go stand beside both of warmwatch's.
func (s *suite) turns(ctx context.Context, scenario string, change func(*agent.Spec), measure func(*agent.Child) (map[string]float64, error)) error {
	for run := range s.options.Runs {
		for _, t := range []struct {
			impl      string
			durable   bool
			scenarios []string
		}{
			{agent.ClientGo, false, []string{scenario, scenario + report.Durable}},
			{agent.Warmwatch, false, []string{scenario}},
			{agent.Warmwatch, true, []string{scenario + report.Durable}},
		} {
			s.screen.tell("%s: run %d of %d, %s, durable: %t", scenario, run+1, s.options.Runs, t.impl, t.durable)
			spec := s.spec(t.impl, t.durable)
			change(&spec)
			var figures map[string]float64
			err := withChild(ctx, func(c *agent.Child) error {
				_, err := c.Do(ctx, agent.Command{
					Start: []agent.Spec{spec}, Expect: &agent.Expect{Initial: s.objects}, Await: []string{agent.Delivered}, Pause: settle,
				})
				if err == nil {
					// The lists have left the server so much garbage that its next collection, of 3 s of
					// processor time, would be counted for whoever is measured at that moment.
					err = s.controlPlane.CollectGarbage(ctx)
				}
				if err == nil {
					figures, err = measure(c)
				}
				return err
			})
			if err = errors.Join(err, remove(spec.File)); err != nil {
				return err
			}
			for _, scenario := range t.scenarios {
				s.samples.Add(scenario, s.kind, s.objects, t.impl, figures)
			}
		}
	}
	s.show(scenario, s.objects)
	s.show(scenario+report.Durable, s.objects)
	return nil
}

// events measures how fast a backlog is delivered. All agents list the past, and
// then watch the same events, which the server holds.
func (s *suite) events(ctx context.Context) error {
	if err := s.grow(ctx, s.options.largest()); err != nil {
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
	err = workload.Parallel(ctx, backlog, s.screen.progress("updated "+s.kind), func(ctx context.Context, i int) error {
		return s.clients.Annotate(ctx, podResource, namespace, i%s.objects, agent.AnnotationRound, fmt.Sprintf("backlog-%d", i))
	})
	if err != nil {
		return err
	}
	return s.turns(ctx, report.Events, func(spec *agent.Spec) { spec.From = from }, func(c *agent.Child) (map[string]float64, error) {
		return drain(ctx, c, backlog)
	})
}

// version is the resourceVersion that Pods have now.
func (s *suite) version(ctx context.Context) (string, error) {
	client, err := kubernetes.NewForConfig(s.controlPlane.Config())
	if err != nil {
		return "", err
	}
	list, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return "", err
	}
	return list.ResourceVersion, nil
}

// drain measures an agent that is behind by a backlog. It fails if the server did not hold the whole backlog any more.
func drain(ctx context.Context, c *agent.Child, backlog int) (map[string]float64, error) {
	answer, err := c.Do(ctx, agent.Command{
		Expect: &agent.Expect{Updates: backlog, Collect: true}, Await: []string{agent.Delivered},
		Pause: settle, Report: true, // What is written after the last event belongs to it.
	})
	if err == nil {
		err = check(answer.Report, anything)
	}
	if err != nil {
		return nil, err
	}
	r := answer.Report
	if r.Informers[0].Relists > 0 {
		return nil, errors.New("the server did not hold the whole backlog any more")
	}
	return map[string]float64{
		result.EventRate:   float64(backlog) / r.Informers[0].DeliveredAll.Sub(r.Begin).Seconds(),
		result.CPUPerEvent: float64(r.CPU.Microseconds()) / float64(backlog),
	}, nil
}

// updates measures agents at steady rates of updates. They have processors of their own, as on a node: where
// they share processors with a busy API server, a percentile says how long the kernel lets them run at a time.
func (s *suite) updates(ctx context.Context) error {
	servers, agents, err := halves()
	if err != nil {
		s.skip("updates: %v", err)
		return nil
	}
	if err := s.grow(ctx, s.options.largest()); err != nil {
		return err
	}
	for _, rate := range report.UpdateRates {
		err := s.turns(ctx, report.Updates(rate), func(spec *agent.Spec) { spec.Stamped = true }, func(c *agent.Child) (figures map[string]float64, err error) {
			defer func() { err = errors.Join(err, s.confineServers(servers.and(agents))) }()
			if err := errors.Join(s.confineServers(servers), agents.confine(c.PID())); err != nil {
				return nil, err
			}
			return s.updatesAt(ctx, c, rate)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// confineServers has the control plane and the writers run there.
func (s *suite) confineServers(p processors) error {
	return errors.Join(p.confine(s.controlPlane.APIServerPID()), p.confine(s.controlPlane.EtcdPID()), p.confine(os.Getpid()))
}

// updatesAt measures one agent at one rate, for some seconds.
func (s *suite) updatesAt(ctx context.Context, c *agent.Child, rate int) (map[string]float64, error) {
	if _, err := c.Do(ctx, agent.Command{Expect: &agent.Expect{}}); err != nil {
		return nil, err
	}
	n, achieved, err := s.update(ctx, rate, time.Duration(s.options.choose(1, 4))*time.Second)
	if err != nil {
		return nil, err
	}
	answer, err := c.Do(ctx, agent.Command{Updates: n, Await: []string{agent.Delivered}, Pause: settle, Report: true})
	if err == nil {
		err = check(answer.Report, anything)
	}
	if err != nil {
		return nil, err
	}
	latency := answer.Report.Informers[0].Latency
	return map[string]float64{
		result.AchievedRate: achieved, result.EventP99: result.Quantile(latency.Event, 0.99),
		result.WrittenPerByte: answer.Report.DiskWritten / latency.BytesChanged,
	}, nil
}

// update sends updates at the rate, or as fast as the server takes them, and returns
// how many there were.
func (s *suite) update(ctx context.Context, perSecond int, duration time.Duration) (n int, achieved float64, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	due := make(chan int)
	var running sync.WaitGroup
	for range writers {
		running.Go(func() {
			for i := range due {
				sent := strconv.FormatInt(time.Now().UnixNano(), 10) // No update says what one before has said.
				// Neighbours in the order of keys are not updated together.
				if err := s.clients.Annotate(ctx, podResource, namespace, i*7919%s.objects, agent.AnnotationRound, sent); err != nil {
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
