package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/warmwatch/warmwatch/bench/agent"
	"github.com/warmwatch/warmwatch/bench/report"
	"github.com/warmwatch/warmwatch/bench/result"
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
	objects := s.options.choose(500, 2000)
	need := float64(s.options.Agents * objects * bytesPerObject)
	if has := procFields("/proc/meminfo", "MemAvailable:")[0] * 1024; has > 0 && has < need {
		s.skip("fleet: %d agents with %s Pods each need about %s of memory, and %s are free; AGENTS=%d would fit",
			s.options.Agents, thousands(objects), report.Value("B", need), report.Value("B", has), int(has/float64(objects*bytesPerObject)))
		return nil
	}
	if err := s.stopControlPlane(); err != nil {
		return err
	}
	if err := s.startControlPlane(ctx); err != nil {
		return err
	}
	p, err := s.grow(ctx, "pods", objects)
	if err != nil {
		return err
	}
	runs := min(s.options.Runs, 2)
	for run := range runs {
		s.screen.tell("fleet of %d agents: run %d of %d", s.options.Agents, run+1, runs)
		if err := s.fleetRun(ctx, p); err != nil {
			return err
		}
	}
	s.show(report.FleetKept, s.fleetKind(), p.objects)
	s.show(report.FleetGone, s.fleetKind(), p.objects)
	return nil
}

func (s *suite) fleetKind() string {
	return fmt.Sprintf("Pods for each of %d agents", s.options.Agents)
}

// fleetRun is client-go, then warmwatch within the history window, then warmwatch
// after 410. Each time 1 % has changed meanwhile.
func (s *suite) fleetRun(ctx context.Context, p *population) error {
	for _, m := range []struct {
		impl      string
		gone      bool // The history is lost while the fleet is down.
		scenarios []string
	}{
		{result.ClientGo, false, []string{report.FleetKept, report.FleetGone}},
		{result.Warmwatch, false, []string{report.FleetKept}},
		{result.Warmwatch, true, []string{report.FleetGone}},
	} {
		if !m.gone {
			if err := s.loseHistory(ctx, p.resource); err != nil {
				return err
			}
		}
		golden := ""
		if m.impl == result.Warmwatch {
			var err error
			if golden, err = s.goldenFleetFile(ctx, p); err != nil {
				return err
			}
		}
		round, err := s.change(ctx, p, p.objects/100)
		if err != nil {
			return err
		}
		if m.gone {
			if err := s.loseHistory(ctx, p.resource); err != nil {
				return err
			}
		}
		if err := s.warmUp(ctx, p); err != nil {
			return err
		}
		spec := s.spec(p, agent.ModeFleet, m.impl)
		spec.Round, spec.Changed, spec.Resumes, spec.Relists = round, p.objects/100, !m.gone, m.gone
		figures, err := s.restartFleet(ctx, spec, golden)
		if skipped := skippedError(""); errors.As(err, &skipped) {
			s.skip("one run of %s: %v", m.scenarios[0], skipped)
			continue
		}
		if err != nil {
			return err
		}
		for _, scenario := range m.scenarios {
			s.samples.Add(scenario, s.fleetKind(), p.objects, m.impl, figures)
		}
	}
	return nil
}

func (s *suite) goldenFleetFile(ctx context.Context, p *population) (string, error) {
	file, err := s.cacheFile("")
	if err != nil {
		return "", err
	}
	spec := s.spec(p, agent.ModeStart, result.Warmwatch)
	spec.File = file
	_, err = s.one(ctx, spec)
	return file, err
}

// restartFleet starts all agents at once.
func (s *suite) restartFleet(ctx context.Context, spec agent.Spec, golden string) (figures map[string]float64, err error) {
	dir, err := os.MkdirTemp(s.dir, "fleet-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, remove(golden), os.RemoveAll(dir)) }()
	var children []*child
	defer func() {
		for _, c := range children {
			err = errors.Join(err, c.kill())
		}
	}()
	for i := range fleetProcesses {
		spec.File = filepath.Join(dir, strconv.Itoa(i)+"-")
		spec.Agents = (s.options.Agents + i) / fleetProcesses
		for n := range spec.Agents {
			if golden == "" {
				break
			}
			if err := copyFile(golden, fmt.Sprintf("%s%03d.db", spec.File, n)); err != nil {
				return nil, err
			}
		}
		c, err := startChild(ctx, spec)
		if err != nil {
			return nil, err
		}
		children = append(children, c)
		if err := c.awaitReady(ctx); err != nil {
			return nil, err
		}
	}
	watched := watchServer(s.controlPlane.APIServerPID())
	for _, c := range children {
		if err := c.say(agent.CommandGo); err != nil {
			return nil, err
		}
	}
	figures = map[string]float64{}
	for _, c := range children {
		part, err := c.awaitFigures(ctx)
		if err != nil {
			return nil, err
		}
		addFleetPart(figures, part)
	}
	figures[result.ServerCPU], figures[result.ServerPeak] = watched.stop()
	return figures, nil
}

// addFleetPart adds what one process found: the last agent is the last of all.
func addFleetPart(sum, part map[string]float64) {
	for metric, value := range part {
		if metric == result.LastSynced || metric == result.LastCaughtUp {
			sum[metric] = max(sum[metric], value)
		} else {
			sum[metric] += value
		}
	}
}

// serverWatch follows the API server's process.
type serverWatch struct {
	pid    int
	before float64 // Seconds of processor time.
	end    chan struct{}
	peak   chan float64 // The largest resident set, once.
}

func watchServer(pid int) *serverWatch {
	w := &serverWatch{pid: pid, before: processSeconds(pid), end: make(chan struct{}), peak: make(chan float64)}
	go func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		peak := 0.0
		for {
			peak = max(peak, procFields(fmt.Sprintf("/proc/%d/status", pid), "VmRSS:")[0]*1024)
			select {
			case <-tick.C:
			case <-w.end:
				w.peak <- peak
				return
			}
		}
	}()
	return w
}

func (w *serverWatch) stop() (cpuSeconds, peakBytes float64) {
	close(w.end)
	return processSeconds(w.pid) - w.before, <-w.peak
}

// processSeconds is the processor time of a process so far.
func processSeconds(pid int) float64 {
	const ticksPerSecond = 100 // USER_HZ on every Linux that Go runs on.
	// After the name, which may contain anything, utime and stime are fields 12 and 13.
	fields := procFields(fmt.Sprintf("/proc/%d/stat", pid), ")")
	if len(fields) < 13 {
		return 0
	}
	return (fields[11] + fields[12]) / ticksPerSecond
}

// procFields are the numbers after a name; what is no number is 0, and there is at
// least one.
func procFields(file, name string) []float64 {
	content, err := os.ReadFile(file)
	if err != nil {
		return []float64{0}
	}
	_, rest, _ := strings.Cut(string(content), name)
	var numbers []float64
	for field := range strings.FieldsSeq(rest) {
		number, _ := strconv.ParseFloat(field, 64)
		numbers = append(numbers, number)
	}
	if numbers == nil {
		return []float64{0}
	}
	return numbers
}
