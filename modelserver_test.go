package warmwatch

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// modelServer is a ListerWatcher over a history that it never forgets, although it may
// answer that it has.
type modelServer struct {
	streams bool // Lists can be streamed.

	mu        sync.Mutex
	rng       *rand.Rand
	events    []modelEvent // events[i] has resourceVersion i+1.
	compacted int          // Watches from before this version get 410.
	failLists int          // So many pages are refused.
	watches   map[*modelWatch]struct{}
}

type modelEvent struct {
	typ watch.EventType
	obj *corev1.ConfigMap
}

var _ cache.ListerWatcherWithContext = (*modelServer)(nil)

func newModelServer(rng *rand.Rand, streams bool) *modelServer {
	return &modelServer{rng: rng, streams: streams, watches: map[*modelWatch]struct{}{}}
}

func (m *modelServer) IsWatchListSemanticsUnSupported() bool { return !m.streams }

// state is what exists at a resourceVersion.
func (m *modelServer) state(rv int) map[string]*corev1.ConfigMap {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stateLocked(rv)
}

func (m *modelServer) stateLocked(rv int) map[string]*corev1.ConfigMap {
	s := map[string]*corev1.ConfigMap{}
	for _, e := range m.events[:rv] {
		key := e.obj.Namespace + "/" + e.obj.Name
		if e.typ == watch.Deleted {
			delete(s, key)
		} else {
			s[key] = e.obj
		}
	}
	return s
}

func (m *modelServer) version() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.events)
}

// change makes one random change.
func (m *modelServer) change() {
	m.mu.Lock()
	defer m.mu.Unlock()
	rv := len(m.events) + 1
	name := fmt.Sprintf("o%d", m.rng.IntN(12))
	now := m.stateLocked(len(m.events))
	old := now["ns/"+name]
	obj := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, ResourceVersion: strconv.Itoa(rv), UID: types.UID(fmt.Sprint("uid-", rv))},
		Data:       map[string]string{"color": fmt.Sprint("c", m.rng.IntN(4)), "rv": strconv.Itoa(rv)},
	}
	e := modelEvent{watch.Added, obj}
	if old != nil {
		obj.UID = old.UID
		e.typ = watch.Modified
		if m.rng.IntN(3) == 0 {
			e.typ = watch.Deleted
			obj.Data = old.Data
		}
	}
	m.events = append(m.events, e)
	for w := range m.watches {
		w.kick()
	}
}

// compact forgets the history, as far as clients can tell.
func (m *modelServer) compact() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.compacted = len(m.events)
}

// disconnect ends all watches.
func (m *modelServer) disconnect() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for w := range m.watches {
		w.Stop()
	}
}

func (m *modelServer) bookmark() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for w := range m.watches {
		w.bookmarks++
		w.kick()
	}
}

func (m *modelServer) List(o metav1.ListOptions) (runtime.Object, error) {
	return m.ListWithContext(context.Background(), o)
}

func (m *modelServer) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return m.WatchWithContext(context.Background(), o)
}

func (m *modelServer) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	if o.Continue != "" {
		select { // Virtual time: a commit may come in between.
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	rv := len(m.events)
	from := ""
	if o.Continue != "" {
		if m.failLists > 0 {
			m.failLists--
			return nil, apierrors.NewServiceUnavailable("injected")
		}
		if _, err := fmt.Sscanf(o.Continue, "%d %s", &rv, &from); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		if rv < m.compacted {
			return nil, apierrors.NewResourceExpired("continue token")
		}
	} else if want, _ := strconv.Atoi(o.ResourceVersion); want > rv {
		return nil, tooLargeError()
	}
	list := &corev1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(rv)}}
	state := m.stateLocked(rv)
	for _, key := range slices.Sorted(maps.Keys(state)) {
		if key <= from {
			continue
		}
		if o.Limit > 0 && int64(len(list.Items)) == o.Limit {
			list.Continue = fmt.Sprintf("%d ns/%s", rv, list.Items[len(list.Items)-1].Name)
			break
		}
		list.Items = append(list.Items, *state[key].DeepCopy())
	}
	return list, nil
}

func tooLargeError() error {
	err := apierrors.NewTimeoutError("Too large resource version", 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}
	return err
}

func (m *modelServer) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := &modelWatch{m: m, events: make(chan watch.Event), stop: make(chan struct{}), wake: make(chan struct{}, 1)}
	rv, _ := strconv.Atoi(o.ResourceVersion)
	if o.SendInitialEvents != nil && *o.SendInitialEvents {
		if rv > len(m.events) {
			return nil, tooLargeError()
		}
		w.at = len(m.events)
		for _, obj := range m.stateLocked(w.at) {
			w.initial = append(w.initial, watch.Event{Type: watch.Added, Object: obj.DeepCopy()})
		}
		w.initial = append(w.initial, watch.Event{Type: watch.Bookmark, Object: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			ResourceVersion: strconv.Itoa(w.at), Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}}})
	} else {
		if rv < m.compacted {
			return nil, apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", rv, m.compacted))
		}
		w.at = rv
	}
	m.watches[w] = struct{}{}
	go w.run(ctx)
	return w, nil
}

type modelWatch struct {
	m         *modelServer
	at        int
	bookmarks int
	initial   []watch.Event
	events    chan watch.Event
	wake      chan struct{}
	pace      time.Duration
	stop      chan struct{}
	once      sync.Once
}

func (w *modelWatch) ResultChan() <-chan watch.Event { return w.events }
func (w *modelWatch) Stop()                          { w.once.Do(func() { close(w.stop) }) }

func (w *modelWatch) kick() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *modelWatch) run(ctx context.Context) {
	defer close(w.events)
	defer func() {
		w.m.mu.Lock()
		defer w.m.mu.Unlock()
		delete(w.m.watches, w)
	}()
	for {
		e, ok := w.next()
		if w.pace > 0 {
			select {
			case <-time.After(w.pace):
			case <-w.stop:
				return
			case <-ctx.Done():
				return
			}
			w.pace = 0
		}
		if !ok {
			select {
			case <-w.wake:
			case <-w.stop:
				return
			case <-ctx.Done():
				return
			}
			continue
		}
		select {
		case w.events <- e:
		case <-w.stop:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (w *modelWatch) next() (watch.Event, bool) {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	switch {
	case len(w.initial) > 0:
		e := w.initial[0]
		w.initial = w.initial[1:]
		w.pace = 100 * time.Millisecond // Virtual time, as between pages.
		return e, true
	case w.at < len(w.m.events):
		e := w.m.events[w.at]
		w.at++
		return watch.Event{Type: e.typ, Object: e.obj.DeepCopy()}, true
	case w.bookmarks > 0 && w.at > 0:
		w.bookmarks--
		return watch.Event{Type: watch.Bookmark, Object: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ResourceVersion: strconv.Itoa(w.at)}}}, true
	}
	return watch.Event{}, false
}
