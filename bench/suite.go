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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"

	"github.com/warmwatch/warmwatch/bench/report"
	"github.com/warmwatch/warmwatch/bench/result"
	"github.com/warmwatch/warmwatch/test/e2e/agent"
	"github.com/warmwatch/warmwatch/test/e2e/controlplane"
	"github.com/warmwatch/warmwatch/test/e2e/workload"
)

const namespace = "bench"

// settle is how long an agent that has nothing left to do is left alone before its
// steady state is measured. It is longer than warmwatch's CommitInterval: what that
// writes, and the processor time of it, is counted.
const settle = 1200 * time.Millisecond

// suite is one run of the benchmark.
type suite struct {
	options options
	screen  *screen
	dir     string // Of cache files.
	samples result.Samples
	skipped []string

	varied       bool               // The objects are as varied as those of a real cluster.
	compression  map[string]float64 // How many times smaller gzip makes objects, by their title.
	controlPlane *controlplane.ControlPlane
	clients      *workload.Clients
	populations  map[string]*population // By resource.
	files        int                    // How many cache files were named.
	rounds       int                    // Of changes.
	restarts     int                    // Of the API server.
}

// population is the objects of one resource in the control plane.
type population struct {
	resource schema.GroupVersionResource
	kind     string // Of one of them.
	title    string // Of all of them.
	objects  int
}

func populations(varied bool) map[string]*population {
	core, prefix := corev1.SchemeGroupVersion, ""
	if varied {
		prefix = "varied "
	}
	return map[string]*population{
		"pods":                    {resource: core.WithResource("pods"), kind: "Pod", title: prefix + "Pods"},
		"configmaps":              {resource: core.WithResource("configmaps"), kind: "ConfigMap", title: prefix + "ConfigMaps"},
		workload.Gadgets.Resource: {resource: workload.Gadgets, kind: "Gadget", title: prefix + "custom resources"},
	}
}

func newSuite(o options, out, progressOut io.Writer) (*suite, error) {
	dir, err := os.MkdirTemp(o.Dir, "warmwatch-bench-")
	return &suite{
		options: o, screen: &screen{out: out, progressOut: progressOut, begin: time.Now()}, dir: dir, compression: map[string]float64{},
	}, err
}

// parts of a run, in their order.
var parts = []struct {
	name    string
	varied  bool // It is measured with varied objects, too.
	measure func(*suite, context.Context) error
}{
	{"starts", true, (*suite).starts},
	{"controller", false, (*suite).controllers},
	{"relist", false, (*suite).relists},
	{"events", false, (*suite).events},
	{"updates", false, (*suite).updates},
	{"from-memory", false, (*suite).fromMemory},
	{"reads", false, (*suite).reads},
	{"links", true, (*suite).links},
	{"fleet", false, (*suite).fleet},
}

// run measures everything that the options ask for, and returns the versions of what
// was measured. What could be measured is there also after an error.
func (s *suite) run(ctx context.Context) (versions map[string]string, err error) {
	defer func() { err = errors.Join(err, s.stopControlPlane(), os.RemoveAll(s.dir)) }()
	for _, kind := range []string{"plain", "varied"} {
		if !has(s.options.Kinds, kind) {
			s.skip("%s objects: not asked for", kind)
			continue
		}
		s.varied = kind == "varied"
		if err := s.startControlPlane(ctx); err != nil {
			return nil, err
		}
		facts, err2 := s.versionFacts(ctx)
		if err2 != nil {
			return nil, err2
		}
		versions, err = facts, errors.Join(err, s.measureParts(ctx))
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	return versions, err
}

// measureParts measures what was asked for with objects of one kind.
func (s *suite) measureParts(ctx context.Context) (err error) {
	for _, part := range parts {
		switch {
		case s.varied && !part.varied:
			continue
		case !has(s.options.Scenarios, part.name):
			s.skip("%s: not asked for", part.name)
			continue
		}
		err2 := part.measure(s, ctx)
		if ctx.Err() != nil {
			return err2
		}
		if err2 != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", part.name, err2))
			// Not the whole error: it may quote the log of a process.
			cause, _, _ := strings.Cut(err2.Error(), "\n")
			s.skip("%s, as far as its figures are missing: it failed: %s", part.name, cause)
		}
	}
	return err
}

// skip notes what is not measured, and why.
func (s *suite) skip(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if slices.Contains(s.skipped, text) { // Also with varied objects.
		return
	}
	s.skipped = append(s.skipped, text)
	s.screen.tell("skipped: %s", text)
}

// startControlPlane begins an empty one, and ends the one before.
func (s *suite) startControlPlane(ctx context.Context) error {
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
	s.controlPlane, s.populations = cp, populations(s.varied)
	if s.clients, err = workload.NewClients(cp.Config()); err != nil {
		return err
	}
	s.clients.Varied = s.varied
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
func (s *suite) loseHistory(ctx context.Context, p *population) error {
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
	return s.clients.AwaitWatchCache(ctx, p.resource)
}

// grow makes as many objects as wanted; there may be more already.
func (s *suite) grow(ctx context.Context, resource string, objects int) (*population, error) {
	p := s.populations[resource]
	first := p.objects
	if first >= objects {
		return p, nil
	}
	if p.resource == workload.Gadgets {
		if err := s.clients.DefineGadgets(ctx); err != nil {
			return nil, err
		}
	}
	s.screen.tell("creating %s", p.title)
	err := workload.Parallel(ctx, objects-first, s.screen.progress("created "+p.title), func(ctx context.Context, i int) error {
		return s.clients.Create(ctx, p.resource, namespace, first+i)
	})
	if err != nil {
		return nil, fmt.Errorf("creating %s: %w", p.title, err)
	}
	p.objects = objects
	s.compression[p.title], err = s.clients.Compression(ctx, p.resource, namespace)
	return p, err
}

// nextRound is what the next change will be of.
func (s *suite) nextRound() string { return strconv.Itoa(s.rounds + 1) }

// change updates one in a hundred objects. It returns what agents are to expect of it.
func (s *suite) change(ctx context.Context, p *population) (e agent.Expect, err error) {
	e = agent.Expect{Changed: p.objects / 100, Round: s.nextRound()}
	s.rounds++
	err = workload.Parallel(ctx, e.Changed, nil, func(ctx context.Context, i int) error {
		return s.clients.Annotate(ctx, p.resource, namespace, i*(p.objects/e.Changed), agent.AnnotationRound, e.Round)
	})
	if err != nil {
		return e, fmt.Errorf("changing %s: %w", p.title, err)
	}
	return e, nil
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

// show prints what was measured of one scenario.
func (s *suite) show(scenario, title string, objects int) {
	if comparisons := s.samples.Compare(scenario, title, objects); len(comparisons) > 0 {
		s.screen.table(scenario+"; "+report.Objects(result.Key{Kind: title, Objects: objects}, s.compression), comparisons)
	}
}
