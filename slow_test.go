package warmwatch_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// goingBack returns the events that tell an older version than one before, or the same one
// again, since the handler was last told of the whole list.
func goingBack(events []string) (bad []string) {
	known := map[string]int{}
	for _, e := range events {
		what, rest, _ := strings.Cut(e, " ")
		key, version, _ := strings.Cut(strings.TrimSuffix(rest, " initial"), "@")
		if _, after, ok := strings.Cut(version, "→"); ok {
			version = after
		}
		var rv int
		if _, err := fmt.Sscan(version, &rv); err != nil {
			return []string{e}
		}
		if rv < known[key] || rv == known[key] && what != "add" {
			bad = append(bad, fmt.Sprintf("%q after version %d", e, known[key]))
		}
		known[key] = max(known[key], rv)
	}
	return bad
}

// TestADurableHandlerThatStopsAtTheEndOfItsInitialListDoesNotGoBack: objects have changed
// while it was told the list, so that it knows newer versions than the deltas that wait.
func TestADurableHandlerThatStopsAtTheEndOfItsInitialListDoesNotGoBack(t *testing.T) { // H1
	for _, again := range []string{"next process", "same process"} {
		t.Run(again, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t)
				const n = 1500
				for i := range n {
					f.put(configMap(fmt.Sprintf("o%04d", i), "x"))
				}
				path := testsupport.Path(t)
				p := launch(t, path, f, nil).run()
				settle()
				first, last := make(chan struct{}), make(chan struct{})
				r := &recorder{during: func(event string) {
					if strings.HasPrefix(event, "add ns/o0000@") {
						<-first
					}
					if strings.HasPrefix(event, fmt.Sprintf("add ns/o%04d@", n-1)) {
						<-last
					}
				}}
				registration, err := p.informer.AddDurableEventHandler("d", r)
				if err != nil {
					t.Fatal(err)
				}
				settle() // It is in its first callback.
				for range 3 {
					f.put(configMap("o1400", "y"))
				}
				settle()
				close(first)
				settle() // It is in its last one.
				if again == "next process" {
					time.AfterFunc(time.Second, func() { close(last) })
					p.stop()
					p = launch(t, path, f, nil)
				} else {
					if err := p.informer.RemoveEventHandler(registration); err != nil {
						t.Fatal(err)
					}
					close(last)
					settle()
				}
				if _, err := p.informer.AddDurableEventHandler("d", r); err != nil {
					t.Fatal(err)
				}
				if again == "next process" {
					p.run()
				}
				settle()
				for _, bad := range goingBack(r.take()) {
					t.Errorf("H1: %s", bad)
				}
			})
		})
	}
}

// TestADurableHandlerWhoseNextOneHearsOfTheReplacement was told the old object by its initial
// list, between the two batches in which a relist replaces it.
func TestADurableHandlerWhoseNextOneHearsOfTheReplacement(t *testing.T) { // Q2
	f := newSource(t, configMap("z", "old"))
	applying, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	p := launch(t, testsupport.Path(t), f, func(_ *warmwatch.Options, o *warmwatch.InformerOptions) {
		o.Indexers = cache.Indexers{"v": func(obj any) ([]string, error) {
			v := obj.(*corev1.ConfigMap).Data["v"]
			if v == "new" {
				once.Do(func() { close(applying); <-release })
			}
			return []string{v}, nil
		}}
	})
	early := addDurable(t, p, "early")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.informer.RunWithContext(ctx)
	}()
	defer func() {
		cancel()
		<-ended
	}()
	heard := func(r *recorder, want ...string) {
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
	heard(early, "add ns/z@1 initial")
	f.setDown(errUnreachable)
	f.remove("z")
	f.put(configMap("z", "new"))
	f.compact()
	f.setDown(nil)
	<-applying
	heard(early, "lost ns/z@1")
	late := &recorder{}
	registration, err := p.informer.AddDurableEventHandler("late", late)
	if err != nil {
		t.Fatal(err)
	}
	heard(late, "add ns/z@1 initial")
	if err := p.informer.RemoveEventHandler(registration); err != nil {
		t.Fatal(err)
	}
	late = addDurable(t, p, "late")
	close(release)
	heard(early, "add ns/z@3")
	heard(late, "lost ns/z@1", "add ns/z@3")
}

// TestASlowPlainHandlerHearsOfDeletionsSince: it was added in time, and hangs in its first
// callback until the time for late handlers is over.
func TestASlowPlainHandlerHearsOfDeletionsSince(t *testing.T) { // Q2
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"), configMap("b"), configMap("c"))
		p := launch(t, testsupport.Path(t), f, nil)
		hang := make(chan struct{})
		defer close(hang)
		first := &recorder{during: func(event string) {
			if event == "update ns/b@2→4" {
				<-hang
			}
		}}
		if _, err := p.informer.AddEventHandler(first); err != nil {
			t.Fatal(err)
		}
		p.run()
		settle()
		f.put(configMap("b"))
		f.remove("a")
		settle()
		path := p.crash()

		q := launch(t, path, f, nil)
		release := make(chan struct{})
		r := &recorder{during: func(event string) {
			if event == "delete ns/a@5" {
				<-release
			}
		}}
		if _, err := q.informer.AddEventHandler(r); err != nil {
			t.Fatal(err)
		}
		q.run()
		settle() // Caught up, and the minute is over.
		settle()
		f.remove("c") // The first handler was told of c.
		settle()
		close(release)
		settle()
		r.expect(t, "delete ns/a@5", "add ns/b@4 initial", "delete ns/c@6")
		q.stop()
	})
}

// closesOnce is a watch whose Stop must be called once.
type closesOnce struct {
	watch.Interface
	stopped chan struct{}
}

func (c *closesOnce) Stop() {
	close(c.stopped)
	c.Interface.Stop()
}

func TestAWatchIsStoppedOnce(t *testing.T) {
	contract(t, func(t *testing.T, impl implementation) {
		f := newSource(t, configMap("a"))
		inner := false
		f.onWatch = func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if inner {
				return nil, nil
			}
			inner = true
			defer func() { inner = false }()
			w, err := f.WatchWithContext(ctx, o)
			return &closesOnce{w, make(chan struct{})}, err
		}
		informer := impl.new(t, f)
		stop := start(t, informer)
		settle()
		stop()
	})
}

// TestAHandlerThatIsRemovedWhileRunEnds: what it was not told is for the next process.
func TestAHandlerThatIsRemovedWhileRunEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"), configMap("b"))
		path := testsupport.Path(t)
		p := launch(t, path, f, nil)
		release := make(chan struct{})
		r := &recorder{during: func(event string) {
			if event == "update ns/b@2→3" {
				<-release
			}
		}}
		registration, err := p.informer.AddEventHandler(r)
		if err != nil {
			t.Fatal(err)
		}
		p.run()
		settle()
		f.put(configMap("b"))
		f.remove("a")
		settle()
		go func() {
			time.Sleep(time.Second)
			if err := p.informer.RemoveEventHandler(registration); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Second)
			close(release)
		}()
		p.stop()
		p = launch(t, path, f, nil)
		r2, _ := add(t, p.informer)
		p.run()
		settle()
		r2.expect(t, "delete ns/a@4", "add ns/b@3 initial")
	})
}
