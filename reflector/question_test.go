package reflector

import (
	"context"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/warmwatch/warmwatch/checkpoint"
	"github.com/warmwatch/warmwatch/internal/request"
)

// counts is a list of one object, of so many.
func counts(rv string, objects int64, items ...string) answer {
	return func(ctx context.Context, s *server) (any, error) {
		got, err := lists(rv, items...)(ctx, s)
		if rest := objects - int64(len(items)); rest > 0 {
			m := got.(metav1.ListInterface)
			m.SetContinue("more")
			m.SetRemainingItemCount(&rest)
		}
		return got, err
	}
}

// TestAnAnswerThatContradictsTheStoreMeansARelistByContent (A3, A4).
func TestAnAnswerThatContradictsTheStoreMeansARelistByContent(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer answer
		cause  checkpoint.Cause // Empty: it is resumed.
	}{
		{"the server is where it was", counts("5", 1, "a@3"), ""},
		{"the server has gone on", counts("9", 2, "a@3"), ""},
		{"the object was changed since", counts("9", 1, "a@8"), ""},
		{"there is none any more", lists("9"), ""},
		{"the version says nothing", lists("x"), ""},
		{"there is no version", lists(""), ""},
		{"the limit does not hold", lists("9", "b@4", "a@4"), ""},
		{"the server is behind", lists("4", "a@3"), checkpoint.CauseServerBehind},
		{"the server is behind, and the limit does not hold", lists("4", "a@3", "b@3"), checkpoint.CauseServerBehind},
		{"the version is that of the newest object, and the limit does not hold", lists("4", "a@3", "b@4"), ""},
		{"the object is of another version", lists("9", "a@4"), checkpoint.CauseContradiction},
		{"the store lacks the object", lists("9", "b@4"), checkpoint.CauseContradiction},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, "5", c.answer)
				var log journal
				w.store.logger = *log.logger()
				if c.cause == "" {
					w.server.then(opens())
					w.run()
					w.server.requests.expect(t, "LIST limit=1", "WATCH rv=5")
					log.expect(t)
					return
				}
				w.server.then(fails(errInternal))
				w.run()
				w.server.requests.expect(t, "LIST limit=1", "LIST limit=500")
				w.server.then(lists("4", "c@4"), opens())
				advance(firstBackoff)
				w.server.requests.expect(t, "LIST limit=500", "WATCH rv=4") // It is not forgotten.
				w.store.expectContents(t, "c@4")
				log.expect(t) // The informer reports the relist.
				if how := w.lastHow(); how.Cause != c.cause || how.Expired {
					t.Errorf("relisted otherwise: %+v", how)
				}
			})
		})
	}
}

// TestWhenTheServerIsAsked (A3): at a start, and after the server could not be reached or a watch has ended before its
// time.
func TestWhenTheServerIsAsked(t *testing.T) {
	for name, c := range map[string]struct {
		after time.Duration
		end   func(*stream)
		asked bool
	}{
		"the watch was cut":                   {time.Minute, (*stream).end, true},
		"the watch has ended in its time":     {10 * time.Minute, (*stream).end, false},
		"the watch is refused, for a moment":  {time.Minute, func(s *stream) { s.send(failure(errBusy)) }, true},
		"the connection was lost, as it says": {time.Minute, func(s *stream) { s.send(undecodable("read tcp 1.2.3.4: i/o timeout")) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, "5", lists("5"), opens(added("b@6")))
				w.run()
				advance(c.after)
				w.server.requests.expect(t, "LIST limit=1", "WATCH rv=5")
				var want []string
				if c.asked {
					w.server.then(lists("6"))
					want = append(want, "LIST limit=1")
				}
				w.server.then(opens(added("c@7")))
				c.end(w.server.last())
				advance(2 * firstBackoff)
				w.server.requests.expect(t, append(want, "WATCH rv=6")...)
				w.store.expectContents(t, "a@3", "b@6", "c@7")
			})
		})
	}
}

// TestVersionsThatSayNothingAreNotAskedForAgain (A4): an aggregated server lists at the version of its newest object,
// which was deleted. Or the question brings all objects.
func TestVersionsThatSayNothingAreNotAskedForAgain(t *testing.T) {
	for name, answers := range map[string][]answer{
		"an older version, and nothing differs": {lists("4"), lists("4", "a@3"), opens()},
		"a limit that does not hold":            {lists("9", "a@3", "b@3"), opens()},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, "5", answers...)
				w.run()
				advance(time.Minute)
				if w.caughtUp.Load() == 0 && len(w.hows) == 0 {
					t.Error("not caught up")
				}
				w.server.requests.take()
				for range 5 {
					w.server.then(opens())
					w.server.last().end()
					advance(time.Minute)
					if asked := w.server.requests.take(); len(asked) != 1 || !strings.HasPrefix(asked[0], "WATCH") {
						t.Errorf("%q", asked)
					}
				}
			})
		})
	}
}

