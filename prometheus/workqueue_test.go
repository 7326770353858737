package warmprom

import (
	"context"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	clientworkqueue "k8s.io/client-go/util/workqueue"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/workqueue"
)

// adds counts what is added to workqueues, by their names, once the provider is set: a process can set one only.
var adds = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "adds"}, []string{"name"})

type provider struct{}

func (provider) NewAddsMetric(name string) clientworkqueue.CounterMetric {
	return adds.WithLabelValues(name)
}

func unused() prometheus.Gauge { return prometheus.NewGauge(prometheus.GaugeOpts{}) }

func (provider) NewDepthMetric(string) clientworkqueue.GaugeMetric { return unused() }
func (provider) NewUnfinishedWorkSecondsMetric(string) clientworkqueue.SettableGaugeMetric {
	return unused()
}
func (provider) NewLongestRunningProcessorSecondsMetric(string) clientworkqueue.SettableGaugeMetric {
	return unused()
}
func (provider) NewRetriesMetric(string) clientworkqueue.CounterMetric { return unused() }
func (provider) NewLatencyMetric(string) clientworkqueue.HistogramMetric {
	return prometheus.NewHistogram(prometheus.HistogramOpts{})
}
func (provider) NewWorkDurationMetric(string) clientworkqueue.HistogramMetric {
	return prometheus.NewHistogram(prometheus.HistogramOpts{})
}

// noWatchList says that the ListWatch below does not stream lists.
type noWatchList struct{}

func (noWatchList) IsWatchListSemanticsUnSupported() bool { return true }

// runUntilReconciled runs an informer of one object, until its reconciler has called f.
func runUntilReconciled(t *testing.T, c *warmwatch.Cache, f func()) {
	t.Helper()
	lw := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
			return &corev1.ConfigMapList{
				ListMeta: metav1.ListMeta{ResourceVersion: "2"},
				Items:    []corev1.ConfigMap{{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: "u", ResourceVersion: "1"}}},
			}, nil
		},
		WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return watch.NewFake(), nil },
	}, noWatchList{})
	informer, err := c.NewSharedIndexInformer(lw, &corev1.ConfigMap{}, warmwatch.InformerOptions{Resource: corev1.SchemeGroupVersion.WithResource("configmaps")})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err = informer.AddReconciler("routes", func(context.Context, warmwatch.ReconcileRequest) (warmwatch.ReconcileResult, error) {
		f()
		cancel()
		return warmwatch.ReconcileResult{}, nil
	}, warmwatch.ReconcilerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	informer.RunWithContext(ctx)
}

// TestAScrapeOfACacheThatRuns, by a reconciler: a scrape waits for nothing that its caller holds.
func TestAScrapeOfACacheThatRuns(t *testing.T) {
	c := open(t, "running")
	collector, err := NewCollector(c)
	if err != nil {
		t.Fatal(err)
	}
	var got string
	runUntilReconciled(t, c, func() { got = scraped(t, collector) })
	const labels = `name="",namespace="",`
	for _, want := range []string{
		`warmwatch_persistent{cache="running"} 1`,
		`warmwatch_informer_objects{cache="running",group="",` + labels + `resource="configmaps",version="v1"} 1`,
		`warmwatch_informer_relists_total{cache="running",cause="FirstStart",group="",` + labels + `resource="configmaps",version="v1"} 1`,
		`warmwatch_reconciler_keys{cache="running",group="",handler="routes",` + labels + `resource="configmaps",version="v1"} 1`,
		`warmwatch_reconcile_timestamp_seconds{cache="running",group="",handler="routes",` + labels + `resource="configmaps",version="v1"} `,
	} {
		if !strings.Contains(got, "\n"+want) {
			t.Errorf("no %s in:\n%s", want, got)
		}
	}
}

// TestWorkqueuesHaveTheMetricsOfClientGo under the names of the queue and of the reconciler, as docs/metrics.md says.
func TestWorkqueuesHaveTheMetricsOfClientGo(t *testing.T) {
	clientworkqueue.SetProvider(provider{})
	adds.Reset()
	c := open(t, "queues")
	queue, err := workqueue.New(c.Workqueues(), "mine", workqueue.Options[string]{})
	if err != nil {
		t.Fatal(err)
	}
	defer queue.Close()
	queue.Add("key")

	runUntilReconciled(t, c, func() {})
	for _, name := range []string{"mine", "routes"} {
		if n := testutil.ToFloat64(adds.WithLabelValues(name)); n != 1 {
			t.Errorf("%s: %v were added", name, n)
		}
	}
}
