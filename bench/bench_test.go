package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/procfs"
	"go.uber.org/goleak"

	"github.com/warmwatch/warmwatch/bench/micro"
	"github.com/warmwatch/warmwatch/bench/report"
	"github.com/warmwatch/warmwatch/bench/result"
	"github.com/warmwatch/warmwatch/test/e2e/agent"
)

// The benchmark runs this binary as its agents.
func TestMain(m *testing.M) {
	agent.Main(micro.Benchmarks)
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"), goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"))
}

func TestBadArgumentsSayWhatIsWanted(t *testing.T) {
	for args, want := range map[string]string{
		"--scenarios=starts,dance": `must be one of "starts"`,
		"--kinds=odd":              `must be one of "plain"`,
		"--short --large":          "can't be used together",
		"--runs=-1":                "at least 1",
		"--agents=-1":              "at least 1",
		"--objects=7":              "at least 100",
		"--name=../x":              "want letters",
		"--dir=/no/such/dir":       "no such file",
		"more":                     "unexpected argument more",
		"--nonsense":               "unknown flag",
		"compare":                  `expected "<revision>"`,
		"compare a b":              "unexpected argument b",
	} {
		if _, _, err := parse(strings.Fields(args)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", args, err, want)
		}
	}
}

func TestCommandLineIsWhatMakeWantsToHear(t *testing.T) {
	for args, want := range map[string]string{
		"":                                      "make bench",
		"--short":                               "make bench SHORT=1",
		"--large --runs=5 --agents=10 --name=x": "make bench LARGE=1 RUNS=5 AGENTS=10 NAME=x",
		"--short --scenarios=starts,fleet --bin-dir=x": "make bench SHORT=1 SCENARIOS=starts,fleet",
	} {
		c, _, err := parse(strings.Fields(args))
		if err != nil {
			t.Fatal(err)
		}
		if c.Measure.command != want {
			t.Errorf("%q: %q, want %q", args, c.Measure.command, want)
		}
	}
}

func TestFileSystemIsThatOfTheInnermostMount(t *testing.T) {
	mounts := []*procfs.MountInfo{
		{MountPoint: "/", FSType: "overlay"}, {MountPoint: "/tmp", FSType: "tmpfs"},
		{MountPoint: "/tmp/disk", FSType: "ext4"}, {MountPoint: "/proc", FSType: "proc"},
	}
	for dir, want := range map[string]string{"/tmp/disk/a": "ext4", "/tmp/diskette": "tmpfs", "/home": "overlay", "/tmp": "tmpfs"} {
		if got := fileSystem(mounts, dir); got != want {
			t.Errorf("%s: %q, want %q", dir, got, want)
		}
	}
}

// TestDocumentsAreThoseOfTheirResult fails when somebody edited a generated
// document, or changed the generator or the results without `make bench-docs`.
func TestDocumentsAreThoseOfTheirResult(t *testing.T) {
	path, err := chooseResult("..", "")
	if errors.Is(err, errNoResults) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	plots := t.TempDir()
	documents, err := generate(path, "..", plots)
	if err != nil {
		t.Fatal(err)
	}
	names, err := filepath.Glob(filepath.Join(plots, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		documents[filepath.Join(plotDir, filepath.Base(name))] = string(content)
	}
	for file, want := range documents {
		got, err := os.ReadFile(filepath.Join("..", file))
		if err != nil {
			t.Error(err)
			continue
		}
		if string(got) != want {
			t.Errorf("%s is not what %s gives; run `make bench-docs`", file, path)
		}
	}
}

func TestDocsWithoutResultsChangeNothing(t *testing.T) {
	if err := (&docsCommand{resultFile{Root: t.TempDir()}}).Run(); err != nil {
		t.Error(err)
	}
	if err := (&docsCommand{resultFile{Root: t.TempDir(), Name: "absent"}}).Run(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a result that does not exist: %v", err)
	}
}

// TestAgentsOnARealServer goes through what agents do there, with few objects.
func TestAgentsOnARealServer(t *testing.T) {
	ctx := t.Context()
	s, err := newSuite(options{Runs: 1, Short: true, Dir: t.TempDir()}, t.Output(), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.stopControlPlane(); err != nil {
			t.Error(err)
		}
	})
	if err := s.startControlPlane(ctx); err != nil {
		t.Fatal(err)
	}
	p, err := s.grow(ctx, "pods", 100)
	if err != nil {
		t.Fatal(err)
	}
	from, err := s.version(ctx)
	if err != nil {
		t.Fatal(err)
	}
	golden, err := s.goldenFile(ctx, p, false)
	if err != nil {
		t.Fatal(err)
	}
	changed, err := s.change(ctx, p)
	if err != nil {
		t.Fatal(err)
	}
	m := startMeasurement{scenario: report.ChangedStart, golden: golden, changed: changed}
	if err := s.alternateStarts(ctx, p, m, 1); err != nil {
		t.Fatal(err)
	}
	bad := badLink{kilobytes: 10_000, millis: 1}
	if m.link, err = bad.open(s.controlPlane.Config()); err != nil {
		t.Fatal(err)
	}
	defer m.link.Down()
	m.scenario, m.cut = report.ColdStart+report.OverLink, true
	if err := s.alternateStarts(ctx, p, m, 1); err != nil {
		t.Fatal(err)
	}
	if rows := len(s.samples.Compare(m.scenario, p.title, p.objects)); rows < 10 {
		t.Errorf("%d figures of a start over a link", rows)
	}
	expect := func(impl, metric string, atLeast, atMost float64) {
		t.Helper()
		for _, r := range s.samples.Rows() {
			if r.Impl == impl && r.Metric == metric {
				if r.Median < atLeast || r.Median > atMost {
					t.Errorf("%s: %s is %v, want %v to %v", impl, metric, r.Median, atLeast, atMost)
				}
				return
			}
		}
		t.Errorf("%s: no %s", impl, metric)
	}
	expect(agent.Warmwatch, result.Notifications, 100, 101) // What has changed meanwhile comes with the list, or after it.
	expect(agent.ClientGo, result.Notifications, 100, 100)
	expect(agent.Warmwatch, result.Received, 2_000, 100_000)
	expect(agent.ClientGo, result.Received, 200_000, 2e6)
	expect(agent.Warmwatch, result.CaughtUp, 0.1, 20_000)
	expect(agent.Warmwatch, result.FileSize, 100_000, 10e6)
	expect(agent.ClientGo, result.PeakAnon, 1e6, 1e9)

	for _, v := range []struct {
		impl       string
		handlers   int
		memoryOnly bool
	}{{agent.ClientGo, 1, false}, {agent.Warmwatch, 2, false}, {agent.Warmwatch, 1, true}} {
		spec := s.spec(p, v.impl)
		spec.From, spec.Handlers, spec.MemoryOnly = from, handlers(v.handlers, false), v.memoryOnly
		figures, err := s.drain(ctx, p, spec, 0, 1)
		if err != nil {
			t.Fatal(err)
		}
		if figures[result.EventRate] <= 0 || figures[result.CPUPerEvent] <= 0 {
			t.Errorf("%+v: %v", v, figures)
		}
	}
}
