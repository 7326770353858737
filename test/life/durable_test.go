package life_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

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

func TestADurableHandlerGoesOnExactlyWhereItStopped(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"))
		path := testsupport.Path(t)
		p := process.Launch(t, path, f, nil)
		r, d := process.AddBoth(t, p)
		p.Run()
		bubble.Settle()
		for _, r := range []*recorder.Recorder{r, d} {
			r.Expect(t, "add ns/a@1 initial", "add ns/b@2 initial")
		}
		f.Put(source.ConfigMap("a"), source.ConfigMap("c"))
		f.Remove("b")
		bubble.Settle()
		for _, r := range []*recorder.Recorder{r, d} {
			r.Expect(t, "update ns/a@1→3", "add ns/c@4", "delete ns/b@5")
		}
		p.Stop()

		// While it is down.
		f.Put(source.ConfigMap("a"), source.ConfigMap("d"))
		f.Remove("c")
		hold := make(chan struct{}) // Without it the watch may come before the plain handler's initial list.
		f.With(func() { f.Hold = hold })
		p = process.Launch(t, path, f, nil)
		r, d = process.AddBoth(t, p)
		p.Run()
		bubble.Settle()
		f.With(func() { f.Hold = nil })
		close(hold)
		bubble.Settle()
		r.Expect(t, "add ns/a@3 initial", "add ns/c@4 initial", "update ns/a@3→6", "add ns/d@7", "delete ns/c@8")
		d.Expect(t, "update ns/a@3→6", "add ns/d@7", "delete ns/c@8")
		p.Stop()

		// Nothing has happened.
		p = process.Launch(t, path, f, nil)
		registration, err := p.Informer.AddDurableEventHandler("d", d, warmwatch.DurableOptions{})
		if err != nil {
			t.Fatal(err)
		}
		p.Run()
		bubble.Settle()
		d.Expect(t)
		if !registration.HasSynced() {
			t.Error("the registration is not synced")
		}
		p.Stop()

		// The history is lost.
		f.Put(source.ConfigMap("a"))
		f.Remove("d")
		f.Restart()
		p = process.Launch(t, path, f, nil)
		_, d = process.AddBoth(t, p)
		p.Run()
		bubble.Settle()
		d.ExpectInAnyOrder(t, "update ns/a@6→9", "lost ns/d@7")
	})
}

func TestADurableHandlerGetsOnlyWhatIsInTheFile(t *testing.T) { // D2
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"))
		p := process.Launch(t, testsupport.Path(t), f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.CommitInterval = time.Hour })
		delivered, goOn := make(chan string), make(chan struct{})
		d := &recorder.Recorder{During: func(event string) { delivered <- event; <-goOn }}
		if _, err := p.Informer.AddDurableEventHandler("d", d, warmwatch.DurableOptions{}); err != nil {
			t.Fatal(err)
		}
		p.Run()
		down := source.New(t)
		down.SetDown(source.ErrUnreachable)
		// check crashes during a callback. The next handler on the file must be
		// notified of the same delta.
		check := func() {
			t.Helper()
			event := <-delivered
			synctest.Wait() // The committer is idle.
			q := process.Launch(t, p.Crash(), down, nil)
			again := process.AddDurable(t, q, "d")
			q.Run()
			bubble.Settle()
			if got := again.Take(); !slices.Contains(got, event) {
				t.Errorf("notified of %q, after a crash of %q", event, got)
			}
			q.Stop()
			goOn <- struct{}{}
		}
		for range 2 {
			check()
		}
		for i := range 5 {
			f.Put(source.ConfigMap("a"), source.ConfigMap(fmt.Sprint(i)))
			f.Remove(fmt.Sprint(i))
			for range 3 {
				check()
			}
		}
	})
}

func TestAPlainHandlerHearsAtOnceADurableOneWithinDurableDelay(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t)
		p := process.Launch(t, testsupport.Path(t), f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) {
			o.CommitInterval, o.DurableDelay = time.Hour, 50*time.Millisecond
		})
		plain, durable := process.AddBoth(t, p)
		p.Run()
		bubble.Settle()
		f.Put(source.ConfigMap("a"))
		synctest.Wait()
		plain.Expect(t, "add ns/a@1")
		bubble.Advance(49 * time.Millisecond)
		durable.Expect(t)
		bubble.Advance(time.Millisecond)
		durable.Expect(t, "add ns/a@1")
	})
}

