package warmprom_test

import (
	"context"
	"log"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/warmwatch/warmwatch"
	warmprom "github.com/warmwatch/warmwatch/prometheus"
)

func ExampleNewCollector() {
	c, err := warmwatch.Open(context.Background(), "/var/lib/agent/cache.db", warmwatch.Options{Name: "agent"})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	collector, err := warmprom.NewCollector(c) // All Caches of the program.
	if err != nil {
		log.Print(err)
		return
	}
	registry := prometheus.NewRegistry() // With controller-runtime: metrics.Registry.
	registry.MustRegister(collector)
	http.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
}
