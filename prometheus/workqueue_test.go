package warmprom

import (
	"context"
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

// provider counts what is added to workqueues, by their names.
type provider struct{ adds *prometheus.CounterVec }

func (p provider) NewAddsMetric(name string) clientworkqueue.CounterMetric {
	return p.adds.WithLabelValues(name)
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

// TestWorkqueuesHaveTheMetricsOfClientGo under the names of the queue and of the reconciler, as docs/metrics.md says.
func TestWorkqueuesHaveTheMetricsOfClientGo(t *testing.T) {
	adds := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "adds"}, []string{"name"})
	clientworkqueue.SetProvider(provider{adds}) // Of this process: only the first call has an effect.
	c := open(t, "queues")
	queue, err := workqueue.New(c.Workqueues(), "mine", workqueue.Options[string]{})
	if err != nil {
		t.Fatal(err)
	}
	defer queue.Close()
	queue.Add("key")

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
		cancel()
		return warmwatch.ReconcileResult{}, nil
	}, warmwatch.ReconcilerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	informer.RunWithContext(ctx) // Until the object is reconciled.
	for _, name := range []string{"mine", "routes"} {
		if n := testutil.ToFloat64(adds.WithLabelValues(name)); n != 1 {
			t.Errorf("%s: %v were added", name, n)
		}
	}
}
