package source

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// TooLarge is the error of a list at a version that the server has not reached.
func TooLarge(rv, current int64) error {
	err := apierrors.NewTimeoutError(fmt.Sprintf("Too large resource version: %d, current: %d", rv, current), 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}}
	return err
}

// ListWithContext implements cache.ListerWatcherWithContext.
func (f *Source) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	f.mu.Lock()
	request := "LIST"
	if o.ResourceVersion != "" {
		request += " rv=" + o.ResourceVersion
	}
	if o.Limit != 0 {
		request += fmt.Sprintf(" limit=%d", o.Limit)
	}
	if o.Continue != "" {
		request += " continue"
	}
	if o.FieldSelector != "" {
		f.asked = append(f.asked, o.FieldSelector)
	} else {
		f.requests = append(f.requests, request)
	}
	onList, down, hold := f.OnList, f.down, f.Hold
	f.mu.Unlock()
	if hold != nil {
		<-hold
	}
	if down != nil {
		return nil, down
	}
	if onList != nil {
		if list, err := onList(ctx, o); list != nil || err != nil {
			return list, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ListLocked(o)
}

// ListLocked answers a list. The caller holds the lock, as in With.
func (f *Source) ListLocked(o metav1.ListOptions) (runtime.Object, error) {
	if wanted, _ := strconv.ParseInt(o.ResourceVersion, 10, 64); wanted > f.RV {
		return nil, TooLarge(wanted, f.RV)
	}
	selector, err := fields.ParseSelector(o.FieldSelector)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	var items []runtime.Object
	rv := f.rvLocked()
	if o.Continue != "" {
		items = f.Pages[o.Continue]
		rv = o.Continue[:slices.Index([]byte(o.Continue), ' ')]
	} else {
		for _, key := range slices.Sorted(maps.Keys(f.Objects)) {
			m := Meta(f.Objects[key])
			if selector.Matches(fields.Set{"metadata.name": m.GetName(), "metadata.namespace": m.GetNamespace()}) {
				items = append(items, f.Objects[key].DeepCopyObject())
			}
		}
	}
	list := &corev1.List{ListMeta: metav1.ListMeta{ResourceVersion: rv}}
	if rest := int64(len(items)) - o.Limit; o.Limit > 0 && rest > 0 {
		list.Continue = fmt.Sprintf("%s %d", rv, len(f.Pages))
		list.RemainingItemCount = new(rest)
		f.Pages[list.Continue] = items[o.Limit:]
		items = items[:o.Limit]
	}
	return list, meta.SetList(list, items)
}

// WatchWithContext implements cache.ListerWatcherWithContext.
func (f *Source) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	f.mu.Lock()
	f.requests = append(f.requests, "WATCH rv="+o.ResourceVersion)
	onWatch, down, hold := f.OnWatch, f.down, f.Hold
	f.mu.Unlock()
	if hold != nil {
		<-hold
	}
	if down != nil {
		return nil, down
	}
	if onWatch != nil {
		if w, err := onWatch(ctx, o); w != nil || err != nil {
			return w, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	from, _ := strconv.ParseInt(o.ResourceVersion, 10, 64)
	s := newStream(f, from)
	switch {
	case from == 0:
		s.from = f.RV
		for _, key := range slices.Sorted(maps.Keys(f.Objects)) {
			s.pushLocked(watch.Event{Type: watch.Added, Object: f.Objects[key]})
		}
	case from < f.compacted:
		s.pushLocked(gone(fmt.Sprintf("too old resource version: %d (%d)", from, f.compacted)))
	default:
		for _, e := range f.History {
			if VersionNumber(e.Object) > from {
				s.pushLocked(e)
			}
		}
	}
	return s, nil
}

func gone(message string) watch.Event {
	return watch.Event{Type: watch.Error, Object: new(apierrors.NewResourceExpired(message).Status())}
}

// stream is a watch of a source.
type stream struct {
	f    *Source
	from int64
	ch   chan watch.Event
	wake chan struct{} // Capacity 1.
	stop chan struct{}
	once sync.Once

	queue []watch.Event // Guarded by f.mu, as is ended.
	ended bool
}

func newStream(f *Source, from int64) *stream {
	s := &stream{f: f, from: from, ch: make(chan watch.Event), wake: make(chan struct{}, 1), stop: make(chan struct{})}
	f.streams[s] = struct{}{}
	latency := f.latency
	go func() {
		time.Sleep(latency)
		s.run()
	}()
	return s
}

func (s *stream) pushLocked(e watch.Event) {
	e.Object = e.Object.DeepCopyObject()
	s.queue = append(s.queue, e)
	s.wakeUp()
}

func (s *stream) endLocked() {
	s.ended = true
	delete(s.f.streams, s)
	s.wakeUp()
}

func (s *stream) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *stream) run() {
	defer close(s.ch)
	for {
		s.f.mu.Lock()
		queue, ended := s.queue, s.ended
		s.queue = nil
		s.f.mu.Unlock()
		for _, e := range queue {
			select {
			case s.ch <- e:
			case <-s.stop:
				return
			}
		}
		switch {
		case len(queue) > 0:
			continue
		case ended:
			return
		}
		select {
		case <-s.wake:
		case <-s.stop:
			return
		}
	}
}

// ResultChan implements watch.Interface.
func (s *stream) ResultChan() <-chan watch.Event { return s.ch }

// Stop implements watch.Interface.
func (s *stream) Stop() {
	s.once.Do(func() {
		close(s.stop)
		s.f.mu.Lock()
		defer s.f.mu.Unlock()
		s.endLocked()
	})
}
