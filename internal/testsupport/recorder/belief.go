package recorder

import (
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

// Belief is a handler that keeps what it got, by key, over the lives of
// processes. Tombstones must say which object they are of.
type Belief struct {
	t *testing.T

	Mu        sync.Mutex
	Objects   map[string]string // Key to resourceVersion.
	delivered map[string]string // Key to the last resourceVersion delivered in this life (D2).
	Events    []string
	Hang      chan struct{} // Not nil: each call waits for it.
	// Forgiving: an older version may be delivered again.
	Forgiving bool
}

// NewBelief returns a handler that was notified of nothing.
func NewBelief(t *testing.T) *Belief {
	return &Belief{t: t, Objects: map[string]string{}, delivered: map[string]string{}}
}

func (b *Belief) note(what string, obj any, exists bool) {
	b.Mu.Lock()
	hang := b.Hang
	b.Mu.Unlock()
	if hang != nil {
		<-hang
	}
	b.Mu.Lock()
	defer b.Mu.Unlock()
	if lost, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = lost.Obj
		cm, ok := obj.(*corev1.ConfigMap)
		if obj == nil {
			b.Events = append(b.Events, what+" "+lost.Key)
			delete(b.Objects, lost.Key)
			return
		}
		if !ok || source.Key(cm) != lost.Key || cm.UID == "" || cm.ResourceVersion == "" {
			b.t.Errorf("a tombstone of %q with %#v", lost.Key, obj)
		}
	}
	key, rv := source.Key(obj), source.Meta(obj).GetResourceVersion()
	b.Events = append(b.Events, what+" "+source.Version(obj))
	if !b.Forgiving && (len(rv) < len(b.delivered[key]) || len(rv) == len(b.delivered[key]) && rv < b.delivered[key]) {
		b.t.Errorf("D2: %s@%s after @%s", key, rv, b.delivered[key])
	}
	b.delivered[key] = rv
	if exists {
		b.Objects[key] = rv
	} else {
		delete(b.Objects, key)
	}
}

// OnAdd implements cache.ResourceEventHandler.
func (b *Belief) OnAdd(obj any, _ bool) { b.note("add", obj, true) }

// OnUpdate implements cache.ResourceEventHandler.
func (b *Belief) OnUpdate(_, obj any) { b.note("update", obj, true) }

// OnDelete implements cache.ResourceEventHandler.
func (b *Belief) OnDelete(obj any) { b.note("delete", obj, false) }

// Expect compares what the handler believes with the source.
func (b *Belief) Expect(t *testing.T, f *source.Source) {
	t.Helper()
	b.Mu.Lock()
	defer b.Mu.Unlock()
	want := map[string]string{}
	for key, obj := range f.Objects {
		want[key] = source.Meta(obj).GetResourceVersion()
	}
	if diff := cmp.Diff(want, b.Objects); diff != "" {
		t.Errorf("the handler believes in something else (-source +handler):\n%s\ntold: %q", diff, b.Events)
	}
}
