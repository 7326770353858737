package reflector

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch/checkpoint"
)

const question5 = "LIST limit=1"

func TestAnExpiredWatchIsARelistInTheSameListWithoutABackoff(t *testing.T) {
	for name, c := range map[string]struct {
		watch answer
		after time.Duration // Until the watch expires.
	}{
		"the request to watch is answered 410":             {fails(errGone), 0},
		"the request to watch is answered Gone":            {fails(errGoneOld), 0},
		"the first event is 410":                           {opens(failure(errGone)), 0},
		"the first event is Gone":                          {opens(failure(errGoneOld)), 0},
		"the watch is closed at once":                      {closes(), 0},
		"the first event is 410, after 99 ms":              {opens(), 99 * time.Millisecond},
		"the request takes a second, then the event comes": {after(time.Second, opens(failure(errGone))), time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, "5", lists("9"), c.watch, lists("9", "a@3", "b@9"), opens()).run()
				advance(c.after)
				if c.after == 99*time.Millisecond {
					w.server.last().send(failure(errGone))
				}
				w.server.requests.expect(t, question5, "WATCH rv=5", "LIST rv=5 NotOlderThan", "WATCH rv=9")
				w.store.calls.expect(t, "begin", "finish 9", "replace 9")
				if w.elapsed().Round(time.Microsecond) != c.after {
					t.Errorf("it took %v, expected %v", w.elapsed(), c.after)
				}
				heard := w.observed.take()
				want := []string{"contact", "relisting: Expired", "contact", "live"}
				if diff := cmp.Diff(want, heard); diff != "" {
					t.Errorf("the observer heard (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestAnotherErrorOfAResumedWatchIsTriedAgain(t *testing.T) {
	for name, open := range map[string]answer{
		"the request fails":       fails(errNetwork),
		"the request is too much": fails(errBusy),
		"the first event is 429":  opens(failure(errBusy)),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, "5", lists("9"), open).run()
				w.server.requests.expect(t, question5, "WATCH rv=5")
				w.server.then(lists("9"), opens(added("b@6")))
				advance(leastBackoff - 1)
				w.server.requests.expect(t)
				advance(firstBackoff)
				w.server.requests.expect(t, question5, "WATCH rv=5")
				w.store.calls.expect(t, "replace 5", "add b@6")
			})
		})
	}
}

func TestTheFirstEventsOfAResumedWatchAreHandedOnInOrder(t *testing.T) {
	for name, c := range map[string]struct {
		first watch.Event
		call  string
	}{
		"an addition":     {added("b@6"), "add b@6"},
		"a change":        {modified("a@6"), "update a@6"},
		"a deletion":      {deleted("a@6"), "delete a@6"},
		"a bookmark":      {bookmark("6"), "bookmark 6"},
		"an initial list": {initialEnd("6"), "bookmark 6"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, "5", lists("9"), opens(c.first, added("c@7"), modified("c@8"), deleted("c@9")), lists("9"), opens()).run()
				if w.elapsed() > time.Microsecond {
					t.Errorf("it took %v", w.elapsed())
				}
				w.store.calls.expect(t, "replace 5", c.call, "add c@7", "update c@8", "delete c@9")
				w.observed.expect(t, "contact", "resuming at 5", "live", "contact", "contact", "contact", "contact")
				// After an event the watch may close at any time.
				w.server.last().end()
				w.server.requests.expect(t, question5, "WATCH rv=5", "LIST limit=1", "WATCH rv=9")
			})
		})
	}
}

func TestAQuietWatchIsHandedOver(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, "5", lists("9"), opens()).run()
		advance(unmeteredQuiet - time.Microsecond)
		w.observed.expect(t, "contact")
		advance(time.Microsecond)
		w.observed.expect(t, "resuming at 5", "live")
		w.store.calls.expect(t, "replace 5")
		w.server.last().send(added("b@6"))
		w.store.calls.expect(t, "add b@6")
	})
}

