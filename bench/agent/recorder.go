package agent

import (
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/cache"
)

// recorder is the handler. It notes when it has been told of everything that is
// expected. Informers call it from one goroutine.
type recorder struct {
	initialWant, changedWant int
	round                    string // Objects of this round count as changed.

	initial, changed int
	notifications    atomic.Int64 // Calls of any kind.

	mu        sync.Mutex
	added     time.Time // When the last initial OnAdd was called.
	caughtUp  time.Time // When there was nothing left to be told.
	allTold   chan struct{}
	onUpdated func(obj any) // May be nil.
}

var _ cache.ResourceEventHandler = (*recorder)(nil)

func newRecorder(s Spec) *recorder {
	r := &recorder{initialWant: s.Initial, changedWant: s.Changed, round: s.Round, allTold: make(chan struct{})}
	if r.initialWant == 0 && r.changedWant == 0 {
		close(r.allTold)
	}
	return r
}

// expectChanged begins a new round. Nothing is to be told meanwhile.
func (r *recorder) expectChanged(round string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.round, r.changedWant, r.changed = round, n, 0
	r.notifications.Store(0)
	r.caughtUp, r.allTold = time.Time{}, make(chan struct{})
}

func (r *recorder) done() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.allTold
}

// times are zero for what has not happened.
func (r *recorder) times() (added, caughtUp time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.added, r.caughtUp
}

// OnAdd implements cache.ResourceEventHandler.
func (r *recorder) OnAdd(obj any, isInInitialList bool) { r.told(obj, isInInitialList) }

// OnUpdate implements cache.ResourceEventHandler.
func (r *recorder) OnUpdate(_, obj any) {
	r.told(obj, false)
	if r.onUpdated != nil {
		r.onUpdated(obj)
	}
}

// OnDelete implements cache.ResourceEventHandler.
func (r *recorder) OnDelete(any) { r.notifications.Add(1) }

func (r *recorder) told(obj any, isInInitialList bool) {
	r.notifications.Add(1)
	isChanged := r.changedWant > 0 && annotation(obj, AnnotationRound) == r.round
	if !isInInitialList && !isChanged {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if isInInitialList {
		if r.initial++; r.initial == r.initialWant {
			r.added = time.Now()
		}
	}
	if isChanged {
		r.changed++
	}
	if r.caughtUp.IsZero() && r.initial >= r.initialWant && r.changed >= r.changedWant {
		r.caughtUp = time.Now()
		close(r.allTold)
	}
}

// annotation does not copy, as GetAnnotations of unstructured content does.
func annotation(obj any, name string) string {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		all, _, _ := unstructured.NestedFieldNoCopy(u.Object, "metadata", "annotations")
		content, _ := all.(map[string]any)
		value, _ := content[name].(string)
		return value
	}
	object, err := meta.Accessor(obj)
	if err != nil {
		return ""
	}
	return object.GetAnnotations()[name]
}
