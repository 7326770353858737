package warmwatch_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	bolt "go.etcd.io/bbolt"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// Plain handlers that are added late, as controller-runtime does.

// lifeBefore leaves a file whose plain handler knows a, b and c. While nothing watches,
// it deletes a and b, and creates d. The caller may create b again.
func lifeBefore(t *testing.T, f *source) (path string) {
	t.Helper()
	f.put(configMap("a"), configMap("b"), configMap("c"))
	path = testsupport.Path(t)
	p := launch(t, path, f, nil)
	add(t, p.informer)
	p.run()
	settle()
	p.stop()
	f.remove("a", "b")
	f.put(configMap("d"))
	return path
}

func storedDeltas(t *testing.T, path string) (n int) {
	t.Helper()
	inFile(t, path, func(tx *bolt.Tx) error {
		return tx.ForEach(func(_ []byte, b *bolt.Bucket) error {
			if deltas := b.Bucket([]byte("deltas")); deltas != nil {
				n += deltas.Stats().KeyN
			}
			return nil
		})
	})
	return n
}

func TestLatePlainHandlersHearOfTheDeletionsOfTheDowntime(t *testing.T) { // D2
	deleted := []string{"delete ns/a@4", "delete ns/b@5"}
	lost := []string{"lost ns/a@1", "lost ns/b@2"}
	there := []string{"add ns/c@3 initial", "add ns/d@6 initial"}
	anew := []string{"add ns/b@7 initial", "add ns/c@3 initial", "add ns/d@6 initial"}
	for name, c := range map[string]struct {
		history bool
		stale   time.Duration
		first   []string
		then    []string
	}{
		"by the resumed watch":                    {true, -1, deleted, anew},
		"by the resumed watch, synced from there": {true, 0, deleted, anew},
		"by the relist":                           {false, -1, lost, there},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t)
				path := lifeBefore(t, f)
				if c.history {
					f.put(configMap("b"))
				} else {
					f.restart()
				}
				p := launch(t, path, f, func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.ServeStaleAfter = c.stale })
				p.run()
				advance(time.Second) // Caught up, after the quiet time at the latest.
				begin := time.Now()
				for _, at := range []time.Duration{0, 5 * time.Second, 5 * time.Second, 58 * time.Second} {
					advance(at - time.Since(begin))
					r, registration := add(t, p.informer)
					advance(0)
					if diff := cmp.Diff(slices.Concat(c.first, c.then), r.take()); diff != "" {
						t.Errorf("added after %v (-want +got):\n%s", at, diff)
					}
					if !registration.HasSynced() {
						t.Errorf("added after %v: not synced", at)
					}
				}
				f.remove("c")
				advance(10 * time.Second)
				r, _ := add(t, p.informer)
				advance(0)
				r.expect(t, slices.DeleteFunc(slices.Clone(c.then), func(e string) bool { return e == "add ns/c@3 initial" })...)
				settle()
				p.stop()
				if n := storedDeltas(t, path); n != 0 {
					t.Errorf("%d deltas are kept for nobody", n)
				}
			})
		})
	}
}

func TestLatePlainHandlersHearWhatTheLastProcessDidNotTell(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"), configMap("b"))
		p := launch(t, testsupport.Path(t), f, nil)
		release := make(chan struct{})
		defer close(release)
		if _, err := p.informer.AddEventHandler(&recorder{during: func(event string) {
			if event == "update ns/b@2→3" {
				<-release
			}
		}}); err != nil {
			t.Fatal(err)
		}
		p.run()
		settle()
		f.put(configMap("b"))
		f.remove("a")
		settle()
		path := p.crash()
		f.remove("b")
		q := launch(t, path, f, nil)
		early, _ := add(t, q.informer)
		f.with(func() { f.hold = make(chan struct{}) })
		q.run()
		advance(time.Second)
		early.expect(t, "delete ns/a@4", "add ns/b@3 initial")
		waiting, _ := add(t, q.informer) // Before it has caught up.
		advance(time.Second)
		waiting.expect(t, "delete ns/a@4", "add ns/b@3 initial")
		close(f.hold)
		advance(5 * time.Second)
		early.expect(t, "delete ns/b@5")
		waiting.expect(t, "delete ns/b@5")
		for range 2 {
			late, _ := add(t, q.informer)
			advance(time.Second)
			late.expect(t, "delete ns/a@4", "delete ns/b@5")
		}
		q.stop()
		// They were told: an orderly end takes that down.
		q = launch(t, path, f, nil)
		again, _ := add(t, q.informer)
		q.run()
		advance(0)
		again.expect(t)
		q.stop()
	})
}

func TestTheMinuteForLateHandlersBeginsWhenTheInformerHasCaughtUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t)
		path := lifeBefore(t, f)
		f.setDown(errUnreachable)
		p := launch(t, path, f, nil)
		p.run()
		advance(time.Hour)
		f.setDown(nil)
		for range 100 { // The Reflector's backoff is some 30 s.
			if advance(time.Second); p.informer.Status().Phase == warmwatch.PhaseLive {
				break
			}
		}
		r, _ := add(t, p.informer)
		advance(0)
		r.expect(t, "delete ns/a@4", "delete ns/b@5", "add ns/c@3 initial", "add ns/d@6 initial")
	})
}

