package warmwatch_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
)

func TestAReplacedObjectIsADeletionAndAnAdditionForADurableHandler(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart=%v", restart), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t, configMap("a"), configMap("b"), configMap("z"))
				p := launch(t, testsupport.Path(t), f, nil)
				r, _ := add(t, p.informer)
				durable := addDurable(t, p, "d")
				p.run()
				settle()
				r.take()
				durable.take()
				change := func() {
					f.remove("z", "b")
					f.put(configMap("b"), configMap("a"))
				}
				if restart {
					p.stop()
					change()
					f.compact()
					p = launch(t, p.path, f, nil)
					r, _ = add(t, p.informer)
					durable = addDurable(t, p, "d")
					p.run()
					settle()
				} else {
					relisted(f, change)
				}
				durable.expect(t, "lost ns/z@3", "update ns/a@1→7", "lost ns/b@2", "add ns/b@6")
				if restart {
					expectStore(t, p.informer, f)
					return
				}
				r.expect(t, "lost ns/z@3", "update ns/a@1→7", "update ns/b@2→6")
			})
		})
	}
}

// TestAnObjectThatCannotBeReadMayHaveBeenReplaced: its record has a flipped bit. A durable handler that
// was told of it must be told of its deletion, and nobody knows whether there was one.
func TestAnObjectThatCannotBeReadMayHaveBeenReplaced(t *testing.T) { // D2
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"), configMap("b"))
		p := launch(t, testsupport.Path(t), f, nil)
		durable := addDurable(t, p, "d")
		p.run()
		settle()
		durable.take()
		p.stop()
		changeValue(t, p.path, "objects", "ns/a", func(v []byte) { v[len(v)/2] ^= 1 })
		f.remove("a")
		f.put(configMap("a"))
		f.compact()
		p = launch(t, p.path, f, nil)
		p.damaged = true
		durable = addDurable(t, p, "d")
		p.run()
		settle()
		durable.expect(t, "lost ns/a", "add ns/a@4")
		expectStore(t, p.informer, f)
	})
}

// A replacement is a relist that replaces object a, and waits in the batch with the new object. The
// durable handler early was told of the old one. It is in real time, because the index function
// that waits holds locks.
type replacement struct {
	*process
	source  *source
	early   *recorder
	release func() // Lets the relist go on.
}

func replace(t *testing.T) *replacement {
	f := sourceBeforeReplacement(t)
	applying, released := make(chan struct{}), make(chan struct{})
	var once sync.Once
	p := launch(t, testsupport.Path(t), f, func(_ *warmwatch.Options, o *warmwatch.InformerOptions) {
		o.Indexers = cache.Indexers{"v": func(obj any) ([]string, error) {
			v := obj.(*corev1.ConfigMap).Data["v"]
			if v == "new" {
				once.Do(func() { close(applying); <-released })
			}
			return []string{v}, nil
		}}
	})
	r := &replacement{process: p, source: f, early: addDurable(t, p, "early"), release: sync.OnceFunc(func() { close(released) })}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.informer.RunWithContext(ctx)
	}()
	t.Cleanup(func() {
		r.release()
		cancel()
		<-ended
	})
	r.early.await(t, "add ns/a@1 initial", "add ns/b@2 initial")
	f.setDown(errUnreachable)
	f.remove("a")
	f.put(configMap("a", "new"))
	f.compact()
	f.setDown(nil)
	<-applying
	return r
}

func sourceBeforeReplacement(t *testing.T) *source {
	return newSource(t, configMap("a", "old"), configMap("b", "stays"))
}

// await is expect, and waits until as many events were told.
func (r *recorder) await(t *testing.T, want ...string) {
	t.Helper()
	for begin := time.Now(); time.Since(begin) < time.Minute; time.Sleep(5 * time.Millisecond) {
		r.mu.Lock()
		n := len(r.events)
		r.mu.Unlock()
		if n >= len(want) {
			break
		}
	}
	r.expect(t, want...)
}

// TestADurableHandlerThatComesWhileAReplacementIsApplied is told of the old object by its
// initial list, and of its deletion as the others are.
func TestADurableHandlerThatComesWhileAReplacementIsApplied(t *testing.T) {
	r := replace(t)
	late := addDurable(t, r.process, "late")
	late.await(t, "add ns/a@1 initial", "add ns/b@2 initial")
	r.release()
	r.early.await(t, "lost ns/a@1", "add ns/a@4")
	late.await(t, "lost ns/a@1", "add ns/a@4")
}

// TestADurableHandlerWhoseNextOneHearsOfTheReplacement was told the old object by its initial
// list, while the replacement was applied.
func TestADurableHandlerWhoseNextOneHearsOfTheReplacement(t *testing.T) { // D2
	r := replace(t)
	late := &recorder{}
	registration, err := r.informer.AddDurableEventHandler("late", late, warmwatch.DurableOptions{})
	if err != nil {
		t.Fatal(err)
	}
	late.await(t, "add ns/a@1 initial", "add ns/b@2 initial")
	if err := r.informer.RemoveEventHandler(registration); err != nil {
		t.Fatal(err)
	}
	late = &recorder{}
	for err = warmwatch.ErrInUse; errors.Is(err, warmwatch.ErrInUse); { // Until the one before has ended.
		_, err = r.informer.AddDurableEventHandler("late", late, warmwatch.DurableOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	r.release()
	r.early.await(t, "lost ns/a@1", "add ns/a@4")
	late.await(t, "lost ns/a@1", "add ns/a@4")
}

// TestAnInitialListThatACrashInterruptsWhileAReplacementIsApplied has told of the old object.
func TestAnInitialListThatACrashInterruptsWhileAReplacementIsApplied(t *testing.T) { // D2
	r := replace(t)
	hangs, hang := make(chan struct{}), make(chan struct{})
	defer close(hang)
	late := &recorder{during: func(event string) {
		if event == "add ns/b@2 initial" {
			close(hangs)
			<-hang
		}
	}}
	if _, err := r.informer.AddDurableEventHandler("late", late, warmwatch.DurableOptions{}); err != nil {
		t.Fatal(err)
	}
	<-hangs
	late.expect(t, "add ns/a@1 initial")
	r.release()
	r.early.await(t, "lost ns/a@1", "add ns/a@4")
	path := r.crash()
	bubble(t, func(t *testing.T) {
		f := r.source.copy(t)
		p := launch(t, path, f, nil)
		late := addDurable(t, p, "late")
		p.run()
		settle()
		late.expect(t, "lost ns/a@1", "add ns/a@4 initial", "add ns/b@2 initial")
	})
}

// TestAReplacementThatACrashInterruptsAndThatIsTakenBack: the old object was never deleted, because the
// program was pointed at another cluster for a moment, or etcd was put back. Nobody is told so.
func TestAReplacementThatACrashInterruptsAndThatIsTakenBack(t *testing.T) { // A1
	r := replace(t)
	late := addDurable(t, r.process, "late")
	late.await(t, "add ns/a@1 initial", "add ns/b@2 initial") // So all before is in the file.
	path := r.crash()
	bubble(t, func(t *testing.T) {
		f := sourceBeforeReplacement(t)
		p := launch(t, path, f, nil)
		early := addDurable(t, p, "early")
		p.run()
		settle()
		early.expect(t)
		expectStore(t, p.informer, f)
	})
}
