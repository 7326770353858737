package processor

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmwatch/warmwatch/queue"
)

// TestListenersThatStartTogetherShareChunks: plain ones and durable ones apart. A slow one does not hold up the others,
// and one that is removed is not waited for.
func TestListenersThatStartTogetherShareChunks(t *testing.T) {
	for _, first := range []string{"like the others", "slow", "removed"} {
		t.Run("the first is "+first, func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.silently("a", "b", "c", "d", "e", "f")
				w.store.before = func(string) { time.Sleep(10 * time.Millisecond) }
				handlers := make([]recorder, 11)
				if first != "like the others" {
					handlers[0].during = takes(time.Hour)
				}
				removed := w.add(&handlers[0], Name{})
				for i := range handlers[1:] {
					name := Name{}
					if i%2 == 0 {
						name = named(fmt.Sprint(i))
					}
					w.add(&handlers[i+1], name)
				}
				w.start()
				if first == "removed" {
					time.Sleep(25 * time.Millisecond)
					w.remove(removed)
				}
				time.Sleep(time.Second)
				all := []string{"list a u@1", "list b u@1", "list c u@1", "list d u@1", "list e u@1", "list f u@1"}
				for i := range handlers[1:] {
					handlers[i+1].expectNow(t, all...)
				}
				w.store.mu.Lock()
				for read, n := range w.store.reads {
					if n != 1 {
						t.Errorf("the chunk from %s was read %d times", read, n)
					}
				}
				if n := len(w.store.reads); n != 12 {
					t.Errorf("%d chunks were read", n)
				}
				w.store.mu.Unlock()
				time.Sleep(10 * time.Hour)
				if first == "removed" {
					all = all[:1]
				}
				handlers[0].expectNow(t, all...)
			})
		})
	}
}

// TestAListenerThatJoinsLateGetsNoOldChunk: another one is in its list, and holds a chunk that was read before.
func TestAListenerThatJoinsLateGetsNoOldChunk(t *testing.T) {
	for _, name := range []Name{{}, named("early")} {
		t.Run(name.Name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.silently("a", "b")
				late, lateName := &recorder{}, Name{}
				if name.Name != "" {
					lateName = named("late")
				}
				early := &recorder{during: only("list a u@1", func() {
					w.set("a", "u", 2)
					w.add(late, lateName)
					time.Sleep(time.Second)
				})}
				w.add(early, name)
				w.start()
				late.expect(t, "list a u@2", "list b u@1")
				early.expect(t, "list a u@1", "list b u@1", "update a u@1 a u@2")
			})
		})
	}
}

// TestAChunkIsReadAgainUntilItIsWhole: no handler gets a list that lacks an object.
func TestAChunkIsReadAgainUntilItIsWhole(t *testing.T) {
	for _, name := range []Name{{}, named("d")} {
		inWorld(t, func(w *world) {
			w.silently("a", "b", "c")
			w.store.leaveOut("b", true)
			h := &recorder{}
			l := w.add(h, name)
			w.start()
			h.expect(t, "list a u@1")
			if !w.p.Status(queue.Handlers)[0].InitialList || l.HasSynced() {
				t.Error("the list is done without the object")
			}
			w.store.leaveOut("b", false)
			h.expect(t, "list b u@1", "list c u@1")
			if w.p.Status(queue.Handlers)[0].InitialList || !l.HasSynced() {
				t.Error("the list is not done")
			}
		})
	}
}

// TestAStoppedListenerDoesNotWaitForTheStore: chunks are read by others, which hang as on a slow disk.
func TestAStoppedListenerDoesNotWaitForTheStore(t *testing.T) {
	inWorld(t, func(w *world) {
		w.silently("a")
		hang := make(chan struct{})
		w.store.before = func(string) { <-hang }
		w.start()
		stays := &recorder{}
		w.add(stays, Name{})
		for i := range 100 {
			l := w.add(&recorder{during: func(what string) { t.Errorf("%s, after it was removed", what) }}, Name{})
			if i%2 == 0 {
				synctest.Wait() // It waits for the store now; others are removed before they begin.
			}
			w.remove(l)
			<-l.ShutdownChan()
		}
		stays.expectNow(t)
		close(hang)
		stays.expect(t, "list a u@1")
	})
}

// TestDeletionsThatWaitComeBeforeTheList (D3), also the deletion of a replaced object.
func TestDeletionsThatWaitComeBeforeTheList(t *testing.T) {
	inWorld(t, func(w *world) {
		w.silently("a", "b", "c")
		h := &recorder{}
		l := w.add(h, named("d").epoch("1"))
		w.start()
		h.expect(t, "list a u@1", "list b u@1", "list c u@1")
		w.remove(l)
		w.set("a", "u", 2)
		w.delete("c")
		w.set("b", "new", 3)
		w.set("c", "new", 4)
		w.restart()
		w.add(h, named("d").epoch("2"))
		w.start()
		h.expect(t, "delete c u@1", "gone b b u@1", "list a u@2", "list b new@3", "list c new@4")
		w.set("c", "new", 5)
		h.expect(t, "update c new@4 c new@5")
	})
}