// TestAWatchIsOpenedBesideTheQuestion, and read once the answer is there.
func TestAWatchIsOpenedBesideTheQuestion(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, "5", opens(added("b@6")))
		answered := make(chan struct{})
		w.opts.Ask = func(context.Context) (request.Answer, error) {
			<-answered
			return request.Answer{ResourceVersion: "6", Count: -1}, nil
		}
		w.run()
		w.server.requests.expect(t, "WATCH rv=5")
		w.store.calls.expect(t)
		close(answered)
		w.store.calls.expect(t, "replace 5", "add b@6")
	})
}

// TestAWatchThatOpensLateIsFollowedByAQuestion (A3): another server may have opened it than the one that was asked, or
// that has listed.
func TestAWatchThatOpensLateIsFollowedByAQuestion(t *testing.T) {
	for name, c := range map[string]struct {
		rv      string
		answers []answer
		before  string
	}{
		"behind a question": {"8", []answer{counts("8", 1, "a@3")}, "LIST limit=1"},
		"behind a list":     {"", []answer{lists("8", "a@3")}, "LIST limit=500"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, c.rv, c.answers...)
				w.server.then(after(2*openedLate, opens()), counts("4", 1, "b@4"), lists("4", "b@4"), opens())
				w.run()
				advance(2*openedLate + 2*firstBackoff)
				w.server.requests.expect(t, c.before, "WATCH rv=8", "LIST limit=1", "LIST limit=500", "WATCH rv=4")
				w.store.expectContents(t, "b@4")
			})
		})
	}
}

func TestOfAQuestionThatIsNotSeenTheListerWatcherIsAsked(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, "5", lists("5"), opens())
		w.opts.Ask = func(context.Context) (request.Answer, error) { return request.Answer{}, request.ErrNotSeen }
		w.run()
		w.server.requests.expect(t, "LIST limit=1", "WATCH rv=5")
	})
}

// TestWhenTheStoreHasCaughtUp (A6). The watch is not metered.
func TestWhenTheStoreHasCaughtUp(t *testing.T) {
	const never = time.Hour
	uncounted := page("9", "more", "a@3") // As with a selector.
	for _, c := range []struct {
		name     string
		question answer
		events   []watch.Event // Of the watch, then each 400 ms.
		at       time.Duration
	}{
		{"nothing has happened", counts("5", 1, "a@3"), nil, 0},
		{"nothing has happened here", counts("9", 1, "a@3"), nil, unmeteredQuiet},
		{"an event of the answer's version", counts("7", 2, "a@3"), []watch.Event{added("b@6"), modified("b@7")}, 400 * time.Millisecond},
		{"a bookmark of a later version", counts("7", 2, "a@3"), []watch.Event{added("b@6"), bookmark("8")}, 400 * time.Millisecond},
		{"events below the answer's version, then silence", counts("9", 2, "a@3"), []watch.Event{added("b@6"), modified("b@7")}, 400*time.Millisecond + unmeteredQuiet},
		{"the server does not count", uncounted, nil, unmeteredQuiet},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, "5", c.question, opens())
				w.open()
				w.run()
				for i, e := range c.events {
					if i > 0 {
						advance(400 * time.Millisecond)
					}
					w.server.last().send(e)
				}
				const tick = unmeteredQuiet / quietTicks
				var early time.Duration // The beginning of the last tick.
				if c.at > tick {
					early = c.at - tick - w.elapsed()
				}
				if early > 0 {
					advance(early)
					if w.caughtUp.Load() != 0 {
						t.Errorf("caught up after %v", w.elapsed())
					}
				}
				advance(max(0, c.at-w.elapsed()) + 2*tick)
				if w.caughtUp.Load() != 1 {
					t.Errorf("not caught up after %v: %d", w.elapsed(), w.caughtUp.Load())
				}
				w.server.last().send(bookmark("20"))
				advance(never)
				if n := w.caughtUp.Load(); n != 1 {
					t.Errorf("caught up %d times", n)
				}
			})
		})
	}
}

