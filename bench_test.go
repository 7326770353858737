package warmwatch_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
)

// replay is a ListerWatcher that lists pods, and then sends updates of them as
// fast as they are taken. They come decoded: what is measured is the informer.
type replay struct {
	pods    []*corev1.Pod
	updates chan int // How many to send.
}

func (r *replay) IsWatchListSemanticsUnSupported() bool { return true }

func (r *replay) List(metav1.ListOptions) (runtime.Object, error) {
	l := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "1000000"}, Items: make([]corev1.Pod, len(r.pods))}
	for i, p := range r.pods {
		l.Items[i] = *p
	}
	return l, nil
}

func (r *replay) Watch(metav1.ListOptions) (watch.Interface, error) {
	ch := make(chan watch.Event)
	w := watch.NewProxyWatcher(ch)
	go func() {
		rv := 1_000_000
		for {
			select {
			case n := <-r.updates:
				for range n {
					rv++
					p := *r.pods[rv%len(r.pods)]
					p.ResourceVersion = strconv.Itoa(rv)
					select {
					case ch <- watch.Event{Type: watch.Modified, Object: &p}:
					case <-w.StopChan():
						return
					}
				}
			case <-w.StopChan():
				return
			}
		}
	}()
	return w, nil
}

// benchPods are Pods of about 3.4 KB.
func benchPods(n int) []*corev1.Pod {
	pods := make([]*corev1.Pod, n)
	for i := range pods {
		pods[i] = &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "bench", Name: fmt.Sprintf("app-%05d", i), UID: types.UID(fmt.Sprintf("uid-%d", i)), ResourceVersion: strconv.Itoa(i + 1),
				Labels: map[string]string{"app": fmt.Sprint("app-", i%100), "tier": "backend"},
				ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m", Operation: "Update", APIVersion: "v1", FieldsType: "FieldsV1",
					FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{".":{},"f:app":{},"f:tier":{}}},"f:spec":{` + string(make([]byte, 0)) + fmt.Sprintf("%01500d", 0) + `}}`)}},
			},
			Spec: corev1.PodSpec{NodeName: fmt.Sprint("node-", i%50), Containers: []corev1.Container{
				{Name: "main", Image: "example.com/app:v1", Env: []corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "B", Value: "2"}},
					Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("100m"), "memory": resource.MustParse("128Mi")}}},
				{Name: "sidecar", Image: "example.com/sidecar:v1", Ports: []corev1.ContainerPort{{ContainerPort: 8080}}},
			}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1", Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
		}
	}
	return pods
}

// cpuTime is what the process has used: on a shared machine a steadier measure
// than the time that has passed.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

type counter struct {
	adds, updates atomic.Int64
	want          int64
	done          chan struct{}
}

func (c *counter) OnAdd(any, bool) { c.adds.Add(1) }
func (c *counter) OnDelete(any)    {}
func (c *counter) OnUpdate(any, any) {
	if c.updates.Add(1) == c.want {
		close(c.done)
	}
}

// BenchmarkEvents is the time for one update of one of many Pods, until the
// handler has returned.
func BenchmarkEvents(b *testing.B) {
	for _, objects := range []int{1000, 10000} {
		pods := benchPods(objects)
		for _, impl := range []string{"client-go", "warmwatch", "warmwatch-durable"} {
			b.Run(fmt.Sprintf("objects=%dk/impl=%s", objects/1000, impl), func(b *testing.B) {
				benchmarkEvents(b, pods, impl)
			})
		}
	}
}

func benchmarkEvents(b *testing.B, pods []*corev1.Pod, impl string) {
	src := &replay{pods: pods, updates: make(chan int, 1)}
	h := &counter{want: int64(b.N), done: make(chan struct{})}
	var inf cache.SharedIndexInformer
	var reg cache.ResourceEventHandlerRegistration
	var err error
	if impl == "client-go" {
		inf = cache.NewSharedIndexInformer(src, &corev1.Pod{}, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
		reg, err = inf.AddEventHandler(h)
	} else {
		log := logr.Discard()
		c, oerr := warmwatch.Open(filepath.Join(b.TempDir(), "cache.db"), warmwatch.Options{Logger: &log})
		if oerr != nil {
			b.Fatal(oerr)
		}
		defer func() {
			if err := c.Close(); err != nil {
				b.Error(err)
			}
		}()
		var ww *warmwatch.SharedIndexInformer
		ww, err = c.NewSharedIndexInformer(src, &corev1.Pod{}, warmwatch.InformerOptions{
			Resource: corev1.SchemeGroupVersion.WithResource("pods"),
			Indexers: cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc},
		})
		if err != nil {
			b.Fatal(err)
		}
		inf = ww
		if impl == "warmwatch-durable" {
			reg, err = ww.AddDurableEventHandler("bench", h)
		} else {
			reg, err = inf.AddEventHandler(h)
		}
	}
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() { defer close(stopped); inf.RunWithContext(ctx) }()
	cache.WaitFor(ctx, "", reg.HasSyncedChecker())
	b.ResetTimer()
	cpu := cpuTime(b)
	src.updates <- b.N
	<-h.done
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(float64((cpuTime(b)-cpu).Nanoseconds())/float64(b.N), "cpu-ns/op")
	cancel()
	<-stopped
}

// BenchmarkWarmStart is the time from Open until HasSynced, and until a handler
// has received OnAdd for every object.
func BenchmarkWarmStart(b *testing.B) {
	const objects = 20000
	src := &replay{pods: benchPods(objects), updates: make(chan int)}
	path := filepath.Join(b.TempDir(), "cache.db")
	start := func(h cache.ResourceEventHandler) (synced, told time.Duration) {
		begin := time.Now()
		log := logr.Discard()
		c, err := warmwatch.Open(path, warmwatch.Options{Logger: &log})
		if err != nil {
			b.Fatal(err)
		}
		inf, err := c.NewSharedIndexInformer(src, &corev1.Pod{}, warmwatch.InformerOptions{Resource: corev1.SchemeGroupVersion.WithResource("pods")})
		if err != nil {
			b.Fatal(err)
		}
		reg, err := inf.AddEventHandler(h)
		if err != nil {
			b.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		stopped := make(chan struct{})
		go func() { defer close(stopped); inf.RunWithContext(ctx) }()
		cache.WaitFor(ctx, "", inf.HasSyncedChecker())
		synced = time.Since(begin)
		cache.WaitFor(ctx, "", reg.HasSyncedChecker())
		told = time.Since(begin)
		b.StopTimer()
		cancel()
		<-stopped
		if err := c.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		return synced, told
	}
	start(&counter{}) // Fills the file.
	b.ResetTimer()
	cpu := cpuTime(b)
	var synced, told time.Duration
	n := 0
	for b.Loop() {
		s, t := start(&counter{})
		synced, told, n = synced+s, told+t, n+1
	}
	b.ReportMetric(float64((cpuTime(b)-cpu).Nanoseconds())/float64(n)/objects, "cpu-ns/object")
	b.ReportMetric(float64(synced.Microseconds())/float64(n), "synced-µs")
	b.ReportMetric(float64(told.Microseconds())/float64(n), "told-µs")
	b.ReportMetric(float64(told.Nanoseconds())/float64(n)/objects, "told-ns/object")
}
