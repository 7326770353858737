package processor

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/tools/cache"
)

// TestAHandlerGetsWhatTheStoreLacksOfWhatItKnows (D3): once the cache has caught up, in every process, and again
// after an error. It gets the key only, and nothing that exists.
func TestAHandlerGetsWhatTheStoreLacksOfWhatItKnows(t *testing.T) {
	inWorld(t, func(w *world) {
		w.silently("a", "b")
		asked, known := 0, []string{"a", "x", "b", "ns/y"}
		name := named("d")
		name.Known = func(context.Context) (names []cache.ObjectName, err error) {
			if asked++; asked%2 == 1 {
				return nil, errors.New("not now")
			}
			for _, key := range known {
				name, err := cache.ParseObjectName(key)
				if err != nil {
					t.Error(err)
				}
				names = append(names, name)
			}
			return names, nil
		}
		process := func(list []string, want ...string) {
			t.Helper()
			w.caughtUp = make(chan struct{})
			w.restart()
			h := &recorder{}
			w.add(h, name)
			w.start()
			h.expect(t, list...)
			asked = 0
			close(w.caughtUp)
			h.expect(t, want...)
			if asked != 2 {
				t.Errorf("asked %d times", asked)
			}
		}
		process([]string{"list a u@1", "list b u@1"}, "gone x nil", "gone ns/y nil")
		process(nil, "gone x nil", "gone ns/y nil")
		known = []string{"b"}
		process(nil)
	})
}

// TestKnownComesBehindTheList, and is asked beside it.
func TestKnownComesBehindTheList(t *testing.T) {
	inWorld(t, func(w *world) {
		w.silently("a", "b")
		name := named("d")
		name.Known = func(context.Context) ([]cache.ObjectName, error) { return []cache.ObjectName{{Name: "x"}}, nil }
		h := &recorder{during: takes(time.Second)}
		w.add(h, name)
		w.start()
		h.expect(t, "list a u@1", "list b u@1", "gone x nil")
	})
}

// TestARemovedHandlerIsNotAskedAnyMore: Known's context ends.
func TestARemovedHandlerIsNotAskedAnyMore(t *testing.T) {
	inWorld(t, func(w *world) {
		asked := 0
		name := named("d")
		name.Known = func(ctx context.Context) ([]cache.ObjectName, error) {
			asked++
			<-ctx.Done()
			return nil, ctx.Err()
		}
		l := w.add(&recorder{}, name)
		w.start()
		time.Sleep(time.Minute)
		w.remove(l)
		time.Sleep(time.Hour)
		synctest.Wait()
		if asked != 1 {
			t.Errorf("asked %d times", asked)
		}
	})
}

// TestAKeyThatIsKnownIsSkippedAfterTooManyPanics in this process; the next one tells of it.
func TestAKeyThatIsKnownIsSkippedAfterTooManyPanics(t *testing.T) {
	inWorld(t, func(w *world) {
		name := named("d")
		name.Known = func(context.Context) ([]cache.ObjectName, error) {
			return []cache.ObjectName{{Name: "x"}, {Name: "y"}}, nil
		}
		h := &recorder{}
		l := w.add(h, name)
		w.start()
		h.expect(t, "gone x nil", "gone y nil")
		notesPanics(t, l, "x", w.opts.MaxPanics)
		for _, want := range [][]string{{"gone y nil"}, {"gone x nil", "gone y nil"}} {
			w.restart()
			w.add(h, name)
			w.start()
			h.expect(t, want...)
		}
	})
}

// TestWhatIsMissingOnlyInMemoryIsNotDeliveredYet (D2): the deletion is not durable. Its delta comes when it is.
func TestWhatIsMissingOnlyInMemoryIsNotDeliveredYet(t *testing.T) {
	inWorld(t, func(w *world) {
		w.silently("a", "b")
		w.caughtUp = make(chan struct{})
		w.restart()
		name := named("d")
		name.Known = func(context.Context) ([]cache.ObjectName, error) {
			return []cache.ObjectName{{Name: "a"}, {Name: "x"}}, nil
		}
		h := &recorder{}
		w.add(h, name)
		w.start()
		h.expect(t, "list a u@1", "list b u@1")
		w.commitTakes(time.Hour)
		w.delete("a")
		close(w.caughtUp)
		h.expect(t, "gone x nil")
		time.Sleep(time.Hour)
		h.expect(t, "delete a u@1")
	})
}
