package warmprom

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const runbook = "https://github.com/warmwatch/warmwatch/blob/main/docs/operations.md#"

func contains(all []string, one string) bool { return slices.Contains(all, one) }

func byName() map[string]metric {
	all := map[string]metric{}
	for _, m := range metrics {
		all[prefix+m.name] = m
	}
	return all
}

// parse returns a page of the repository.
func parse(t *testing.T, elements ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(append([]string{".."}, elements...)...))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var (
	named   = regexp.MustCompile(`\bwarmwatch_[a-z_]+(\{[^{}]*\})?`)
	matcher = regexp.MustCompile(`(\w+)\s*(=~|!~|!=|=)\s*\\?"([^"\\]*)\\?"`)
)

// checkNames fails the test for each metric of a text that is not in the table, and for each label and value in braces
// behind its name.
func checkNames(t *testing.T, where, text string) (found int) {
	t.Helper()
	for _, n := range named.FindAllStringSubmatch(text, -1) {
		found++
		name := strings.TrimSuffix(n[0], n[1])
		m, is := byName()[name]
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if base, cut := strings.CutSuffix(name, suffix); cut && byName()[base].kind.histogram {
				m, is = byName()[base], true
			}
		}
		if !is {
			t.Errorf("%s names %s, which does not exist", where, name)
			continue
		}
		for _, match := range matcher.FindAllStringSubmatch(n[1], -1) {
			label, value := match[1], match[3]
			if !contains(m.labels, label) && (label != "le" || !m.kind.histogram) {
				t.Errorf("%s: %s has no label %s", where, name, label)
			}
			if m.values == nil || label != m.labels[len(m.labels)-1] {
				continue
			}
			for v := range strings.SplitSeq(value, "|") {
				if !contains(m.values, v) && !strings.HasPrefix(v, "$") {
					t.Errorf("%s: %s has no %s %q", where, name, label, v)
				}
			}
		}
	}
	return found
}

// TestEveryNamedMetricExists: what rules, dashboards and pages name is in the table.
func TestEveryNamedMetricExists(t *testing.T) {
	files := []string{
		filepath.Join("..", "README.md"), filepath.Join("..", "deploy", "prometheus", "rules.yaml"),
		filepath.Join("..", "deploy", "prometheus", "rules_test.yaml"), filepath.Join("..", "deploy", "grafana", "warmwatch.json"),
	}
	pages, err := filepath.Glob(filepath.Join("..", "docs", "*.md"))
	if err != nil || len(pages) == 0 {
		t.Fatal(pages, err)
	}
	found := 0
	for _, file := range append(files, pages...) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found += checkNames(t, file, string(text))
	}
	if found < 2*len(metrics) {
		t.Errorf("%d names were found", found)
	}
}

// TestTheMetricsPage: docs/metrics.md is made of the table and of the Example.
func TestTheMetricsPage(t *testing.T) {
	_, example, ok := strings.Cut(parse(t, "prometheus", "example_test.go"), "func ExampleNewCollector() {\n")
	if !ok {
		t.Fatal("there is no Example")
	}
	example = strings.TrimSuffix(strings.ReplaceAll("\n"+example, "\n\t", "\n"), "}\n")
	var rows strings.Builder
	for _, m := range metrics {
		help := m.help
		if m.values != nil {
			help += " `" + m.labels[len(m.labels)-1] + "`: " + strings.Join(m.values, ", ") + "."
		}
		fmt.Fprintf(&rows, "| `%s%s` | %s | %s | %s |\n", prefix, m.name, m.kind.name, strings.Join(m.labels, ", "), help)
	}
	golden(t, filepath.Join("..", "docs", "metrics.md"), fmt.Sprintf(page, strings.TrimSpace(example), rows.String()))
}

