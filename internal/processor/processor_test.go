package processor

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch/persist"
	"github.com/warmwatch/warmwatch/queue"
)

// TestAHandlerHasSyncedWhenItGotAllOfIt: a list waits until the informer has synced, and the deltas that wait for a
// durable handler do not.
func TestAHandlerHasSyncedWhenItGotAllOfIt(t *testing.T) {
	inWorld(t, func(w *world) {
		w.silently("a", "b")
		l := w.add(&recorder{}, named("knows"))
		w.start()
		time.Sleep(time.Minute)
		w.remove(l)
		w.set("a", "u", 2)
		w.set("a", "u", 3)
		w.synced = make(chan struct{})
		w.restart()
		plain, knows := &recorder{during: takes(time.Second)}, &recorder{during: takes(time.Minute)}
		lp, lk := w.add(plain, Name{}), w.add(knows, named("knows"))
		expect := func(when string, plain, knows bool) {
			t.Helper()
			synctest.Wait()
			if lp.HasSynced() != plain || cache.IsDone(lp.HasSyncedChecker()) != plain {
				t.Errorf("%s: the plain handler has synced: %v", when, !plain)
			}
			if lk.HasSynced() != knows || cache.IsDone(lk.HasSyncedChecker()) != knows {
				t.Errorf("%s: the durable handler has synced: %v", when, !knows)
			}
		}
		w.start()
		time.Sleep(90 * time.Second) // In the second callback.
		plain.expectNow(t)
		knows.expectNow(t, "update a u@1 a u@2", "update a u@2 a u@3")
		expect("the informer has not synced", false, false)
		w.set("b", "u", 4)
		close(w.synced)
		time.Sleep(1500 * time.Millisecond)
		expect("there are an object and two deltas left", false, false)
		time.Sleep(time.Second)
		expect("the list is done", true, false)
		time.Sleep(time.Minute)
		expect("a delta is left", true, false)
		w.set("b", "u", 5)
		time.Sleep(time.Minute)
		expect("a delta has come since", true, true)
		if !w.p.WaitForSync(context.Background()) {
			t.Error("they have not synced")
		}
	})
}

// TestANameIsFreeOnceItsCallbackHasReturned.
func TestANameIsFreeOnceItsCallbackHasReturned(t *testing.T) {
	inWorld(t, func(w *world) {
		w.silently("a")
		add := func() error {
			_, err := w.p.Add(&recorder{}, named("d"), cache.HandlerOptions{})
			return err
		}
		hang := make(chan struct{})
		l := w.add(&recorder{during: only("list a u@1", func() { <-hang })}, named("d"))
		expectInUse := func(when string) {
			t.Helper()
			if err := add(); !errors.Is(err, queue.ErrInUse) {
				t.Errorf("%s, a second handler: %v", when, err)
			}
			if err := w.forget("d"); !errors.Is(err, queue.ErrInUse) {
				t.Errorf("%s, Forget: %v", when, err)
			}
		}
		expectInUse("before the start")
		w.start()
		time.Sleep(time.Second)
		expectInUse("in a callback")
		w.remove(l)
		synctest.Wait()
		expectInUse("removed in a callback")
		if all := w.p.Unfinished(); len(all) != 1 || all[0].Name != "d" || all[0].Callback != "a" {
			t.Errorf("unfinished: %+v", all)
		}
		if err := w.forget("e"); err != nil {
			t.Error(err)
		}
		w.add(&recorder{}, Name{Kind: queue.Reconcilers, Name: "d"}) // Of another kind.
		close(hang)
		<-l.ShutdownChan()
		if err := add(); err != nil {
			t.Error(err)
		}
	})
}

// TestARemovedPlainHandlerHoldsNothing, although its callback hangs, and can be removed after the end, too.
func TestARemovedPlainHandlerHoldsNothing(t *testing.T) {
	inWorld(t, func(w *world) {
		w.silently("a")
		hang := make(chan struct{})
		l := w.add(&recorder{during: func(string) { <-hang }}, Name{})
		other, durable := w.add(&recorder{}, Name{}), w.add(&recorder{}, named("d"))
		w.start()
		held := func(want int) {
			t.Helper()
			time.Sleep(time.Minute)
			n := 0
			err := w.db.Read("s", func(s *persist.Snapshot) error {
				return s.Scan(queue.Buckets()[0], "", func(*persist.Item) (bool, error) { n++; return true, nil })
			})
			if n != want || err != nil {
				t.Errorf("%d deltas are held, expected %d: %v", n, want, err)
			}
		}
		time.Sleep(time.Minute)
		w.set("a", "u", 2)
		held(1)
		w.remove(l)
		held(0)
		close(hang)
		w.stop()
		if err := w.db.Close(); err != nil {
			t.Error(err)
		}
		w.remove(other)
		w.remove(durable)
	})
}

