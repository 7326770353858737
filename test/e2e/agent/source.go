package agent

import (
	"slices"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/test/e2e/workload"
)

// Source is a ListerWatcher without a server: it lists Pods, and then sends decoded
// updates of them when it is told to. What is measured with it is the informer alone.
type Source struct {
	pods   []corev1.Pod
	orders chan int // For so many updates.

	mu   sync.Mutex
	last uint64 // Version of the last update, or before it of the list.
	sent uint64
}

var _ cache.ListerWatcher = (*Source)(nil)

// NewSource returns a source of Pods as the API server stores them. No Pod is updated
// again before all others were, and neighbours in the order of keys are not updated
// together.
func NewSource(objects int) *Source {
	s := &Source{last: 1_000_000, orders: make(chan int, 1)}
	for i, pod := range workload.Pods(objects) {
		pod.Namespace, pod.UID, pod.ResourceVersion = "default", types.UID("uid-"+strconv.Itoa(i)), strconv.Itoa(i+1)
		s.pods = append(s.pods, *pod)
	}
	return s
}

// Keys of all Pods; none of a source that is not there.
func (s *Source) Keys() []string {
	if s == nil {
		return nil
	}
	keys := make([]string, len(s.pods))
	for i, pod := range s.pods {
		keys[i] = pod.Namespace + "/" + pod.Name
	}
	return keys
}

// send sends n updates, as fast as they are taken. It does not wait for that.
func (s *Source) send(n int) { s.orders <- n }

// IsWatchListSemanticsUnSupported makes client-go's reflector list.
func (s *Source) IsWatchListSemanticsUnSupported() bool { return true }

// List implements cache.Lister.
func (s *Source) List(metav1.ListOptions) (runtime.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.FormatUint(s.last, 10)}, Items: slices.Clone(s.pods)}, nil
}

// Watch implements cache.Watcher. There is one watch at a time.
func (s *Source) Watch(metav1.ListOptions) (watch.Interface, error) {
	events := make(chan watch.Event)
	w := watch.NewProxyWatcher(events)
	go func() {
		for {
			select {
			case n := <-s.orders:
				if !s.obey(n, events, w.StopChan()) {
					return
				}
			case <-w.StopChan():
				return
			}
		}
	}()
	return w, nil
}

// obey reports whether it was not stopped.
func (s *Source) obey(n int, events chan<- watch.Event, stop <-chan struct{}) bool {
	for range n {
		select {
		case events <- watch.Event{Type: watch.Modified, Object: s.next()}:
		case <-stop:
			return false
		}
	}
	return true
}

// next is the next update, of a version that counts on.
func (s *Source) next() *corev1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent++
	pod := s.pods[s.sent*7919%uint64(len(s.pods))]
	s.last++
	pod.ResourceVersion = strconv.FormatUint(s.last, 10)
	return &pod
}
