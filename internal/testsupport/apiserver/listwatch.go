package apiserver

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// IsWatchListSemanticsUnSupported is asked by k8s.io/client-go/util/watchlist.
func (s *Server) IsWatchListSemanticsUnSupported() bool { return true }

// List implements [cache.ListerWatcher].
func (s *Server) List(o metav1.ListOptions) (runtime.Object, error) {
	return s.ListWithContext(context.Background(), o)
}

// Watch implements [cache.ListerWatcher].
func (s *Server) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return s.WatchWithContext(context.Background(), o)
}

// ListWithContext implements [cache.ListerWatcherWithContext].
func (s *Server) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	if o.Continue != "" {
		select {
		case <-time.After(s.options.PageDelay):
		case <-ctx.Done():
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	version, from, err := s.startOfPageLocked(o)
	if err != nil {
		return nil, err
	}
	objects, next := s.objectsAtLocked(version), ""
	var page []runtime.Object
	for _, key := range slices.Sorted(maps.Keys(objects)) {
		if key <= from {
			continue
		}
		if o.Limit > 0 && int64(len(page)) == o.Limit {
			next = fmt.Sprintf("%d %s", version, Key(page[len(page)-1].(Object)))
			break
		}
		page = append(page, objects[key].DeepCopyObject())
	}
	list := s.options.List.DeepCopyObject()
	if err := meta.SetList(list, page); err != nil {
		return nil, err
	}
	m, err := meta.ListAccessor(list)
	if err != nil {
		return nil, err
	}
	m.SetResourceVersion(strconv.Itoa(version))
	m.SetContinue(next)
	return list, nil
}

// startOfPageLocked returns the version of a list, and the last key of the page before.
func (s *Server) startOfPageLocked(o metav1.ListOptions) (version int, from string, err error) {
	version = len(s.events)
	if s.down != nil {
		return 0, "", s.down
	}
	if o.Continue == "" {
		if wanted, _ := strconv.Atoi(o.ResourceVersion); wanted > version { // "" is 0.
			return 0, "", tooLarge()
		}
		return version, "", nil
	}
	if s.failPages > 0 {
		s.failPages--
		return 0, "", apierrors.NewServiceUnavailable("refused")
	}
	if _, err := fmt.Sscanf(o.Continue, "%d %s", &version, &from); err != nil {
		return 0, "", apierrors.NewBadRequest(err.Error())
	}
	if version < s.compacted {
		return 0, "", apierrors.NewResourceExpired("continue token")
	}
	return version, from, nil
}

func tooLarge() error {
	err := apierrors.NewTimeoutError("Too large resource version", 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}
	return err
}

// WatchWithContext implements [cache.ListerWatcherWithContext]. A watch from a version that
// is still to come is silent until then.
func (s *Server) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down != nil {
		return nil, s.down
	}
	version, _ := strconv.Atoi(o.ResourceVersion) // "" is 0.
	w := &watcher{s: s, at: version, events: make(chan watch.Event), stop: make(chan struct{}), wake: make(chan struct{}, 1)}
	if version < s.compacted {
		return nil, apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", version, s.compacted))
	}
	s.watches[w] = struct{}{}
	go w.run(ctx)
	return w, nil
}

func (s *Server) bookmark(version int) Object {
	obj := s.options.Example.DeepCopyObject().(Object)
	obj.SetResourceVersion(strconv.Itoa(version))
	return obj
}

type watcher struct {
	s         *Server
	at        int // Version of the last event that was sent.
	bookmarks int // So many are to be sent.
	events    chan watch.Event
	wake      chan struct{}
	stop      chan struct{}
	once      sync.Once
}

// ResultChan implements [watch.Interface].
func (w *watcher) ResultChan() <-chan watch.Event { return w.events }

// Stop implements [watch.Interface].
func (w *watcher) Stop() { w.once.Do(func() { close(w.stop) }) }

func (w *watcher) kick() {
	select {
	case w.wake <- struct{}{}:
	default: // It will look already.
	}
}

func (w *watcher) run(ctx context.Context) {
	defer close(w.events)
	defer func() {
		w.s.mu.Lock()
		defer w.s.mu.Unlock()
		delete(w.s.watches, w)
	}()
	for {
		e, due := w.next()
		send, wake := w.events, w.wake
		if due {
			wake = nil
		} else {
			send = nil
		}
		select {
		case send <- e:
		case <-wake:
		case <-w.stop:
			return
		case <-ctx.Done():
			return
		}
	}
}

// next returns the event that is due.
func (w *watcher) next() (e watch.Event, due bool) {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	switch {
	case w.at < len(w.s.events):
		e := w.s.events[w.at]
		w.at++
		return watch.Event{Type: e.Type, Object: e.Object.DeepCopyObject()}, true
	case w.bookmarks > 0 && w.at > 0:
		w.bookmarks--
		return watch.Event{Type: watch.Bookmark, Object: w.s.bookmark(w.at)}, true
	}
	return watch.Event{}, false
}
