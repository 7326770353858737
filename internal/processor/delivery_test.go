package processor

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/indexer"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/queue"
)

// TestAReplacedObjectIsDeletedAndAddedForADurableHandler (D1, D2), and is one update for a plain one.
func TestAReplacedObjectIsDeletedAndAddedForADurableHandler(t *testing.T) {
	inWorld(t, func(w *world) {
		w.silently("a")
		plain, durable := &recorder{}, &recorder{}
		w.add(plain, Name{})
		w.add(durable, named("d"))
		w.start()
		plain.expect(t, "list a u@1")
		durable.expectNow(t, "list a u@1")
		w.set("a", "new", 2)
		plain.expect(t, "update a u@1 a new@2")
		durable.expectNow(t, "gone a a u@1", "add a new@2")
		w.write(func(wr *indexer.Writer) queue.Delta { // The old object cannot be read.
			c := wr.Set("a", w.encoded("a", configMap("a", "newer", 3)), false)
			return queue.Delta{Seq: c.Seq, Type: cache.Added, Key: "a", New: c.New, Replaced: true, SizeBytes: updateBytes}
		})
		plain.expect(t, "add a newer@3")
		durable.expectNow(t, "gone a nil", "add a newer@3")
	})
}

// TestASlowHandlerAcknowledgesEachSecond, so that a crash does not repeat more (D2).
func TestASlowHandlerAcknowledgesEachSecond(t *testing.T) {
	inWorld(t, func(w *world) {
		w.silently("a")
		h := &recorder{}
		l := w.add(h, named("d"))
		w.start()
		h.expect(t, "list a u@1")
		const deltas = 50
		var returned, most int
		h.during = func(string) {
			if time.Sleep(400 * time.Millisecond); returned == 0 { // Then the others come at once.
				for rv := range deltas - 1 {
					w.set("a", "u", 10+rv)
				}
			}
			acknowledged := deltas - l.consumer.Behind().Deltas
			most = max(most, returned-acknowledged)
			returned++
		}
		w.set("a", "u", 2)
		time.Sleep(time.Hour)
		synctest.Wait()
		if returned != deltas || most > 3 || most < 2 {
			t.Errorf("after %d of %d deltas up to %d were not acknowledged", returned, deltas, most)
		}
		if b := l.consumer.Behind(); b.Deltas != 0 {
			t.Errorf("%+v is not acknowledged at the end", b)
		}
	})
}

// notesPanics has a handler panic on an object, as far as that is counted, in so many processes.
func notesPanics(t *testing.T, l *listener, key string, times int) {
	t.Helper()
	for i := range times {
		if n, err := l.consumer.NotePanic(key); n != i+1 || err != nil {
			t.Errorf("%d panics, %v", n, err)
		}
	}
}

// withoutCrash has the process go on after a handler's panic, and does not log it.
func withoutCrash(t *testing.T) {
	crash, handlers := utilruntime.ReallyCrash, utilruntime.PanicHandlers
	utilruntime.ReallyCrash, utilruntime.PanicHandlers = false, nil
	t.Cleanup(func() { utilruntime.ReallyCrash, utilruntime.PanicHandlers = crash, handlers })
}

// TestAPanicThatDoesNotEndTheProcessIsNotCounted: it costs a second and the notification, as in client-go.
func TestAPanicThatDoesNotEndTheProcessIsNotCounted(t *testing.T) {
	withoutCrash(t)
	for _, name := range []Name{{}, named("d")} {
		inWorld(t, func(w *world) {
			w.silently("a", "b")
			h := &recorder{during: func(what string) {
				if what == "list a u@1" || what == "update b u@1 b u@2" {
					panic(what)
				}
			}}
			l := w.add(h, name)
			w.start()
			h.expect(t, "list a u@1", "list b u@1")
			w.set("b", "u", 2)
			w.set("a", "u", 3)
			time.Sleep(500 * time.Millisecond)
			h.expectNow(t, "update b u@1 b u@2")
			h.expect(t, "update a u@1 a u@3")
			if n := l.consumer.Panics("a") + l.consumer.Panics("b"); n > 0 || l.consumer.Behind().Deltas > 0 {
				t.Errorf("%d panics were counted, and there is %+v left", n, l.consumer.Behind())
			}
		})
	}
}

