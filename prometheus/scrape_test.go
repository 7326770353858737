package warmprom

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/warmwatch/warmwatch/internal/testsupport/process"
)

// BenchmarkScrape gathers the metrics of 10 informers with 50,000 objects and 20 handlers.
func BenchmarkScrape(b *testing.B) {
	c := process.Busy(b)
	collector, err := NewCollector(c)
	if err != nil {
		b.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector)
	b.Run("of=Metrics", func(b *testing.B) {
		for b.Loop() {
			c.Metrics()
		}
	})
	b.Run("of=Collect", func(b *testing.B) {
		ch := make(chan prometheus.Metric, 10_000)
		for b.Loop() {
			collector.Collect(ch)
			for len(ch) > 0 {
				<-ch
			}
		}
	})
	b.Run("of=Gather", func(b *testing.B) {
		for b.Loop() {
			if _, err := registry.Gather(); err != nil {
				b.Fatal(err)
			}
		}
	})
}
