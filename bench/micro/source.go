package micro

import (
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/test/e2e/workload"
)

// firstVersion is that of the list; each update has the next one.
const firstVersion = 1_000_000

// Source is a ListerWatcher that lists Pods, and then sends updates of them when
// it is told to.
type Source struct {
	pods   []*corev1.Pod
	orders chan order

	mu      sync.Mutex
	version int // Of the last update.
}

var _ cache.ListerWatcher = (*Source)(nil)

// order is for n updates; the i-th is due at begin + i*period.
type order struct {
	n      int
	begin  time.Time
	period time.Duration
}

// NewSource returns a source of Pods as the API server stores them.
func NewSource(objects int) *Source {
	s := &Source{pods: workload.Pods(objects), orders: make(chan order, 1), version: firstVersion}
	for i, pod := range s.pods {
		pod.Namespace, pod.UID, pod.ResourceVersion = "default", types.UID("uid-"+strconv.Itoa(i)), strconv.Itoa(i+1)
	}
	return s
}

// Keys of all Pods.
func (s *Source) Keys() []string {
	keys := make([]string, len(s.pods))
	for i, pod := range s.pods {
		keys[i] = pod.Namespace + "/" + pod.Name
	}
	return keys
}

// Send sends n updates as fast as they are taken. It does not wait for that.
func (s *Source) Send(n int) { s.orders <- order{n: n} }

// SendPaced sends n updates, the first at begin and one each period after it.
func (s *Source) SendPaced(n int, begin time.Time, period time.Duration) {
	s.orders <- order{n: n, begin: begin, period: period}
}

// IsWatchListSemanticsUnSupported makes client-go's reflector list.
func (s *Source) IsWatchListSemanticsUnSupported() bool { return true }

// List implements cache.Lister.
func (s *Source) List(metav1.ListOptions) (runtime.Object, error) {
	s.mu.Lock()
	version := s.version
	s.mu.Unlock()
	list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(version)}, Items: make([]corev1.Pod, len(s.pods))}
	for i, pod := range s.pods {
		list.Items[i] = *pod
	}
	return list, nil
}

// Watch implements cache.Watcher. There is one watch at a time.
func (s *Source) Watch(metav1.ListOptions) (watch.Interface, error) {
	events := make(chan watch.Event)
	w := watch.NewProxyWatcher(events)
	go func() {
		for {
			select {
			case o := <-s.orders:
				if !s.obey(o, events, w.StopChan()) {
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
func (s *Source) obey(o order, events chan<- watch.Event, stop <-chan struct{}) bool {
	for i := range o.n {
		if o.period > 0 {
			time.Sleep(time.Until(o.begin.Add(time.Duration(i) * o.period)))
		}
		select {
		case events <- watch.Event{Type: watch.Modified, Object: s.next()}:
		case <-stop:
			return false
		}
	}
	return true
}

// next is an update of a Pod that many others were updated after. Neighbours in
// the order of keys are not updated together.
func (s *Source) next() *corev1.Pod {
	s.mu.Lock()
	s.version++
	version := s.version
	s.mu.Unlock()
	pod := *s.pods[version*7919%len(s.pods)]
	pod.ResourceVersion = strconv.Itoa(version)
	return &pod
}

// Updates is how many have been sent or are being sent.
func (s *Source) Updates() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.version - firstVersion
}
