package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
		"--runs=-1":                "at least 1",
		"--name=../x":              "want the name of a file",
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
		"":                  "make bench",
		"--short":           "make bench SHORT=1",
		"--runs=5 --name=x": "make bench RUNS=5 NAME=x",
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

// TestDocumentsAreThoseOfTheirResult fails when somebody edited a generated
// document, or changed the generator or the results without `make bench-docs`.
func TestDocumentsAreThoseOfTheirResult(t *testing.T) {
	documents, err := (&docsCommand{resultFile{Root: "..", Name: "bench"}}).generate()
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range documents {
		got, err := os.ReadFile(filepath.Join("..", file))
		if err != nil {
			t.Error(err)
			continue
		}
		if string(got) != want {
			t.Errorf("%s is not what bench.json gives; run `make bench-docs`", file)
		}
	}
	pictures, err := filepath.Glob(filepath.Join("..", plotDir, "*"))
	if err != nil || len(pictures) != len(documents)-2 {
		t.Errorf("%d pictures in %s, of %d documents: %v", len(pictures), plotDir, len(documents), err)
	}
}

func TestDocsOfNoResultChangeNothing(t *testing.T) {
	if err := (&docsCommand{resultFile{Root: t.TempDir(), Name: "absent"}}).Run(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a result that does not exist: %v", err)
	}
}

// TestAgentsOnARealServer goes through what agents do there, with few objects.
func TestAgentsOnARealServer(t *testing.T) {
	ctx := t.Context()
	s, err := newSuite(options{Runs: 1, Short: true}, t.Output(), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(s.stopControlPlane(), os.RemoveAll(s.dir)); err != nil {
			t.Error(err)
		}
	})
	if err := s.startControlPlane(ctx, report.Plain); err != nil {
		t.Fatal(err)
	}
	if err := s.grow(ctx, 100); err != nil {
		t.Fatal(err)
	}
	from, err := s.version(ctx)
	if err != nil {
		t.Fatal(err)
	}
	golden, err := s.goldenFile(ctx)
	if err != nil {
		t.Fatal(err)
	}
	changed, err := s.change(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.measureStart(ctx, start{scenario: report.ChangedStart, golden: golden, changed: changed, want: resume}); err != nil {
		t.Fatal(err)
	}
	err = s.turns(ctx, report.Events, func(spec *agent.Spec) { spec.From = from }, func(c *agent.Child) (map[string]float64, error) {
		return drain(ctx, c, changed.Changed)
	})
	if err != nil {
		t.Fatal(err)
	}
	err = s.turns(ctx, report.Updates(100), func(spec *agent.Spec) { spec.Stamped = true }, func(c *agent.Child) (map[string]float64, error) {
		return s.updatesAt(ctx, c, 100)
	})
	if err != nil {
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
	expect(report.ChangedStart, agent.Warmwatch, result.Received, 2_000, 100_000)
	expect(report.ChangedStart, agent.ClientGo, result.Received, 200_000, 2e6)
	expect(report.ChangedStart, agent.Warmwatch, result.CaughtUp, 0.1, 20_000)
	expect(report.ChangedStart, agent.Warmwatch, result.FileSize, 100_000, 10e6)
	expect(report.ChangedStart, agent.ClientGo, result.PeakAnon, 1e6, 1e9)
	expect(report.Events, agent.Warmwatch, result.EventRate, 0.1, 1e6)
	expect(report.Events+report.Durable, agent.Warmwatch, result.CPUPerEvent, 0.1, 1e9)
	expect(report.Events+report.Durable, agent.ClientGo, result.CPUPerEvent, 0.1, 1e9)
	expect(report.Updates(100), agent.ClientGo, result.EventP99, 0.001, 1e5)
	expect(report.Updates(100)+report.Durable, agent.Warmwatch, result.EventP99, 0.01, 1e5)
	expect(report.Updates(100), agent.Warmwatch, result.WrittenPerByte, 0.1, 1e3)
}
