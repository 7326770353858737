package check

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
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

// names are so many that objects and index entries have pages of their own.
const names = 80

// Server is a ListerWatcher whose history is the same for the same seed, in each
// process. It is never forgotten, but may be said to be. The waits within it are
// for a synctest bubble.
type Server struct {
	streams bool // Lists can be streamed.

	mu        sync.Mutex
	rng       *rand.Rand
	events    []event // events[i] has resourceVersion i+1.
	now       map[string]*corev1.ConfigMap
	compacted int // Watches from before this version get 410.
	failPages int // So many continuations of lists are refused.
	down      bool
	watches   map[*watcher]struct{}
}

type event struct {
	typ watch.EventType
	obj *corev1.ConfigMap
}

var _ cache.ListerWatcherWithContext = (*Server)(nil)

// NewServer returns one at a version of the history of a seed. Half of the seeds
// have servers that stream lists.
func NewServer(seed uint64, version int) *Server {
	s := &Server{rng: rand.New(rand.NewPCG(seed, 7)), now: map[string]*corev1.ConfigMap{}, watches: map[*watcher]struct{}{}}
	s.streams = s.rng.IntN(2) == 0
	for range version {
		s.changeLocked()
	}
	return s
}

// IsWatchListSemanticsUnSupported is asked by k8s.io/client-go/util/watchlist.
func (s *Server) IsWatchListSemanticsUnSupported() bool { return !s.streams }

// Advance makes changes.
func (s *Server) Advance(changes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range changes {
		s.changeLocked()
	}
	for w := range s.watches {
		w.kick()
	}
}

func (s *Server) changeLocked() {
	rv := len(s.events) + 1
	name := fmt.Sprintf("o%02d", s.rng.IntN(names))
	old := s.now["ns/"+name]
	obj := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, ResourceVersion: strconv.Itoa(rv), UID: types.UID(fmt.Sprint("uid-", rv))},
		Data: map[string]string{
			"rv":    strconv.Itoa(rv),
			"color": strings.Repeat(strconv.Itoa(s.rng.IntN(9)), 64),
			"pad":   strings.Repeat("x", s.rng.IntN(600)),
		},
	}
	e := event{watch.Added, obj}
	if old != nil {
		obj.UID, e.typ = old.UID, watch.Modified
		if s.rng.IntN(4) == 0 {
			obj.Data, e.typ = old.Data, watch.Deleted
		}
	}
	if e.typ == watch.Deleted {
		delete(s.now, "ns/"+name)
	} else {
		s.now["ns/"+name] = obj
	}
	s.events = append(s.events, e)
}

// Version is that of the last change.
func (s *Server) Version() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.events)
}

// At is what exists at a version, by key.
func (s *Server) At(version int) map[string]*corev1.ConfigMap {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.atLocked(version)
}

func (s *Server) atLocked(version int) map[string]*corev1.ConfigMap {
	if version == len(s.events) {
		return maps.Clone(s.now)
	}
	state := map[string]*corev1.ConfigMap{}
	for _, e := range s.events[:version] {
		if e.typ == watch.Deleted {
			delete(state, Key(e.obj))
		} else {
			state[Key(e.obj)] = e.obj
		}
	}
	return state
}

// Object is what the change of this version made of its object.
func (s *Server) Object(version int) *corev1.ConfigMap {
	s.mu.Lock()
	defer s.mu.Unlock()
	if version < 1 || version > len(s.events) {
		return nil
	}
	return s.events[version-1].obj
}

// Key is the key of an object.
func Key(obj metav1.Object) string { return obj.GetNamespace() + "/" + obj.GetName() }

// Compact forgets the history, as far as clients can tell.
func (s *Server) Compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.compacted = len(s.events)
}

// Disconnect ends all watches.
func (s *Server) Disconnect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watches {
		w.Stop()
	}
}

// SetDown makes every request fail, or ends that.
func (s *Server) SetDown(down bool) {
	s.mu.Lock()
	s.down = down
	s.mu.Unlock()
	if down {
		s.Disconnect()
	}
}

