package contract_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
)

// perObject is an aggregated server: each object has versions of its own, and a list takes listTakes.
type perObject struct {
	listTakes time.Duration
	mu        sync.Mutex
	a         int
	lists     int // Of all objects.
	watches   int
	open      []*watch.FakeWatcher
}

func (s *perObject) IsWatchListSemanticsUnSupported() bool { return true }

func (s *perObject) object(name string, rv int) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name), ResourceVersion: fmt.Sprint(rv)}}
}

func (s *perObject) List(o metav1.ListOptions) (runtime.Object, error) {
	return s.ListWithContext(context.Background(), o)
}

func (s *perObject) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return s.WatchWithContext(context.Background(), o)
}

func (s *perObject) ListWithContext(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
	s.mu.Lock()
	list := &corev1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: "100"}}
	list.Items = append(list.Items, *s.object("a", s.a))
	if o.Limit != 1 {
		s.lists++
		list.Items = append(list.Items, *s.object("z", 500))
	}
	s.mu.Unlock()
	if o.Limit != 1 {
		time.Sleep(s.listTakes)
	}
	return list, nil
}

func (s *perObject) WatchWithContext(context.Context, metav1.ListOptions) (watch.Interface, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := watch.NewFakeWithChanSize(100000, false)
	w.Add(s.object("a", s.a)) // It re-sends what there is.
	w.Add(s.object("z", 500))
	s.watches++
	s.open = append(s.open, w)
	return w, nil
}

func (s *perObject) change() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.a < 99 {
		s.a++
		for _, w := range s.open {
			if !w.IsStopped() {
				w.Modify(s.object("a", s.a))
			}
		}
	}
}

// TestVersionsOfEachObjectAndASlowList: an answer to whether the server is where the list was proves nothing
// where versions have no order, also not after a list that took more than a second. client-go lists once.
func TestVersionsOfEachObjectAndASlowList(t *testing.T) {
	for _, takes := range []time.Duration{900 * time.Millisecond, 1100 * time.Millisecond} {
		t.Run(fmt.Sprint(takes), func(t *testing.T) {
			contract(t, func(t *testing.T, impl implementation) {
				s := &perObject{listTakes: takes}
				informer := impl.new(t, s)
				bubble.Start(t, informer)
				for range 90 {
					time.Sleep(time.Second)
					s.change()
				}
				s.mu.Lock()
				defer s.mu.Unlock()
				watches := 1
				if impl.name == oursFromMemory.name { // It has looked at the request, which cannot be seen.
					watches++
				}
				if s.lists != 1 || s.watches != watches || !informer.HasSynced() {
					t.Errorf("%d lists and %d watches in 90 s, synced: %v", s.lists, s.watches, informer.HasSynced())
				}
			})
		})
	}
}
