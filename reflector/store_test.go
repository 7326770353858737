package reflector

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch/checkpoint"
)

// memory is a Store, and that of the Reflector. As the root's does, it has no
// version from the beginning of a relist to its end.
type memory struct {
	history
	calls *journal

	mu      sync.Mutex
	rv      string
	objects map[string]string // Versions by name.
	hows    []Relisting
	// Each of these errors is returned once.
	beginErr, itemErr, finishErr error
}

var (
	_ Store                        = (*memory)(nil)
	_ cache.ReflectorBookmarkStore = (*memory)(nil)
)

func (m *memory) ResourceVersion() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.rv
}

func (m *memory) At() string { return m.ResourceVersion() }

func (m *memory) expectContents(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	got := []string{}
	for _, name := range slices.Sorted(maps.Keys(m.objects)) {
		got = append(got, name+"@"+m.objects[name])
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the store has something else (-want +got):\n%s", diff)
	}
}

// once returns an error and clears it.
func (m *memory) once(err *error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := *err
	*err = nil
	return e
}

// set is told of an object, and at which version the store is after it. nil
// leaves the objects alone.
func (m *memory) set(call string, obj any, rv string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if cm, ok := obj.(*corev1.ConfigMap); ok {
		call += " " + cm.Name + "@" + cm.ResourceVersion
		m.objects[cm.Name] = cm.ResourceVersion
		if strings.HasPrefix(call, "delete") {
			delete(m.objects, cm.Name)
		}
	} else {
		call += " " + rv
	}
	m.rv = rv
	m.calls.note("%s", call)
	return nil
}

func (m *memory) Add(obj any) error {
	return m.set("add", obj, obj.(*corev1.ConfigMap).ResourceVersion)
}
func (m *memory) Update(obj any) error {
	return m.set("update", obj, obj.(*corev1.ConfigMap).ResourceVersion)
}
func (m *memory) Delete(obj any) error {
	return m.set("delete", obj, obj.(*corev1.ConfigMap).ResourceVersion)
}
func (m *memory) Bookmark(rv string) error {
	return m.set("bookmark", nil, rv)
}
func (m *memory) Resync() error { return nil }

func (m *memory) Passing(obj runtime.Object) {
	if _, ok := obj.(*corev1.ConfigMap); !ok {
		m.calls.note("passing %T", obj)
	}
}

func (m *memory) Replace(objs []any, rv string) error {
	if len(objs) > 0 {
		return fmt.Errorf("a list of %d objects", len(objs))
	}
	m.calls.note("replace %s", rv)
	return nil
}

func (m *memory) BeginRelist(how Relisting) (Relist, error) {
	if err := m.once(&m.beginErr); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rv = ""
	m.hows = append(m.hows, how)
	call := "begin"
	if how.Rewrite {
		call += " rewrite"
	}
	if how.Rewrite && how.Newest {
		call += " newest"
	}
	m.calls.note("%s", call)
	return &memoryRelist{m: m, before: maps.Clone(m.objects), seen: map[string]bool{}}, nil
}

// lastHow is how the last relist was begun.
func (m *memory) lastHow() Relisting {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.hows) == 0 {
		return Relisting{Cause: "None"}
	}
	return m.hows[len(m.hows)-1]
}

// memoryRelist is a Relist of memory.
type memoryRelist struct {
	m      *memory
	before map[string]string
	seen   map[string]bool
	done   bool
}

func (r *memoryRelist) Item(obj runtime.Object) error {
	if err := r.m.once(&r.m.itemErr); err != nil {
		return err
	}
	r.seen[obj.(*corev1.ConfigMap).Name] = true
	return r.m.set("item", obj, "")
}

func (r *memoryRelist) Known(checkpoint.ObjectVersion) (bool, error) {
	return false, nil
}

func (r *memoryRelist) Same(checkpoint.ObjectVersion, []byte) (bool, error) {
	return false, nil
}

func (r *memoryRelist) Finish(rv string, ordered bool) (changed bool, err error) {
	if err := r.m.once(&r.m.finishErr); err != nil {
		return false, err
	}
	r.m.mu.Lock()
	maps.DeleteFunc(r.m.objects, func(name, _ string) bool { return !r.seen[name] })
	changed = !maps.Equal(r.m.objects, r.before)
	r.m.mu.Unlock()
	r.done = true
	if !ordered {
		rv = ""
	}
	return changed, r.m.set("finish", nil, rv)
}

func (r *memoryRelist) Abort() {
	if !r.done {
		r.m.calls.note("abort")
	}
	r.done = true
}
