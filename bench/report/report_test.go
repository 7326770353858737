package report_test

import (
	"os"
	"path/filepath"
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
	for _, scenario := range []string{report.ColdStart, report.WarmStart, report.GoneStart, report.FleetKept, report.FleetGone, report.Updates(1000, false)} {
		kind := "Pods"
		if strings.HasPrefix(scenario, "fleet") {
			kind = "Pods for each of 2 agents"
		}
		for _, impl := range []string{agent.ClientGo, agent.Warmwatch} {
			figures := map[string]float64{}
			for _, metric := range result.Metrics() {
				figures[metric] = 0
			}
			s.Add(scenario, kind, 1000, impl, figures)
		}
	}
	return &result.File{Name: "zeros", Skipped: []string{"a thing: for a reason"}, Rows: s.Rows()}
}

func TestNothingIsDividedByZero(t *testing.T) {
	dir := t.TempDir()
	plots, err := report.WritePlots(zeros(), dir)
	if err != nil || len(plots) != 5 {
		t.Fatalf("plots %v, error %v", plots, err)
	}
	document, err := report.Document(zeros(), plots)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"Nothing in this run.", "## Not measured\n\n- a thing: for a reason\n", "](benchmarks/fleet.svg)", "| 0 ms | 0 ms |  |"} {
		if !strings.Contains(document, text) {
			t.Errorf("the document does not say %q:\n%s", text, document)
		}
	}
	texts := []string{document, report.Figures(zeros())}
	for _, p := range plots {
		content, err := os.ReadFile(filepath.Join(dir, p.File))
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(content))
	}
	for _, text := range texts {
		if strings.Contains(text, "NaN") || strings.Contains(text, "Inf") {
			t.Errorf("NaN or Inf in\n%.5000s", text)
		}
	}
}

func TestWhatDoesNotEndOverABadLinkIsShown(t *testing.T) {
	var s result.Samples
	scenario := report.ColdStart + report.OverNarrowLink + report.CutLink
	s.Add(scenario, "varied Pods", 200, agent.ClientGo, map[string]float64{result.HasSynced: result.Never, result.Received: 4e6})
	s.Add(scenario, "varied Pods", 200, agent.Warmwatch, map[string]float64{result.HasSynced: 41_500, result.Received: 1e6})
	f := &result.File{Name: "cut", Compression: map[string]float64{"varied Pods": 5.12}, Rows: s.Rows()}
	document, err := report.Document(f, nil)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		document:          "| " + scenario + ": 200 varied Pods, gzip 1/5.1 | 41.5 s · not in 120 s · ∞ | | 1 MB · 4 MB · 4× |\n",
		report.Figures(f): "200 varied Pods, gzip 1/5.1; 1 run:",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("it does not say %q:\n%s", want, text)
		}
	}
}

func TestWhatHasNoFiguresIsLeftOut(t *testing.T) {
	empty := &result.File{Name: "empty"}
	plots, err := report.WritePlots(empty, t.TempDir())
	if err != nil || len(plots) > 0 {
		t.Errorf("plots %v, error %v", plots, err)
	}
	document, err := report.Document(empty, plots)
	if err != nil || strings.Contains(document, "## In short") || strings.Contains(document, "## Not measured") {
		t.Errorf("error %v, document:\n%s", err, document)
	}
	if name, ok := report.ResultName(document); name != "empty" || !ok {
		t.Errorf("the document's result is %q %t", name, ok)
	}
	if name, ok := report.ResultName("# Benchmarks\n"); ok {
		t.Errorf("a document that was not generated is of result %q", name)
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