// TestADeletionDuringAListComesBeforeItsChunk, if the chunk was read after it, and else behind the list.
func TestADeletionDuringAListComesBeforeItsChunk(t *testing.T) {
	for name, c := range map[string]struct {
		name Name
		want []string
	}{
		"a durable handler that starts over": {named("d").epoch("2"), []string{
			"list a u@1", "list b u@1", "delete c u@1", "list c new@2", "gone e e u@1", "delete d u@1", "list e new@3", "delete a u@1",
		}},
		"a plain handler, which knows nothing": {Name{}, []string{"list a u@1", "list b u@1", "list c new@2", "list e new@3", "delete a u@1"}},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.silently("a", "b", "c", "d", "e")
				w.add(&recorder{}, named("d").epoch("1"))
				w.start()
				time.Sleep(time.Minute)
				w.restart()
				h := &recorder{during: only("list a u@1", func() { // The chunk of b is read meanwhile.
					time.Sleep(time.Second)
					w.delete("c")
					w.set("c", "new", 2)
					w.set("e", "new", 3)
					w.delete("a")
					w.delete("d")
					time.Sleep(time.Second)
				})}
				w.add(h, c.name)
				w.start()
				h.expect(t, c.want...)
			})
		})
	}
}

// TestAListThatWasNotCompleteBeginsAgain in the next process.
func TestAListThatWasNotCompleteBeginsAgain(t *testing.T) {
	inWorld(t, func(w *world) {
		w.silently("a", "b")
		h := &recorder{}
		l := w.add(h, named("d"))
		h.during = only("list a u@1", func() { w.remove(l) })
		w.start()
		h.expect(t, "list a u@1")
		w.delete("a")
		w.restart()
		w.add(h, named("d"))
		w.start()
		h.expect(t, "delete a u@1", "list b u@1")
	})
}

// TestAHandlerThatTooMuchWaitsForStartsOver (D6), also a plain one. It gets OnDelete for what was deleted meanwhile.
func TestAHandlerThatTooMuchWaitsForStartsOver(t *testing.T) {
	for _, c := range []struct {
		name      Name
		tailBytes int
	}{{Name{}, 2 * updateBytes}, {Name{}, 1000 * updateBytes}, {named("d"), 2 * updateBytes}} {
		t.Run(fmt.Sprintf("%q, with a tail of %d bytes", c.name.Name, c.tailBytes), func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.queue.MaxBacklogBytes, w.queue.TailBytes = 10*updateBytes, c.tailBytes
				w.restart()
				w.silently("a", "b", "c", "d")
				h := &recorder{}
				w.add(h, c.name)
				w.start()
				h.expect(t, "list a u@1", "list b u@1", "list c u@1", "list d u@1")
				goOn := make(chan struct{})
				h.during = only("update a u@1 a u@2", func() { <-goOn })
				w.set("a", "u", 2)
				time.Sleep(time.Second)
				w.set("d", "new", 3)
				for rv := range 20 {
					w.set("b", "u", 10+rv)
				}
				w.delete("b")
				w.set("c", "new", 40)
				time.Sleep(time.Second)
				close(goOn)
				h.expect(t, "update a u@1 a u@2", "gone d d u@1", "delete b u@29", "gone c c u@1", "list a u@2", "list c new@40", "list d new@3")
				w.set("a", "u", 50)
				h.expect(t, "update a u@2 a u@50")
			})
		})
	}
}

// TestResync: a handler that is due gets OnUpdate for every object, except those for which a delta waits.
func TestResync(t *testing.T) {
	inWorld(t, func(w *world) {
		w.silently("a", "b")
		h, other := &recorder{}, &recorder{}
		w.resyncing(h, time.Hour)
		w.add(other, Name{})
		w.start()
		other.expect(t, "list a u@1", "list b u@1")
		h.expect(t, "list a u@1", "list b u@1")
		if w.p.ShouldResync() {
			t.Error("a handler is due at once")
		}
		time.Sleep(time.Hour)
		if !w.p.ShouldResync() {
			t.Error("the handler is not due after its period")
		}
		h.during = only("update b u@1 b u@2", func() {
			w.set("a", "u", 3)
			w.p.Resync()
			time.Sleep(time.Second)
		})
		w.set("b", "u", 2)
		h.expect(t, "update b u@1 b u@2", "update b u@2 b u@2", "update a u@1 a u@3")
		other.expect(t, "update b u@1 b u@2", "update a u@1 a u@3")
	})
}

// TestNoVersionGoesBackWhenAResyncFollowsAList: chunks of the list have seen more than those before.
func TestNoVersionGoesBackWhenAResyncFollowsAList(t *testing.T) {
	inWorld(t, func(w *world) {
		w.silently("a", "b", "c")
		h := &recorder{during: only("list a u@1", func() {
			time.Sleep(2 * time.Second)
			w.set("a", "u", 2)
			w.set("a", "u", 3)
			if !w.p.ShouldResync() {
				t.Error("the handler is not due")
			}
			w.p.Resync()
		})}
		w.resyncing(h, time.Second)
		w.start()
		h.expect(t, "list a u@1", "list b u@1", "list c u@1", "update b u@1 b u@1", "update c u@1 c u@1", "update a u@1 a u@2", "update a u@2 a u@3")
	})
}

// TestWhatChangedNothingIsDeliveredWhileTheHandlerResyncs.
func TestWhatChangedNothingIsDeliveredWhileTheHandlerResyncs(t *testing.T) {
	inWorld(t, func(w *world) {
		w.silently("a")
		h := &recorder{}
		l := w.add(h, named("d"))
		w.start()
		h.expect(t, "list a u@1")
		for _, syncing := range []bool{true, false} {
			l.syncing.Store(syncing)
			w.sync("a")
			want := []string{"update a u@1 a u@1"}
			if !syncing {
				want = nil
			}
			h.expect(t, want...)
		}
		if b := l.consumer.Behind(); b.Deltas > 0 {
			t.Errorf("%+v is not acknowledged", b)
		}
	})
}
