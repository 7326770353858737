// Package believer has handlers whose effects outlive their process: what they believe to exist.
package believer

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// Believer has the objects that the handlers of one name, one in each process, believe to exist. The belief of a
// durable name outlives crashes, as a handler's effects do.
type Believer struct {
	Name    string
	t       *testing.T
	durable bool

	mu       sync.Mutex
	believed map[types.UID]Belief
	last     map[string]lastState // By key, if the last notification was not of a deletion.
	newest   int                  // Greatest resourceVersion that any process has got.
	// poison is the key of the object on which the handlers panic.
	poison   string
	poisoned map[string]bool // All keys that it has been.
	counts   Counts
}

// Belief is an object that a handler believes to exist.
type Belief struct {
	UID    types.UID
	Key    string
	RV     int
	object *corev1.ConfigMap // As the handler got it last.
}

// lastState is the last state of an object that a handler got.
type lastState struct {
	uid types.UID
	rv  int
}

// New returns what the handlers of a name believe: nothing. The handlers of the name "plain" are not durable.
func New(t *testing.T, name string) *Believer {
	return &Believer{t: t, Name: name, durable: name != "plain", believed: map[types.UID]Belief{}, poisoned: map[string]bool{}, last: map[string]lastState{}}
}

// Options configures the handler of one process.
type Options struct {
	// ConfigMap returns an object that the handler is given as it was before a transform; nil for nil. Default: it is one.
	ConfigMap func(obj any) *corev1.ConfigMap
	// Lossy: deletions may be lost.
	Lossy bool
	// Poison is what the handler panics with.
	Poison any
}

// Handler is the handler of one process.
type Handler struct {
	*Believer
	o          Options
	addedAgain bool           // So it may get deletions again before its list.
	slow       func()         // Called with each notification.
	dead       bool           // The process has crashed: what follows did not happen.
	greatest   map[string]int // The greatest resourceVersion that it got (D2), by key.
	newest     int
}

// Handler returns the handler of the next process.
func (b *Believer) Handler(o Options) *Handler {
	if o.ConfigMap == nil {
		o.ConfigMap = func(obj any) *corev1.ConfigMap {
			cm, _ := obj.(*corev1.ConfigMap)
			return cm
		}
	}
	return &Handler{Believer: b, o: o, greatest: map[string]int{}}
}

func (h *Handler) note(obj any, exists bool) {
	h.mu.Lock()
	slow := h.slow
	defer func() {
		h.mu.Unlock()
		if slow != nil {
			slow()
		}
	}()
	if h.dead {
		return
	}
	h.counts.Events++
	rv, key := 0, ""
	tomb, lost := obj.(cache.DeletedFinalStateUnknown)
	if lost {
		obj, key = tomb.Obj, tomb.Key
	}
	cm := h.o.ConfigMap(obj)
	if cm != nil {
		key = cm.Namespace + "/" + cm.Name
	}
	if h.poison != "" && h.poison == key {
		h.counts.Panics++
		slow = nil
		panic(h.o.Poison)
	}
	if cm == nil { // Its object could not be read.
		delete(h.last, key)
		for uid, b := range h.believed {
			if b.Key == key {
				h.gone(uid)
			}
		}
		return
	}
	if !lost {
		rv = h.version(cm, key, exists)
	}
	if !exists {
		if lost { // Of any object of the name: what comes behind it is delivered anew.
			maps.DeleteFunc(h.greatest, func(k string, _ int) bool { return strings.HasPrefix(k, key) })
		}
		if _, known := h.believed[cm.UID]; !known && !h.durable && !h.o.Lossy {
			h.t.Errorf("D1: %s handler was notified of the deletion of %s with uid %s, which it did not know", h.Name, key, cm.UID)
		}
		delete(h.last, key)
		h.gone(cm.UID)
		return
	}
	h.believe(cm, key, rv)
}

// believe notes an object that exists.
func (h *Handler) believe(cm *corev1.ConfigMap, key string, rv int) {
	if cm.Data["rv"] != cm.ResourceVersion {
		h.t.Errorf("%s handler was notified of a wrong object: %v", h.Name, cm)
	}
	for uid, b := range h.believed {
		switch {
		case b.Key != key || uid == cm.UID:
		case !h.durable, h.o.Lossy: // client-go's way.
			delete(h.believed, uid)
		case b.RV < rv && !h.poisoned[key]:
			h.t.Errorf("D2: %s handler was notified of %s with uid %s, and never of the deletion of uid %s", h.Name, key, cm.UID, uid)
		}
	}
	b, known := h.believed[cm.UID]
	if !known {
		b = Belief{UID: cm.UID, Key: key}
	}
	if rv >= b.RV {
		b.RV, b.object = rv, cm
	}
	h.believed[cm.UID] = b
	h.last[key] = lastState{cm.UID, rv}
}

