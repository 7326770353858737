package corrupt

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// kind is a form in which objects are stored.
type kind string

const (
	typed        kind = "typed"        // ConfigMaps.
	untyped      kind = "unstructured" // Custom resources.
	namespace         = "ns"
	colors            = 5
	mostNames         = 400
	initialBytes      = 500   // A small object has up to so much.
	largeBytes        = 40000 // A large one does, longer than a page.
)

var kinds = []kind{typed, untyped}

// item is what an object is made from.
type item struct {
	Name, Color string
	Birth       int // The resourceVersion that it was created at: its uid.
	RV          int
	SizeBytes   int
}

func (i item) key() string { return namespace + "/" + i.Name }

// object makes the item's object. No two share memory.
func (k kind) object(i item) runtime.Object {
	uid, rv := types.UID("uid-"+strconv.Itoa(i.Birth)), strconv.Itoa(i.RV)
	filling := strings.Repeat(fmt.Sprintf("%07d ", i.RV), i.SizeBytes/8)
	if k == typed {
		return &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: i.Name, UID: uid, ResourceVersion: rv},
			Data:       map[string]string{"color": i.Color, "filling": filling},
		}
	}
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget",
		"spec": map[string]any{"color": i.Color, "filling": filling, "weight": int64(i.RV)},
	}}
	u.SetNamespace(namespace)
	u.SetName(i.Name)
	u.SetUID(uid)
	u.SetResourceVersion(rv)
	return u
}

func (k kind) example() runtime.Object {
	if k == typed {
		return &corev1.ConfigMap{}
	}
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget"}}
}

// list makes a list without items.
func (k kind) list(rv int, items []item, next string) runtime.Object {
	m := metav1.ListMeta{ResourceVersion: strconv.Itoa(rv), Continue: next}
	if k == typed {
		l := &corev1.ConfigMapList{ListMeta: m}
		for _, i := range items {
			l.Items = append(l.Items, *k.object(i).(*corev1.ConfigMap))
		}
		return l
	}
	l := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "WidgetList"}}
	l.SetResourceVersion(m.ResourceVersion)
	l.SetContinue(m.Continue)
	for _, i := range items {
		l.Items = append(l.Items, *k.object(i).(*unstructured.Unstructured))
	}
	return l
}

// change is one event. The i-th, from 1, has resourceVersion i.
type change struct {
	Type watch.EventType
	Item item
}

// server is a ListerWatcher of one kind, with a history.
type server struct {
	kind    kind
	streams bool // It can stream lists.

	mu        sync.Mutex
	events    []change
	items     map[string]item // What exists, by key.
	compacted int             // Watches from before this version get 410.
	away      bool            // Cannot be reached.
	pages     map[int][]item  // Of the lists that were begun, by version.
	watches   map[*stream]struct{}
}

var _ cache.ListerWatcherWithContext = (*server)(nil)

// newServer begins with a history.
func newServer(k kind, history []change) *server {
	s := &server{
		kind: k, streams: k == typed, items: stateAt(history, len(history)),
		events: slices.Clip(history), pages: map[int][]item{}, watches: map[*stream]struct{}{},
	}
	return s
}

// stateAt is what existed at a version.
func stateAt(history []change, rv int) map[string]item {
	state := map[string]item{}
	for _, c := range history[:rv] {
		c.applyTo(state)
	}
	return state
}

func (c change) applyTo(state map[string]item) {
	if c.Type == watch.Deleted {
		delete(state, c.Item.key())
	} else {
		state[c.Item.key()] = c.Item
	}
}

// state is what exists now.
func (s *server) state() map[string]item {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.items)
}

// history is all that ever happened.
func (s *server) history() []change {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clip(s.events)
}

// change makes n random changes.
func (s *server) change(rng *rand.Rand, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range n {
		i := item{Name: fmt.Sprintf("object-%03d", rng.IntN(mostNames))}
		old, exists := s.items[i.key()]
		switch p := rng.IntN(10); {
		case !exists:
			s.createLocked(rng, i)
		case p < 3:
			s.appendLocked(watch.Deleted, old)
			if p == 0 { // And made anew under its name.
				s.createLocked(rng, i)
			}
		default:
			i.Birth = old.Birth
			s.putLocked(rng, watch.Modified, i)
		}
	}
	for w := range s.watches {
		w.kick()
	}
}

// fill creates the objects from 0 to n.
func (s *server) fill(rng *rand.Rand, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for number := range n {
		s.createLocked(rng, item{Name: fmt.Sprintf("object-%03d", number)})
	}
}

