// Package recorder has handlers that keep what they get.
package recorder

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

// Recorder is a handler that writes down what it gets:
//
//	add ns/a@1 initial     update ns/a@1→2     delete ns/a@3
//	add ns/a@1                                 lost ns/a@2 (a tombstone)
//	                                           lost ns/a (one without an object)
type Recorder struct {
	Mu     sync.Mutex
	Events []string
	// During, if set, is called in each callback before the event is recorded.
	During func(event string)
}

func (r *Recorder) record(format string, args ...any) {
	event := fmt.Sprintf(format, args...)
	if r.During != nil {
		r.During(event)
	}
	r.Mu.Lock()
	defer r.Mu.Unlock()
	r.Events = append(r.Events, event)
}

// OnAdd implements cache.ResourceEventHandler.
func (r *Recorder) OnAdd(obj any, initial bool) {
	suffix := ""
	if initial {
		suffix = " initial"
	}
	r.record("add %s%s", source.Version(obj), suffix)
}

// OnUpdate implements cache.ResourceEventHandler.
func (r *Recorder) OnUpdate(old, obj any) {
	if source.Key(old) != source.Key(obj) {
		r.record("update of %s to %s", source.Key(old), source.Key(obj))
		return
	}
	r.record("update %s→%s", source.Version(old), source.Meta(obj).GetResourceVersion())
}

// OnDelete implements cache.ResourceEventHandler.
func (r *Recorder) OnDelete(obj any) {
	if lost, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		if lost.Obj == nil {
			r.record("lost %s", lost.Key)
			return
		}
		if key := source.Key(lost.Obj); key != lost.Key {
			r.record("lost %s under the key %s", key, lost.Key)
			return
		}
		r.record("lost %s", source.Version(lost.Obj))
		return
	}
	r.record("delete %s", source.Version(obj))
}

// Take returns what was recorded since the last call.
func (r *Recorder) Take() []string {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	events := r.Events
	r.Events = nil
	return events
}

// Expect compares what was recorded since the last call.
func (r *Recorder) Expect(t *testing.T, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, r.Take()); diff != "" {
		t.Errorf("unexpected notifications (-want +got):\n%s", diff)
	}
}

// ExpectInAnyOrder is for what has none across objects.
func (r *Recorder) ExpectInAnyOrder(t *testing.T, want ...string) {
	t.Helper()
	got := r.Take()
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("unexpected notifications (-want +got):\n%s", diff)
	}
}

// Add registers a new recorder with an informer.
func Add(t *testing.T, informer cache.SharedInformer, period ...time.Duration) (*Recorder, cache.ResourceEventHandlerRegistration) {
	t.Helper()
	r, o := &Recorder{}, cache.HandlerOptions{}
	if len(period) > 0 {
		o.ResyncPeriod = &period[0]
	}
	registration, err := informer.AddEventHandlerWithOptions(r, o)
	if err != nil {
		t.Fatal(err)
	}
	return r, registration
}

// Heard reports whether it was notified of an event with this in it.
func (r *Recorder) Heard(what string) bool {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	return slices.ContainsFunc(r.Events, func(event string) bool { return strings.Contains(event, what) })
}

// Await is Expect, and waits until as many events were delivered.
func (r *Recorder) Await(t *testing.T, want ...string) {
	t.Helper()
	for begin := time.Now(); time.Since(begin) < time.Minute; time.Sleep(5 * time.Millisecond) {
		r.Mu.Lock()
		n := len(r.Events)
		r.Mu.Unlock()
		if n >= len(want) {
			break
		}
	}
	r.Expect(t, want...)
}
