package life_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/cachefile"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/recorder"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

func TestAReplacedObjectIsADeletionAndAnAdditionForADurableHandler(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart=%v", restart), func(t *testing.T) {
			bubble.Run(t, func(t *testing.T) {
				f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"), source.ConfigMap("z"))
				p := process.Launch(t, testsupport.Path(t), f, nil)
				r, _ := recorder.Add(t, p.Informer)
				durable := process.AddDurable(t, p, "d")
				p.Run()
				bubble.Settle()
				r.Take()
				durable.Take()
				change := func() {
					f.Remove("z", "b")
					f.Put(source.ConfigMap("b"), source.ConfigMap("a"))
				}
				if restart {
					p.Stop()
					change()
					f.Compact()
					p = process.Launch(t, p.Path, f, nil)
					r, _ = recorder.Add(t, p.Informer)
					durable = process.AddDurable(t, p, "d")
					p.Run()
					bubble.Settle()
				} else {
					source.Relisted(f, change)
				}
				durable.Expect(t, "lost ns/z@3", "update ns/a@1→7", "lost ns/b@2", "add ns/b@6")
				if restart {
					process.ExpectStore(t, p.Informer, f)
					return
				}
				r.Expect(t, "lost ns/z@3", "update ns/a@1→7", "update ns/b@2→6")
			})
		})
	}
}

// TestAnObjectThatCannotBeReadMayHaveBeenReplaced: its record has a flipped bit. A durable handler that
// was notified of it must be notified of its deletion, and nobody knows whether there was one.
func TestAnObjectThatCannotBeReadMayHaveBeenReplaced(t *testing.T) { // D2
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"))
		p := process.Launch(t, testsupport.Path(t), f, nil)
		durable := process.AddDurable(t, p, "d")
		p.Run()
		bubble.Settle()
		durable.Take()
		p.Stop()
		cachefile.ChangeValue(t, p.Path, "objects", "ns/a", func(v []byte) { v[len(v)/2] ^= 1 })
		f.Remove("a")
		f.Put(source.ConfigMap("a"))
		f.Compact()
		p = process.Launch(t, p.Path, f, nil)
		p.Damaged = true
		durable = process.AddDurable(t, p, "d")
		p.Run()
		bubble.Settle()
		durable.Expect(t, "lost ns/a", "add ns/a@4")
		process.ExpectStore(t, p.Informer, f)
	})
}

// A replacement is a relist that replaces object a, and waits in the batch with the new object. The
// durable handler early was notified of the old one. It is in real time, because the index function
// that waits holds locks.
type replacement struct {
	*process.Process
	source  *source.Source
	early   *recorder.Recorder
	release func() // Lets the relist go on.
}

func replace(t *testing.T) *replacement {
	f := sourceBeforeReplacement(t)
	applying, released := make(chan struct{}), make(chan struct{})
	var once sync.Once
	p := process.Launch(t, testsupport.Path(t), f, func(_ *warmwatch.Options, o *warmwatch.InformerOptions) {
		o.Indexers = cache.Indexers{"v": func(obj any) ([]string, error) {
			v := obj.(*corev1.ConfigMap).Data["v"]
			if v == "new" {
				once.Do(func() { close(applying); <-released })
			}
			return []string{v}, nil
		}}
	})
	r := &replacement{Process: p, source: f, early: process.AddDurable(t, p, "early"), release: sync.OnceFunc(func() { close(released) })}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.Informer.RunWithContext(ctx)
	}()
	t.Cleanup(func() {
		r.release()
		cancel()
		<-ended
	})
	r.early.Await(t, "add ns/a@1 initial", "add ns/b@2 initial")
	f.SetDown(source.ErrUnreachable)
	f.Remove("a")
	f.Put(source.ConfigMap("a", "new"))
	f.Compact()
	f.SetDown(nil)
	<-applying
	return r
}

func sourceBeforeReplacement(t *testing.T) *source.Source {
	return source.New(t, source.ConfigMap("a", "old"), source.ConfigMap("b", "stays"))
}

// TestADurableHandlerThatComesWhileAReplacementIsApplied gets the old object in its
// initial list, and of its deletion as the others are.
func TestADurableHandlerThatComesWhileAReplacementIsApplied(t *testing.T) {
	r := replace(t)
	late := process.AddDurable(t, r.Process, "late")
	late.Await(t, "add ns/a@1 initial", "add ns/b@2 initial")
	r.release()
	r.early.Await(t, "lost ns/a@1", "add ns/a@4")
	late.Await(t, "lost ns/a@1", "add ns/a@4")
}

// TestADurableHandlerWhoseNextOneHearsOfTheReplacement got the old object in its initial
// list, while the replacement was applied.
func TestADurableHandlerWhoseNextOneHearsOfTheReplacement(t *testing.T) { // D2
	r := replace(t)
	late := &recorder.Recorder{}
	registration, err := r.Informer.AddDurableEventHandler("late", late, warmwatch.DurableOptions{})
	if err != nil {
		t.Fatal(err)
	}
	late.Await(t, "add ns/a@1 initial", "add ns/b@2 initial")
	if err := r.Informer.RemoveEventHandler(registration); err != nil {
		t.Fatal(err)
	}
	late = &recorder.Recorder{}
	for err = warmwatch.ErrInUse; errors.Is(err, warmwatch.ErrInUse); { // Until the one before has ended.
		_, err = r.Informer.AddDurableEventHandler("late", late, warmwatch.DurableOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	r.release()
	r.early.Await(t, "lost ns/a@1", "add ns/a@4")
	late.Await(t, "lost ns/a@1", "add ns/a@4")
}

// TestAnInitialListThatACrashInterruptsWhileAReplacementIsApplied has delivered the old object.
func TestAnInitialListThatACrashInterruptsWhileAReplacementIsApplied(t *testing.T) { // D2
	r := replace(t)
	hangs, hang := make(chan struct{}), make(chan struct{})
	defer close(hang)
	late := &recorder.Recorder{During: func(event string) {
		if event == "add ns/b@2 initial" {
			close(hangs)
			<-hang
		}
	}}
	if _, err := r.Informer.AddDurableEventHandler("late", late, warmwatch.DurableOptions{}); err != nil {
		t.Fatal(err)
	}
	<-hangs
	late.Expect(t, "add ns/a@1 initial")
	r.release()
	r.early.Await(t, "lost ns/a@1", "add ns/a@4")
	path := r.Crash()
	bubble.Run(t, func(t *testing.T) {
		f := r.source.Copy(t)
		p := process.Launch(t, path, f, nil)
		late := process.AddDurable(t, p, "late")
		p.Run()
		bubble.Settle()
		late.Expect(t, "lost ns/a@1", "add ns/a@4 initial", "add ns/b@2 initial")
	})
}

// TestAReplacementThatACrashInterruptsAndThatIsTakenBack: the old object was never deleted, because the
// program was pointed at another cluster for a moment, or etcd was put back. Nobody is told so.
func TestAReplacementThatACrashInterruptsAndThatIsTakenBack(t *testing.T) { // A1
	r := replace(t)
	late := process.AddDurable(t, r.Process, "late")
	late.Await(t, "add ns/a@1 initial", "add ns/b@2 initial") // So all before is in the file.
	path := r.Crash()
	bubble.Run(t, func(t *testing.T) {
		f := sourceBeforeReplacement(t)
		p := process.Launch(t, path, f, nil)
		early := process.AddDurable(t, p, "early")
		p.Run()
		bubble.Settle()
		early.Expect(t)
		process.ExpectStore(t, p.Informer, f)
	})
}