func TestAWatchThatCannotHaveMissedAnythingIsNotWaitedFor(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, "5", lists("5"), opens()).run()
		w.observed.expect(t, "contact", "resuming at 5", "live")
		if w.elapsed() > time.Microsecond {
			t.Errorf("it took %v", w.elapsed())
		}
	})
}

func TestAResumedWatchThatEndsWithoutAnEvent(t *testing.T) {
	for _, c := range []struct {
		name, server string
		after        time.Duration
		resumed      bool
	}{
		{"at once", "9", 0, false},
		{"after 99 ms, while it is looked at", "9", 99 * time.Millisecond, false},
		{"after 101 ms", "9", 101 * time.Millisecond, false},
		{"just before 2 s", "9", 2*time.Second - time.Microsecond, false},
		{"after 2 s", "9", 2 * time.Second, true},
		{"at once, and the server has nothing newer", "5", 0, true},
		{"after 2 s, and the server has nothing newer", "5", 2 * time.Second, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, "5", lists(c.server), opens()).run()
				advance(c.after)
				w.server.requests.expect(t, question5, "WATCH rv=5")
				if c.resumed {
					w.server.then(lists("9"), opens(added("b@6")))
				} else {
					w.server.then(lists("9", "a@3"), opens())
				}
				w.server.last().end()
				advance(firstBackoff)
				if c.resumed {
					w.server.requests.expect(t, question5, "WATCH rv=5")
					if calls := w.store.calls.take(); calls[len(calls)-1] != "add b@6" || w.lastHow().Cause != "None" {
						t.Errorf("%q", calls)
					}
					return
				}
				w.server.requests.expect(t, "LIST rv=5 NotOlderThan", "WATCH rv=9")
				if how := w.lastHow(); how.Cause != checkpoint.CauseExpired {
					t.Errorf("%+v", how)
				}
			})
		})
	}
}

func TestAWatchAfterARelistMayEndAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, "", lists("5", "a@3"), closes()).run()
		w.server.requests.expect(t, "LIST limit=500", "WATCH rv=5")
		w.server.then(lists("5"), opens())
		advance(firstBackoff)
		w.server.requests.expect(t, question5, "WATCH rv=5")
		w.store.calls.expect(t, "begin", "finish 5", "replace 5", "replace 5")
	})
}

// An open world has a watch that has brought b@6.
func openWorld(t *testing.T) *world {
	w := newWorld(t, "5", lists("6"), opens(added("b@6"))).run()
	advance(time.Second) // Until it has caught up.
	w.server.requests.expect(t, question5, "WATCH rv=5")
	w.store.calls.expect(t, "replace 5", "add b@6")
	w.observed.expect(t, "contact", "resuming at 5", "live", "contact")
	return w
}

