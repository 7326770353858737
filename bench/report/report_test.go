package report_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch/bench/report"
	"github.com/warmwatch/warmwatch/bench/result"
	"github.com/warmwatch/warmwatch/test/e2e/agent"
)

// zeros is a run in which everything took nothing, and something was skipped. What a
// run looks like that has figures, docs/benchmarks.md shows; a test of the command
// compares it.
func zeros() *result.File {
	var s result.Samples
	for _, scenario := range []string{report.ColdStart, report.WarmStart, report.GoneStart, report.FleetKept, report.FleetGone} {
		for _, impl := range []string{agent.ClientGo, agent.Warmwatch} {
			s.Add(scenario, report.Plain, 1000, impl, map[string]float64{
				result.HasSynced: 0, result.CaughtUp: 0, result.Received: 0, result.PeakAnon: 0,
				result.ServerCPU: 0, result.ServerPeak: 0, result.LastCaughtUp: 0,
			})
		}
	}
	return &result.File{Name: "zeros", Skipped: []string{"a thing: for a reason"}, Rows: s.Rows()}
}

func TestNothingIsDividedByZero(t *testing.T) {
	plots, err := report.Plots(zeros())
	if err != nil || len(plots) != 4 {
		t.Fatalf("%d plots, error %v", len(plots), err)
	}
	document, err := report.Document(zeros(), plots)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"\n- Not measured: a thing: for a reason\n", "](benchmarks/fleet.svg)", "| 0 ms | 0 ms |  |"} {
		if !strings.Contains(document, text) {
			t.Errorf("the document does not say %q:\n%s", text, document)
		}
	}
	texts := []string{document, report.Figures(zeros().Rows)}
	for _, p := range plots {
		texts = append(texts, p.Content)
	}
	for _, text := range texts {
		if strings.Contains(text, "NaN") || strings.Contains(text, "Inf") {
			t.Errorf("NaN or Inf in\n%.5000s", text)
		}
	}
}

func TestWhatHasNoFiguresIsLeftOut(t *testing.T) {
	empty := &result.File{Name: "empty"}
	plots, err := report.Plots(empty)
	if err != nil || len(plots) > 0 {
		t.Errorf("plots %v, error %v", plots, err)
	}
	document, err := report.Document(empty, plots)
	if err != nil || strings.Contains(document, "| starts |") || strings.Contains(document, "Not measured:") {
		t.Errorf("error %v, document:\n%s", err, document)
	}
	if _, err := report.Readme("# x\n", empty); err == nil {
		t.Error("a README without marks is no error")
	}
}

const benchstatCSV = `goos: linux
goarch: amd64
,base,,new
,sec/op,CI,sec/op,CI,vs base,P
Get/impl=client-go-2,3e-08,1%,4e-08,1%,+33.33%,p=0.002 n=6
Get/impl=warmwatch-2,3e-08,1%,4e-08,1%,+20.00%,p=0.002 n=6
List/impl=warmwatch-2,3e-08,1%,4e-08,1%,~,p=0.4 n=6
Old/impl=warmwatch-2,3e-08,1%
,,,4e-08,1%
geomean,3e-08,,4e-08,,+10%

,base,,new
,events/s,CI,events/s,CI,vs base,P
Events/impl=warmwatch-2,100,1%,70,1%,-30.00%,p=0.002 n=6
More/impl=warmwatch-2,100,1%,170,1%,+70.00%,p=0.002 n=6
`

func TestWhatGotSlowerIsFoundInBothDirections(t *testing.T) {
	changes, err := report.ReadBenchstat(benchstatCSV)
	if err != nil {
		t.Fatal(err)
	}
	slower, noise := report.Slower(changes, 10)
	get := report.Change{Benchmark: "Get/impl=warmwatch-2", Unit: "sec/op", Percent: 20, Evidence: "p=0.002 n=6"}
	events := report.Change{Benchmark: "Events/impl=warmwatch-2", Unit: "events/s", Percent: -30, Evidence: "p=0.002 n=6"}
	if diff := cmp.Diff([]report.Change{get, events}, slower); diff != "" {
		t.Errorf("slower (-want +got):\n%s", diff)
	}
	if len(noise) != 1 || noise[0].Benchmark != "Get/impl=client-go-2" {
		t.Errorf("noise %v, want client-go's change", noise)
	}
	if slower, _ := report.Slower(changes, 50); len(slower) > 0 {
		t.Errorf("slower by more than 50 %%: %v", slower)
	}
}
