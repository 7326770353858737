package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/warmwatch/warmwatch/test/e2e/agent"
)

// impls in the order in which they take turns.
var impls = []string{agent.ClientGo, agent.Warmwatch}

// spec is an informer, with a file that does not exist yet.
func (s *suite) spec(impl string, durable bool) agent.Spec {
	return agent.Spec{
		Impl: impl, Resource: podResource, Kind: "Pod", Namespace: namespace, Index: "app",
		Kubeconfig: s.controlPlane.Kubeconfig(), File: s.cacheFile(), Wrapped: impl == agent.Warmwatch,
		Handlers: []agent.Handler{{Name: "bench", Durable: durable}},
	}
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
		answer, err := c.Do(ctx, agent.Command{
			Start: []agent.Spec{spec}, Expect: &e, Await: []string{agent.Synced, agent.Delivered, agent.Live}, Pause: settle, Report: true,
		})
		r = answer.Report
		return err
	})
	return r, err
}

// outcome is what warmwatch is to do, lest its figures are of something else.
type outcome int

const (
	anything outcome = iota
	resume
	relist
)

// check refuses figures that are not of what was to be measured.
func check(r *agent.Report, want outcome) error {
	for _, i := range r.Informers {
		switch {
		case i.Status == nil:
		case i.Status.Error != "":
			return fmt.Errorf("persistence is degraded: %s", i.Status.Error)
		case want == resume && i.Relists > 0 || want == relist && i.Relists == 0:
			return fmt.Errorf("warmwatch relisted %d times (%s: %s)", i.Relists, i.Status.Cause, i.Status.Reason)
		}
	}
	return nil
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// cacheFile names a file that does not exist yet.
func (s *suite) cacheFile() string {
	s.files++
	return filepath.Join(s.dir, fmt.Sprintf("cache-%04d.db", s.files))
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
