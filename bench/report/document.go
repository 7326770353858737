// Package report turns a result file into documents: tables, plots, and the part
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
	"github.com/warmwatch/warmwatch/test/e2e/agent"
	"github.com/warmwatch/warmwatch/test/e2e/display"
)

//go:embed benchmarks.md.tmpl
var templateText string

// compared is one metric of one scenario, of both implementations.
type compared struct{ warm, stock result.Row }

// ratio is empty where a zero allows none.
func (c compared) ratio() string {
	r, ok := result.Ratio(c.warm.Metric, c.warm.Median, c.stock.Median)
	if !ok {
		return ""
	}
	return Ratio(r)
}

// worse is true also where client-go needs nothing at all; not within the noise of a
// run.
func (c compared) worse() bool {
	ratio, ok := result.Ratio(c.warm.Metric, c.warm.Median, c.stock.Median)
	if !ok {
		return c.stock.Median == 0 && c.warm.Median > 0
	}
	return ratio < 0.95
}

// compare returns all pairs of rows, in their order.
func compare(f *result.File) (all []compared) {
	for _, warm := range f.Rows {
		if warm.Impl != agent.Warmwatch {
			continue
		}
		for _, stock := range f.Rows {
			if stock.Impl == agent.ClientGo && stock.Key == warm.Key && stock.Metric == warm.Metric {
				all = append(all, compared{warm, stock})
			}
		}
	}
	return all
}

// documents makes texts of a result file. Its methods are functions of the template.
type documents struct {
	file  *result.File
	plots []Plot
	all   []compared
	size  int // Of the parts which are measured at one size.
	tmpl  *template.Template
}

func newDocuments(f *result.File, plots []Plot) *documents {
	d := &documents{file: f, plots: plots, all: compare(f)}
	for _, r := range f.Rows {
		if r.Kind == "Pods" && (r.Objects == 50_000 || d.size != 50_000 && r.Objects > d.size) {
			d.size = r.Objects
		}
	}
	d.tmpl = template.Must(template.New("").Funcs(template.FuncMap{
		"include": d.execute, "goal": d.goal, "price": d.price, "median": d.median, "medianIfWorse": d.medianIfWorse, "table": d.table,
		"objects":  func() string { return display.Thousands(d.size) },
		"plots":    func() []Plot { return d.plots },
		"facts":    facts,
		"duration": func(seconds int) string { return fmt.Sprintf("%d min %d s", seconds/60, seconds%60) },
	}).Parse(templateText))
	return d
}

func (d *documents) execute(name string) (string, error) {
	var b strings.Builder
	err := d.tmpl.ExecuteTemplate(&b, name, d.file)
	return b.String(), err
}

func facts(all map[string]string) string {
	var texts []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		texts = append(texts, name+" "+all[name])
	}
	return strings.Join(texts, ", ")
}

// find returns a figure that the document shows. A metric that does not exist is an
// error of the template.
func (d *documents) find(scenario, metric string) (c compared, ok bool, err error) {
	if result.Unit(metric) == "" {
		return c, false, fmt.Errorf("there is no metric %q", metric)
	}
	for _, c := range d.all {
		if c.warm.Scenario == scenario && c.warm.Metric == metric && d.shows(c.warm.Key) {
			return c, true, nil
		}
	}
	return c, false, nil
}

// shows tells Pods in the main size, and those of a fleet, from what a run measures
// besides.
func (d *documents) shows(k result.Key) bool {
	return k.Kind == "Pods" && k.Objects == d.size || strings.HasPrefix(k.Kind, "Pods for each of")
}

// goal is a row with all that is known.
func (d *documents) goal(name, scenario, metric string) (string, error) {
	c, ok, err := d.find(scenario, metric)
	if !ok {
		return "", err
	}
	name += " (" + Objects(c.warm.Key, d.file.Compression) + ")"
	return fmt.Sprintf("| %s | %s | %s | %s |\n", name, Cell(c.warm), Cell(c.stock), c.ratio()), nil
}

// table has a row for all that a scenario was measured with, and a column for each metric. What
// begins with a comma is the end of several scenarios, which the rows name.
func (d *documents) table(scenario string, metrics ...string) (string, error) {
	head, rows := "| |", ""
	for _, metric := range metrics {
		if result.Unit(metric) == "" {
			return "", fmt.Errorf("there is no metric %q", metric)
		}
		head += " " + metric + " |"
	}
	var done []result.Key
	for _, c := range d.all {
		k, name := c.warm.Key, ""
		if strings.HasPrefix(scenario, ", ") && strings.Contains(k.Scenario, scenario) {
			name = k.Scenario + ": "
		} else if k.Scenario != scenario {
			continue
		}
		if slices.Contains(done, k) {
			continue
		}
		done = append(done, k)
		rows += "| " + name + Objects(k, d.file.Compression) + " |"
		for _, metric := range metrics {
			i := slices.IndexFunc(d.all, func(c compared) bool { return c.warm.Key == k && c.warm.Metric == metric })
			if i >= 0 {
				rows += fmt.Sprintf(" %s · %s · %s", median(d.all[i].warm), median(d.all[i].stock), d.all[i].ratio())
			}
			rows += " |"
		}
		rows += "\n"
	}
	if rows == "" {
		return "", nil
	}
	return head + "\n|---|" + strings.Repeat("---|", len(metrics)) + "\n" + rows, nil
}

