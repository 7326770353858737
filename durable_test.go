package warmwatch_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
)

func TestADurableHandlerGoesOnExactlyWhereItStopped(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"), configMap("b"))
		path := testsupport.Path(t)
		p := launch(t, path, f, nil)
		r, d := add2(t, p)
		p.run()
		settle()
		for _, r := range []*recorder{r, d} {
			r.expect(t, "add ns/a@1 initial", "add ns/b@2 initial")
		}
		f.put(configMap("a"), configMap("c"))
		f.remove("b")
		settle()
		for _, r := range []*recorder{r, d} {
			r.expect(t, "update ns/a@1→3", "add ns/c@4", "delete ns/b@5")
		}
		p.stop()

		// While it is down.
		f.put(configMap("a"), configMap("d"))
		f.remove("c")
		hold := make(chan struct{}) // Without it the watch may come before the plain handler's initial list.
		f.with(func() { f.hold = hold })
		p = launch(t, path, f, nil)
		r, d = add2(t, p)
		p.run()
		settle()
		f.with(func() { f.hold = nil })
		close(hold)
		settle()
		r.expect(t, "add ns/a@3 initial", "add ns/c@4 initial", "update ns/a@3→6", "add ns/d@7", "delete ns/c@8")
		d.expect(t, "update ns/a@3→6", "add ns/d@7", "delete ns/c@8")
		p.stop()

		// Nothing has happened.
		p = launch(t, path, f, nil)
		registration, err := p.informer.AddDurableEventHandler("d", d, warmwatch.DurableOptions{})
		if err != nil {
			t.Fatal(err)
		}
		p.run()
		settle()
		d.expect(t)
		if !registration.HasSynced() {
			t.Error("the registration is not synced")
		}
		p.stop()

		// The history is lost.
		f.put(configMap("a"))
		f.remove("d")
		f.restart()
		p = launch(t, path, f, nil)
		_, d = add2(t, p)
		p.run()
		settle()
		d.expectInAnyOrder(t, "update ns/a@6→9", "lost ns/d@7")
	})
}

// add2 adds a plain and a durable handler.
func add2(t *testing.T, p *process) (plain, durable *recorder) {
	t.Helper()
	plain, _ = add(t, p.informer)
	return plain, addDurable(t, p, "d")
}

func TestADurableHandlerIsToldOnlyOfWhatIsInTheFile(t *testing.T) { // D2
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"), configMap("b"))
		p := launch(t, testsupport.Path(t), f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.CommitInterval = time.Hour })
		told, goOn := make(chan string), make(chan struct{})
		d := &recorder{during: func(event string) { told <- event; <-goOn }}
		if _, err := p.informer.AddDurableEventHandler("d", d, warmwatch.DurableOptions{}); err != nil {
			t.Fatal(err)
		}
		p.run()
		down := newSource(t)
		down.setDown(errUnreachable)
		// check crashes during a callback. The next handler on the file must be
		// told of the same delta.
		check := func() {
			t.Helper()
			event := <-told
			synctest.Wait() // The committer is idle.
			q := launch(t, p.crash(), down, nil)
			again := addDurable(t, q, "d")
			q.run()
			settle()
			if got := again.take(); !slices.Contains(got, event) {
				t.Errorf("told of %q, after a crash of %q", event, got)
			}
			q.stop()
			goOn <- struct{}{}
		}
		for range 2 {
			check()
		}
		for i := range 5 {
			f.put(configMap("a"), configMap(fmt.Sprint(i)))
			f.remove(fmt.Sprint(i))
			for range 3 {
				check()
			}
		}
	})
}

func TestAPlainHandlerHearsAtOnceADurableOneWithinDurableDelay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t)
		p := launch(t, testsupport.Path(t), f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) {
			o.CommitInterval, o.DurableDelay = time.Hour, 50*time.Millisecond
		})
		plain, durable := add2(t, p)
		p.run()
		settle()
		f.put(configMap("a"))
		synctest.Wait()
		plain.expect(t, "add ns/a@1")
		advance(49 * time.Millisecond)
		durable.expect(t)
		advance(time.Millisecond)
		durable.expect(t, "add ns/a@1")
	})
}

