// Package warmprom exports [warmwatch.Cache.Metrics] to Prometheus. [NewCollector] returns the collector. The page
// docs/metrics.md lists the metrics, deploy/prometheus has alerts, and deploy/grafana a dashboard.
//
// A scrape reads the present numbers of each Cache. Nothing runs between scrapes. Labels name what a program decides:
// its Caches, resources, namespaces, informers and handlers. No label has a selector, a host, a key or the text of an
// error. So the number of series is bounded: at most 80 for a Cache with one informer, one handler and one reconciler.
package warmprom

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/warmwatch/warmwatch"
)

// NewCollector returns the collector of Caches. Make one for all Caches of a registry: a second one has the same
// metrics, and cannot be registered. Two Caches of one name are an error, because their series would be the same: set
// [warmwatch.Options].Name. A Cache may be closed while the collector is in use.
func NewCollector(caches ...*warmwatch.Cache) (prometheus.Collector, error) {
	names := map[string]bool{}
	for _, c := range caches {
		if c == nil {
			return nil, errors.New("warmprom: new collector: a Cache is nil")
		}
		name := valid(c.Metrics().Name)
		if names[name] {
			return nil, fmt.Errorf("warmprom: new collector: two Caches have the name %q, give each an Options.Name", name)
		}
		names[name] = true
	}
	caches = slices.Clone(caches)
	info, _ := debug.ReadBuildInfo()
	return newCollector(scrape{version: versionIn(info), goVersion: runtime.Version()}, func() []warmwatch.Metrics {
		all := make([]warmwatch.Metrics, len(caches))
		for i, c := range caches {
			all[i] = c.Metrics()
		}
		return all
	}), nil
}

// versionIn returns the version of the library in a program.
func versionIn(info *debug.BuildInfo) string {
	if info == nil {
		return "unknown"
	}
	for _, m := range append([]*debug.Module{&info.Main}, info.Deps...) {
		if m.Path != "github.com/warmwatch/warmwatch" {
			continue
		}
		if m.Replace != nil {
			m = m.Replace
		}
		return cmp.Or(m.Version, "(devel)")
	}
	return "unknown"
}

// A scrape is what the metrics are made of.
type scrape struct {
	version, goVersion string
	caches             []warmwatch.Metrics
}

type collector struct {
	build scrape                     // Without caches.
	read  func() []warmwatch.Metrics // Their names differ.
	descs []*prometheus.Desc         // In the order of the table.

	mu    sync.Mutex                    // Held during a scrape. It guards:
	pairs []map[string][]*dto.LabelPair // The labels of the last scrape, by metric. To make them takes most of its time.
}

func newCollector(build scrape, read func() []warmwatch.Metrics) *collector {
	c := &collector{build: build, read: read, pairs: make([]map[string][]*dto.LabelPair, len(metrics))}
	for _, m := range metrics {
		c.descs = append(c.descs, prometheus.NewDesc(prefix+m.name, m.help, m.labels, nil))
	}
	return c
}

// Describe implements [prometheus.Collector].
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.build
	now.caches = c.read()
	for i, m := range metrics {
		if m.kind.histogram {
			collectCommits(c.descs[i], now.caches, ch)
			continue
		}
		all := m.series(&now)
		pairs := make(map[string][]*dto.LabelPair, len(all))
		for key, s := range all {
			if pairs[key] = c.pairs[i][key]; pairs[key] == nil {
				pairs[key] = prometheus.MakeLabelPairs(c.descs[i], s.labels)
			}
			ch <- constant{c.descs[i], m.kind.of, pairs[key], s.value}
		}
		c.pairs[i] = pairs
	}
}

// A constant is a metric of one scrape.
type constant struct {
	desc  *prometheus.Desc
	of    prometheus.ValueType
	pairs []*dto.LabelPair
	value float64
}

// Desc implements [prometheus.Metric].
func (c constant) Desc() *prometheus.Desc { return c.desc }

// Write implements [prometheus.Metric].
func (c constant) Write(m *dto.Metric) error {
	if m.Label = c.pairs; c.of == prometheus.CounterValue {
		m.Counter = &dto.Counter{Value: &c.value}
	} else {
		m.Gauge = &dto.Gauge{Value: &c.value}
	}
	return nil
}

// series is a value with its labels.
type series struct {
	labels []string
	value  float64
}

// series returns what a scrape has of a metric. Informers that differ only in selectors or form have the same labels,
// and so have plain handlers of one Go type. Their values are combined, because a registry refuses the same labels
// twice.
func (m metric) series(now *scrape) map[string]series {
	all := map[string]series{}
	m.read(now, func(value float64, labels ...string) {
		for i, l := range labels {
			labels[i] = valid(l)
		}
		key := strings.Join(labels, "\xff") // No valid text has this byte.
		if other, is := all[key]; is {
			value = m.kind.combine(other.value, value)
		}
		all[key] = series{labels, value}
	})
	return all
}

// valid makes a text a valid label: a registry refuses what is not UTF-8.
func valid(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }

// collectCommits collects the histogram of the commits.
func collectCommits(desc *prometheus.Desc, caches []warmwatch.Metrics, ch chan<- prometheus.Metric) {
	for _, c := range caches {
		var attempts uint64
		buckets := map[float64]uint64{}
		for n, more := range c.File.CommitDurations {
			attempts += uint64(more)
			if n < len(c.File.CommitDurations)-1 { // The last one has no bound.
				buckets[0.001*float64(int(1)<<n)] = attempts
			}
		}
		ch <- prometheus.MustNewConstHistogram(desc, attempts, c.File.CommitTime.Seconds(), buckets, valid(c.Name))
	}
}
