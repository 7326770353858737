package main

import (
	"fmt"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// recorder is the handler: it counts every call, and tells of every call that is
// not about the initial state. Informers call it from one goroutine; the counters
// are read from another.
type recorder struct {
	say     func(message)
	since   func() float64 // Milliseconds since the agent began its work.
	quiet   bool           // Count only.
	expect  int64          // Initial OnAdd calls after which all are there.
	initial atomic.Int64
	added   atomic.Int64
	updated atomic.Int64
	deleted atomic.Int64
	timed   atomic.Pointer[timing] // Of the stream that is expected or running.
}

var _ cache.ResourceEventHandler = (*recorder)(nil)

// timing is written by the handler's goroutine only, once it is set.
type timing struct {
	want, got int
	first     time.Time
}

func (r *recorder) calls() calls {
	return calls{
		Initial: int(r.initial.Load()),
		Added:   int(r.added.Load()),
		Updated: int(r.updated.Load()),
		Deleted: int(r.deleted.Load()),
	}
}

// timeStream announces that the next n events are to be timed.
func (r *recorder) timeStream(n int) { r.timed.Store(&timing{want: n}) }

// OnAdd implements cache.ResourceEventHandler.
func (r *recorder) OnAdd(obj any, isInInitialList bool) {
	if isInInitialList {
		if r.initial.Add(1) == r.expect {
			r.say(message{Kind: kindAdded, Millis: r.since()})
		}
		return
	}
	r.added.Add(1)
	r.tell("ADDED", nil, obj)
}

// OnUpdate implements cache.ResourceEventHandler.
func (r *recorder) OnUpdate(oldObj, newObj any) {
	r.updated.Add(1)
	r.tell("MODIFIED", oldObj, newObj)
}

// OnDelete implements cache.ResourceEventHandler.
func (r *recorder) OnDelete(obj any) {
	r.deleted.Add(1)
	r.tell("DELETED", nil, obj)
}

func (r *recorder) tell(kind string, oldObj, newObj any) {
	if t := r.timed.Load(); t != nil {
		r.tick(t)
	}
	if r.quiet {
		return
	}
	e := &event{Type: kind}
	if tombstone, ok := newObj.(cache.DeletedFinalStateUnknown); ok {
		e.Tombstone = true
		newObj = tombstone.Obj
	}
	object, ok := newObj.(metav1.Object)
	if !ok {
		r.say(message{Kind: kindError, Error: fmt.Sprintf("the handler got a %T", newObj)})
		return
	}
	e.Name, e.NewRV, e.Marked = object.GetName(), object.GetResourceVersion(), object.GetDeletionTimestamp() != nil
	if before, ok := oldObj.(metav1.Object); ok {
		e.OldRV = before.GetResourceVersion()
	}
	r.say(message{Kind: kindEvent, Event: e})
}

func (r *recorder) tick(t *timing) {
	t.got++
	if t.got == 1 {
		t.first = time.Now()
	}
	if t.got == t.want {
		elapsed := time.Since(t.first)
		r.say(message{Kind: kindStream, Stream: &stream{Events: t.want, Millis: millis(elapsed)}})
	}
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
