package warmwatch

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

// believer is what the handlers of one name, one in each process, have done with what they were
// told: what they believe to exist. That of the durable ones outlives crashes, as a handler's effects do.
type believer struct {
	t       *testing.T
	name    string
	durable bool

	mu       sync.Mutex
	believed map[types.UID]belief
	last     map[string]lastTold // By key, if the last notification was not of a deletion.
	newest   int                 // Greatest resourceVersion told in any process.
	// poison is the key of the object on which the handlers panic.
	poison                           string
	poisoned                         map[string]bool // All keys that it has been.
	events, deleted, again, panicked int
}

// belief is an object that a handler was told of.
type belief struct {
	uid    types.UID
	key    string
	rv     int
	object *corev1.ConfigMap // As it was told last.
}

// lastTold is the state of an object that a handler was told of last.
type lastTold struct {
	uid types.UID
	rv  int
}

func newBeliever(t *testing.T, name string) *believer {
	return &believer{t: t, name: name, durable: name != "plain", believed: map[types.UID]belief{}, poisoned: map[string]bool{}, last: map[string]lastTold{}}
}

// teller is the handler of one process.
type teller struct {
	*believer
	life       *life
	addedAgain bool           // So it may be told again of deletions before its list.
	slow       func()         // Called with each notification.
	dead       bool           // The process has crashed: what follows did not happen.
	greatest   map[string]int // The greatest resourceVersion told (D2), by key.
	newest     int
}

func (b *believer) teller(l *life) *teller {
	return &teller{believer: b, life: l, greatest: map[string]int{}}
}

func (h *teller) note(obj any, exists bool) {
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
	h.events++
	rv, key := 0, ""
	tomb, lost := obj.(cache.DeletedFinalStateUnknown)
	if lost {
		obj, key = tomb.Obj, tomb.Key
	}
	cm := h.life.configMap(obj)
	if cm != nil {
		key = cm.Namespace + "/" + cm.Name
	}
	if h.poison != "" && h.poison == key {
		h.panicked++
		slow = nil
		panic(poisoned{h})
	}
	if cm == nil { // Its object could not be read.
		delete(h.last, key)
		for uid, b := range h.believed {
			if b.key == key {
				h.gone(uid)
			}
		}
		return
	}
	if !lost {
		rv = h.version(cm, key, exists)
	}
	if !exists {
		if lost { // Of any object of the name: what is told behind it is told anew.
			maps.DeleteFunc(h.greatest, func(told string, _ int) bool { return strings.HasPrefix(told, key) })
		}
		if _, known := h.believed[cm.UID]; !known && !h.durable && !h.life.isLossy() {
			h.t.Errorf("D1: %s handler was told of the deletion of %s with uid %s, which it did not know", h.name, key, cm.UID)
		}
		delete(h.last, key)
		h.gone(cm.UID)
		return
	}
	if cm.Data["rv"] != cm.ResourceVersion {
		h.t.Errorf("%s handler was told of a wrong object: %v", h.name, cm)
	}
	for uid, b := range h.believed {
		switch {
		case b.key != key || uid == cm.UID:
		case !h.durable, h.life.isLossy(): // client-go's way.
			delete(h.believed, uid)
		case b.rv < rv && !h.poisoned[key]:
			h.t.Errorf("D2: %s handler was told of %s with uid %s, and never of the deletion of uid %s", h.name, key, cm.UID, uid)
		}
	}
	b, known := h.believed[cm.UID]
	if !known {
		b = belief{uid: cm.UID, key: key}
	}
	if rv >= b.rv {
		b.rv, b.object = rv, cm
	}
	h.believed[cm.UID] = b
	h.last[key] = lastTold{cm.UID, rv}
}

// version checks the resourceVersion of an object that the handler is told of.
func (h *teller) version(cm *corev1.ConfigMap, key string, exists bool) int {
	rv, err := strconv.Atoi(cm.ResourceVersion)
	if err != nil {
		h.t.Errorf("%s: object without resourceVersion: %v", h.name, cm)
	}
	if !exists {
		key += string(cm.UID)
	}
	if rv < h.greatest[key] && (exists || !h.addedAgain) {
		h.t.Errorf("D2: %s handler was told of %s, which exists: %v, at %d after %d", h.name, key, exists, rv, h.greatest[key])
	}
	if rv <= h.believer.newest {
		h.again++
	}
	h.greatest[key], h.greatest[key+string(cm.UID)] = rv, rv
	h.newest, h.believer.newest = max(h.newest, rv), max(h.believer.newest, rv)
	return rv
}

func (h *teller) gone(uid types.UID) {
	h.deleted++
	delete(h.believed, uid)
}

func (h *teller) OnAdd(obj any, _ bool) { h.note(obj, true) }
func (h *teller) OnUpdate(old, obj any) {
	// A watch tells of a deletion between them; a durable handler is told of it in any case.
	if before, now := h.life.configMap(old).UID, h.life.configMap(obj).UID; h.durable && before != now {
		h.t.Errorf("D2: %s handler was told that %s became %s, and not of the deletion", h.name, before, now)
	}
	h.note(obj, true)
}
func (h *teller) OnDelete(obj any) { h.note(obj, false) }

// forget is for plain handlers: those of the next process are told of everything anew.
func (b *believer) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.believed)
	clear(b.last)
}

// known returns the keys of the objects that are believed to exist.
func (b *believer) known(context.Context) (keys []cache.ObjectName, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, what := range b.believed {
		key, err := cache.ParseObjectName(what.key)
		if err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// compare compares with what there is, but for objects on which the handler has panicked: what it was told of them then
// may be skipped.
func (b *believer) compare(server map[string]belief) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	want, got := map[types.UID]string{}, map[types.UID]string{}
	add := func(to map[types.UID]string, what belief) {
		if !b.poisoned[what.key] {
			to[what.uid] = fmt.Sprintf("%s@%d", what.key, what.rv)
		}
	}
	for _, what := range server {
		add(want, what)
	}
	for _, what := range b.believed {
		add(got, what)
	}
	if d := cmp.Diff(want, got); d != "" {
		return "D2: what the " + b.name + " handler believes differs from the server (-want +got):\n" + d
	}
	names := maps.Clone(b.last)
	for key := range server {
		names[key] = lastTold{}
	}
	for key := range names { // What was told last decides, in whatever order the rest came.
		told, there := b.last[key], server[key]
		if !b.poisoned[key] && (told.uid != there.uid || told.rv != there.rv) {
			return fmt.Sprintf("D2: the %s handler was told last that %s is %q at version %d, on the server it is %q at %d", b.name, key, told.uid, told.rv, there.uid, there.rv)
		}
	}
	return ""
}

// setPoison sets the key of the object on which the handlers panic. Empty: they do not.
func (b *believer) setPoison(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.poison = key; key != "" {
		b.poisoned[key] = true
	}
}

func (h *teller) setAddedAgain() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.addedAgain = true
}

func (h *teller) setSlow(slow func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.slow = slow
}

// die has all that follows not happen. Until unlock is called the handler returns from nothing.
func (h *teller) die() (newest int, unlock func()) {
	h.mu.Lock()
	h.dead = true
	return h.newest, h.mu.Unlock
}
