package result

import (
	"math"
	"slices"

	"github.com/warmwatch/warmwatch/test/e2e/agent"
)

// Key is what a figure is of.
type Key struct {
	Scenario string `json:"scenario"`
	Kind     string `json:"kind"`
	Objects  int    `json:"objects"`
}

// Samples collects the figures of all runs.
type Samples struct{ all []*sample }

// sample is all values of one figure.
type sample struct {
	Row
	values []float64
}

// Add adds what one run found, by metric.
func (s *Samples) Add(scenario, kind string, objects int, impl string, figures map[string]float64) {
	for _, m := range metrics { // Not in the order of a map.
		value, ok := figures[m.name]
		if !ok || math.IsNaN(value) || math.IsInf(value, 0) {
			continue
		}
		row := Row{Key: Key{scenario, kind, objects}, Impl: impl, Metric: m.name, Unit: m.unit}
		i := slices.IndexFunc(s.all, func(a *sample) bool { return a.Row == row })
		if i < 0 {
			i = len(s.all)
			s.all = append(s.all, &sample{Row: row})
		}
		s.all[i].values = append(s.all[i].values, value)
	}
}

// Rows summarises all values.
func (s *Samples) Rows() []Row {
	rows := []Row{}
	for _, m := range s.all {
		r := m.Row
		r.Median, r.Min, r.Max, r.Runs = Quantile(m.values, 0.5), slices.Min(m.values), slices.Max(m.values), len(m.values)
		rows = append(rows, r)
	}
	return rows
}

// Comparison is one metric of both implementations.
type Comparison struct{ Warmwatch, ClientGo Row }

// Compare returns all pairs of rows, in the order of warmwatch's.
func Compare(rows []Row) (all []Comparison) {
	for _, warm := range rows {
		for _, stock := range rows {
			if warm.Impl == agent.Warmwatch && stock.Impl == agent.ClientGo && stock.Key == warm.Key && stock.Metric == warm.Metric {
				all = append(all, Comparison{warm, stock})
			}
		}
	}
	return all
}

// Ratio says how many times better than client-go warmwatch is: above 1, better.
// There is none if one of the two is zero.
func (c Comparison) Ratio() (ratio float64, ok bool) {
	warm, stock := c.Warmwatch.Median, c.ClientGo.Median
	if warm <= 0 || stock <= 0 {
		return 0, false
	}
	if c.Warmwatch.Unit == "1/s" { // Of rates more is better.
		return warm / stock, true
	}
	return stock / warm, true
}

// Quantile of at least one value; between two values it is interpolated.
func Quantile(values []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	at := q * float64(len(sorted)-1)
	below := int(at)
	if below == len(sorted)-1 {
		return sorted[below]
	}
	return sorted[below] + (at-float64(below))*(sorted[below+1]-sorted[below])
}
