// Package report turns a result file into documents: a table, plots, and the part
// of the README that has figures.
package report

import (
	_ "embed" // For the template.
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/template"

	"github.com/warmwatch/warmwatch/bench/result"
	"github.com/warmwatch/warmwatch/test/e2e/display"
)

// figure is a row of docs/benchmarks.md: which part of a run measures it, and what makes it better.
type figure struct {
	readme           bool // It is in the README, too.
	name             string
	part             string
	scenario, metric string
	help             string
}

var figures = []figure{
	{true, "warm start until served from disk", "starts", WarmStart, result.HasSynced, ""},
	{true, "warm start until HasSynced", "starts", CaughtUpStart, result.HasSynced, ""},
	{false, "warm start until all OnAdd", "starts", WarmStart, result.AllAdded, ""},
	{true, "warm start, bytes received", "starts", WarmStart, result.Received, ""},
	{false, "warm start, 1 % changed, bytes received", "starts", ChangedStart, result.Received, ""},
	{false, "start after 410 until caught up", "starts", GoneStart, result.CaughtUp, ""},
	{true, "start after 410, bytes received", "starts", GoneStart, result.Received, ""},
	{true, "start after 410, CPU time of the API server", "starts", GoneStart, result.ServerCPU, ""},
	{false, "peak anonymous memory, warm", "starts", WarmStart, result.PeakAnon, "`MemoryBudget`"},
	{true, "steady anonymous memory, warm", "starts", WarmStart, result.SteadyAnon, "`MemoryBudget`"},
	{false, "cold start until HasSynced", "starts", ColdStart, result.HasSynced, ""},
	{false, "cold start, CPU time", "starts", ColdStart, result.CPU, ""},
	{false, "file size", "starts", ColdStart, result.FileSize, "a transform"},
	{false, "varied Pods: warm start until HasSynced", "varied", CaughtUpStart, result.HasSynced, ""},
	{false, "varied Pods: start after 410, bytes received", "varied", GoneStart, result.Received, ""},
	{false, "varied Pods: cold start, CPU time", "varied", ColdStart, result.CPU, "a transform"},
	{false, "events a second to one handler", "events", Events, result.EventRate, "a selector"},
	{true, "processor time per event", "events", Events, result.CPUPerEvent, "a selector, a transform, `CommitInterval`"},
	{false, "processor time per event, durable handler", "events", Events + Durable, result.CPUPerEvent, "`DurableDelay`"},
	{false, "event to handler, p99", "updates", Updates(1000), result.EventP99, "`MemoryBudget`: less garbage"},
	{true, "event to handler, p99, durable handler", "updates", Updates(1000) + Durable, result.EventP99, "`DurableDelay`"},
	{false, "updates a second that the server took of 1,000", "updates", Updates(1000), result.AchievedRate, ""},
	{false, "bytes written per byte changed, 100 updates a second", "updates", Updates(100), result.WrittenPerByte, "`CommitInterval`"},
	{false, "the same, durable handler", "updates", Updates(100) + Durable, result.WrittenPerByte, "`DurableDelay`"},
	{true, "`Get` of an object that is not in memory", "reads", ColdReads, result.GetTime, "`MemoryBudget`"},
	{false, "`Get` of an object in memory", "reads", HotReads, result.GetTime, ""},
	{false, "`ByIndex` of 50 objects that are not in memory", "reads", ColdReads, result.ByIndexTime, "`IndexKeys` decodes nothing"},
	{false, "`ByIndex` of 50 objects in memory", "reads", HotReads, result.ByIndexTime, "a map of your own, fed by a handler"},
	{false, "`List` of everything, not in memory", "reads", ColdReads, result.ListTime, "`ListKeys` decodes nothing"},
	{false, "`List` of everything, in memory", "reads", HotReads, result.ListTime, "an index"},
	{false, "fleet: CPU time of the API server", "fleet", FleetKept, result.ServerCPU, ""},
	{false, "fleet: bytes received", "fleet", FleetKept, result.Received, ""},
	{false, "fleet: time until the last agent has caught up", "fleet", FleetKept, result.LastCaughtUp, ""},
	{false, "fleet after 410: CPU time of the API server", "fleet", FleetGone, result.ServerCPU, ""},
	{false, "fleet after 410: peak memory of the API server", "fleet", FleetGone, result.ServerPeak, ""},
	{false, "fleet after 410: time until the last agent has caught up", "fleet", FleetGone, result.LastCaughtUp, ""},
}