const page = `<!-- Generated from the table in prometheus/metrics.go by go -C prometheus test -run=TestTheMetricsPage -update . -->

# Metrics

Package ` + "`warmprom`" + `, in the module ` + "`github.com/warmwatch/warmwatch/prometheus`" + `, exports the numbers of ` + "`Cache.Metrics()`" + `
to Prometheus. Alerts are in [deploy/prometheus/rules.yaml](../deploy/prometheus/rules.yaml), a dashboard for Grafana is
in [deploy/grafana/warmwatch.json](../deploy/grafana/warmwatch.json). [operations.md](operations.md) says what to do.

` + "```go\n%s\n```" + `

- The label ` + "`cache`" + ` is ` + "`Options.Name`" + `, and ` + "`name`" + ` is ` + "`InformerOptions.Name`" + `. ` + "`handler`" + ` is the name of a durable handler or a
  reconciler; for a plain handler it is the Go type.
- Informers that differ only in selectors or form (typed, metadata, unstructured) share their series, and so do plain
  handlers of one Go type. Counts are added; of timestamps the oldest counts; ` + "`warmwatch_informer_live`" + ` is 1 if all are live;
  ` + "`warmwatch_informer_caught_up_seconds`" + ` is the longest.
- Counters count since ` + "`Open`" + `. Times are timestamps: ` + "`time() - …_timestamp_seconds`" + ` is an age. A time that does not
  exist has no series.
- A cause has a series once it has occurred. ` + "`increase`" + ` misses the first occurrence, because there was no series before it.
- A Cache with one informer, one handler and one reconciler has at most 80 series.

| metric | type | labels | what it says |
|---|---|---|---|
%s
## Workqueues

The workqueues of a Cache are client-go's, so client-go's workqueue metrics have them, under the names that the program
gives them. A reconciler's queue has the reconciler's name. controller-runtime exports these metrics, and so does an import
of ` + "`k8s.io/component-base/metrics/prometheus/workqueue`" + `. Set it up before a queue is made. Queues of one name share their
series, for example reconcilers of one name in two informers.
`

type rule struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