// TestAStoreThatLacksObjectsIsCompared (A6): it has another number of objects than the server counts, and nothing
// comes.
func TestAStoreThatLacksObjectsIsCompared(t *testing.T) {
	for name, version := range map[string]string{"the server is where it was": "5", "the server has gone on": "9"} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, "5", counts(version, 2, "a@3"), opens())
				w.run()
				advance(countPatience - time.Millisecond)
				w.server.requests.expect(t, "LIST limit=1", "WATCH rv=5")
				if w.caughtUp.Load() != 0 {
					t.Error("caught up without the object")
				}
				w.server.then(lists(version, "a@3", "b@4"), opens())
				advance(unmeteredQuiet + 2*firstBackoff)
				w.server.requests.expect(t, "LIST limit=500", "WATCH rv="+version)
				w.store.expectContents(t, "a@3", "b@4")
			})
		})
	}
}

// TestALateObjectIsNoReasonToList: the count is of a newer state than has come so far.
func TestALateObjectIsNoReasonToList(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, "5", counts("9", 2, "a@3"), opens())
		w.run()
		advance(countPatience - time.Second)
		w.server.last().send(added("b@9"))
		advance(time.Minute)
		w.server.requests.expect(t, "LIST limit=1", "WATCH rv=5")
		if w.caughtUp.Load() != 1 {
			t.Error("not caught up")
		}
	})
}

// TestAWatchThatIsCutBeforeTheStoreHasCaughtUpIsFollowedByAQuestion.
func TestAWatchThatIsCutBeforeTheStoreHasCaughtUpIsFollowedByAQuestion(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, "5", counts("9", 2, "a@3"), opens())
		w.run()
		advance(quickClose)
		w.server.then(counts("9", 2, "a@3"), opens(added("b@9")))
		w.server.last().end()
		advance(2 * firstBackoff)
		w.server.requests.expect(t, "LIST limit=1", "WATCH rv=5", "LIST limit=1", "WATCH rv=5")
		if w.caughtUp.Load() != 1 {
			t.Error("not caught up")
		}
	})
}

// TestTheClusterIsAskedBesideTheQuestion (A3): another one means a relist by content.
func TestTheClusterIsAskedBesideTheQuestion(t *testing.T) {
	for name, how := range map[string]*Relisting{
		"it is the same, or does not tell": nil,
		"it is another one":                {Cause: checkpoint.CauseOtherCluster, Rewrite: true, Newest: true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, "5", lists("5"), opens())
				asked := make(chan struct{})
				known := false
				w.opts.Cluster = func(context.Context) *Relisting {
					if known {
						return nil
					}
					<-asked
					known = true
					return how
				}
				w.run()
				w.server.requests.expect(t, "LIST limit=1", "WATCH rv=5")
				w.store.calls.expect(t)
				var want []string
				if how != nil {
					w.server.then(lists("8", "z@8"), opens())
					want = []string{"LIST limit=500", "WATCH rv=8"}
				}
				close(asked)
				w.server.requests.expect(t, want...)
				if how != nil && w.lastHow().Cause != how.Cause {
					t.Errorf("%+v", w.lastHow())
				}
			})
		})
	}
}

// TestAnotherClusterIsTheCauseAlsoIfTheQuestionContradicts before the server has said which cluster it is.
func TestAnotherClusterIsTheCauseAlsoIfTheQuestionContradicts(t *testing.T) { // A3
	bubble(t, func(t *testing.T) {
		w := newWorld(t, "5", lists("9", "z@4"), opens(), lists("9", "z@4"), opens())
		known := false
		w.opts.Cluster = func(context.Context) *Relisting {
			if known {
				return nil
			}
			known = true
			time.Sleep(time.Second)
			return &Relisting{Cause: checkpoint.CauseOtherCluster, Rewrite: true, Newest: true}
		}
		w.run()
		advance(2 * time.Second)
		w.server.requests.expect(t, "LIST limit=1", "WATCH rv=5", "LIST limit=500", "WATCH rv=9")
		if how := w.lastHow(); how.Cause != checkpoint.CauseOtherCluster || !how.Rewrite {
			t.Errorf("%+v", how)
		}
	})
}

// TestAnAnswerThatSaysNothingIsAskedForAgainUntilTheStoreHasCaughtUp (A6): the limit does not hold, and the first watch
// fails.
func TestAnAnswerThatSaysNothingIsAskedForAgainUntilTheStoreHasCaughtUp(t *testing.T) {
	for name, first := range map[string]answer{"the watch is refused": fails(errSoon), "the watch is cut": after(0, closes(added("b@6")))} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				all := lists("9", "a@3", "b@6")
				w := newWorld(t, "5", all, first, all, opens())
				w.run()
				advance(time.Minute)
				if w.caughtUp.Load() != 1 {
					t.Errorf("not caught up: %q", w.server.requests.take())
				}
			})
		})
	}
}