// find returns the figure with the most objects.
func (g figure) find(all []result.Comparison) (best result.Comparison, ok bool) {
	for _, c := range all {
		r := c.Warmwatch
		if r.Scenario == g.scenario && r.Metric == g.metric && (r.Kind == Varied) == (g.part == "varied") && r.Objects > best.Warmwatch.Objects {
			best, ok = c, true
		}
	}
	return best, ok
}

// table has those figures that were measured, and more columns if it is not for the README.
func table(f *result.File, forReadme bool) string {
	var b strings.Builder
	largest := 0
	for _, r := range f.Rows {
		largest = max(largest, r.Objects)
	}
	head, line := "", ""
	if !forReadme {
		head, line = " `SCENARIOS=` | what helps |", "---|---|"
	}
	fmt.Fprintf(&b, "| %s Pods | warmwatch | client-go | better |%s\n|---|---:|---:|---:|%s\n", display.Thousands(largest), head, line)
	all := result.Compare(f.Rows)
	for _, g := range figures {
		c, ok := g.find(all)
		if !ok || forReadme && !g.readme {
			continue
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |", g.name, median(c.Warmwatch), median(c.ClientGo), ratio(c))
		if !forReadme {
			fmt.Fprintf(&b, " %s | %s |", g.part, g.help)
		}
		b.WriteString("\n")
	}
	return b.String()
}

//go:embed benchmarks.md.tmpl
var templateText string

// Document is docs/benchmarks.md, which shows the plots.
func Document(f *result.File, plots []Plot) (string, error) {
	t := template.Must(template.New("").Funcs(template.FuncMap{"facts": facts}).Parse(templateText))
	fleet := "many agents"
	for _, r := range f.Rows {
		if r.Scenario == FleetKept {
			fleet = display.Thousands(r.Objects) + " " + r.Kind
		}
	}
	var b strings.Builder
	err := t.Execute(&b, struct {
		*result.File
		Table, Fleet string
		Plots        []Plot
	}{f, table(f, false), fleet, plots})
	return b.String(), err
}

func facts(all map[string]string) string {
	var texts []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		texts = append(texts, name+" "+all[name])
	}
	return strings.Join(texts, ", ")
}

const (
	readmeBegin = "<!-- bench:begin -->\n"
	readmeEnd   = "<!-- bench:end -->"
)

// Readme replaces the marked section of the README.
func Readme(readme string, f *result.File) (string, error) {
	head, rest, ok := strings.Cut(readme, readmeBegin)
	_, tail, ok2 := strings.Cut(rest, readmeEnd)
	if !ok || !ok2 {
		return "", fmt.Errorf("the README lacks %s… %s", readmeBegin, readmeEnd)
	}
	intro := fmt.Sprintf("Medians of `%s` on %s processors. What else is dearer than client-go, what to do about\n"+
		"it, the method and pictures: [docs/benchmarks.md](docs/benchmarks.md).\n\n", f.Command, f.Machine["cpus"])
	return head + readmeBegin + intro + table(f, true) + readmeEnd + tail, nil
}

// Figures has every figure, in the order of the rows.
func Figures(rows []result.Row) string {
	var b strings.Builder
	var last result.Key
	for _, c := range result.Compare(rows) {
		if k := c.Warmwatch.Key; k != last {
			last = k
			fmt.Fprintf(&b, "\n%s; %s %s:\n\n| runs: %d | warmwatch | client-go | better |\n|---|---:|---:|---:|\n",
				k.Scenario, display.Thousands(k.Objects), k.Kind, c.Warmwatch.Runs)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", c.Warmwatch.Metric, spread(c.Warmwatch), spread(c.ClientGo), ratio(c))
	}
	return b.String()
}

func median(r result.Row) string { return display.Value(r.Unit, r.Median) }

// spread is a median, with min and max if there were several runs.
func spread(r result.Row) string {
	low, high := display.Value(r.Unit, r.Min), display.Value(r.Unit, r.Max)
	if low == high {
		return median(r)
	}
	return fmt.Sprintf("%s (%s … %s)", median(r), low, high)
}

// ratio is empty where a zero allows none.
func ratio(c result.Comparison) string {
	r, ok := c.Ratio()
	if !ok {
		return ""
	}
	return display.Ratio(r)
}
