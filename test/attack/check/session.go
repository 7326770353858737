package check

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport/apiserver"
)

const colorIndex = "color"

func byColor(obj any) ([]string, error) { return []string{obj.(*corev1.ConfigMap).Data["color"]}, nil }

// A Marker keeps a World, and writes each mark before it is one. All methods are
// safe for concurrent use.
type Marker struct {
	mu    sync.Mutex
	world *World
	to    io.Writer
}

// NewMarker returns one that goes on with a world, and writes to to unless it is
// nil.
func NewMarker(w *World, to io.Writer) *Marker { return &Marker{world: w, to: to} }

// Mark writes and applies a mark. A process that cannot write any more is being
// killed: it goes no further.
func (m *Marker) Mark(k Mark) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.to != nil {
		b, err := json.Marshal(k)
		if err == nil {
			_, err = m.to.Write(b)
		}
		if err != nil {
			panic(fmt.Sprintf("could not write a mark: %v", err))
		}
	}
	m.world.Apply(k)
}

// Violation marks one.
func (m *Marker) Violation(format string, args ...any) {
	m.Mark(Mark{Kind: Violation, Text: fmt.Sprintf(format, args...)})
}

// World returns a copy of it as it is now.
func (m *Marker) World() *World {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.world.Clone()
}

// A Session is one life of a program: an open Cache with one informer, a plain
// and a durable handler. It runs in a synctest bubble.
type Session struct {
	Cache    *warmwatch.Cache
	Informer *warmwatch.SharedIndexInformer
	Server   *apiserver.Server
	Marker   *Marker

	// lost says that the file knows nothing of what handlers got before.
	lost     bool
	handlers map[string]*handler
	places   map[string]cache.ResourceEventHandlerRegistration
	cancel   context.CancelFunc
	done     chan struct{}
}

// Options of a Session.
type Options struct {
	// Path of the file, and where the same file can be read without being
	// noticed. Default of Behind: Path.
	Path, Behind string
	Cache        warmwatch.Options
	// Slow is how long the durable handlers take.
	Slow time.Duration
}

// Begin opens the file and runs the informer.
func Begin(s *apiserver.Server, m *Marker, o Options) (*Session, error) {
	if o.Behind == "" {
		o.Behind = o.Path
	}
	logger := logr.Discard()
	o.Cache.Logger = &logger
	version := 0
	if f, err := ReadFile(o.Behind); err == nil {
		version = f.Version()
	}
	before, err := SetAside(o.Behind)
	if err != nil {
		return nil, err
	}
	c, err := warmwatch.Open(context.Background(), o.Path, o.Cache)
	if err != nil {
		return nil, err
	}
	after, err := SetAside(o.Behind)
	if err != nil {
		_ = c.Close() // The first error tells more.
		return nil, err
	}
	m.Mark(Mark{Kind: Started, Version: version, MemoryOnly: c.Status().MemoryOnly})
	b := &Session{
		Cache: c, Server: s, Marker: m, done: make(chan struct{}), lost: c.Status().MemoryOnly || !slices.Equal(before, after),
		handlers: map[string]*handler{}, places: map[string]cache.ResourceEventHandlerRegistration{},
	}
	if err := b.run(o); err != nil {
		_ = c.Close() // The first error tells more.
		return nil, err
	}
	return b, nil
}

func (b *Session) run(o Options) (err error) {
	b.Informer, err = b.Cache.NewSharedIndexInformer(b.Server, &corev1.ConfigMap{}, warmwatch.InformerOptions{
		Resource:     corev1.SchemeGroupVersion.WithResource("configmaps"),
		Indexers:     cache.Indexers{colorIndex: byColor},
		IndexVersion: "1",
	})
	if err != nil {
		return err
	}
	for _, name := range b.Marker.World().Durables() {
		if err := b.add(name, o.Slow); err != nil {
			return err
		}
	}
	if _, err := b.Informer.AddEventHandler(b.handler(Plain, 0)); err != nil {
		return err
	}
	var ctx context.Context
	ctx, b.cancel = context.WithCancel(context.Background())
	go func() {
		defer close(b.done)
		b.Informer.RunWithContext(ctx)
	}()
	return nil
}

func (b *Session) handler(name string, slow time.Duration) *handler {
	b.handlers[name] = &handler{name: name, s: b, slow: slow, delivered: map[string]int{}}
	return b.handlers[name]
}

func (b *Session) add(durable string, slow time.Duration) (err error) {
	o := warmwatch.DurableOptions{Known: func(context.Context) (keys []cache.ObjectName, err error) {
		for _, key := range b.Marker.World().Belief(durable).MayMiss(b.lost) {
			name, err := cache.ParseObjectName(key)
			if err != nil {
				return nil, err
			}
			keys = append(keys, name)
		}
		return keys, nil
	}}
	b.places[durable], err = b.Informer.AddDurableEventHandler(durable, b.handler(durable, slow), o)
	return err
}

