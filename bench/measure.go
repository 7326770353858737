package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/warmwatch/warmwatch/bench/result"
	"github.com/warmwatch/warmwatch/test/e2e/agent"
)

// impls in the order in which they take turns.
var impls = []string{agent.ClientGo, agent.Warmwatch}

// spec is an informer for a population, without a file.
func (s *suite) spec(p *population, impl string) agent.Spec {
	return agent.Spec{
		Impl: impl, Resource: p.resource, Kind: p.kind, Namespace: namespace, Index: "app",
		Kubeconfig: s.controlPlane.Kubeconfig(), Handlers: handlers(1, false), Wrapped: impl == agent.Warmwatch,
	}
}

// handlers are n of them that count.
func handlers(n int, durable bool) []agent.Handler {
	all := make([]agent.Handler, n)
	for i := range all {
		all[i] = agent.Handler{Name: fmt.Sprintf("bench-%d", i), Durable: durable}
	}
	return all
}

// withChild runs an agent, which ends in any case.
func withChild(ctx context.Context, measure func(*agent.Child) error) error {
	c, err := agent.StartChild(ctx)
	if err != nil {
		return err
	}
	if err := measure(c); err != nil {
		return errors.Join(err, c.Kill())
	}
	return c.Stop()
}

// start has a new agent start, and measures that.
func (s *suite) start(ctx context.Context, spec agent.Spec, e agent.Expect) (r *agent.Report, err error) {
	err = withChild(ctx, func(c *agent.Child) error {
		e.SampleMemory = true
		command := agent.Command{
			Start: []agent.Spec{spec}, Expect: &e, Await: []string{agent.Synced, agent.Told, agent.Live}, Pause: settle, Report: true,
		}
		if spec.Dial != "" {
			command.Within = result.Patience
		}
		answer, err := c.Do(ctx, command)
		r = answer.Report
		return err
	})
	return r, err
}

// skippedError says why there are no figures.
type skippedError string

func (e skippedError) Error() string { return string(e) }

// What warmwatch is to do, lest its figures are of something else.
const (
	anything = iota
	resume
	relist
)

// check refuses figures that are not of what was to be measured.
func check(r *agent.Report, want int) error {
	for _, i := range r.Informers {
		switch {
		case i.Status == nil, r.GaveUp:
		case i.Status.Error != "":
			return fmt.Errorf("persistence is degraded: %s", i.Status.Error)
		case want == resume && i.Relists > 0 || want == relist && i.Relists == 0:
			return skippedError(fmt.Sprintf("warmwatch relisted %d times (%s: %s)", i.Relists, i.Status.Cause, i.Status.Reason))
		}
	}
	return nil
}

// add adds the figures of one run, unless they were skipped.
func (s *suite) add(run, scenario, title string, objects int, impl string, figures map[string]float64, err error) error {
	if skipped := skippedError(""); errors.As(err, &skipped) {
		s.skip("%s: %v", run, skipped)
		return nil
	}
	if err == nil {
		s.samples.Add(scenario, title, objects, impl, figures)
	}
	return err
}

// figuresOf are those of a start or a relist that began at a time.
func figuresOf(r *agent.Report, begin time.Time, e agent.Expect) map[string]float64 {
	i := r.Informers[0]
	figures := map[string]float64{
		result.CPU: r.CPU.Seconds(), result.DiskWritten: r.DiskWritten,
		result.Received: float64(i.BytesReceived), result.Requests: requests(i),
		result.PeakHeap: r.PeakHeap, result.PeakAnon: r.PeakAnon,
		result.SteadyHeap: r.SteadyHeap, result.SteadyAnon: r.SteadyAnon,
		result.FileSize: i.FileSize,
	}
	add := func(metric string, at time.Time) {
		switch {
		case at.After(begin):
			figures[metric] = millis(at.Sub(begin))
		case r.GaveUp:
			figures[metric] = result.Never
		}
	}
	add(result.HasSynced, i.Synced)
	add(result.AllAdded, i.Added)
	if e.Changed > 0 {
		add(result.CaughtUp, i.ToldAll)
		figures[result.Notifications] = float64(i.Calls.Total())
	}
	return figures
}

func requests(m agent.Measured) (sum float64) {
	for _, n := range m.Requests {
		sum += float64(n)
	}
	return sum
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// cacheFile names a file that does not exist yet, and makes it a copy of another
// one, if there is one.
func (s *suite) cacheFile(copyOf string) (string, error) {
	s.files++
	path := filepath.Join(s.dir, fmt.Sprintf("cache-%04d.db", s.files))
	if copyOf == "" {
		return path, nil
	}
	return path, copyFile(copyOf, path)
}

func copyFile(from, to string) (err error) {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, target.Close()) }()
	if _, err := io.Copy(target, source); err != nil {
		return err
	}
	return target.Sync() // Lest the copy is written while something is measured.
}

// remove is for a file that may be gone, and its lock file.
func remove(path string) error {
	if path == "" {
		return nil
	}
	matches, err := filepath.Glob(path + "*")
	for _, match := range matches {
		err = errors.Join(err, os.Remove(match))
	}
	return err
}