// TestADeltaIsSkippedAfterTooManyPanics, and the next one of the object is delivered.
func TestADeltaIsSkippedAfterTooManyPanics(t *testing.T) {
	for _, c := range []struct {
		max, panics int
		skipped     bool
	}{{2, 1, false}, {2, 2, true}, {0, 1, true}, {-1, 9, false}} {
		t.Run(fmt.Sprintf("%d of %d", c.panics, c.max), func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.opts.MaxPanics = c.max
				w.restart()
				w.silently("a", "b")
				h := &recorder{}
				l := w.add(h, named("d"))
				plain := &recorder{}
				w.add(plain, Name{})
				w.start()
				h.expect(t, "list a u@1", "list b u@1")
				plain.expectNow(t, "list a u@1", "list b u@1")
				notesPanics(t, l, "a", c.panics)
				w.remove(l)
				w.set("a", "u", 2)
				w.set("b", "u", 2)
				w.restart()
				l = w.add(h, named("d"))
				w.start()
				want, skipped := []string{"update a u@1 a u@2", "update b u@1 b u@2"}, int64(0)
				if c.skipped {
					want, skipped = want[1:], 1
				}
				h.expect(t, want...)
				if n := w.status("d").Skipped; n != skipped {
					t.Errorf("%d deltas were skipped", n)
				}
				w.set("a", "u", 3)
				h.expect(t, "update a u@2 a u@3")
				if n := l.consumer.Panics("a"); n > 0 {
					t.Errorf("%d panics still count", n)
				}
			})
		})
	}
}

// TestAnObjectOfAListIsSkippedAfterTooManyPanics, until the list is complete.
func TestAnObjectOfAListIsSkippedAfterTooManyPanics(t *testing.T) {
	inWorld(t, func(w *world) {
		w.silently("a", "b", "c")
		h := &recorder{}
		l := w.add(h, named("d").epoch("1"))
		w.start()
		h.expect(t, "list a u@1", "list b u@1", "list c u@1")
		notesPanics(t, l, "b", w.opts.MaxPanics)
		w.restart()
		l = w.add(h, named("d").epoch("2"))
		h.during = only("list c u@1", func() {
			if n := l.consumer.Panics("b"); n == 0 { // A crash would repeat the list.
				t.Error("the panics are forgotten before the list is complete")
			}
		})
		w.start()
		h.expect(t, "list a u@1", "list c u@1")
		if n := w.status("d").Skipped; n != 1 {
			t.Errorf("%d objects were skipped", n)
		}
		w.set("b", "u", 2)
		h.expect(t, "update b u@1 b u@2")
	})
}

// TestADeletionOfAListForgetsNoPanics: the OnAdd behind it, of the same key, has panicked, and a crash repeats both.
func TestADeletionOfAListForgetsNoPanics(t *testing.T) {
	inWorld(t, func(w *world) {
		w.silently("a")
		h := &recorder{}
		l := w.add(h, named("d").epoch("1"))
		w.start()
		h.expect(t, "list a u@1")
		w.remove(l)
		w.set("a", "new", 2)
		w.restart()
		l = w.add(h, named("d").epoch("2"))
		counted := -1
		h.during = func(delivered string) {
			if delivered == "gone a a u@1" {
				notesPanics(t, l, "a", 2)
			} else {
				counted = l.consumer.Panics("a")
			}
		}
		w.start()
		h.expect(t, "gone a a u@1", "list a new@2")
		if counted != 2 || l.consumer.Panics("a") != 0 {
			t.Errorf("%d panics counted for the object, and %d behind the list", counted, l.consumer.Panics("a"))
		}
	})
}

// TestADiskThatDoesNotAnswerKeepsNoProcessFromDying: a panic is noted before the process ends, but
// not for ever.
func TestADiskThatDoesNotAnswerKeepsNoProcessFromDying(t *testing.T) {
	inWorld(t, func(w *world) {
		l := w.add(&recorder{}, named("d"))
		w.start()
		time.Sleep(time.Minute)
		if noted := l.notePanic("a"); !strings.HasPrefix(noted, "1,") {
			t.Errorf("noted %q", noted)
		}
		held := testsupport.HoldCommit(t)
		if noted := l.notePanic("a"); !strings.Contains(noted, "no answer") {
			t.Errorf("noted %q", noted)
		}
		close(held.Release)
		synctest.Wait()
		if noted := l.notePanic("a"); !strings.HasPrefix(noted, "3,") {
			t.Errorf("noted %q", noted)
		}
	})
}