// version checks the resourceVersion of an object that the handler is notified of.
func (h *Handler) version(cm *corev1.ConfigMap, key string, exists bool) int {
	rv, err := strconv.Atoi(cm.ResourceVersion)
	if err != nil {
		h.t.Errorf("%s: object without resourceVersion: %v", h.Name, cm)
	}
	if !exists {
		key += string(cm.UID)
	}
	if rv < h.greatest[key] && (exists || !h.addedAgain) {
		h.t.Errorf("D2: %s handler was notified of %s, which exists: %v, at %d after %d", h.Name, key, exists, rv, h.greatest[key])
	}
	if rv <= h.Believer.newest {
		h.counts.Redelivered++
	}
	h.greatest[key], h.greatest[key+string(cm.UID)] = rv, rv
	h.newest, h.Believer.newest = max(h.newest, rv), max(h.Believer.newest, rv)
	return rv
}

func (h *Handler) gone(uid types.UID) {
	h.counts.Deletions++
	delete(h.believed, uid)
}

// OnAdd implements cache.ResourceEventHandler.
func (h *Handler) OnAdd(obj any, _ bool) { h.note(obj, true) }

// OnUpdate implements cache.ResourceEventHandler.
func (h *Handler) OnUpdate(old, obj any) {
	// A watch reports a deletion between them; a durable handler gets it in any case.
	if before, now := h.o.ConfigMap(old).UID, h.o.ConfigMap(obj).UID; h.durable && before != now {
		h.t.Errorf("D2: %s handler was notified that %s became %s, and not of the deletion", h.Name, before, now)
	}
	h.note(obj, true)
}

// OnDelete implements cache.ResourceEventHandler.
func (h *Handler) OnDelete(obj any) { h.note(obj, false) }

// Forget is for a plain handler when its process ends: the next process delivers every object to it again.
func (b *Believer) Forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.believed)
	clear(b.last)
}

// Known returns the keys of the objects that are believed to exist.
func (b *Believer) Known(context.Context) (keys []cache.ObjectName, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, what := range b.believed {
		key, err := cache.ParseObjectName(what.Key)
		if err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// Compare compares with what there is, but for objects on which the handler has panicked: what it got of them
// may be skipped.
func (b *Believer) Compare(server map[string]Belief) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	want, got := map[types.UID]string{}, map[types.UID]string{}
	add := func(to map[types.UID]string, what Belief) {
		if !b.poisoned[what.Key] {
			to[what.UID] = fmt.Sprintf("%s@%d", what.Key, what.RV)
		}
	}
	for _, what := range server {
		add(want, what)
	}
	for _, what := range b.believed {
		add(got, what)
	}
	if d := cmp.Diff(want, got); d != "" {
		return "D2: what the " + b.Name + " handler believes differs from the server (-want +got):\n" + d
	}
	names := maps.Clone(b.last)
	for key := range server {
		names[key] = lastState{}
	}
	for key := range names { // What was delivered last decides, in whatever order the rest came.
		got, there := b.last[key], server[key]
		if !b.poisoned[key] && (got.uid != there.UID || got.rv != there.RV) {
			return fmt.Sprintf("D2: the %s handler got %s last as %q at version %d, on the server it is %q at %d", b.Name, key, got.uid, got.rv, there.UID, there.RV)
		}
	}
	return ""
}

// SetPoison sets the key of the object on which the handlers panic. Empty: they do not.
func (b *Believer) SetPoison(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.poison = key; key != "" {
		b.poisoned[key] = true
	}
}

// SetAddedAgain says that the name has got this handler once more, so it may get deletions again.
func (h *Handler) SetAddedAgain() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.addedAgain = true
}

// SetSlow sets what each callback does while it takes its time.
func (h *Handler) SetSlow(slow func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.slow = slow
}

// Die has all that follows not happen. Until unlock is called the handler returns from nothing.
func (h *Handler) Die() (newest int, unlock func()) {
	h.mu.Lock()
	h.dead = true
	return h.newest, h.mu.Unlock
}

// Counts are the notifications that handlers have got.
type Counts struct{ Events, Deletions, Redelivered, Panics int }

// TakeCounts returns those since the last call.
func (b *Believer) TakeCounts() Counts {
	b.mu.Lock()
	defer b.mu.Unlock()
	counts := b.counts
	b.counts = Counts{}
	return counts
}

// Objects are the objects that are believed to exist, as they were delivered last.
func (b *Believer) Objects() map[types.UID]*corev1.ConfigMap {
	b.mu.Lock()
	defer b.mu.Unlock()
	objects := map[types.UID]*corev1.ConfigMap{}
	for uid, what := range b.believed {
		objects[uid] = what.object
	}
	return objects
}
