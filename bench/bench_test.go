package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/warmwatch/warmwatch/bench/agent"
	"github.com/warmwatch/warmwatch/bench/report"
	"github.com/warmwatch/warmwatch/bench/result"
)

// The benchmark runs this binary as its agents.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == agentCommand {
		os.Exit(mainExit(os.Args[1:]))
	}
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"), goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"))
}

func TestBadArgumentsSayWhatIsWanted(t *testing.T) {
	for _, tc := range []struct {
		args string
		want string
	}{
		{"--scenarios=starts,dance", `there is no "dance"`},
		{"--short --large", "exclude each other"},
		{"--runs=-1", "at least 1"},
		{"--agents=-1", "at least 1"},
		{"--objects=7", "at least 100"},
		{"--name=../x", "want letters"},
		{"--dir=/no/such/dir", "--dir:"},
		{"more", "unexpected argument"},
		{"--nonsense", "not defined"},
	} {
		var said bytes.Buffer
		if _, err := parseOptions(strings.Fields(tc.args), &said); err == nil {
			t.Errorf("%s: no error", tc.args)
		}
		if !strings.Contains(said.String(), tc.want) {
			t.Errorf("%s: said %q, want %q", tc.args, said.String(), tc.want)
		}
	}
}

func TestArgumentsOfCompare(t *testing.T) {
	for _, args := range [][]string{nil, {""}, {"a", "b"}, {"--count=0", "HEAD"}, {"--nonsense"}} {
		var usage usageError
		if err := compareCommand(t.Context(), args); !errors.As(err, &usage) {
			t.Errorf("%q: error %v, want one of usage", args, err)
		}
	}
	if err := compareCommand(t.Context(), []string{"no-such-revision"}); err == nil {
		t.Error("a revision that does not exist is no error")
	}
}

func TestCommandLineIsWhatMakeWantsToHear(t *testing.T) {
	for args, want := range map[string]string{
		"":                                      "make bench",
		"--short":                               "make bench SHORT=1",
		"--large --runs=5 --agents=10 --name=x": "make bench LARGE=1 NAME=x RUNS=5 AGENTS=10",
		"--short --scenarios=starts,fleet --runs=1": "make bench SHORT=1 SCENARIOS=starts,fleet",
	} {
		o, err := parseOptions(strings.Fields(args), io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		if got := commandLine(o); got != want {
			t.Errorf("%q: %q, want %q", args, got, want)
		}
	}
}

func TestFileSystemIsThatOfTheInnermostMount(t *testing.T) {
	const mounts = "overlay / overlay rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n/dev/sdb /tmp/disk ext4 rw 0 0\nproc /proc proc rw 0 0\n"
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
		documents[filepath.Join(filepath.Dir(documentFile), plotDir, filepath.Base(name))] = string(content)
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
	if err := ofResult("docs", []string{"--root", t.TempDir()}, writeDocs); err != nil {
		t.Error(err)
	}
	if err := ofResult("docs", []string{"--root", t.TempDir(), "--name", "absent"}, writeDocs); !errors.Is(err, os.ErrNotExist) {
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
	if err := s.startControlPlane(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.stopControlPlane(); err != nil {
			t.Error(err)
		}
	})
	p, err := s.grow(ctx, "pods", 50)
	if err != nil {
		t.Fatal(err)
	}
	from, err := s.version(ctx)
	if err != nil {
		t.Fatal(err)
	}

	golden, err := s.cacheFile("")
	if err != nil {
		t.Fatal(err)
	}
	spec := s.spec(p, agent.ModeStart, result.Warmwatch)
	spec.File = golden
	if _, err := s.one(ctx, spec); err != nil {
		t.Fatal(err)
	}
	round, err := s.change(ctx, p, 5)
	if err != nil {
		t.Fatal(err)
	}
	m := startMeasurement{golden: golden, round: round, changed: 5}
	if err := s.alternateStarts(ctx, p, m, report.ChangedStart, "", 1); err != nil {
		t.Fatal(err)
	}
	expect := func(scenario, impl, metric string, atLeast, atMost float64) {
		t.Helper()
		for _, r := range s.samples.Rows() {
			if r.Scenario == scenario && r.Impl == impl && r.Metric == metric {
				if r.Median < atLeast || r.Median > atMost {
					t.Errorf("%s, %s: %s is %v, want %v to %v", scenario, impl, metric, r.Median, atLeast, atMost)
				}
				return
			}
		}
		t.Errorf("%s, %s: no %s", scenario, impl, metric)
	}
	expect(report.ChangedStart, result.Warmwatch, result.Notifications, 55, 55)
	expect(report.ChangedStart, result.ClientGo, result.Notifications, 50, 50)
	expect(report.ChangedStart, result.Warmwatch, result.Received, 5_000, 100_000)
	expect(report.ChangedStart, result.ClientGo, result.Received, 100_000, 1e6)
	expect(report.ChangedStart, result.Warmwatch, result.CaughtUp, 0.1, 20_000)
	expect(report.ChangedStart, result.Warmwatch, result.FileSize, 100_000, 10e6)
	expect(report.ChangedStart, result.ClientGo, result.PeakAnon, 1e6, 1e9)

	for _, v := range []eventsVariant{eventsVariants[0], {impl: result.Warmwatch, handlers: 2}, {impl: result.Warmwatch, handlers: 1, memoryOnly: true}} {
		figures, err := s.drain(ctx, p, v, from, 5)
		if err != nil {
			t.Fatal(err)
		}
		if figures[result.EventRate] <= 0 || figures[result.CPUPerEvent] <= 0 {
			t.Errorf("%+v: %v", v, figures)
		}
	}
}
