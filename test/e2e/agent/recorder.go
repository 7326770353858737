package agent

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
)

// recorder is the handler. It notes when it has been notified of everything that is
// expected. Informers call it from one goroutine.
type recorder struct {
	Handler
	resource string
	sums     bool
	tell     func(*Event)
	stamps   *stamps // nil: no latencies.

	mu           sync.Mutex
	expect       Expect
	calls        Calls
	changed      int
	added        time.Time
	deliveredAll time.Time
	done         chan struct{} // Closed when deliveredAll is set.
	latency      Latency
}

var _ cache.ResourceEventHandler = (*recorder)(nil)

// begin forgets what was measured, and expects something else.
func (r *recorder) begin(e Expect) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expect, r.calls, r.changed, r.latency = e, Calls{}, 0, Latency{}
	r.added, r.deliveredAll, r.done = time.Time{}, time.Time{}, make(chan struct{})
	r.checkLocked()
}

func (r *recorder) checkLocked() {
	e := r.expect
	if r.deliveredAll.IsZero() && r.calls.Initial >= e.Initial && r.changed >= e.Changed && r.calls.Updated >= e.Updates {
		r.deliveredAll = time.Now()
		close(r.done)
	}
}

func (r *recorder) delivered() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.done
}

// OnAdd implements cache.ResourceEventHandler.
func (r *recorder) OnAdd(obj any, isInInitialList bool) {
	r.write("ADDED", nil, obj, isInInitialList)
	r.mu.Lock()
	defer r.mu.Unlock()
	if !isInInitialList {
		r.calls.Added++
	} else if r.calls.Initial++; r.calls.Initial == r.expect.Initial {
		r.added = time.Now()
	}
	r.countLocked(obj)
}

// OnUpdate implements cache.ResourceEventHandler.
func (r *recorder) OnUpdate(oldObj, newObj any) {
	r.write("MODIFIED", oldObj, newObj, false)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls.Updated++
	if pod, ok := newObj.(*corev1.Pod); ok && r.stamps != nil {
		r.timeLocked(pod)
	}
	r.countLocked(newObj)
}

// OnDelete implements cache.ResourceEventHandler.
func (r *recorder) OnDelete(obj any) {
	r.write("DELETED", nil, obj, false)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls.Deleted++
}

func (r *recorder) countLocked(obj any) {
	if r.expect.Changed > 0 && annotation(obj, AnnotationRound) == r.expect.Round {
		r.changed++
	}
	r.checkLocked()
}

// timeLocked adds the latency of an update.
func (r *recorder) timeLocked(pod *corev1.Pod) {
	now := time.Now()
	stamped, ok := r.stamps.take(pod.ResourceVersion)
	if !ok {
		return
	}
	r.latency.Event = append(r.latency.Event, millis(now.Sub(stamped)))
	r.latency.BytesChanged += float64(pod.Size())
}

// write tells of a call, if the handler is to.
func (r *recorder) write(kind string, oldObj, obj any, initial bool) {
	if !r.Tell || initial && !r.TellInitial {
		return
	}
	if r.Slow && rand.IntN(50) == 0 { // What it is at when it is killed must not count as delivered.
		time.Sleep(30*time.Millisecond + rand.N(30*time.Millisecond))
	}
	e := &Event{
		Resource: r.resource, Handler: r.Name, At: time.Now(),
		Initial: initial, Change: Change{Type: kind},
	}
	if lost, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		e.Change.Tombstone, e.Key, obj = true, lost.Key, lost.Obj
	} else {
		e.Key = KeyOf(obj)
	}
	e.New = ContentOf(obj, r.sums)
	if object, ok := obj.(metav1.Object); ok {
		e.Change.Name, e.Change.NewRV = object.GetName(), object.GetResourceVersion()
		e.Change.Marked = object.GetDeletionTimestamp() != nil
	}
	if before, ok := oldObj.(metav1.Object); ok {
		e.Old, e.Change.OldRV = ContentOf(oldObj, r.sums), before.GetResourceVersion()
	}
	r.tell(e)
}

// KeyOf is the key of an object in a store.
func KeyOf(obj any) string {
	key, err := cache.MetaNamespaceKeyFunc(obj)
	if err != nil {
		return err.Error()
	}
	return key
}

// ContentOf is an object's uid@resourceVersion and, if it is to have one, @ and a sum
// of all of it: where etcd was put back, the same version may be of another content.
func ContentOf(obj any, sum bool) string {
	m, err := meta.Accessor(obj)
	if err != nil {
		return err.Error()
	}
	version := string(m.GetUID()) + "@" + m.GetResourceVersion()
	o, ok := obj.(runtime.Object)
	if !ok || !sum {
		return version
	}
	o = o.DeepCopyObject()
	if _, free := o.(*unstructured.Unstructured); !free {
		o.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{}) // Items of a list have none.
	}
	b, err := json.Marshal(o)
	if err != nil {
		return err.Error()
	}
	h := fnv.New64a()
	_, _ = h.Write(b) // A hash's Write never fails.
	return fmt.Sprintf("%s@%x", version, h.Sum64())
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

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
