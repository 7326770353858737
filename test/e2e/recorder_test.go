package e2e

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"
)

// A delivery is one notification. Versions are uid@resourceVersion.
type delivery struct {
	Kind     string // add, initial, update, delete, lost (a tombstone).
	Key      string
	Old, New string
	// Marked: the first half of a Pod's deletion, delivered as an update.
	Marked bool
}

func (e delivery) deletes() bool { return e.Kind == "delete" || e.Kind == "lost" }

func (e delivery) String() string {
	switch e.Kind {
	case "update":
		return fmt.Sprintf("update %s %s→%s", e.Key, e.Old, e.New)
	case "delete", "lost": // A tombstone cannot know the version of the deletion.
		return "delete " + e.Key
	}
	return fmt.Sprintf("%s %s %s", e.Kind, e.Key, e.New)
}

func deliveryOfAdd(obj any, initial bool) delivery {
	e := delivery{Kind: "add", Key: keyOf(obj), New: versionOf(obj)}
	if initial {
		e.Kind = "initial"
	}
	return e
}

func deliveryOfUpdate(old, obj any) delivery {
	e := delivery{Kind: "update", Key: keyOf(obj), Old: versionOf(old), New: versionOf(obj)}
	if m, err := meta.Accessor(obj); err == nil {
		e.Marked = m.GetDeletionTimestamp() != nil
	}
	if key := keyOf(old); key != e.Key {
		e.Key = key + " became " + e.Key
	}
	return e
}

func deliveryOfDelete(obj any) delivery {
	if lost, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		return delivery{Kind: "lost", Key: lost.Key, New: versionOf(lost.Obj)}
	}
	return delivery{Kind: "delete", Key: keyOf(obj), New: versionOf(obj)}
}

func keyOf(obj any) string {
	key, err := cache.MetaNamespaceKeyFunc(obj)
	if err != nil {
		return err.Error()
	}
	return key
}

func versionOf(obj any) string {
	m, err := meta.Accessor(obj)
	if err != nil {
		return err.Error()
	}
	return string(m.GetUID()) + "@" + m.GetResourceVersion()
}

// knowledge is what somebody knows who believes all notifications.
type knowledge map[string]string

// learn applies a notification and says what is wrong with it: each must follow
// from the one before, so that nothing was left out and nothing delivered twice.
func (k knowledge) learn(e delivery) error {
	known, exists := k[e.Key]
	switch e.Kind {
	case "add", "initial":
		k[e.Key] = e.New
		if exists {
			return fmt.Errorf("%v: it was known, as %s", e, known)
		}
	case "update":
		k[e.Key] = e.New
		if !exists || known != e.Old {
			return fmt.Errorf("%v: it was known as %q", e, known)
		}
	default:
		delete(k, e.Key)
		if !exists {
			return fmt.Errorf("%v: it was not known", e)
		}
	}
	return nil
}

// recorder is a handler that writes down what it gets. It can be used in
// several lives of a program, by a durable handler.
type recorder struct {
	// rewound: resourceVersions went back once.
	rewound bool
	// isNew: a durable handler of a new name also gets deletions that are stored for others (D3).
	isNew bool
	// during, if set, is called at the beginning of each callback.
	during func()

	mu       sync.Mutex
	events   []delivery
	seen     int // Taken.
	known    knowledge
	problems []string
}

func newRecorder(t *testing.T) *recorder {
	r := &recorder{known: knowledge{}}
	t.Cleanup(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, p := range r.problems[:min(10, len(r.problems))] {
			t.Errorf("%d notifications do not follow from those before: %s", len(r.problems), p)
		}
	})
	return r
}

func (r *recorder) OnAdd(obj any, initial bool) { r.record(deliveryOfAdd(obj, initial)) }
func (r *recorder) OnUpdate(old, obj any)       { r.record(deliveryOfUpdate(old, obj)) }
func (r *recorder) OnDelete(obj any)            { r.record(deliveryOfDelete(obj)) }

