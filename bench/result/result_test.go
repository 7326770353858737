package result_test

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch/bench/result"
	"github.com/warmwatch/warmwatch/test/e2e/agent"
)

func TestQuantile(t *testing.T) {
	for _, tc := range []struct {
		name   string
		values []float64
		q      float64
		want   float64
	}{
		{"of one value", []float64{7}, 0.99, 7},
		{"median of an odd number", []float64{3, 1, 2}, 0.5, 2},
		{"median of an even number", []float64{4, 1, 2, 3}, 0.5, 2.5},
		{"the greatest", []float64{5, 9, 1}, 1, 9},
		{"the least", []float64{5, 9, 1}, 0, 1},
		{"between two", []float64{0, 100}, 0.99, 99},
	} {
		if got := result.Quantile(tc.values, tc.q); math.Abs(got-tc.want) > 1e-9 {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

func TestRatioSaysHowManyTimesBetter(t *testing.T) {
	for _, tc := range []struct {
		name            string
		unit            string
		warmwatch, them float64
		want            float64
		ok              bool
	}{
		{"half the time", "ms", 50, 100, 2, true},
		{"half the rate", "1/s", 50, 100, 0.5, true},
		{"something against nothing", "B", 10, 0, 0, false},
		{"nothing against something", "B", 0, 10, 0, false},
	} {
		c := result.Comparison{Warmwatch: result.Row{Unit: tc.unit, Median: tc.warmwatch}, ClientGo: result.Row{Unit: tc.unit, Median: tc.them}}
		if got, ok := c.Ratio(); got != tc.want || ok != tc.ok {
			t.Errorf("%s: %v %t, want %v %t", tc.name, got, ok, tc.want, tc.ok)
		}
	}
}

func samples() *result.Samples {
	s := &result.Samples{}
	for _, run := range []struct{ stock, warm float64 }{{100, 10}, {300, 10}, {200, 40}} {
		s.Add("warm start", "Pods", 1000, agent.ClientGo, map[string]float64{result.HasSynced: run.stock, result.FileSize: 0, "unknown": 1})
		s.Add("warm start", "Pods", 1000, agent.Warmwatch, map[string]float64{result.HasSynced: run.warm, result.FileSize: 5})
	}
	return s
}

func TestSamplesAreSummarisedAndCompared(t *testing.T) {
	got := result.Compare(samples().Rows())
	if len(got) != 2 {
		t.Fatalf("%d metrics, want 2: %+v", len(got), got)
	}
	row := result.Row{
		Key: result.Key{Scenario: "warm start", Kind: "Pods", Objects: 1000}, Impl: agent.Warmwatch, Metric: result.HasSynced, Unit: "ms",
		Median: 10, Min: 10, Max: 40, Runs: 3,
	}
	if diff := cmp.Diff(row, got[0].Warmwatch); diff != "" {
		t.Errorf("row (-want +got):\n%s", diff)
	}
	if got[0].ClientGo.Median != 200 || got[1].ClientGo.Unit != "B" {
		t.Errorf("compared with %+v and %+v", got[0].ClientGo, got[1].ClientGo)
	}
}

func file() *result.File {
	return &result.File{
		Name: "x", Commit: "abc", Command: "make bench", Date: "2026-01-01T00:00:00Z",
		Machine: map[string]string{"cpus": "2"}, Versions: map[string]string{"go": "go1.26"},
		Skipped: []string{"something"}, Rows: samples().Rows(),
	}
}

func TestFileIsReadAsWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "x.json")
	want := file()
	if err := want.Write(path); err != nil {
		t.Fatal(err)
	}
	got, err := result.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-written +read):\n%s", diff)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(string(content), `"scenario"`); lines != 4 || strings.Count(string(content), "\n") > 30 {
		t.Errorf("not one line for each of 4 rows:\n%s", content)
	}
}

func TestFilesThatAreNoResultsAreRefused(t *testing.T) {
	for name, content := range map[string]string{
		"not JSON":         `{`,
		"no rows":          `{"name": "x"}`,
		"unknown metric":   `{"name": "x", "rows": [{"scenario": "a", "impl": "warmwatch", "metric": "magic", "unit": "ms"}]}`,
		"unknown impl":     `{"name": "x", "rows": [{"scenario": "a", "impl": "other", "metric": "CPU time", "unit": "s"}]}`,
		"another unit now": `{"name": "x", "rows": [{"scenario": "a", "impl": "warmwatch", "metric": "CPU time", "unit": "ms"}]}`,
	} {
		path := filepath.Join(t.TempDir(), "x.json")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if f, err := result.Read(path); err == nil {
			t.Errorf("%s: read as %+v", name, f)
		}
	}
}
