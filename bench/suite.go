package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/warmwatch/warmwatch/bench/report"
	"github.com/warmwatch/warmwatch/bench/result"
	"github.com/warmwatch/warmwatch/test/e2e/agent"
	"github.com/warmwatch/warmwatch/test/e2e/controlplane"
	"github.com/warmwatch/warmwatch/test/e2e/workload"
)

const namespace = "bench"

var podResource = corev1.SchemeGroupVersion.WithResource("pods")

// settle is how long an agent that has nothing left to do is left alone before its
// steady state is measured. It is longer than warmwatch's CommitInterval: what that
// writes, and the processor time of it, is counted.
const settle = 1200 * time.Millisecond

// suite is one run of the benchmark.
type suite struct {
	options     options
	screen      *screen
	dir         string // Of cache files.
	samples     result.Samples
	skipped     []string
	compression map[string]float64 // How many times smaller gzip makes a list, by kind.

	controlPlane *controlplane.ControlPlane
	clients      *workload.Clients
	kind         string // Of the objects in the control plane.
	objects      int    // How many there are.
	files        int    // How many cache files were named.
	rounds       int    // Of changes.
	restarts     int    // Of the API server.
}

func newSuite(o options, out, progressOut io.Writer) (*suite, error) {
	dir, err := os.MkdirTemp("", "warmwatch-bench-")
	return &suite{
		options: o, screen: &screen{out: out, progressOut: progressOut, begin: time.Now()}, dir: dir, compression: map[string]float64{},
	}, err
}

// parts of a run, in their order.
var parts = []struct {
	name    string
	measure func(*suite, context.Context) error
}{
	{"starts", (*suite).starts},
	{"events", (*suite).events},
	{"updates", (*suite).updates},
	{"reads", (*suite).reads},
	{"varied", (*suite).variedStarts},
	{"fleet", (*suite).fleet},
}

// run measures everything that the options ask for, and returns the versions of what
// was measured. What could be measured is there also after an error.
func (s *suite) run(ctx context.Context) (versions map[string]string, err error) {
	defer func() { err = errors.Join(err, s.stopControlPlane(), os.RemoveAll(s.dir)) }()
	if err := s.startControlPlane(ctx, report.Plain); err != nil {
		return nil, err
	}
	if versions, err = s.versionFacts(ctx); err != nil {
		return nil, err
	}
	for _, part := range parts {
		if !s.options.asks(part.name) {
			s.skip("%s: not asked for", part.name)
			continue
		}
		err2 := part.measure(s, ctx)
		if ctx.Err() != nil {
			return nil, err2
		}
		if err2 != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", part.name, err2))
			// Not the whole error: it may quote the log of a process.
			cause, _, _ := strings.Cut(err2.Error(), "\n")
			s.skip("%s, as far as its figures are missing: it failed: %s", part.name, cause)
		}
	}
	return versions, err
}

// skip notes what is not measured, and why.
func (s *suite) skip(format string, args ...any) {
	s.skipped = append(s.skipped, fmt.Sprintf(format, args...))
	s.screen.tell("skipped: "+format, args...)
}

// startControlPlane begins an empty one for objects of a kind, and ends the one before.
func (s *suite) startControlPlane(ctx context.Context, kind string) error {
	if err := s.stopControlPlane(); err != nil {
		return err
	}
	s.screen.tell("starting kube-apiserver and etcd")
	dir := filepath.Join(s.dir, "controlplane")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	cp, err := controlplane.Start(ctx, controlplane.Options{
		BinDir: s.options.BinDir, Dir: dir, // The disk is to be that of the agents.
		EtcdFlags: []string{"--snapshot-count=1000000"},
		// Events are kept for so long, and a little more, instead of 75 s (Kubernetes,
		// pkg/controlplane/apiserver/options, Complete): a backlog takes longer to make.
		APIServerFlags: []string{"--request-timeout=5m"},
		StartTimeout:   3 * time.Minute,
	})
	if err != nil {
		return err
	}
	s.controlPlane, s.kind, s.objects = cp, kind, 0
	if s.clients, err = workload.NewClients(cp.Config()); err != nil {
		return err
	}
	s.clients.Varied = kind == report.Varied
	return s.clients.CreateNamespace(ctx, namespace)
}

// stopControlPlane is idempotent.
func (s *suite) stopControlPlane() error {
	if s.controlPlane == nil {
		return nil
	}
	err := s.controlPlane.Stop()
	dir := s.controlPlane.Dir()
	s.controlPlane = nil
	return errors.Join(err, os.RemoveAll(dir))
}

// loseHistory makes every resourceVersion from before too old. The API server is
// killed, because one that ends in order waits for clients that are asleep. One
// that has just been started answers slowly at first; that is not measured.
func (s *suite) loseHistory(ctx context.Context) error {
	s.screen.tell("restarting kube-apiserver: older resourceVersions get 410 Gone")
	// Without a change elsewhere, the last version is the one that the new server begins with.
	s.restarts++
	if err := s.clients.CreateNamespace(ctx, fmt.Sprintf("restart-%d", s.restarts)); err != nil {
		return err
	}
	if err := syscall.Kill(s.controlPlane.APIServerPID(), syscall.SIGKILL); err != nil {
		return err
	}
	if err := s.controlPlane.RestartAPIServer(ctx); err != nil {
		return err
	}
	return s.clients.AwaitWatchCache(ctx, podResource)
}

// grow makes as many Pods as wanted; there may be more already.
func (s *suite) grow(ctx context.Context, objects int) error {
	first := s.objects
	if first >= objects {
		return nil
	}
	s.screen.tell("creating %s", s.kind)
	err := workload.Parallel(ctx, objects-first, s.screen.progress("created "+s.kind), func(ctx context.Context, i int) error {
		return s.clients.Create(ctx, podResource, namespace, first+i)
	})
	if err != nil {
		return fmt.Errorf("creating %s: %w", s.kind, err)
	}
	s.objects = objects
	s.compression[s.kind], err = s.clients.Compression(ctx, podResource, namespace)
	return err
}

// change updates one in a hundred objects. It returns what agents are to expect of it.
func (s *suite) change(ctx context.Context) (e agent.Expect, err error) {
	s.rounds++
	e = agent.Expect{Changed: s.objects / 100, Round: strconv.Itoa(s.rounds)}
	err = workload.Parallel(ctx, e.Changed, nil, func(ctx context.Context, i int) error {
		return s.clients.Annotate(ctx, podResource, namespace, i*(s.objects/e.Changed), agent.AnnotationRound, e.Round)
	})
	if err != nil {
		return e, fmt.Errorf("changing %s: %w", s.kind, err)
	}
	return e, nil
}

// show prints what was measured of one scenario.
func (s *suite) show(scenario string, objects int) {
	rows := slices.DeleteFunc(s.samples.Rows(), func(r result.Row) bool { return r.Scenario != scenario || r.Objects != objects })
	fmt.Fprint(s.screen.out, report.Figures(rows))
}
