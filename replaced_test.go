package warmwatch_test

import (
	"context"
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
				// All deletions come before all additions, those of replaced objects, too.
				durable.expect(t, "lost ns/z@3", "lost ns/b@2", "update ns/a@1→7", "add ns/b@6")
				if restart {
					expectStore(t, p.informer, f)
					return
				}
				r.expect(t, "lost ns/z@3", "update ns/a@1→7", "update ns/b@2→6")
			})
		})
	}
}

// TestTheDeletionOfAReplacedObjectIsToldAgain, if the program was restarted before the new
// object was told of: nobody knows whether the last listener told it.
func TestTheDeletionOfAReplacedObjectIsToldAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"))
		p := launch(t, testsupport.Path(t), f, nil)
		durable, told := addDurable(t, p, "d"), make(chan struct{})
		p.run()
		settle()
		durable.take()
		stop := make(chan struct{})
		durable.during = func(string) { // Once: the deletion.
			close(told)
			<-stop
		}
		f.setDown(errUnreachable)
		f.remove("a")
		f.put(configMap("a"))
		f.compact()
		f.setDown(nil)
		<-told
		settle() // The relist has been applied.
		go func() {
			time.Sleep(time.Second) // After the stop has begun.
			close(stop)
		}()
		p.stop()
		durable.expect(t, "lost ns/a@1")
		p = launch(t, p.path, f, nil)
		durable = addDurable(t, p, "d")
		p.run()
		settle()
		durable.expect(t, "lost ns/a@1", "add ns/a@3")
	})
}

// A replacement is a relist that has replaced object z, and waits between the batch with the
// deletion, of which the durable handler early was told, and the one with the new object. It is
// in real time, because the index function that waits holds locks.
type replacement struct {
	*process
	early   *recorder
	release func() // Lets the relist go on.
}

func replace(t *testing.T) *replacement {
	f := newSource(t, configMap("z", "old"))
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
	r := &replacement{process: p, early: addDurable(t, p, "early"), release: sync.OnceFunc(func() { close(released) })}
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
	r.early.await(t, "add ns/z@1 initial")
	f.setDown(errUnreachable)
	f.remove("z")
	f.put(configMap("z", "new"))
	f.compact()
	f.setDown(nil)
	<-applying
	r.early.await(t, "lost ns/z@1")
	return r
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
// initial list, after the others were told of the deletion of that object.
func TestADurableHandlerThatComesWhileAReplacementIsApplied(t *testing.T) {
	r := replace(t)
	late := addDurable(t, r.process, "late")
	late.await(t, "add ns/z@1 initial")
	r.release()
	r.early.await(t, "add ns/z@3")
	late.await(t, "lost ns/z@1", "add ns/z@3")
}

// TestADurableHandlerWhoseNextOneHearsOfTheReplacement was told the old object by its initial
// list, between the deletion of that object and the new one.
func TestADurableHandlerWhoseNextOneHearsOfTheReplacement(t *testing.T) { // Q2
	r := replace(t)
	late := &recorder{}
	registration, err := r.informer.AddDurableEventHandler("late", late)
	if err != nil {
		t.Fatal(err)
	}
	late.await(t, "add ns/z@1 initial")
	if err := r.informer.RemoveEventHandler(registration); err != nil {
		t.Fatal(err)
	}
	late = addDurable(t, r.process, "late")
	r.release()
	r.early.await(t, "add ns/z@3")
	late.await(t, "lost ns/z@1", "add ns/z@3")
}