// price is a row with advice, if there is a price.
func (d *documents) price(name, scenario, metric, advice string) (string, error) {
	c, ok, err := d.find(scenario, metric)
	if !ok || !c.worse() {
		return "", err
	}
	return fmt.Sprintf("| %s | %s | %s | %s |\n", name, median(c.warm), median(c.stock), advice), nil
}

// median is a row without the spread, which is in the document.
func (d *documents) median(name, scenario, metric string) (string, error) {
	c, ok, err := d.find(scenario, metric)
	if !ok {
		return "", err
	}
	return fmt.Sprintf("| %s | %s | %s | %s |\n", name, median(c.warm), median(c.stock), c.ratio()), nil
}

func (d *documents) medianIfWorse(name, scenario, metric string) (string, error) {
	c, ok, err := d.find(scenario, metric)
	if !ok || !c.worse() {
		return "", err
	}
	return d.median(name, scenario, metric)
}

// Document is docs/benchmarks.md, which shows the plots.
func Document(f *result.File, plots []Plot) (string, error) {
	return newDocuments(f, plots).execute("document")
}

// ResultName finds the name of the result file that a document was made from.
func ResultName(document string) (name string, ok bool) {
	first, _, _ := strings.Cut(document, "\n")
	_, rest, begins := strings.Cut(first, "Generated by `make bench-docs` from bench/results/")
	name, _, ends := strings.Cut(rest, ".json.")
	return name, begins && ends
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
	section, err := newDocuments(f, nil).execute("readme")
	return head + readmeBegin + section + readmeEnd + tail, err
}

// Figures has every scenario, in the order in which it was measured, and all figures that
// are worse than client-go's.
func Figures(f *result.File) string {
	var b strings.Builder
	all := compare(f)
	var done []result.Key
	scenario := ""
	for _, c := range all {
		k := c.warm.Key
		if slices.Contains(done, k) {
			continue
		}
		done = append(done, k)
		if k.Scenario != scenario {
			scenario = k.Scenario
			fmt.Fprintf(&b, "\n## %s%s\n", strings.ToUpper(scenario[:1]), scenario[1:])
		}
		writeScenario(&b, all, k, f.Compression)
	}
	b.WriteString("\n## Worse than client-go\n\n")
	for _, c := range all {
		if r := c.warm; c.worse() && c.ratio() != "" {
			fmt.Fprintf(&b, "- %s, %s %s: %s, %s (%s)\n", r.Scenario, display.Thousands(r.Objects), r.Kind, r.Metric, median(r), c.ratio())
		}
	}
	return b.String()
}

// writeScenario writes the metrics of a scenario in the order in which they are shown.
func writeScenario(b *strings.Builder, all []compared, k result.Key, compression map[string]float64) {
	runs, rows := 0, ""
	for _, metric := range result.Metrics() {
		for _, c := range all {
			if c.warm.Key == k && c.warm.Metric == metric {
				runs = c.warm.Runs
				rows += fmt.Sprintf("| %s | %s | %s | %s |\n", metric, Cell(c.warm), Cell(c.stock), c.ratio())
			}
		}
	}
	noun := "runs"
	if runs == 1 {
		noun = "run"
	}
	fmt.Fprintf(b, "\n%s; %d %s:\n\n| | warmwatch | client-go | better |\n|---|---:|---:|---:|\n%s", Objects(k, compression), runs, noun, rows)
}

func median(r result.Row) string { return value(r.Unit, r.Median) }

// value knows what has not ended; the median of two may be between.
func value(unit string, v float64) string {
	if unit == "ms" && v >= result.Never/2 {
		return "not in " + display.Value("s", result.Patience.Seconds())
	}
	return display.Value(unit, v)
}

// Ratio is how many times better, which is unknown where one has not ended.
func Ratio(r float64) string {
	const most = 1e8
	switch {
	case r > most:
		return "∞"
	case r < 1/most:
		return "0×"
	}
	return display.Ratio(r)
}

// Objects are those of a figure, and how well they compress.
func Objects(k result.Key, compression map[string]float64) string {
	text := display.Thousands(k.Objects) + " " + k.Kind
	if ratio := compression[k.Kind]; ratio > 0 {
		text += fmt.Sprintf(", gzip 1/%.2g", ratio)
	}
	return text
}

// Cell is a median, with min and max if there were several runs.
func Cell(r result.Row) string {
	if r.Runs == 0 {
		return "-"
	}
	low, high := value(r.Unit, r.Min), value(r.Unit, r.Max)
	if r.Runs < 2 || low == high {
		return median(r)
	}
	return fmt.Sprintf("%s (%s … %s)", median(r), low, high)
}
