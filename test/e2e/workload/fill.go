package workload

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// parallelism is how many requests are under way at once; with more, a server on
// two cores gets no faster.
const parallelism = 32

// Progress hears, about once a second and at the end, how much is done. It may
// be nil.
type Progress func(done, total int)

// FillPods creates Pods(n) in the namespace. The server drops their status and
// records their managedFields itself. It returns at the first error.
func FillPods(ctx context.Context, cfg *rest.Config, namespace string, n int, progress Progress) error {
	client, err := kubernetes.NewForConfig(unlimited(cfg))
	if err != nil {
		return err
	}
	pods := client.CoreV1().Pods(namespace)
	return Parallel(ctx, n, progress, func(ctx context.Context, i int) error {
		pod := Pod(i)
		pod.ManagedFields = nil
		_, err := pods.Create(ctx, pod, metav1.CreateOptions{})
		return err
	})
}

// Touch makes a difference that the server stores, whatever version it holds.
func Touch(pod *corev1.Pod) {
	pod.ResourceVersion = ""
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations["touched"] = fmt.Sprint(time.Now().UnixNano())
}

// Parallel calls do for 0 to n-1, several at a time, until the first error.
func Parallel(ctx context.Context, n int, progress Progress, do func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next, done atomic.Int64
	stopReport := report(&done, n, progress)
	defer stopReport()
	var workers sync.WaitGroup
	for range min(parallelism, n) {
		workers.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n || ctx.Err() != nil {
					return
				}
				if err := do(ctx, i); err != nil {
					cancel(err) // The first cause stays.
					return
				}
				done.Add(1)
			}
		})
	}
	workers.Wait()
	return context.Cause(ctx)
}

// report calls progress every second, and once more when it is stopped.
func report(done *atomic.Int64, total int, progress Progress) (stop func()) {
	if progress == nil {
		return func() {}
	}
	ended := make(chan struct{})
	var reporter sync.WaitGroup
	reporter.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				progress(int(done.Load()), total)
			case <-ended:
				progress(int(done.Load()), total)
				return
			}
		}
	})
	return func() {
		close(ended)
		reporter.Wait()
	}
}

// unlimited leaves the pace to the server.
func unlimited(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS, cfg.RateLimiter = -1, nil
	cfg.WarningHandler = rest.NoWarnings{} // One for each object would drown the rest.
	return cfg
}