// expectObserved leaves out when a watch went live where "" is expected: the
// backoff is random.
func (w *world) expectObserved(want []string) {
	w.t.Helper()
	got := w.observed.take()
	for i := range min(len(got), len(want)) {
		if want[i] == "" && strings.HasPrefix(got[i], "live") {
			got[i] = ""
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		w.t.Errorf("the observer heard (-want +got):\n%s", diff)
	}
}

func TestAWatchThatHasEndedIsOpenedAgainAfterAQuestion(t *testing.T) {
	const question = "LIST limit=1"
	for _, c := range []struct {
		name     string
		answers  []answer
		requests []string
		heard    []string // After "disconnected".
		calls    []string
	}{
		{
			"the server is as it was", []answer{lists("9"), opens(added("c@7"))},
			[]string{question, "WATCH rv=6"},
			[]string{"contact", "live", "contact"},
			[]string{"add c@7"},
		},
		{
			"the server was rewound", []answer{lists("4"), lists("4", "a@3"), opens()},
			[]string{question, "LIST limit=500", "WATCH rv=4"},
			[]string{"contact", "disconnected: expired", "relisting: ServerBehind", "contact", ""},
			[]string{"begin", "finish 4", "replace 4"},
		},
		{
			"the question is refused", []answer{fails(apierrors.NewBadRequest("?")), lists("6"), opens(added("c@7"))},
			[]string{question, question, "WATCH rv=6"},
			[]string{"disconnected: reflector: ask the server for its version: ?", "contact", "resuming at 6", "", "contact"},
			[]string{"replace 6", "add c@7"},
		},
		{
			"the history is gone", []answer{lists("9"), fails(errGone), lists("9", "a@3"), opens()},
			[]string{question, "WATCH rv=6", "LIST rv=6 NotOlderThan", "WATCH rv=9"},
			[]string{"contact", "disconnected: expired", "relisting: Expired", "contact", ""},
			[]string{"begin", "finish 9", "replace 9"},
		},
		{
			"the question is answered 500", []answer{fails(errInternal), lists("6"), opens(added("c@7"))},
			[]string{question, question, "WATCH rv=6"},
			[]string{"disconnected: reflector: ask the server for its version: " + errInternal.Error(), "contact", "resuming at 6", "", "contact"},
			[]string{"replace 6", "add c@7"},
		},
		{
			"the question is answered 429", []answer{fails(errBusy), lists("6"), opens(added("c@7"))},
			[]string{question, question, "WATCH rv=6"},
			[]string{"disconnected: reflector: ask the server for its version: " + errBusy.Error(), "contact", "", "contact"},
			[]string{"add c@7"}, // client-go asks again without a List.
		},
		{
			"nobody is there to be asked", []answer{fails(errRefused), lists("6"), opens(added("c@7"))},
			[]string{question, question, "WATCH rv=6"},
			[]string{"disconnected: reflector: ask the server for its version: " + errRefused.Error(), "contact", "", "contact"}, []string{"add c@7"},
		},
		{
			"the watch is answered 503", []answer{lists("6"), fails(errSoon), lists("6"), opens(added("c@7"))},
			[]string{question, "WATCH rv=6", question, "WATCH rv=6"},
			[]string{"contact", "disconnected: reflector: watch from resourceVersion 6: " + errSoon.Error(), "contact", "resuming at 6", "", "contact"},
			[]string{"replace 6", "add c@7"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := openWorld(t)
				w.server.then(c.answers...)
				w.server.last().end()
				advance(firstBackoff)
				w.server.requests.expect(t, c.requests...)
				w.store.calls.expect(t, c.calls...)
				w.expectObserved(append([]string{"disconnected"}, c.heard...))
			})
		})
	}
}

func TestNoQuestionIsAskedWhereTheAnswerIsOfNoUse(t *testing.T) {
	for name, c := range map[string]struct {
		rv, request string
	}{
		"there is no version":     {"", "WATCH"},
		"else there would be one": {"5", question5},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, c.rv, fails(errNetwork))
				timeout := int64(300)
				_, err := w.open().WatchWithContext(t.Context(), metav1.ListOptions{ResourceVersion: c.rv, AllowWatchBookmarks: true, TimeoutSeconds: &timeout})
				if err == nil {
					t.Error("no error")
				}
				w.server.requests.expect(t, c.request)
			})
		})
	}
}

func TestAWatchThatIsNeverToBeResumedIsOpenedAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, "5", lists("6", "a@3"), closes(added("b@7")), lists("7"), opens(added("c@8")))
		w.opts.NeverResume = true
		w.run()
		w.server.requests.expect(t, "LIST rv=5 NotOlderThan", "WATCH rv=6", "LIST limit=1", "WATCH rv=7")
		w.store.expectContents(t, "a@3", "b@7", "c@8")
		w.server.then(lists("9", "a@3"), opens())
		w.server.last().send(failure(errInternal))
		advance(firstBackoff)
		w.server.requests.expect(t, "LIST rv=8 NotOlderThan", "WATCH rv=9")
	})
}

