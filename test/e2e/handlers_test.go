package e2e

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/test/e2e/workload"
)

// crowd is an informer over the ConfigMaps of a namespace that change all the time.
type crowd struct {
	*program
	client    kubernetes.Interface
	namespace string
	informer  *warmwatch.SharedIndexInformer
	changer   *changer
}

func newCrowd(t *testing.T, objects int, o warmwatch.Options, io warmwatch.InformerOptions) *crowd {
	t.Helper()
	client := newClient(t, shared.Config())
	c := &crowd{client: client, namespace: newNamespace(t, client), program: launch(t, newPath(t), o)}
	c.changer = newChanger(client, c.namespace, objects/changers, newSeed(t))
	c.changer.make(t, objects)
	io.Namespace = c.namespace
	c.informer = c.program.informer(configMapsIn(client, c.namespace), &corev1.ConfigMap{}, configMaps, io)
	return c
}

func (c *crowd) expect(t *testing.T, recorders ...*recorder) {
	t.Helper()
	expectServer(t, listConfigMaps(t, c.client, c.namespace), c.informer.GetStore(), recorders...)
}

// TestAStuckHandlerHoldsUpNobody: nine handlers get everything while the tenth
// does not return, memory stays bounded, and then the tenth gets it all in order.
func TestAStuckHandlerHoldsUpNobody(t *testing.T) {
	const (
		objects, updates = 20, 20
		sizeBytes        = 256 << 10
		// All updates together are objects*updates*sizeBytes, 100 MiB.
		boundBytes = 48 << 20
	)
	client := newClient(t, shared.Config())
	namespace := newNamespace(t, client)
	c := client.CoreV1().ConfigMaps(namespace)
	put := func(do func(context.Context, *corev1.ConfigMap) error, round int) {
		t.Helper()
		err := workload.Parallel(t.Context(), objects, nil, func(ctx context.Context, i int) error {
			letter := string(rune('a' + round%26))
			return do(ctx, &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("object-%d", i)},
				Data:       map[string]string{"filling": strings.Repeat(letter, sizeBytes), "round": fmt.Sprint(round)},
			})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	put(func(ctx context.Context, o *corev1.ConfigMap) error {
		_, err := c.Create(ctx, o, metav1.CreateOptions{})
		return err
	}, 0)

	p := launch(t, newPath(t), warmwatch.Options{MemoryBudget: 1 << 20, MaxPendingBytes: 8 << 20})
	informer := p.informer(configMapsIn(client, namespace), &corev1.ConfigMap{}, configMaps, warmwatch.InformerOptions{Namespace: namespace})
	stuck, release := newRecorder(t), make(chan struct{})
	stuck.during = func() {
		if stuck.count() == objects {
			<-release
		}
	}
	free := sync.OnceFunc(func() { close(release) })
	t.Cleanup(free)
	handlers := []*recorder{stuck}
	registrations := []cache.ResourceEventHandlerRegistration{addHandler(t, informer, stuck)}
	for i := range 9 {
		r := newRecorder(t)
		if i%3 == 0 {
			registrations = append(registrations, addDurable(t, informer, fmt.Sprintf("durable-%d", i), r))
		} else {
			registrations = append(registrations, addHandler(t, informer, r))
		}
		handlers = append(handlers, r)
	}
	others := handlers[1:]
	p.run()
	for _, registration := range registrations {
		awaitSync(t, registration)
	}

	before := heapBytes()
	for round := range updates {
		put(func(ctx context.Context, o *corev1.ConfigMap) error {
			_, err := c.Update(ctx, o, metav1.UpdateOptions{})
			return err
		}, round+1)
	}
	expectServer(t, listConfigMaps(t, client, namespace), informer.GetStore(), others...)
	if n := stuck.count(); n != objects {
		t.Fatalf("the stuck handler was told of %d, want %d", n, objects)
	}
	if grown := heapBytes() - before; grown > boundBytes {
		t.Errorf("the heap grew by %d MiB, want at most %d", grown>>20, boundBytes>>20)
	} else {
		t.Logf("the heap grew by %d MiB", grown>>20)
	}
	free()
	expectServer(t, listConfigMaps(t, client, namespace), informer.GetStore(), handlers...)
	want := others[0].all()
	for i, r := range handlers {
		if got := r.all(); i > 0 && !slices.Equal(got, want) {
			t.Errorf("handler %d was told %d things, other than the %d of handler 1", i, len(got), len(want))
		}
	}
	awaitAcknowledged(t, informer)
}

// heapBytes is what is in use after a collection.
func heapBytes() int64 {
	runtime.GC()
	runtime.GC() // What has finalizers needs a second one.
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestHandlersComeAndGoUnderLoad: each joins without a gap or a repetition (its
// recorder checks that), and is not called any more once it was shut down.
func TestHandlersComeAndGoUnderLoad(t *testing.T) {
	// So many objects, told of so slowly, that they change while they are told of.
	const objects, slowly = 1200, 100 * time.Microsecond
	c := newCrowd(t, objects, warmwatch.Options{MemoryBudget: 32 << 10}, warmwatch.InformerOptions{})
	always := newRecorder(t)
	addHandler(t, c.informer, always)
	c.run()
	awaitSync(t, c.informer)
	c.changer.begin(t)
	stay := []*recorder{always}
	for i := range 12 {
		c.changer.await(t, 20)
		r := newRecorder(t)
		var gone atomic.Bool
		r.during = func() {
			time.Sleep(slowly)
			if gone.Load() {
				t.Error("called after it was shut down")
			}
		}
		var registration cache.ResourceEventHandlerRegistration
		if i%2 == 0 {
			registration = addHandler(t, c.informer, r)
		} else {
			r.isNew = true
			registration = addDurable(t, c.informer, fmt.Sprintf("late-%d", i), r)
		}
		if i%3 == 0 {
			stay = append(stay, r)
			continue
		}
		awaitSync(t, registration)
		c.changer.await(t, 20)
		if i%3 == 1 {
			if err := cache.ShutDownEventHandler(c.informer, registration); err != nil {
				t.Fatal(err)
			}
			gone.Store(true)
		} else if err := c.informer.RemoveEventHandler(registration); err != nil {
			t.Fatal(err)
		}
		if err := c.informer.RemoveEventHandler(registration); err != nil {
			t.Errorf("remove it again: %v", err)
		}
	}
	c.changer.await(t, 100)
	c.changer.end(t)
	c.expect(t, stay...)
	// Handlers come when nothing happens, too.
	quiet := newRecorder(t)
	awaitSync(t, addHandler(t, c.informer, quiet))
	for _, e := range quiet.take() {
		if e.Kind != "initial" {
			t.Errorf("a handler that came late was told %v", e)
		}
	}
	c.expect(t, quiet)
}

// TestADurableHandlerComesBack in the same life, to what it missed.
func TestADurableHandlerComesBack(t *testing.T) {
	c := newCrowd(t, 100, warmwatch.Options{}, warmwatch.InformerOptions{})
	r, witness := newRecorder(t), newRecorder(t)
	registration := addDurable(t, c.informer, "name", r)
	addHandler(t, c.informer, witness)
	c.run()
	c.expect(t, r, witness)
	c.changer.begin(t)
	for range 8 {
		c.changer.await(t, 25)
		// Not Remove: its callback in flight would be told again.
		if err := cache.ShutDownEventHandler(c.informer, registration); err != nil {
			t.Fatal(err)
		}
		c.changer.await(t, 25)
		registration = addDurable(t, c.informer, "name", r)
	}
	c.changer.end(t)
	c.expect(t, r, witness)
	want := slices.DeleteFunc(witness.all(), func(e told) bool { return e.Kind == "initial" })
	got := slices.DeleteFunc(r.all(), func(e told) bool { return e.Kind == "initial" })
	if !slices.Equal(want, got) {
		t.Errorf("the handler was told %d changes, other than the %d that happened", len(got), len(want))
	}
}

// TestResync: the handler that wants it is told of every object again, with the
// same pointer as old and new.
func TestResync(t *testing.T) {
	c := newCrowd(t, 100, warmwatch.Options{}, warmwatch.InformerOptions{ResyncPeriod: time.Hour})
	var mu sync.Mutex
	again := map[string]int{}
	resynced := func(object string) int {
		mu.Lock()
		defer mu.Unlock()
		return again[object]
	}
	quiet := newRecorder(t)
	addHandler(t, c.informer, quiet)
	_, err := c.informer.AddEventHandlerWithResyncPeriod(cache.ResourceEventHandlerFuncs{UpdateFunc: func(old, obj any) {
		if old.(*corev1.ConfigMap) == obj.(*corev1.ConfigMap) {
			mu.Lock()
			defer mu.Unlock()
			again[keyOf(obj)]++
		}
	}}, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	c.run()
	awaitSync(t, c.informer)
	c.expect(t)
	list := listConfigMaps(t, c.client, c.namespace)
	for round := 1; round <= 2; round++ {
		for key := range versionsOfList(t, list) {
			eventuallyTrue(t, fmt.Sprintf("%s to be resynced %d times", key, round), func() bool { return resynced(key) >= round })
		}
	}
	c.expect(t, quiet)
	for _, e := range quiet.all() {
		if e.Kind != "initial" {
			t.Errorf("a handler that does not resync was told %v", e)
		}
	}
}