func (s *server) createLocked(rng *rand.Rand, i item) {
	i.Birth = len(s.events) + 1
	s.putLocked(rng, watch.Added, i)
}

func (s *server) putLocked(rng *rand.Rand, t watch.EventType, i item) {
	i.Color, i.SizeBytes = fmt.Sprint("c", rng.IntN(colors)), rng.IntN(initialBytes)
	if rng.IntN(25) == 0 {
		i.SizeBytes = largeBytes/4 + rng.IntN(largeBytes*3/4)
	}
	s.appendLocked(t, i)
}

func (s *server) appendLocked(t watch.EventType, i item) {
	i.RV = len(s.events) + 1
	c := change{t, i}
	s.events = append(s.events, c)
	c.applyTo(s.items)
}

// forget loses the history, as far as clients can tell.
func (s *server) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.compacted = len(s.events)
	clear(s.pages)
}

// setAway makes the server unreachable, or reachable again.
func (s *server) setAway(away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = away
	for w := range s.watches {
		w.Stop()
	}
}

func (s *server) IsWatchListSemanticsUnSupported() bool { return !s.streams }

func (s *server) List(o metav1.ListOptions) (runtime.Object, error) {
	return s.ListWithContext(context.Background(), o)
}

func (s *server) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return s.WatchWithContext(context.Background(), o)
}

func (s *server) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	rv, from := len(s.events), 0
	switch {
	case s.away:
		return nil, syscall.ECONNREFUSED
	case o.Continue != "":
		if _, err := fmt.Sscanf(o.Continue, "%d/%d", &rv, &from); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		if s.pages[rv] == nil {
			return nil, apierrors.NewResourceExpired("continue token")
		}
	default:
		if want, _ := strconv.Atoi(o.ResourceVersion); want > rv { // "" is 0.
			return nil, tooLargeError()
		}
		s.pages[rv] = slices.SortedFunc(maps.Values(s.items), func(a, b item) int { return cmp.Compare(a.key(), b.key()) })
	}
	items, next := s.pages[rv][from:], ""
	if o.Limit > 0 && int64(len(items)) > o.Limit {
		items, next = items[:o.Limit], fmt.Sprintf("%d/%d", rv, from+int(o.Limit))
	}
	return s.kind.list(rv, items, next), nil
}

func tooLargeError() error {
	err := apierrors.NewTimeoutError("Too large resource version", 1)
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}
	return err
}

func (s *server) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return nil, syscall.ECONNREFUSED
	}
	rv, _ := strconv.Atoi(o.ResourceVersion) // "" is 0.
	w := &stream{s: s, at: rv, events: make(chan watch.Event), stop: make(chan struct{}), wake: make(chan struct{}, 1)}
	switch {
	case o.SendInitialEvents != nil && *o.SendInitialEvents:
		if rv > len(s.events) {
			return nil, tooLargeError()
		}
		w.at = len(s.events)
		for _, i := range s.items {
			w.initial = append(w.initial, watch.Event{Type: watch.Added, Object: s.kind.object(i)})
		}
		w.initial = append(w.initial, s.bookmark(w.at))
	case rv < s.compacted:
		return nil, apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", rv, s.compacted))
	}
	s.watches[w] = struct{}{}
	go w.run(ctx)
	return w, nil
}

// bookmark ends a streamed list.
func (s *server) bookmark(rv int) watch.Event {
	obj := s.kind.example()
	m := obj.(metav1.Object)
	m.SetResourceVersion(strconv.Itoa(rv))
	m.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	return watch.Event{Type: watch.Bookmark, Object: obj}
}

// stream is a watch. One from the future is silent until then, as kube-apiserver's.
type stream struct {
	s       *server
	at      int
	initial []watch.Event
	events  chan watch.Event
	wake    chan struct{}
	stop    chan struct{}
	once    sync.Once
}

func (w *stream) ResultChan() <-chan watch.Event { return w.events }
func (w *stream) Stop()                          { w.once.Do(func() { close(w.stop) }) }

func (w *stream) kick() {
	select {
	case w.wake <- struct{}{}:
	default: // It will look already.
	}
}

func (w *stream) run(ctx context.Context) {
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
func (w *stream) next() (watch.Event, bool) {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	switch {
	case len(w.initial) > 0:
		e := w.initial[0]
		w.initial = w.initial[1:]
		return e, true
	case w.at < len(w.s.events):
		c := w.s.events[w.at]
		w.at++
		return watch.Event{Type: c.Type, Object: w.s.kind.object(c.Item)}, true
	}
	return watch.Event{}, false
}