// Join adds a durable handler of a new name, which is notified of all objects first
// while changes go on. The one that has joined before leaves, for good.
func (b *Session) Join(name string) error {
	for _, other := range b.Marker.World().Durables() {
		if other == Durable {
			continue
		}
		b.Marker.Mark(Mark{Kind: Left, Handler: other})
		if err := b.Informer.RemoveEventHandler(b.places[other]); err != nil {
			return err
		}
		err := b.Informer.ForgetDurable(other)
		for ; errors.Is(err, warmwatch.ErrInUse); err = b.Informer.ForgetDurable(other) {
			time.Sleep(time.Millisecond) // A callback is in flight.
		}
		if err != nil {
			return err
		}
	}
	b.Marker.Mark(Mark{Kind: Joined, Handler: name})
	return b.add(name, 0)
}

// Advance makes changes on the server.
func (b *Session) Advance(changes int) { Advance(b.Server, b.Marker, changes) }

// Advance makes changes on a server, after they are marked.
func Advance(s *apiserver.Server, m *Marker, changes int) {
	m.Mark(Mark{Kind: Serving, Version: s.Version() + changes})
	s.Advance(changes)
}

// Compact forgets the history of a server, and marks it.
func Compact(s *apiserver.Server, m *Marker) {
	m.Mark(Mark{Kind: Compacted, Version: s.Version()})
	s.Compact()
}

// quietTime is longer than any delay and backoff together.
const quietTime = 20 * time.Minute

// Quiet waits until everything was delivered, and compares (A5, D2).
func (b *Session) Quiet() {
	for _, h := range b.handlers {
		h.setSlow(0)
	}
	var bad string
	for waited, pause := time.Duration(0), time.Second; waited < quietTime; waited += pause {
		time.Sleep(pause) // Of the bubble.
		if bad = b.compare(); bad == "" {
			bad = b.compareIndex()
			break
		}
		pause = min(pause+pause/4, time.Minute)
	}
	if bad != "" {
		b.Marker.Violation("after up to %v of quiet: %s (%s)", quietTime, bad, b.status())
	}
}

func (b *Session) status() string {
	st := b.Informer.Status()
	return fmt.Sprintf("started from %s, %s %s, %d relists, %d resumes, handlers: %+v, error: %v", st.StartedFrom, st.Cause, st.Reason, st.Relists, st.Resumes, st.Handlers, st.Err)
}

func (b *Session) compare() string {
	want := versionsOf(b.Server.Objects())
	got := map[string]int{}
	for _, obj := range b.Informer.GetStore().List() {
		cm := obj.(*corev1.ConfigMap)
		got[apiserver.Key(cm)], _ = strconv.Atoi(cm.ResourceVersion)
	}
	if d := diff(want, got); d != "" {
		return "A5: the store differs from the server: " + d
	}
	w := b.Marker.World()
	for _, name := range append(w.Durables(), Plain) {
		got := map[string]int{}
		for key, t := range w.Belief(name).Known {
			got[key] = t.Version
		}
		if d := diff(want, got); d != "" {
			return fmt.Sprintf("D2: the belief of the handler %s differs from the server: %s", name, d)
		}
	}
	if err := b.Cache.Status().Err; err != nil && !w.MemoryOnly {
		return fmt.Sprintf("persistence is still degraded: %v", err)
	}
	return ""
}

func (b *Session) compareIndex() string {
	want := map[string][]string{}
	for _, obj := range b.Informer.GetStore().List() {
		cm := obj.(*corev1.ConfigMap)
		want[cm.Data["color"]] = append(want[cm.Data["color"]], apiserver.Key(cm))
	}
	ix := b.Informer.GetIndexer()
	if got := ix.ListIndexFuncValues(colorIndex); len(got) != len(want) {
		return fmt.Sprintf("A5: %d values of the index, expected %d", len(got), len(want))
	}
	for value, keys := range want {
		slices.Sort(keys)
		got, err := ix.IndexKeys(colorIndex, value)
		if slices.Sort(got); err != nil || !slices.Equal(got, keys) {
			return fmt.Sprintf("A5: the index has %v for %.1q…, expected %v (%v)", got, value, keys, err)
		}
	}
	return ""
}

// Stop ends the informer, waits for it, and closes the file.
func (b *Session) Stop() error {
	b.cancel()
	<-b.done
	return b.Cache.Close()
}

// Abandon closes the file under the running informer.
func (b *Session) Abandon() error {
	err := b.Cache.Close()
	b.cancel()
	<-b.done
	return err
}