func TestWhatADurableHandlerHadNotFinishedIsDeliveredAgainAfterACrash(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"), source.ConfigMap("b"))
		p := process.Launch(t, testsupport.Path(t), f, nil)
		release := make(chan struct{})
		d := &recorder.Recorder{During: func(event string) {
			if event == "update ns/a@3→4" {
				<-release
			}
		}}
		if _, err := p.Informer.AddDurableEventHandler("d", d, warmwatch.DurableOptions{}); err != nil {
			t.Fatal(err)
		}
		p.Run()
		bubble.Settle()
		f.Put(source.ConfigMap("a"), source.ConfigMap("a"), source.ConfigMap("c"))
		f.Remove("b")
		bubble.Settle()
		d.Expect(t, "add ns/a@1 initial", "add ns/b@2 initial", "update ns/a@1→3")
		if n := process.Undelivered(p.Informer.Status()); n != 4 { // One acknowledgement covers what is read together.
			t.Errorf("%d deltas are not acknowledged, expected 4", n)
		}
		crashed := p.Crash()
		f.Put(source.ConfigMap("c"))

		q := process.Launch(t, crashed, f, nil)
		again := process.AddDurable(t, q, "d")
		q.Run()
		bubble.Settle()
		again.Expect(t, "update ns/a@1→3", "update ns/a@3→4", "add ns/c@5", "delete ns/b@6", "update ns/c@5→7")
		if n := process.Undelivered(q.Informer.Status()); n != 0 {
			t.Errorf("%d deltas are not acknowledged", n)
		}
		q.Stop()

		close(release)
		synctest.Wait()
		d.Expect(t, "update ns/a@3→4", "add ns/c@5", "delete ns/b@6", "update ns/c@5→7")
	})
}

func TestStoppingKeepsWhatADurableHandlerDidNotGet(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a"))
		path := testsupport.Path(t)
		p := process.Launch(t, path, f, nil)
		release := make(chan struct{})
		d := &recorder.Recorder{During: func(event string) {
			if event == "update ns/a@1→2" {
				<-release
			}
		}}
		if _, err := p.Informer.AddDurableEventHandler("d", d, warmwatch.DurableOptions{}); err != nil {
			t.Fatal(err)
		}
		p.Run()
		bubble.Settle()
		f.Put(source.ConfigMap("a"), source.ConfigMap("b"), source.ConfigMap("a"))
		bubble.Settle()
		go func() {
			bubble.Advance(time.Second) // Stopping waits for the callback.
			close(release)
		}()
		p.Stop()
		d.Expect(t, "add ns/a@1 initial", "update ns/a@1→2")
		q := process.Launch(t, path, f, nil)
		d = process.AddDurable(t, q, "d")
		q.Run()
		bubble.Settle()
		d.Expect(t, "add ns/b@3", "update ns/a@2→4")
	})
}

func TestLateDurableHandlersLeaveNoGapAndNoRepeat(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t)
		p := process.Launch(t, testsupport.Path(t), f, nil)
		n := 0
		process.JoinWhileObjectsChange(t, f, p.Informer, func(h cache.ResourceEventHandler) error {
			n++
			h.(*recorder.Chain).IsNewName = true
			_, err := p.Informer.AddDurableEventHandler(fmt.Sprint(n), h, warmwatch.DurableOptions{})
			return err
		})
	})
}

func TestDeletionsWhileTheProcessWasDownAreDelivered(t *testing.T) { // D2
	for name, history := range map[string]bool{"by the resumed watch": true, "by the relist": false} {
		t.Run(name, func(t *testing.T) {
			bubble.Run(t, func(t *testing.T) {
				f := source.New(t, source.ConfigMap("a", "last known"))
				path := testsupport.Path(t)
				p := process.Launch(t, path, f, nil)
				process.AddBoth(t, p)
				p.Run()
				bubble.Settle()
				p.Stop()
				f.Remove("a")
				want := "delete ns/a@2"
				if !history {
					f.Restart()
					want = "lost ns/a@1"
				}
				f.Hold = make(chan struct{})
				p = process.Launch(t, path, f, nil)
				r, d := process.AddBoth(t, p)
				p.Run()
				bubble.Settle()
				close(f.Hold)
				bubble.Settle()
				r.Expect(t, "add ns/a@1 initial", want)
				d.Expect(t, want)
			})
		})
	}
}