func TestDeletionsThatNobodyClaimedWaitForTheNextProcessButNotForEver(t *testing.T) {
	for name, crash := range map[string]bool{"stopped": false, "crashed": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t)
				path := lifeBefore(t, f)
				// short is a process that ends before the minute is over.
				short := func() {
					p := launch(t, path, f, nil)
					p.run()
					advance(30 * time.Second)
					if crash {
						crashed := p.crash()
						p.stop()
						path = crashed
						return
					}
					p.stop()
				}
				short()
				short()
				p := launch(t, path, f, nil)
				p.run()
				advance(5 * time.Second)
				r, _ := add(t, p.informer)
				advance(5 * time.Second)
				r.expect(t, "delete ns/a@4", "delete ns/b@5", "add ns/c@3 initial", "add ns/d@6 initial")
				settle()
				p.stop()
				f.remove("c")
				for range 4 {
					short()
				}
				if n := storedDeltas(t, path); n != 0 {
					t.Errorf("%d deltas are kept although nobody comes for them", n)
				}
			})
		})
	}
}

func TestWhatIsHeldForLateHandlersAreDeletionsOnly(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"), configMap("b"))
		path := testsupport.Path(t)
		p := launch(t, path, f, nil)
		add2(t, p)
		p.run()
		settle()
		p.stop()
		f.remove("a")
		for range 20 {
			f.put(configMap("b"), configMap("c"))
			f.remove("c")
		}
		p = launch(t, path, f, nil)
		d := addDurable(t, p, "d")
		p.run()
		advance(20 * time.Second)
		if got := len(d.take()); got != 61 {
			t.Errorf("the durable handler was told of %d changes, expected 61", got)
		}
		if n := storedDeltas(t, p.crash()); n != 21 {
			t.Errorf("%d deltas are held, expected the 21 deletions", n)
		}
		settle()
		d.expect(t)
		if n := storedDeltas(t, p.crash()); n != 0 {
			t.Errorf("%d deltas are held after the minute", n)
		}
	})
}

// TestLatePlainHandlersHearOfDeletionsSinceTheInformerHasCaughtUp: until such a handler is
// added, only handlers of the last process may know an object.
func TestLatePlainHandlersHearOfDeletionsSinceTheInformerHasCaughtUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t)
		p := launch(t, lifeBefore(t, f), f, nil)
		p.run()
		advance(20 * time.Second)
		f.remove("c")
		advance(20 * time.Second)
		r, _ := add(t, p.informer)
		settle()
		r.expect(t, "delete ns/a@4", "delete ns/b@5", "delete ns/c@7", "add ns/d@6 initial")
		f.remove("d")
		settle()
		r.expect(t, "delete ns/d@8")
	})
}

// TestAHandlerThatWasAddedLateIsKnownToTheNextProcess, though nothing has changed since.
func TestAHandlerThatWasAddedLateIsKnownToTheNextProcess(t *testing.T) { // D2
	for _, history := range []bool{true, false} {
		t.Run(fmt.Sprintf("history=%t", history), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t, configMap("a"), configMap("b"))
				p := launch(t, testsupport.Path(t), f, nil).run()
				advance(10 * time.Second)
				r, _ := add(t, p.informer)
				advance(2 * time.Second)
				r.expect(t, "add ns/a@1 initial", "add ns/b@2 initial")
				path := p.crash()
				p.stop()
				f.remove("a")
				deletion := "delete ns/a@3"
				if !history {
					f.restart()
					deletion = "lost ns/a@1"
				}
				q := launch(t, path, f, nil).run()
				advance(time.Second)
				late, _ := add(t, q.informer)
				advance(time.Second)
				late.expect(t, deletion, "add ns/b@2 initial")
			})
		})
	}
}

// TestWhatARemovedHandlerKnewIsToldToThoseOfTheNextProcess, also where it was removed just
// before the informer stopped, within the minute for late handlers.
func TestWhatARemovedHandlerKnewIsToldToThoseOfTheNextProcess(t *testing.T) { // D2
	for _, lives := range []int{1, 2} {
		t.Run(fmt.Sprintf("lives=%d", lives), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t, configMap("a"), configMap("b"))
				path := testsupport.Path(t)
				for range lives {
					p := launch(t, path, f, nil)
					r, registration := add(t, p.informer)
					p.run()
					advance(30 * time.Second)
					r.expect(t, "add ns/a@1 initial", "add ns/b@2 initial")
					if err := p.informer.RemoveEventHandler(registration); err != nil {
						t.Fatal(err)
					}
					p.stop()
				}
				f.remove("a")
				f.restart()
				p := launch(t, path, f, nil).run()
				advance(time.Second)
				r, _ := add(t, p.informer)
				advance(time.Second)
				r.expect(t, "lost ns/a@1", "add ns/b@2 initial")
			})
		})
	}
}

// TestLatePlainHandlersHearWhatASlowLinkDelivers: a short silence does not prove that the
// informer has caught up.
func TestLatePlainHandlersHearWhatASlowLinkDelivers(t *testing.T) { // D2
	for _, delay := range []time.Duration{2 * time.Second} {
		t.Run(delay.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t)
				path := lifeBefore(t, f)
				f.with(func() { f.latency = delay })
				p := launch(t, path, f, nil).run()
				advance(delay + 20*time.Second)
				expectStore(t, p.informer, f)
				r, _ := add(t, p.informer)
				advance(0)
				r.expect(t, "delete ns/a@4", "delete ns/b@5", "add ns/c@3 initial", "add ns/d@6 initial")
				advance(3 * time.Minute) // But not for ever.
				r, _ = add(t, p.informer)
				advance(0)
				r.expect(t, "add ns/c@3 initial", "add ns/d@6 initial")
			})
		})
	}
}

// TestASlowPlainHandlerHearsOfDeletionsSince: it was added in time, and hangs in its first
// callback until the time for late handlers is over.
func TestASlowPlainHandlerHearsOfDeletionsSince(t *testing.T) { // D2
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
