package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/procfs"

	"github.com/warmwatch/warmwatch/bench/report"
	"github.com/warmwatch/warmwatch/bench/result"
	"github.com/warmwatch/warmwatch/test/e2e/agent"
	"github.com/warmwatch/warmwatch/test/e2e/display"
)

// fleetProcesses share the agents.
const fleetProcesses = 4

// bytesPerObject is about what an agent of client-go needs in memory for each Pod,
// while all of them list.
const bytesPerObject = 20_000

// fleet measures many agents that restart at once. Its control plane is a new one
// with few objects: what the API server uses it uses for them. It is restarted
// before each measurement, so that its memory begins the same.
func (s *suite) fleet(ctx context.Context) error {
	agents, objects := s.options.choose(20, 200), s.options.choose(500, 2000)
	need := float64(agents * objects * bytesPerObject)
	if has := memoryFacts().MemAvailableBytes; has != nil && float64(*has) < need {
		s.skip("fleet: %d agents need about %s of memory, and %s are free", agents, display.Value("B", need), display.Value("B", float64(*has)))
		return nil
	}
	if err := s.startControlPlane(ctx, report.Plain); err != nil {
		return err
	}
	if err := s.grow(ctx, objects); err != nil {
		return err
	}
	for run := range s.options.Runs {
		s.screen.tell("fleet of %d agents: run %d of %d", agents, run+1, s.options.Runs)
		if err := s.fleetRun(ctx, agents); err != nil {
			return err
		}
	}
	s.show(report.FleetKept, objects)
	s.show(report.FleetGone, objects)
	return nil
}

// fleetRun is client-go, then warmwatch within the history window, then warmwatch
// after 410. Each time 1 % has changed meanwhile.
func (s *suite) fleetRun(ctx context.Context, agents int) error {
	for _, m := range []struct {
		impl      string
		want      outcome
		scenarios []string
	}{
		{agent.ClientGo, anything, []string{report.FleetKept, report.FleetGone}},
		{agent.Warmwatch, resume, []string{report.FleetKept}},
		{agent.Warmwatch, relist, []string{report.FleetGone}},
	} {
		if m.want != relist {
			if err := s.loseHistory(ctx); err != nil {
				return err
			}
		}
		golden := ""
		if m.impl == agent.Warmwatch {
			var err error
			if golden, err = s.goldenFile(ctx); err != nil {
				return err
			}
		}
		e, err := s.change(ctx)
		if err != nil {
			return err
		}
		if m.want == relist { // The history is lost while the fleet is down.
			if err := s.loseHistory(ctx); err != nil {
				return err
			}
		}
		if err := s.warmUp(ctx); err != nil {
			return err
		}
		e.Initial = s.objects
		figures, err := s.restartFleet(ctx, m.impl, agents, golden, e, m.want)
		if err != nil {
			return err
		}
		for _, scenario := range m.scenarios {
			s.samples.Add(scenario, fmt.Sprintf("%s for each of %d agents", s.kind, agents), s.objects, m.impl, figures)
		}
	}
	return nil
}

// restartFleet starts all agents at once.
func (s *suite) restartFleet(ctx context.Context, impl string, agents int, golden string, e agent.Expect, want outcome) (figures map[string]float64, err error) {
	var children []*agent.Child
	specs := make([][]agent.Spec, fleetProcesses)
	defer func() {
		for _, c := range children {
			err = errors.Join(err, c.Kill())
		}
		for _, spec := range slices.Concat(specs...) {
			err = errors.Join(err, remove(spec.File))
		}
		err = errors.Join(err, remove(golden))
	}()
	for n := range agents {
		spec := s.spec(impl, false)
		if golden != "" {
			if err := copyFile(golden, spec.File); err != nil {
				return nil, err
			}
		}
		specs[n%fleetProcesses] = append(specs[n%fleetProcesses], spec)
	}
	for range specs {
		c, err := agent.StartChild(ctx)
		if err != nil {
			return nil, err
		}
		children = append(children, c)
		if _, err := c.Do(ctx, agent.Command{}); err != nil { // It is there.
			return nil, err
		}
	}
	server, err := s.watchServer(ctx)
	if err != nil {
		return nil, err
	}
	defer server.stop()
	for i, c := range children {
		err := c.Send(agent.Command{Start: specs[i], Expect: &e, Await: []string{agent.Synced, agent.Delivered}, Pause: settle, Report: true})
		if err != nil {
			return nil, err
		}
	}
	figures = map[string]float64{}
	for _, c := range children {
		answer, err := c.Answer(ctx)
		if err == nil {
			err = check(answer.Report, want)
		}
		if err != nil {
			return nil, err
		}
		for _, i := range answer.Report.Informers {
			figures[result.Received] += float64(i.BytesReceived)
			figures[result.LastCaughtUp] = max(figures[result.LastCaughtUp], millis(i.DeliveredAll.Sub(answer.Report.Begin)))
		}
	}
	figures[result.ServerCPU], figures[result.ServerPeak] = server.stop()
	return figures, nil
}

// watchServer follows the API server from when it has collected its garbage. With many
// objects a collection takes longer than what is measured, and would be counted for
// whoever comes at that moment.
func (s *suite) watchServer(ctx context.Context) (*processWatch, error) {
	if err := s.controlPlane.CollectGarbage(ctx); err != nil {
		return nil, err
	}
	return watchProcess(s.controlPlane.APIServerPID()), nil
}

// processWatch follows a process that is not an agent.
type processWatch struct {
	pid    int
	before float64 // Seconds of processor time.
	end    context.CancelFunc
	peak   chan float64 // The largest resident set, when the watch has ended.
}

func watchProcess(pid int) *processWatch {
	ctx, cancel := context.WithCancel(context.Background())
	w := &processWatch{pid: pid, before: statOf(pid).CPUTime(), end: cancel, peak: make(chan float64, 1)}
	go func() {
		peak := 0
		for ctx.Err() == nil {
			peak = max(peak, statOf(pid).ResidentMemory())
			time.Sleep(20 * time.Millisecond)
		}
		w.peak <- float64(peak)
		close(w.peak)
	}()
	return w
}

// stop is idempotent; the peak is there once.
func (w *processWatch) stop() (cpuSeconds, peakBytes float64) {
	w.end()
	return statOf(w.pid).CPUTime() - w.before, <-w.peak
}

// statOf is zero where the system does not tell.
func statOf(pid int) procfs.ProcStat {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return procfs.ProcStat{}
	}
	stat, err := p.Stat()
	if err != nil {
		return procfs.ProcStat{}
	}
	return stat
}