// FailPages refuses so many continuations of lists.
func (s *Server) FailPages(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failPages = n
}

// Bookmark sends one to all watches.
func (s *Server) Bookmark() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watches {
		w.bookmarks++
		w.kick()
	}
}

// List implements [cache.ListerWatcher].
func (s *Server) List(o metav1.ListOptions) (runtime.Object, error) {
	return s.ListWithContext(context.Background(), o)
}

// Watch implements [cache.ListerWatcher].
func (s *Server) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return s.WatchWithContext(context.Background(), o)
}

var errDown = errors.New("dial tcp: connect: no route to host")

// ListWithContext implements [cache.ListerWatcherWithContext].
func (s *Server) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	if o.Continue != "" {
		select { // A commit may come in between.
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return nil, errDown
	}
	version, from := len(s.events), ""
	if o.Continue != "" {
		if s.failPages > 0 {
			s.failPages--
			return nil, apierrors.NewServiceUnavailable("refused")
		}
		if _, err := fmt.Sscanf(o.Continue, "%d %s", &version, &from); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		if version < s.compacted {
			return nil, apierrors.NewResourceExpired("continue token")
		}
	} else if wanted, _ := strconv.Atoi(o.ResourceVersion); wanted > version {
		return nil, tooLarge()
	}
	list := &corev1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(version)}}
	state := s.atLocked(version)
	for _, key := range slices.Sorted(maps.Keys(state)) {
		if key <= from {
			continue
		}
		if o.Limit > 0 && int64(len(list.Items)) == o.Limit {
			list.Continue = fmt.Sprintf("%d %s", version, Key(&list.Items[len(list.Items)-1]))
			break
		}
		list.Items = append(list.Items, *state[key].DeepCopy())
	}
	return list, nil
}

func tooLarge() error {
	err := apierrors.NewTimeoutError("Too large resource version", 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}
	return err
}

// WatchWithContext implements [cache.ListerWatcherWithContext].
func (s *Server) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return nil, errDown
	}
	w := &watcher{s: s, events: make(chan watch.Event), stop: make(chan struct{}), wake: make(chan struct{}, 1)}
	version, _ := strconv.Atoi(o.ResourceVersion)
	if o.SendInitialEvents != nil && *o.SendInitialEvents {
		if version > len(s.events) {
			return nil, tooLarge()
		}
		w.at = len(s.events)
		for _, key := range slices.Sorted(maps.Keys(s.now)) {
			w.initial = append(w.initial, watch.Event{Type: watch.Added, Object: s.now[key].DeepCopy()})
		}
		w.initial = append(w.initial, watch.Event{Type: watch.Bookmark, Object: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			ResourceVersion: strconv.Itoa(w.at), Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}}})
	} else {
		if version < s.compacted {
			return nil, apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", version, s.compacted))
		}
		w.at = version
	}
	s.watches[w] = struct{}{}
	go w.run(ctx)
	return w, nil
}

type watcher struct {
	s         *Server
	at        int
	bookmarks int
	initial   []watch.Event
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
	default:
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
		e, pace, ok := w.next()
		var wake <-chan struct{}
		var send chan<- watch.Event
		if ok {
			send = w.events
		} else {
			wake = w.wake
		}
		if pace { // As between pages.
			select {
			case <-time.After(5 * time.Millisecond):
			case <-w.stop:
				return
			case <-ctx.Done():
				return
			}
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

func (w *watcher) next() (e watch.Event, pace, ok bool) {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	switch {
	case len(w.initial) > 0:
		e = w.initial[0]
		w.initial = w.initial[1:]
		return e, true, true
	case w.at < len(w.s.events):
		e := w.s.events[w.at]
		w.at++
		return watch.Event{Type: e.typ, Object: e.obj.DeepCopy()}, false, true
	case w.bookmarks > 0 && w.at > 0:
		w.bookmarks--
		return watch.Event{Type: watch.Bookmark, Object: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ResourceVersion: strconv.Itoa(w.at)}}}, false, true
	}
	return watch.Event{}, false, false
}