func (r *recorder) record(e delivery) {
	if r.during != nil {
		r.during()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isNew && e.deletes() && !slices.ContainsFunc(r.events, func(before delivery) bool { return before.Key == e.Key && !before.deletes() }) {
		return
	}
	r.events = append(r.events, e)
	err := r.known.learn(e)
	if err == nil && e.Kind == "update" && !r.rewound && goesBack(e) {
		err = fmt.Errorf("%v: it goes back", e)
	}
	if err != nil {
		r.problems = append(r.problems, err.Error())
	}
}

func goesBack(e delivery) bool {
	order, err := resourceversion.CompareResourceVersion(rvOf(e.Old), rvOf(e.New))
	return err != nil || order > 0
}

func rvOf(version string) string {
	for i := range version {
		if version[i] == '@' {
			return version[i+1:]
		}
	}
	return version
}

// take returns what was delivered since the last take.
func (r *recorder) take() []delivery {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := slices.Clone(r.events[r.seen:])
	r.seen = len(r.events)
	return e
}

func (r *recorder) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.events)
}

// state is what the handler knows by now.
func (r *recorder) state() map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.known)
}

// expect waits until something was delivered since the last take for each of want, and
// compares in order. It leaves out that a Pod was marked before it was deleted.
func (r *recorder) expect(t *testing.T, want ...string) {
	t.Helper()
	r.expectWith(t, false, want...)
}

// expectInAnyOrder is for a relist.
func (r *recorder) expectInAnyOrder(t *testing.T, want ...string) {
	t.Helper()
	r.expectWith(t, true, want...)
}

func (r *recorder) expectWith(t *testing.T, sorted bool, want ...string) {
	t.Helper()
	got := []string{}
	eventually(t, fmt.Sprintf("%d notifications", len(want)), func() error {
		for _, e := range r.take() {
			if !e.Marked {
				got = append(got, e.String())
			}
		}
		if len(got) < len(want) {
			return fmt.Errorf("%d notifications: %v", len(got), got)
		}
		return nil
	})
	want = append([]string{}, want...)
	if sorted {
		slices.Sort(got)
		slices.Sort(want)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("notifications (-want +got):\n%s", diff)
	}
}

// versionsOfList and versionsOfStore are comparable with each other, and with
// what a recorder knows.
func versionsOfList(t *testing.T, list runtime.Object) map[string]string {
	t.Helper()
	versions := map[string]string{}
	err := meta.EachListItem(list, func(obj runtime.Object) error {
		versions[keyOf(obj)] = versionOf(obj)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return versions
}

func versionsOfStore(store cache.Store) map[string]string {
	versions := map[string]string{}
	for _, obj := range store.List() {
		versions[keyOf(obj)] = versionOf(obj)
	}
	return versions
}

func difference(want, got map[string]string) error {
	if maps.Equal(want, got) {
		return nil
	}
	return fmt.Errorf("(-want +got):\n%s", cmp.Diff(want, got))
}

// expectServer waits until the store equals the server's list, which must not
// change any more, and compares the objects in full. So must what the recorders
// know.
func expectServer(t *testing.T, list runtime.Object, store cache.Store, recorders ...*recorder) {
	t.Helper()
	want := versionsOfList(t, list)
	eventually(t, "the store to equal the server", func() error { return difference(want, versionsOfStore(store)) })
	for _, r := range recorders {
		eventually(t, "a handler to know what the server has", func() error { return difference(want, r.state()) })
	}
	err := meta.EachListItem(list, func(obj runtime.Object) error {
		stored, exists, err := store.GetByKey(keyOf(obj))
		if err != nil || !exists {
			return fmt.Errorf("get %s: %t %w", keyOf(obj), exists, err)
		}
		if want, got := withoutType(obj), withoutType(stored.(runtime.Object)); !apiequality.Semantic.DeepEqual(want, got) {
			return fmt.Errorf("%s differs from the server's:\nwant %+v\ngot  %+v", keyOf(obj), want, got)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// withoutType: items of a metadata list carry no kind, watch events do.
func withoutType(obj runtime.Object) runtime.Object {
	if m, ok := obj.(*metav1.PartialObjectMetadata); ok {
		m = m.DeepCopy()
		m.TypeMeta = metav1.TypeMeta{}
		return m
	}
	return obj
}
