package report

import (
	"fmt"
	"slices"
	"strings"

	"github.com/warmwatch/warmwatch/bench/result"
)

// dear is what warmwatch is expected to do worse, and what a user can do about it.
// What a run shows to be worse beyond that is listed without advice.
var dear = []struct {
	name, scenario, metric, advice string
}{
	{
		"processor time per event", Events1, result.CPUPerEvent,
		"Each changed object is encoded, and written once for each commit it is in: a longer `CommitInterval` merges more changes of the same object. " +
			"What OnUpdate is given as the old object is read from the file unless it is in memory: raise `MemoryBudget`. " +
			"A transform that drops `managedFields` halves a Pod.",
	},
	{
		"events a second to one handler", Events1, result.EventRate,
		"See processor time. Filter at the server, with selectors: an event that does not come costs nothing.",
	},
	{
		"event to handler, p99", Updates(1000, false), result.EventP99,
		"Where an event finds the processors busy, with a garbage collection, a commit or something else, it waits. A larger `MemoryBudget` makes less garbage.",
	},
	{
		"event to handler, p99, sharing processors with the API server", UpdatesBeside(1000, false), result.EventP99,
		"Who computes longer for an event is interrupted more often where no processor is idle. Filter at the server; or give the agent a processor of its own.",
	},
	{
		"processor time per event at 1,000 updates/s", Updates(1000, false), result.CPUPerEvent,
		"As for processor time per event.",
	},
	{
		"event to handler, p99, durable handler", Updates(1000, true), result.EventP99,
		"A durable handler hears of what is durable only: `DurableDelay` is how long changes are gathered for one commit. " +
			"A plain handler does not wait.",
	},
	{
		"`Get` of an object that is not in memory", ColdReads, result.GetTime,
		"`MemoryBudget` is what decoded objects may take, 64 MiB by default; negative: all stay in memory, as in client-go.",
	},
	{
		"`ByIndex` of objects that are not in memory", ColdReads, result.ByIndexTime,
		"As for `Get`. `IndexKeys` decodes nothing.",
	},
	{
		"`ByIndex` of objects in memory", HotReads, result.ByIndexTime,
		"The index is in the file. Where it is hot, keep a map of your own, fed by a handler.",
	},
	{
		"`List` of everything, not in memory", ColdReads, result.ListTime,
		"As for `Get`. `ListKeys` decodes nothing; an index finds what you look for without a walk.",
	},
	{
		"`List` of everything, in memory", HotReads, result.ListTime,
		"Do not list in a loop: an index, or a handler that keeps count.",
	},
	{
		"bytes written per byte changed", Updates(100, false), result.WrittenPerByte,
		"A longer `CommitInterval`: what a crash loses the API server sends again.",
	},
	{
		"the same, with a durable handler", Updates(100, true), result.WrittenPerByte,
		"A longer `DurableDelay`; or a plain handler where redelivery after a restart does not matter.",
	},
	{
		"file size after a cold start", ColdStart, result.FileSize,
		"A transform that drops what is not needed.",
	},
	{
		"cold start, processor time", ColdStart, result.CPU,
		"It happens once, and writes the file.",
	},
	{
		"cold start, peak anonymous memory", ColdStart, result.PeakAnon,
		"`MaxPendingBytes` bounds what waits to be written, `MemoryBudget` what stays decoded.",
	},
	{
		"start after 410 until caught up", GoneStart, result.CaughtUp,
		"The cache is served meanwhile. `SyncPolicy: SyncFromServer` waits for the relist, if stale objects are worse than none.",
	},
	{
		"start after 410, processor time", GoneStart, result.CPU,
		"Each item of the list is compared with the file.",
	},
}

// pricedRow is a figure that is worse, with advice.
type pricedRow struct {
	compared
	advice string
}

// price returns what is worse by more than the noise of a run.
func price(f *result.File) []pricedRow {
	size := mainSize(f)
	var rows []pricedRow
	for _, d := range dear {
		c, ok := find(f, d.scenario, "Pods", size, d.metric)
		if !ok {
			continue
		}
		c.name = d.name
		if worse(c) {
			rows = append(rows, pricedRow{c, d.advice})
		}
	}
	return rows
}

// worse is true also where client-go needs nothing at all.
func worse(c compared) bool {
	ratio, ok := result.Ratio(c.warm.Metric, c.warm.Median, c.stock.Median)
	if !ok {
		return c.stock.Median == 0 && c.warm.Median > 0
	}
	return ratio < 0.95
}

// writePrice writes what is dearer, with advice.
func writePrice(b *strings.Builder, f *result.File) {
	b.WriteString("\n## The price\n\nWhere warmwatch is slower or dearer than client-go, and what a user can do about it.\n\n")
	rows := price(f)
	if len(rows) == 0 {
		b.WriteString("Nothing in this run.\n")
		return
	}
	b.WriteString("| | warmwatch | client-go | what to do |\n|---|---:|---:|---|\n")
	for _, r := range rows {
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", r.name, Value(r.warm.Unit, r.warm.Median), Value(r.stock.Unit, r.stock.Median), r.advice)
	}
}

// writeWorse writes all that was worse.
func writeWorse(b *strings.Builder, f *result.File) {
	b.WriteString("\n## Worse than client-go\n\n")
	for _, r := range f.Rows {
		if r.Impl != result.Warmwatch {
			continue
		}
		c, ok := find(f, r.Scenario, r.Kind, r.Objects, r.Metric)
		if ok && worse(c) && c.ratio() != "" {
			fmt.Fprintf(b, "- %s, %s %s: %s, %s (%s)\n", r.Scenario, Thousands(r.Objects), r.Kind, r.Metric, Value(r.Unit, r.Median), c.ratio())
		}
	}
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
	var b strings.Builder
	size := mainSize(f)
	fmt.Fprintf(&b, "Medians of `%s` on %s processors. What else is dearer than client-go, what to do about\n"+
		"it, the method and pictures: [docs/benchmarks.md](docs/benchmarks.md).\n\n", f.Command, f.Machine["cpus"])
	found := goals(f)
	for _, p := range price(f) {
		found = append(found, p.compared)
	}
	var rows []compared
	for _, name := range inReadme {
		if i := slices.IndexFunc(found, func(c compared) bool { return c.name == name }); i >= 0 {
			c := found[i]
			c.warm.Runs, c.stock.Runs = 1, 1 // The spread is in the document.
			rows = append(rows, c)
		}
	}
	table := &strings.Builder{}
	writeComparison(table, rows, false)
	b.WriteString(strings.Replace(table.String(), "| |", fmt.Sprintf("| %s Pods |", Thousands(size)), 1))
	return head + readmeBegin + b.String() + readmeEnd + tail, nil
}