func TestWhatADurableHandlerHadNotFinishedIsToldAgainAfterACrash(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"), configMap("b"))
		p := launch(t, testsupport.Path(t), f, nil)
		release := make(chan struct{})
		d := &recorder{during: func(event string) {
			if event == "update ns/a@3→4" {
				<-release
			}
		}}
		if _, err := p.informer.AddDurableEventHandler("d", d, warmwatch.DurableOptions{}); err != nil {
			t.Fatal(err)
		}
		p.run()
		settle()
		f.put(configMap("a"), configMap("a"), configMap("c"))
		f.remove("b")
		settle()
		d.expect(t, "add ns/a@1 initial", "add ns/b@2 initial", "update ns/a@1→3")
		if n := undelivered(p.informer.Status()); n != 4 { // One acknowledgement covers what is read together.
			t.Errorf("%d deltas are not acknowledged, expected 4", n)
		}
		crashed := p.crash()
		f.put(configMap("c"))

		q := launch(t, crashed, f, nil)
		again := addDurable(t, q, "d")
		q.run()
		settle()
		again.expect(t, "update ns/a@1→3", "update ns/a@3→4", "add ns/c@5", "delete ns/b@6", "update ns/c@5→7")
		if n := undelivered(q.informer.Status()); n != 0 {
			t.Errorf("%d deltas are not acknowledged", n)
		}
		q.stop()

		close(release)
		synctest.Wait()
		d.expect(t, "update ns/a@3→4", "add ns/c@5", "delete ns/b@6", "update ns/c@5→7")
	})
}

func TestACrashBeforeTheInitialListIsDoneBeginsItAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"), configMap("b"), configMap("c"))
		p := launch(t, testsupport.Path(t), f, nil)
		release := make(chan struct{})
		d := &recorder{during: func(event string) {
			if event == "add ns/b@2 initial" {
				<-release
			}
		}}
		if _, err := p.informer.AddDurableEventHandler("d", d, warmwatch.DurableOptions{}); err != nil {
			t.Fatal(err)
		}
		p.run()
		settle()
		f.remove("a") // It was told of that one.
		settle()
		crashed := p.crash()
		q := launch(t, crashed, f, nil)
		again := addDurable(t, q, "d")
		q.run()
		settle()
		again.expectInAnyOrder(t, "delete ns/a@4", "add ns/b@2 initial", "add ns/c@3 initial")
		q.stop()
		close(release)
	})
}

func TestStoppingKeepsWhatADurableHandlerWasNotToldOf(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"))
		path := testsupport.Path(t)
		p := launch(t, path, f, nil)
		release := make(chan struct{})
		d := &recorder{during: func(event string) {
			if event == "update ns/a@1→2" {
				<-release
			}
		}}
		if _, err := p.informer.AddDurableEventHandler("d", d, warmwatch.DurableOptions{}); err != nil {
			t.Fatal(err)
		}
		p.run()
		settle()
		f.put(configMap("a"), configMap("b"), configMap("a"))
		settle()
		go func() {
			advance(time.Second) // Stopping waits for the callback.
			close(release)
		}()
		p.stop()
		d.expect(t, "add ns/a@1 initial", "update ns/a@1→2")
		q := launch(t, path, f, nil)
		d = addDurable(t, q, "d")
		q.run()
		settle()
		d.expect(t, "add ns/b@3", "update ns/a@2→4")
	})
}

func TestARemovedDurableHandlerKeepsItsPlace(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"))
		p := launch(t, testsupport.Path(t), f, nil)
		d := &recorder{}
		registration, err := p.informer.AddDurableEventHandler("d", d, warmwatch.DurableOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.informer.AddDurableEventHandler("d", &recorder{}, warmwatch.DurableOptions{}); !errors.Is(err, warmwatch.ErrInUse) {
			t.Errorf("a second handler of the name: %v", err)
		}
		if err := p.informer.ForgetDurable("d"); !errors.Is(err, warmwatch.ErrInUse) {
			t.Errorf("forget a name that has a handler: %v", err)
		}
		p.run()
		settle()
		if err := cache.ShutDownEventHandler(p.informer, registration); err != nil {
			t.Fatal(err)
		}
		f.put(configMap("a"), configMap("b"))
		settle()
		if n := undelivered(p.informer.Status()); n != 2 {
			t.Errorf("%d deltas are kept for the name, expected 2", n)
		}
		d.expect(t, "add ns/a@1 initial")
		d = addDurable(t, p, "d")
		settle()
		d.expect(t, "update ns/a@1→2", "add ns/b@3")
	})
}

func TestLateDurableHandlersLeaveNoGapAndNoRepeat(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t)
		p := launch(t, testsupport.Path(t), f, nil)
		n := 0
		joinWhileObjectsChange(t, f, p.informer, func(h cache.ResourceEventHandler) error {
			n++
			h.(*chain).isNewName = true
			_, err := p.informer.AddDurableEventHandler(fmt.Sprint(n), h, warmwatch.DurableOptions{})
			return err
		})
	})
}