// handler believes what it gets.
type handler struct {
	name string
	s    *Session

	mu        sync.Mutex
	slow      time.Duration
	delivered map[string]int // Greatest version delivered in this session (D2).
}

func (h *handler) setSlow(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.slow = d
}

// OnAdd implements [cache.ResourceEventHandler].
func (h *handler) OnAdd(obj any, _ bool) { h.note(obj, false) }

// OnUpdate implements [cache.ResourceEventHandler].
func (h *handler) OnUpdate(old, obj any) {
	before, after := old.(*corev1.ConfigMap), obj.(*corev1.ConfigMap)
	if h.name != Plain && before.UID != after.UID {
		h.s.Marker.Violation("D2: the durable handler was notified of %s@%s, which replaced @%s, as an update", apiserver.Key(after), after.ResourceVersion, before.ResourceVersion)
	}
	h.note(obj, false)
}

// OnDelete implements [cache.ResourceEventHandler].
func (h *handler) OnDelete(obj any) { h.note(obj, true) }

func (h *handler) note(obj any, gone bool) {
	m := Mark{Kind: Delivered, Handler: h.name, Gone: gone}
	if lost, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj, m.Lost = lost.Obj, true
		if obj == nil { // It was deleted and could not be read: the handler has what it knows.
			m.Key, m.Version = lost.Key, h.s.Marker.World().Belief(h.name).Known[lost.Key].Version
			h.s.Marker.Mark(m)
			return
		}
	}
	cm := obj.(*corev1.ConfigMap)
	version, err := strconv.Atoi(cm.ResourceVersion)
	m.Key, m.Version, m.UID = apiserver.Key(cm), version, string(cm.UID)
	h.s.Marker.Mark(m) // Before anything that takes time: from now on it knows.
	if truth := objectAt(h.s.Server, version); err != nil || truth == nil || !apiequality.Semantic.DeepEqual(truth, cm) {
		h.s.Marker.Violation("S2: the handler %s was notified of %s@%s, which never was", h.name, m.Key, cm.ResourceVersion)
	}
	h.mu.Lock()
	if version < h.delivered[m.Key] {
		h.s.Marker.Violation("D2: the handler %s was notified of %s@%d after @%d", h.name, m.Key, version, h.delivered[m.Key])
	}
	h.delivered[m.Key] = version
	slow := h.slow
	h.mu.Unlock()
	if slow > 0 {
		time.Sleep(slow)
	}
}

// SetAside lists the files that were set aside, beside a path.
func SetAside(path string) ([]string, error) {
	found, err := filepath.Glob(path + ".corrupt-*")
	return slices.Clip(found), err
}

// Resume runs an informer on what a crash has left, on a server that has gone on
// since, and appends what is wrong to w.Violations. The caller owns the directory
// of path, and calls it in a bubble.
func Resume(seed uint64, path string, w *World, further int, compact bool) {
	s := NewServer(seed, w.Version)
	m := NewMarker(w, nil)
	before, err := SetAside(path)
	if err != nil {
		m.Violation("%v", err)
	}
	f, err := ReadFile(path)
	if err != nil {
		m.Violation("the file cannot be read: %v", err)
		return
	}
	for _, v := range f.Violations(s, m.World()) {
		m.Violation("after the crash: %s", v)
	}
	if w.Version == 0 { // No server is at version 0.
		further++
	}
	Advance(s, m, further)
	if compact {
		Compact(s, m)
	}
	most := len(before)
	if f.Exists && !f.Begun { // A new file is begun in place. Half of it is set aside, or goes on as an empty one.
		most++
	}
	for life := range 2 { // The second finds what the first has left.
		b, err := Begin(s, m, Options{Path: path})
		if err != nil {
			m.Violation("life %d after the crash: open: %v", life, err)
			return
		}
		st, after := b.Cache.Status(), 0
		if found, err := SetAside(path); err == nil {
			after = len(found)
		}
		if st.Err != nil || st.MemoryOnly || after < len(before) || after > most {
			m.Violation("life %d after the crash: open: %v, memory only: %v, %d files set aside, expected %d", life, st.Err, st.MemoryOnly, after, len(before))
		}
		b.Quiet()
		b.Advance(3)
		b.Quiet()
		if err := b.Stop(); err != nil {
			m.Violation("life %d after the crash: close: %v", life, err)
		}
		f, err := ReadFile(path)
		if err != nil {
			m.Violation("life %d after the crash: the file cannot be read: %v", life, err)
			return
		}
		for _, v := range f.Violations(s, m.World()) {
			m.Violation("life %d after the crash: %s", life, v)
		}
	}
}
