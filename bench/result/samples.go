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

// Samples collects the figures of all runs. The n-th value of one implementation
// and the n-th of the other are a pair: measured one after the other.
type Samples struct{ all []*sample }

// sample is all values of one figure.
type sample struct {
	Key
	metric string
	values map[string][]float64 // By implementation.
}

// Add adds what one run found, by metric.
func (s *Samples) Add(scenario, kind string, objects int, impl string, figures map[string]float64) {
	for _, metric := range Metrics() { // Not in the order of a map.
		value, ok := figures[metric]
		if !ok || math.IsNaN(value) || math.IsInf(value, 0) {
			continue
		}
		k := Key{scenario, kind, objects}
		i := slices.IndexFunc(s.all, func(m *sample) bool { return m.Key == k && m.metric == metric })
		if i < 0 {
			i = len(s.all)
			s.all = append(s.all, &sample{Key: k, metric: metric, values: map[string][]float64{}})
		}
		s.all[i].values[impl] = append(s.all[i].values[impl], value)
	}
}

// row summarises the values of one implementation; it has no runs if there are none.
func (m *sample) row(impl string) Row {
	r := Row{Key: m.Key, Impl: impl, Metric: m.metric, Unit: Unit(m.metric)}
	if values := m.values[impl]; len(values) > 0 {
		r.Median, r.Min, r.Max, r.Runs = Quantile(values, 0.5), slices.Min(values), slices.Max(values), len(values)
	}
	return r
}

// Rows summarises all values.
func (s *Samples) Rows() []Row {
	rows := []Row{}
	for _, m := range s.all {
		for _, impl := range []string{agent.ClientGo, agent.Warmwatch} {
			if r := m.row(impl); r.Runs > 0 {
				rows = append(rows, r)
			}
		}
	}
	return rows
}

// Comparison is one metric of both implementations.
type Comparison struct {
	Warmwatch, ClientGo Row
	Ratios              []float64 // Pair by pair, as Ratio says.
}

// Compare returns the metrics of a scenario, in the order in which they are shown.
func (s *Samples) Compare(scenario, kind string, objects int) []Comparison {
	var all []Comparison
	for _, m := range s.all {
		if m.Key != (Key{scenario, kind, objects}) {
			continue
		}
		c := Comparison{Warmwatch: m.row(agent.Warmwatch), ClientGo: m.row(agent.ClientGo)}
		warm, stock := m.values[agent.Warmwatch], m.values[agent.ClientGo]
		for i := range min(len(warm), len(stock)) {
			if ratio, ok := Ratio(m.metric, warm[i], stock[i]); ok {
				c.Ratios = append(c.Ratios, ratio)
			}
		}
		all = append(all, c)
	}
	slices.SortStableFunc(all, func(a, b Comparison) int {
		return slices.Index(Metrics(), a.Warmwatch.Metric) - slices.Index(Metrics(), b.Warmwatch.Metric)
	})
	return all
}

// Ratio says how many times better than client-go warmwatch is: above 1, better.
// There is none if one of the two is zero, or both have not ended.
func Ratio(metric string, warmwatch, clientGo float64) (ratio float64, ok bool) {
	if warmwatch <= 0 || clientGo <= 0 || min(warmwatch, clientGo) >= Never {
		return 0, false
	}
	if MoreIsBetter(metric) {
		return warmwatch / clientGo, true
	}
	return clientGo / warmwatch, true
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