func TestAForgottenDurableHandlerBeginsAnew(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"))
		path := testsupport.Path(t)
		p := launch(t, path, f, nil)
		addDurable(t, p, "d")
		p.run()
		settle()
		p.stop()

		f.put(configMap("a"))
		p = launch(t, path, f, nil).run()
		settle()
		if n := undelivered(p.informer.Status()); n != 1 {
			t.Errorf("%d deltas are kept for the name, expected 1", n)
		}
		for range 2 {
			if err := p.informer.ForgetDurable("d"); err != nil {
				t.Fatal(err)
			}
		}
		settle()
		if n := undelivered(p.informer.Status()); n != 0 {
			t.Errorf("%d deltas are kept for nobody", n)
		}
		p.stop()

		p = launch(t, path, f, nil)
		d := addDurable(t, p, "d")
		p.run()
		settle()
		d.expect(t, "add ns/a@2 initial")
	})
}

// TestAnInformerThatHasEndedForgetsNothing: the next one of its identity uses the names.
func TestAnInformerThatHasEndedForgetsNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"))
		path := testsupport.Path(t)
		p := launch(t, path, f, nil)
		addDurable(t, p, "d")
		p.run()
		settle()
		p.end()
		ended := p.informer
		var err error
		if p.informer, err = p.cache.NewSharedIndexInformer(f, configMap(""), warmwatch.InformerOptions{Resource: configMaps}); err != nil {
			t.Fatal(err)
		}
		addDurable(t, p, "d")
		p.run()
		settle()
		if err := ended.ForgetDurable("d"); err == nil || !strings.Contains(err.Error(), "stopped already") {
			t.Errorf("forget after the end: error %v", err)
		}
		settle()
		path = p.crash()
		p.stop()

		f.remove("a")
		p = launch(t, path, f, nil)
		d := addDurable(t, p, "d")
		p.run()
		settle()
		d.expect(t, "delete ns/a@2")
	})
}

func TestDurableHandlersOfDifferentNamesHaveCursorsOfTheirOwn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"))
		path := testsupport.Path(t)
		for life, names := range [][]string{{"x", "y"}, {"x"}, {"x", "y", "z"}} {
			f.put(configMap("a"))
			hold := make(chan struct{})
			f.with(func() { f.hold = hold })
			p := launch(t, path, f, nil)
			handlers := map[string]*recorder{}
			for _, name := range names {
				handlers[name] = addDurable(t, p, name)
			}
			p.run()
			settle()
			close(hold)
			settle()
			switch life {
			case 0:
				handlers["x"].expect(t, "add ns/a@2 initial")
				handlers["y"].expect(t, "add ns/a@2 initial")
			case 1:
				handlers["x"].expect(t, "update ns/a@2→3")
			case 2:
				handlers["x"].expect(t, "update ns/a@3→4")
				handlers["y"].expect(t, "update ns/a@2→3", "update ns/a@3→4")
				handlers["z"].expect(t, "add ns/a@3 initial", "update ns/a@3→4")
			}
			p.stop()
		}
	})
}

func TestDeletionsWhileTheProcessWasDownAreTold(t *testing.T) { // D2
	for name, history := range map[string]bool{"by the resumed watch": true, "by the relist": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t, configMap("a", "last known"))
				path := testsupport.Path(t)
				p := launch(t, path, f, nil)
				add2(t, p)
				p.run()
				settle()
				p.stop()
				f.remove("a")
				want := "delete ns/a@2"
				if !history {
					f.restart()
					want = "lost ns/a@1"
				}
				f.hold = make(chan struct{})
				p = launch(t, path, f, nil)
				r, d := add2(t, p)
				p.run()
				settle()
				close(f.hold)
				settle()
				r.expect(t, "add ns/a@1 initial", want)
				d.expect(t, want)
			})
		})
	}
}

func TestADurableHandlerHearsOfWhatComesIntoAnEmptyStoreThatIsNotServed(t *testing.T) {
	for name, late := range map[string]bool{"added before the list": false, "added after it": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t)
				path := testsupport.Path(t)
				p := launch(t, path, f, nil)
				addDurable(t, p, "d")
				p.run()
				settle()
				p.stop()
				f.put(configMap("a"))
				// Nothing is served because it is transformed otherwise now, and
				// there is nothing. Yet the handler knows all objects: none.
				p = launch(t, path, f, func(_ *warmwatch.Options, o *warmwatch.InformerOptions) { o.TransformVersion = "2" })
				if err := p.informer.SetTransform(func(obj any) (any, error) { return obj, nil }); err != nil {
					t.Fatal(err)
				}
				if late {
					p.run()
				}
				d := addDurable(t, p, "d")
				p.run()
				settle()
				d.expect(t, "add ns/a@1")
			})
		})
	}
}

