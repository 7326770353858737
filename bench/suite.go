package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/warmwatch/warmwatch/bench/agent"
	"github.com/warmwatch/warmwatch/bench/result"
	"github.com/warmwatch/warmwatch/test/e2e/controlplane"
	"github.com/warmwatch/warmwatch/test/e2e/workload"
)

const namespace = "bench"

// suite is one run of the benchmark.
type suite struct {
	options options
	screen  *screen
	dir     string // Of cache files.
	samples result.Samples
	skipped []string

	controlPlane *controlplane.ControlPlane
	clients      *workload.Clients
	populations  map[string]*population // By resource.
	files        int                    // How many cache files were named.
	rounds       int                    // Of changes.
	restarts     int                    // Of the API server.
}

// population is the objects of one resource in the control plane.
type population struct {
	resource, kind string
	objects        int
}

func newSuite(o options, out, progressOut io.Writer) (*suite, error) {
	dir, err := os.MkdirTemp(o.Dir, "warmwatch-bench-")
	if err != nil {
		return nil, err
	}
	return &suite{
		options: o,
		screen:  &screen{out: out, progressOut: progressOut, begin: time.Now()},
		dir:     dir,
	}, nil
}

// run measures everything that the options ask for, and returns the versions of what
// was measured. What could be measured is there also after an error.
func (s *suite) run(ctx context.Context) (versions map[string]string, err error) {
	defer func() { err = errors.Join(err, s.stopControlPlane(), os.RemoveAll(s.dir)) }()
	if err := s.startControlPlane(ctx); err != nil {
		return nil, err
	}
	if versions, err = s.versionFacts(ctx); err != nil {
		return nil, err
	}
	for _, part := range []struct {
		name    string
		measure func(context.Context) error
	}{
		{partStarts, s.starts},
		{partRelist, s.relists},
		{partEvents, s.events},
		{partUpdates, s.updates},
		{partFromMemory, s.fromMemory},
		{partReads, s.reads},
		{partFleet, s.fleet},
	} {
		if !s.options.has(part.name) {
			s.skip("%s: not asked for", part.name)
			continue
		}
		if err2 := part.measure(ctx); err2 != nil {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
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
	text := fmt.Sprintf(format, args...)
	s.skipped = append(s.skipped, text)
	s.screen.tell("skipped: %s", text)
}

// startControlPlane begins an empty one.
func (s *suite) startControlPlane(ctx context.Context) error {
	s.screen.tell("starting kube-apiserver and etcd")
	dir := filepath.Join(s.dir, "controlplane")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	cp, err := controlplane.Start(ctx, controlplane.Options{
		BinDir: s.options.BinDir, Dir: dir,
		// The disk is to be that of the agents.
		EtcdFlags: []string{"--unsafe-no-fsync", "--quota-backend-bytes=8589934592", "--snapshot-count=1000000"},
		// Events are kept for so long, and a little more, instead of 75 s (Kubernetes,
		// pkg/controlplane/apiserver/options, Complete): a backlog takes longer to make.
		APIServerFlags: []string{"--request-timeout=5m"},
		StartTimeout:   3 * time.Minute,
	})
	if err != nil {
		return err
	}
	s.controlPlane, s.populations = cp, map[string]*population{}
	if s.clients, err = workload.NewClients(cp.Config()); err != nil {
		return err
	}
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
func (s *suite) loseHistory(ctx context.Context, resource string) error {
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
	return s.clients.AwaitWatchCache(ctx, resource)
}

var kinds = map[string]string{"pods": "Pods", "configmaps": "ConfigMaps", workload.Gadgets.Resource: "custom resources"}

// grow makes as many objects as wanted; there may be more already.
func (s *suite) grow(ctx context.Context, resource string, objects int) (*population, error) {
	p := s.populations[resource]
	if p == nil {
		p = &population{resource: resource, kind: kinds[resource]}
		s.populations[resource] = p
		if resource == workload.Gadgets.Resource {
			if err := s.clients.DefineGadgets(ctx); err != nil {
				return nil, err
			}
		}
	}
	first := p.objects
	if first >= objects {
		return p, nil
	}
	s.screen.tell("creating %s", p.kind)
	err := workload.Parallel(ctx, objects-first, s.screen.progress("created "+p.kind), func(ctx context.Context, i int) error {
		return s.clients.Create(ctx, resource, namespace, first+i)
	})
	if err != nil {
		return nil, fmt.Errorf("creating %s: %w", p.kind, err)
	}
	p.objects = objects
	return p, nil
}

// nextRound names the round of changes that comes next.
func (s *suite) nextRound() string { return strconv.Itoa(s.rounds + 1) }

// change updates n different objects, and returns the name of the round.
func (s *suite) change(ctx context.Context, p *population, n int) (round string, err error) {
	round = s.nextRound()
	s.rounds++
	step := p.objects / n
	err = workload.Parallel(ctx, n, nil, func(ctx context.Context, i int) error {
		return s.clients.Annotate(ctx, p.resource, namespace, i*step, agent.AnnotationRound, round)
	})
	if err != nil {
		return "", fmt.Errorf("changing %s: %w", p.kind, err)
	}
	return round, nil
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

func (s *suite) spec(p *population, mode, impl string) agent.Spec {
	return agent.Spec{
		Mode: mode, Impl: impl, Server: agent.ServerOf(s.controlPlane.Config()),
		Resource: p.resource, Namespace: namespace, Objects: p.objects, Initial: p.objects,
	}
}

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

// remove is for files that may be gone.
func remove(paths ...string) error {
	var errs []error
	for _, path := range paths {
		if path == "" {
			continue
		}
		matches, err := filepath.Glob(path + "*") // Lock files too.
		errs = append(errs, err)
		for _, match := range matches {
			errs = append(errs, os.Remove(match))
		}
	}
	return errors.Join(errs...)
}

// one runs an agent that reports once.
func (s *suite) one(ctx context.Context, spec agent.Spec) (figures map[string]float64, err error) {
	c, err := startChild(ctx, spec)
	if err != nil {
		return nil, err
	}
	if figures, err = c.awaitFigures(ctx); err != nil {
		return nil, errors.Join(err, c.kill())
	}
	return figures, c.finish()
}

// show prints what was measured of one scenario.
func (s *suite) show(scenario, kind string, objects int) {
	if comparisons := s.samples.Compare(scenario, kind, objects); len(comparisons) > 0 {
		title := scenario
		if objects > 0 {
			title = fmt.Sprintf("%s; %s %s", scenario, thousands(objects), kind)
		}
		s.screen.table(title, comparisons)
	}
}
