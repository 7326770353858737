package report_test

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch/bench/report"
	"github.com/warmwatch/warmwatch/bench/result"
	"github.com/warmwatch/warmwatch/test/e2e/agent"
)

func TestValue(t *testing.T) {
	for _, tc := range []struct {
		unit  string
		value float64
		want  string
	}{
		{"ms", 0, "0 ms"},
		{"ms", 1.234567, "1.23 ms"},
		{"ms", 2, "2 ms"},
		{"ms", 1234.5, "1,235 ms"},
		{"ms", 12_345, "12.3 s"},
		{"µs", 0.0421, "42.1 ns"},
		{"µs", 87.6, "87.6 µs"},
		{"B", 999, "999 B"},
		{"B", 172_000_000, "172 MB"},
		{"B", 8.4e9, "8.4 GB"},
		{"1/s", 123_456, "123,456/s"},
		{"1", 505, "505"},
		{"s", 0.0389, "0.0389 s"},
		{"ms", -0.5, "-0.5 ms"},
	} {
		if got := report.Value(tc.unit, tc.value); got != tc.want {
			t.Errorf("%v %s: %q, want %q", tc.value, tc.unit, got, tc.want)
		}
	}
}

// fabricated has a figure for everything; some are zero.
func fabricated() *result.File {
	s := &result.Samples{}
	add := func(scenario, kind string, objects int, warm, stock float64) {
		for _, impl := range []string{agent.ClientGo, agent.Warmwatch} {
			figures := map[string]float64{}
			for i, metric := range result.Metrics() {
				figures[metric] = stock * float64(1+i) * float64(objects)
				if impl == agent.Warmwatch {
					figures[metric] = warm * float64(1+i) * float64(objects)
				}
			}
			figures[result.FileSize], figures[result.Notifications] = 0, 0
			if impl == agent.Warmwatch {
				figures[result.FileSize] = 1e6
			}
			s.Add(scenario, kind, objects, impl, figures)
		}
	}
	for _, objects := range []int{1000, 10_000, 50_000} {
		for i, scenario := range []string{
			report.ColdStart, report.WarmStart, report.BootStart, report.ChangedStart, report.GoneStart, report.GoneStartDurable, report.RunningGone,
		} {
			add(scenario, "Pods", objects, float64(i), 3) // The first has nothing but zeros.
		}
	}
	add(report.Events1, "Pods", 50_000, 0.9, 1)
	add(report.HotReads, "Pods", 50_000, 2, 1)
	add(report.ColdReads, "Pods", 50_000, 3, 1)
	for _, rate := range []int{100, 1000, 5000} {
		for _, name := range []func(int, bool) string{report.Updates, report.UpdatesBeside, report.UpdatesFromMemory} {
			add(name(rate, false), "Pods", 50_000, 1e-6, 2e-6)
			add(name(rate, true), "Pods", 50_000, 9e-6, 2e-6)
		}
	}
	add(report.FleetKept, "Pods for each of 200 agents", 2000, 1, 9)
	add(report.FleetGone, "Pods for each of 200 agents", 2000, 8, 9)
	return &result.File{
		Name: "fabricated", Commit: "abc", Command: "make bench", Seconds: 61,
		Machine: map[string]string{"cpus": "2", "kernel": "6"}, Versions: map[string]string{"go": "go1.26"},
		Skipped: []string{"a thing: for a reason"}, Rows: s.Rows(),
	}
}

func TestPlotsAreDrawnWithUnitsAndWithoutColour(t *testing.T) {
	dir := t.TempDir()
	plots, err := report.WritePlots(fabricated(), dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range plots {
		names = append(names, p.File)
	}
	want := []string{"start-time.svg", "restart-bytes.svg", "memory.svg", "fleet.svg", "latency.svg"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Fatalf("plots (-want +got):\n%s", diff)
	}
	for i, name := range names {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		svg := string(content)
		if err := wellFormed(svg); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		unit := []string{"time (ms)", "received (kB)", "memory (MB)", ">MB<", "(ms)"}[i]
		for _, text := range []string{unit, "client-go", "warmwatch"} {
			if !strings.Contains(svg, text) {
				t.Errorf("%s does not say %q", name, text)
			}
		}
		for _, text := range []string{"NaN", "Inf"} {
			if strings.Contains(svg, text) {
				t.Errorf("%s has %s in it", name, text)
			}
		}
	}
}

func wellFormed(svg string) error {
	decoder := xml.NewDecoder(strings.NewReader(svg))
	for {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func TestPlotsWithoutFiguresAreLeftOut(t *testing.T) {
	names, err := report.WritePlots(&result.File{Name: "empty"}, t.TempDir())
	if err != nil || len(names) > 0 {
		t.Errorf("plots %v, error %v", names, err)
	}
}

func TestDocumentHoldsTheHonestHalf(t *testing.T) {
	f := fabricated()
	document, err := report.Document(f, []report.Plot{{File: "fleet.svg", Text: "A fleet"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{
		"![A fleet", "benchmarks/fleet.svg", "## The price", "MemoryBudget", "## Not measured", "a thing: for a reason",
		"kernel 6", "`make bench`", "make bench-figures NAME=fabricated", "1 min 1 s",
	} {
		if !strings.Contains(document, text) {
			t.Errorf("the document does not say %q", text)
		}
	}
	if n := strings.Count(document, "\n"); n > 250 {
		t.Errorf("the document has %d lines, which nobody reads", n)
	}
	figures := report.Figures(f)
	for _, text := range []string{"## Warm start\n", "2,000 Pods for each of 200 agents, 1 run:", "## Worse than client-go\n"} {
		if !strings.Contains(figures, text) {
			t.Errorf("the figures do not say %q", text)
		}
	}
	if strings.Contains(document, "memory.svg") {
		t.Error("the document shows a plot that was not drawn")
	}
	if name, ok := report.ResultName(document); name != "fabricated" || !ok {
		t.Errorf("the document's result is %q %t", name, ok)
	}
	if name, ok := report.ResultName("# Benchmarks\n"); ok {
		t.Errorf("a document that was not generated is of result %q", name)
	}
}

func TestReadmeIsReplacedBetweenItsMarks(t *testing.T) {
	const before, after = "# x\n\n<!-- bench:begin -->\n", "<!-- bench:end -->\nrest\n"
	got, err := report.Readme(before+"old\n"+after, fabricated())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(got, before) || !strings.HasSuffix(got, after) || strings.Contains(got, "old\n") {
		t.Errorf("README:\n%s", got)
	}
	for _, text := range []string{"50,000 Pods", "processor time per event", "durable handler", "docs/benchmarks.md"} {
		if !strings.Contains(got, text) {
			t.Errorf("the README does not say %q", text)
		}
	}
	if n := strings.Count(got, "\n| "); n > 9 { // With the head.
		t.Errorf("the README has %d rows of figures", n)
	}
	if again, err := report.Readme(got, fabricated()); err != nil || again != got {
		t.Errorf("another time it changes (error %v)", err)
	}
	if _, err := report.Readme("# x\n", fabricated()); err == nil {
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