// TestForgetFreesANameOfBothKinds: the next handler of it begins with a list.
func TestForgetFreesANameOfBothKinds(t *testing.T) {
	for _, when := range []string{"before the start", "after the start"} {
		t.Run(when, func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.silently("a")
				kinds := []queue.Kind{queue.Handlers, queue.Reconcilers}
				for _, kind := range kinds {
					w.add(&recorder{}, Name{Kind: kind, Name: "d"})
				}
				w.add(&recorder{}, named("e"))
				w.start()
				time.Sleep(time.Minute)
				w.restart()
				if when == "after the start" {
					w.start()
				}
				if err := w.forget("d"); err != nil {
					t.Fatal(err)
				}
				if when == "before the start" {
					w.start()
				}
				if n := len(w.log.Named(queue.Handlers)) + len(w.log.Named(queue.Reconcilers)); n != 1 {
					t.Errorf("%d names are left", n)
				}
				for _, kind := range kinds {
					h := &recorder{}
					l := w.add(h, Name{Kind: kind, Name: "d"})
					h.expect(t, "list a u@1")
					if kind == queue.Reconcilers {
						break
					}
					if err := w.forget("d"); !errors.Is(err, queue.ErrInUse) {
						t.Errorf("a name in use is forgotten: %v", err)
					}
					w.remove(l)
					<-l.ShutdownChan()
					if err := w.forget("d"); err != nil {
						t.Error(err)
					}
				}
				w.p.Stop()
				if err := w.forget("e"); err == nil {
					t.Error("a name is forgotten after the end")
				}
			})
		})
	}
}

// TestStatusHasEachHandlerOnce, also after the end, when its name has no consumer any more.
func TestStatusHasEachHandlerOnce(t *testing.T) {
	inWorld(t, func(w *world) {
		w.silently("a")
		w.add(&recorder{}, named("absent"))
		w.start()
		time.Sleep(time.Minute)
		w.restart()
		hang := make(chan struct{})
		w.add(&recorder{during: func(string) { <-hang }}, named("d"))
		w.add(&recorder{}, Name{})
		w.add(&recorder{}, Name{Kind: queue.Reconcilers, Name: "r"})
		expect := func(when string, want ...string) {
			t.Helper()
			var got []string
			for _, h := range w.p.Status(queue.Handlers) {
				got = append(got, h.Name)
				if h.Durable == (h.Name == "*processor.recorder") || h.Absent != (h.Name == "absent") {
					t.Errorf("%s: %+v", when, h)
				}
			}
			if len(got) != len(want) {
				t.Errorf("%s: %q, expected %q", when, got, want)
			}
		}
		expect("before the start", "*processor.recorder", "d")
		w.start()
		time.Sleep(time.Minute)
		w.set("a", "u", 2)
		expect("after the start", "*processor.recorder", "absent", "d")
		want := queue.HandlerStatus{
			Name: "d", Durable: true, InitialList: true, Callback: "a", CallbackSince: time.Now().Add(-time.Minute),
			Undelivered: 1, UndeliveredBytes: updateBytes, OldestUndelivered: time.Now(), Restarts: map[string]int64{queue.CauseNew: 1},
		}
		got := w.status("d")
		if since := got.CallbackSince; since.Before(want.CallbackSince) || since.After(want.CallbackSince.Add(time.Second)) {
			t.Errorf("the callback began at %v, expected %v", since, want.CallbackSince)
		}
		if got.CallbackSince = want.CallbackSince; !cmp.Equal(got, want) {
			t.Errorf("%+v, expected %+v", got, want)
		}
		close(hang)
		w.stop()
		expect("after the end", "*processor.recorder", "absent", "d")
	})
}

// TestStatusWhileHandlersStart is for the race detector.
func TestStatusWhileHandlersStart(t *testing.T) {
	inWorld(t, func(w *world) {
		for _, name := range []string{"a", "b", "c"} {
			w.add(&recorder{}, named(name))
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			for range 100 {
				w.p.Status(queue.Handlers)
				w.p.Unfinished()
			}
		}()
		w.start()
		<-done
	})
}

// TestStatusDoesNotWaitForTheFile: a durable handler that is added waits for a commit, which hangs, and its callers do
// not.
func TestStatusDoesNotWaitForTheFile(t *testing.T) {
	inWorld(t, func(w *world) {
		w.silently("a")
		w.start()
		w.commitTakes(time.Hour)
		time.Sleep(time.Second)
		h := &recorder{}
		l := w.add(h, named("d"))
		time.Sleep(time.Second)
		if s := w.status("d"); !s.InitialList {
			t.Errorf("%+v", s)
		}
		h.expectNow(t) // The name is not in the file.
		w.remove(l)
		<-l.ShutdownChan() // It was waiting for the commit.
	})
}