func TestAHandlerThatIsStuckCostsDiskNotMemory(t *testing.T) { // D6
	const changes = 4000
	content := strings.Repeat("x", 8<<10)
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"))
		path := testsupport.Path(t)
		p := launch(t, path, f, nil)
		release := make(chan struct{})
		plain, durable := newChain(t, "plain"), newChain(t, "durable")
		hang := func(any) { <-release }
		for _, c := range []*chain{plain, durable} {
			h := cache.FilteringResourceEventHandler{FilterFunc: func(obj any) bool { hang(obj); return true }, Handler: c}
			var err error
			if c == plain {
				_, err = p.informer.AddEventHandler(h)
			} else {
				_, err = p.informer.AddDurableEventHandler("d", h, warmwatch.DurableOptions{})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		p.run()
		for i := range changes {
			f.put(configMap(fmt.Sprint(i%50), content))
		}
		settle()
		if n := undelivered(p.informer.Status()); n != changes {
			t.Errorf("%d deltas wait, expected %d", n, changes)
		}
		close(release)
		settle()
		for _, c := range []*chain{plain, durable} {
			if got, want := fmt.Sprint(c.versions()), fmt.Sprint(f.contents()); got != want {
				t.Errorf("the %s handler believes in %s, there is %s", c.name, got, want)
			}
		}
		if n := undelivered(p.informer.Status()); n != 0 {
			t.Errorf("%d deltas are kept", n)
		}
	})
}

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

// TestADurableHandlerThatStopsAtTheEndOfItsInitialListDoesNotGoBack: objects change
// while it gets the list, so that it has newer versions than the deltas that wait. The next handler of the name gets no
// older version.
func TestADurableHandlerThatStopsAtTheEndOfItsInitialListDoesNotGoBack(t *testing.T) { // D2
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
		registration, err := p.informer.AddDurableEventHandler("d", r, warmwatch.DurableOptions{})
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
		if err := p.informer.RemoveEventHandler(registration); err != nil {
			t.Fatal(err)
		}
		close(last)
		settle()
		if _, err := p.informer.AddDurableEventHandler("d", r, warmwatch.DurableOptions{}); err != nil {
			t.Fatal(err)
		}
		settle()
		for _, bad := range goingBack(r.take()) {
			t.Errorf("D2: %s", bad)
		}
	})
}

// TestWhatWaitsForADurableHandlerIsOfAnotherTransform: it is told of no object that the function of
// another TransformVersion has made, but as the last state of one that was deleted.
func TestWhatWaitsForADurableHandlerIsOfAnotherTransform(t *testing.T) {
	for name, c := range map[string]struct{ another, damaged bool }{
		"in the next process":               {},
		"in the one after it":               {another: true},
		"and the checkpoint cannot be read": {damaged: true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t, configMap("a"), configMap("gone"))
				start := func(path, version string, handler cache.ResourceEventHandler) *process {
					p := launch(t, path, f, func(_ *warmwatch.Options, o *warmwatch.InformerOptions) { o.TransformVersion = version })
					if err := p.informer.SetTransform(func(obj any) (any, error) {
						obj.(*corev1.ConfigMap).Data = map[string]string{"by": version}
						return obj, nil
					}); err != nil {
						t.Fatal(err)
					}
					if handler != nil {
						if _, err := p.informer.AddDurableEventHandler("d", handler, warmwatch.DurableOptions{}); err != nil {
							t.Fatal(err)
						}
					}
					p.run()
					settle()
					return p
				}
				p := start(testsupport.Path(t), "1", &recorder{})
				p.stop()
				p = start(p.path, "1", nil)
				f.put(configMap("a"), configMap("b"))
				f.remove("gone")
				settle()
				p.stop()
				if c.another {
					p = start(p.path, "2", nil)
					p.stop()
				}
				if c.damaged {
					changeValue(t, p.path, "checkpoint", "resume", func(v []byte) { v[0] ^= 1 })
				}
				r := &recorder{}
				ofTheOther := cache.ResourceEventHandlerDetailedFuncs{DeleteFunc: r.OnDelete}
				ofTheOther.AddFunc = func(obj any, initial bool) {
					if by := obj.(*corev1.ConfigMap).Data["by"]; by != "2" {
						t.Errorf("told of %s by transform %s", version(obj), by)
					}
					r.OnAdd(obj, initial)
				}
				ofTheOther.UpdateFunc = func(_, obj any) { ofTheOther.AddFunc(obj, false) }
				start(p.path, "2", ofTheOther).damaged = c.damaged
				r.expect(t, "delete ns/gone@5", "add ns/a@3 initial", "add ns/b@4 initial")
			})
		})
	}
}