func TestADurableHandlerHearsOfWhatComesIntoAnEmptyStoreThatIsNotServed(t *testing.T) {
	for name, late := range map[string]bool{"added before the list": false, "added after it": true} {
		t.Run(name, func(t *testing.T) {
			bubble.Run(t, func(t *testing.T) {
				f := source.New(t)
				path := testsupport.Path(t)
				p := process.Launch(t, path, f, nil)
				process.AddDurable(t, p, "d")
				p.Run()
				bubble.Settle()
				p.Stop()
				f.Put(source.ConfigMap("a"))
				// Nothing is served because it is transformed otherwise now, and
				// there is nothing. Yet the handler knows all objects: none.
				p = process.Launch(t, path, f, func(_ *warmwatch.Options, o *warmwatch.InformerOptions) { o.TransformVersion = "2" })
				if err := p.Informer.SetTransform(func(obj any) (any, error) { return obj, nil }); err != nil {
					t.Fatal(err)
				}
				if late {
					p.Run()
				}
				d := process.AddDurable(t, p, "d")
				p.Run()
				bubble.Settle()
				d.Expect(t, "add ns/a@1")
			})
		})
	}
}

// TestWhatWaitsForADurableHandlerIsOfAnotherTransform: it is notified of no object that the function of
// another TransformVersion has made, but as the last state of one that was deleted.
func TestWhatWaitsForADurableHandlerIsOfAnotherTransform(t *testing.T) {
	for name, c := range map[string]struct{ another, damaged bool }{
		"in the next process":               {},
		"in the one after it":               {another: true},
		"and the checkpoint cannot be read": {damaged: true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Run(t, func(t *testing.T) {
				f := source.New(t, source.ConfigMap("a"), source.ConfigMap("gone"))
				start := func(path, version string, handler cache.ResourceEventHandler) *process.Process {
					p := process.Launch(t, path, f, func(_ *warmwatch.Options, o *warmwatch.InformerOptions) { o.TransformVersion = version })
					if err := p.Informer.SetTransform(func(obj any) (any, error) {
						obj.(*corev1.ConfigMap).Data = map[string]string{"by": version}
						return obj, nil
					}); err != nil {
						t.Fatal(err)
					}
					if handler != nil {
						if _, err := p.Informer.AddDurableEventHandler("d", handler, warmwatch.DurableOptions{}); err != nil {
							t.Fatal(err)
						}
					}
					p.Run()
					bubble.Settle()
					return p
				}
				p := start(testsupport.Path(t), "1", &recorder.Recorder{})
				p.Stop()
				p = start(p.Path, "1", nil)
				f.Put(source.ConfigMap("a"), source.ConfigMap("b"))
				f.Remove("gone")
				bubble.Settle()
				p.Stop()
				if c.another {
					p = start(p.Path, "2", nil)
					p.Stop()
				}
				if c.damaged {
					cachefile.ChangeValue(t, p.Path, "checkpoint", "resume", func(v []byte) { v[0] ^= 1 })
				}
				r := &recorder.Recorder{}
				ofTheOther := cache.ResourceEventHandlerDetailedFuncs{DeleteFunc: r.OnDelete}
				ofTheOther.AddFunc = func(obj any, initial bool) {
					if by := obj.(*corev1.ConfigMap).Data["by"]; by != "2" {
						t.Errorf("notified of %s by transform %s", source.Version(obj), by)
					}
					r.OnAdd(obj, initial)
				}
				ofTheOther.UpdateFunc = func(_, obj any) { ofTheOther.AddFunc(obj, false) }
				start(p.Path, "2", ofTheOther).Damaged = c.damaged
				r.Expect(t, "delete ns/gone@5", "add ns/a@3 initial", "add ns/b@4 initial")
			})
		})
	}
}
