package result

import (
	"math"
	"slices"
)

// Key is what a figure is of.
type Key struct {
	Scenario string
	Kind     string
	Objects  int
	Metric   string
}

// Samples collects the figures of all runs. The n-th value of one implementation
// and the n-th of the other are a pair: measured one after the other.
type Samples struct {
	keys   []Key // In the order of their first value.
	values map[Key]map[string][]float64
}

// Add adds what one run found, by metric.
func (s *Samples) Add(scenario, kind string, objects int, impl string, figures map[string]float64) {
	if s.values == nil {
		s.values = map[Key]map[string][]float64{}
	}
	for _, metric := range Metrics() { // Not in the order of a map.
		value, ok := figures[metric]
		if !ok || math.IsNaN(value) || math.IsInf(value, 0) {
			continue
		}
		k := Key{scenario, kind, objects, metric}
		if s.values[k] == nil {
			s.keys = append(s.keys, k)
			s.values[k] = map[string][]float64{}
		}
		s.values[k][impl] = append(s.values[k][impl], value)
	}
}

// Rows summarises all values.
func (s *Samples) Rows() []Row {
	rows := []Row{}
	for _, k := range s.keys {
		for _, impl := range Impls {
			values := s.values[k][impl]
			if len(values) == 0 {
				continue
			}
			rows = append(rows, Row{
				Scenario: k.Scenario, Kind: k.Kind, Objects: k.Objects, Impl: impl, Metric: k.Metric, Unit: Unit(k.Metric),
				Median: Median(values), Min: slices.Min(values), Max: slices.Max(values), Runs: len(values),
			})
		}
	}
	return rows
}

// Comparison is one metric of both implementations.
type Comparison struct {
	Key
	Warmwatch, ClientGo Row
	Ratios              []float64 // Pair by pair: client-go's value by warmwatch's; the other way round if more is better.
}

// Compare returns those keys of a scenario that both implementations have.
func (s *Samples) Compare(scenario, kind string, objects int) []Comparison {
	rows := s.Rows()
	var all []Comparison
	for _, k := range s.keys {
		if k.Scenario != scenario || k.Kind != kind || k.Objects != objects {
			continue
		}
		c := Comparison{Key: k}
		for _, r := range rows {
			if (Key{r.Scenario, r.Kind, r.Objects, r.Metric}) == k {
				if r.Impl == Warmwatch {
					c.Warmwatch = r
				} else {
					c.ClientGo = r
				}
			}
		}
		warm, stock := s.values[k][Warmwatch], s.values[k][ClientGo]
		for i := range min(len(warm), len(stock)) {
			if ratio, ok := Ratio(k.Metric, warm[i], stock[i]); ok {
				c.Ratios = append(c.Ratios, ratio)
			}
		}
		all = append(all, c)
	}
	return all
}

// Ratio says how many times better than client-go warmwatch is: above 1, better.
// There is none if one of the two is zero.
func Ratio(metric string, warmwatch, clientGo float64) (ratio float64, ok bool) {
	if warmwatch <= 0 || clientGo <= 0 {
		return 0, false
	}
	if MoreIsBetter(metric) {
		return warmwatch / clientGo, true
	}
	return clientGo / warmwatch, true
}

// Median of at least one value.
func Median(values []float64) float64 { return Quantile(values, 0.5) }

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