func TestAnErrorEventEndsTheWatch(t *testing.T) {
	for name, c := range map[string]struct {
		err      *apierrors.StatusError
		answers  []answer
		requests []string
		calls    []string
	}{
		"500: the Reflector lists anew": {
			errInternal, []answer{lists("6", "a@3"), opens(added("c@7"))},
			[]string{"LIST rv=6 NotOlderThan", "WATCH rv=6"}, []string{"begin", "finish 6", "replace 6", "add c@7"},
		},
		"429: the Reflector watches anew": {
			errBusy, []answer{lists("6"), opens(added("c@7"))},
			[]string{"LIST limit=1", "WATCH rv=6"}, []string{"add c@7"},
		},
		"410: it is relisted": {
			errGone, []answer{lists("9", "a@3"), opens()},
			[]string{"LIST rv=6 NotOlderThan", "WATCH rv=9"}, []string{"begin", "finish 9", "replace 9"},
		},
		"too large: it is resumed, and asked before": {
			tooLarge(), []answer{lists("4"), lists("4", "a@3"), opens()},
			[]string{"LIST limit=1", "LIST limit=500", "WATCH rv=4"}, []string{"begin", "finish 4", "replace 4"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := openWorld(t)
				w.server.then(c.answers...)
				w.server.last().send(failure(c.err))
				want := "disconnected: " + c.err.Error()
				if isExpired(c.err) {
					want = "disconnected: expired"
				}
				w.observed.expect(t, want)
				advance(firstBackoff)
				w.server.requests.expect(t, c.requests...)
				w.store.calls.expect(t, c.calls...)
			})
		})
	}
}

func TestAWatchThatNobodyReadsCanBeStopped(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, "5", lists("5"), opens())
		r := w.open()
		w.list()
		open, err := r.Watch(metav1.ListOptions{ResourceVersion: "5"})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 3 * eventBuffer {
			w.server.last().send(added(fmt.Sprintf("b@%d", i+6)))
		}
		synctest.Wait()
		if n := len(open.ResultChan()); n != eventBuffer {
			t.Errorf("%d events wait", n)
		}
		open.Stop()
		synctest.Wait()
		if w.server.last().stopped() == 0 {
			t.Error("the server's watch goes on after Stop")
		}
		open.Stop()
		r.Stop()
		events := 0
		for range open.ResultChan() {
			events++
		}
		if events > eventBuffer+1 {
			t.Errorf("%d events came after the stop", events)
		}
	})
}

func TestAWatchThatHasFailedIsStoppedThoughItsReaderDoesNot(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, "5", lists("5"), opens())
		r := w.open()
		w.list()
		open, err := r.Watch(metav1.ListOptions{ResourceVersion: "5"})
		if err != nil {
			t.Fatal(err)
		}
		w.server.last().send(added("b@6"), failure(errInternal), added("c@7"))
		want := []watch.Event{added("b@6"), failure(errInternal)}
		got := []watch.Event{}
		for e := range open.ResultChan() {
			got = append(got, e)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("the events (-want +got):\n%s", diff)
		}
		if w.server.last().stopped() == 0 {
			t.Error("the server's watch goes on")
		}
	})
}

// The Reflector acts on an error event at once. If the Observer heard of
// the end after that, it might hear *relisting or Live first, and Disconnected
// would be its last word.
func TestTheObserverHearsOfTheEndOfAWatchBeforeTheReflector(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, "5", lists("5"), opens())
		r := w.open()
		w.list()
		open, err := r.Watch(metav1.ListOptions{ResourceVersion: "5"})
		if err != nil {
			t.Fatal(err)
		}
		w.server.last().stopTakes = time.Second
		w.observed.take()
		w.server.last().send(failure(errInternal))
		if e := <-open.ResultChan(); e.Type != watch.Error {
			t.Fatalf("got %v", e)
		}
		w.observed.expect(t, "disconnected: "+errInternal.Error())
	})
}