// rules returns the alerts of rules.yaml.
func rules(t *testing.T) []rule {
	t.Helper()
	var file struct {
		Groups []struct {
			Name  string
			Rules []rule
		}
	}
	if err := yaml.UnmarshalStrict([]byte(parse(t, "deploy", "prometheus", "rules.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	var all []rule
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

// anchors returns the headings of docs/operations.md, as GitHub links to them.
func anchors(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for _, h := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(parse(t, "docs", "operations.md"), -1) {
		slug := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(h[1]), "")
		all[strings.ReplaceAll(slug, " ", "-")] = true
	}
	return all
}

// TestEachAlertHasARunbook, which exists, and is complete. An anchor that names the reason is one for each reason.
func TestEachAlertHasARunbook(t *testing.T) {
	there := anchors(t)
	for _, r := range rules(t) {
		for _, annotation := range []string{"summary", "description", "runbook_url"} {
			if r.Annotations[annotation] == "" {
				t.Errorf("%s has no %s", r.Alert, annotation)
			}
		}
		if !contains([]string{"critical", "warning", "info"}, r.Labels["severity"]) {
			t.Errorf("%s has the severity %q", r.Alert, r.Labels["severity"])
		}
		anchor, ok := strings.CutPrefix(r.Annotations["runbook_url"], runbook)
		if !ok {
			t.Errorf("%s has the runbook %q", r.Alert, r.Annotations["runbook_url"])
		}
		names := []string{anchor}
		if anchor == "{{ $labels.reason | toLower }}" {
			names = strings.Split(strings.ToLower(regexp.MustCompile(`reason=~"([^"]*)"`).FindStringSubmatch(r.Expr)[1]), "|")
		}
		for _, name := range names {
			if !there[name] {
				t.Errorf("%s: docs/operations.md has no heading #%s", r.Alert, name)
			}
		}
	}
}

// TestEachAlertIsTested by promtool: rules_test.yaml has a moment at which it fires, and one at which it does not.
func TestEachAlertIsTested(t *testing.T) {
	var file struct {
		Tests []struct {
			Tests []struct {
				Alert string            `json:"alertname"`
				Exp   []json.RawMessage `json:"exp_alerts"`
			} `json:"alert_rule_test"`
		}
	}
	if err := yaml.Unmarshal([]byte(parse(t, "deploy", "prometheus", "rules_test.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	fires, silent := map[string]bool{}, map[string]bool{}
	for _, group := range file.Tests {
		for _, test := range group.Tests {
			fires[test.Alert] = fires[test.Alert] || len(test.Exp) > 0
			silent[test.Alert] = silent[test.Alert] || len(test.Exp) == 0
		}
	}
	all := rules(t)
	if len(all) < 12 {
		t.Errorf("%d alerts", len(all))
	}
	for _, r := range all {
		if !fires[r.Alert] || !silent[r.Alert] {
			t.Errorf("%s: tested that it fires: %v, that it does not: %v", r.Alert, fires[r.Alert], silent[r.Alert])
		}
	}
}

type panel struct {
	ID         int
	Type       string
	Title      string
	GridPos    struct{ X, Y, W, H int }
	Datasource *struct{ Type, UID string }
	Targets    []struct{ Expr, RefID string }
}

// TestTheDashboard: each panel has a place of its own, a query of the table's metrics, and the variables of the page.
func TestTheDashboard(t *testing.T) {
	var d struct {
		SchemaVersion int
		UID           string
		Templating    struct{ List []struct{ Name, Type string } }
		Panels        []panel
	}
	if err := json.Unmarshal([]byte(parse(t, "deploy", "grafana", "warmwatch.json")), &d); err != nil {
		t.Fatal(err)
	}
	if d.SchemaVersion < 39 || d.UID == "" {
		t.Errorf("schemaVersion %d, uid %q", d.SchemaVersion, d.UID)
	}
	var variables []string
	for _, v := range d.Templating.List {
		variables = append(variables, v.Name)
	}
	if !slices.Equal(variables, []string{"datasource", "cache", "resource"}) {
		t.Errorf("variables %v", variables)
	}
	ids, taken := map[int]bool{}, map[[2]int]string{}
	for _, p := range d.Panels {
		if ids[p.ID] || p.Title == "" {
			t.Errorf("panel %d %q", p.ID, p.Title)
		}
		ids[p.ID] = true
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				place := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if other, is := taken[place]; is || place[0] >= 24 {
					t.Errorf("%q is at the place of %q", p.Title, other)
				}
				taken[place] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Datasource == nil || p.Datasource.UID != "${datasource}" || len(p.Targets) == 0 {
			t.Errorf("%q has the source %v and %d queries", p.Title, p.Datasource, len(p.Targets))
		}
		for _, target := range p.Targets {
			checkTarget(t, p.Title, target.Expr)
		}
	}
	checkFirstRow(t, d.Panels)
}

// checkTarget: a query names metrics of the table, and each is of the Caches and resources that were chosen.
func checkTarget(t *testing.T, title, expr string) {
	t.Helper()
	if checkNames(t, title, expr) == 0 {
		t.Errorf("%q queries no metric: %s", title, expr)
	}
	for _, n := range named.FindAllStringSubmatch(expr, -1) {
		m := byName()[strings.TrimSuffix(strings.TrimSuffix(n[0], n[1]), "_bucket")]
		for _, label := range []string{"cache", "resource"} {
			if contains(m.labels, label) && !strings.Contains(n[1], label+`=~"$`+label+`"`) {
				t.Errorf("%q: %s is not of $%s", title, n[0], label)
			}
		}
	}
}

// checkFirstRow: it is what the cache saves.
func checkFirstRow(t *testing.T, panels []panel) {
	t.Helper()
	var first strings.Builder
	for _, p := range panels[1:] {
		if p.Type == "row" {
			break
		}
		for _, target := range p.Targets {
			first.WriteString(target.Expr)
		}
	}
	for _, name := range []string{"informer_received_bytes_total", "informer_caught_up_seconds", "informer_relists_total"} {
		if panels[0].Type != "row" || !strings.Contains(first.String(), prefix+name) {
			t.Errorf("the first row lacks %s", name)
		}
	}
}
