package reflector

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	clientfeatures "k8s.io/client-go/features"
	clientfeaturestesting "k8s.io/client-go/features/testing"
	"k8s.io/klog/v2"
)

// streaming makes a world whose server streams lists.
func streaming(t *testing.T, rv string, answers ...answer) *world {
	w := newWorld(t, rv, answers...)
	w.server.streamsLists = true
	w.opts.Logger = new(klog.Logger) // Discards.
	return w
}

// because is how a relist of the store's version is demanded.
func because(rewrite, rewound bool) *Relisting {
	return &Relisting{Reason: "the test says so", Rewrite: rewrite, Rewound: rewound}
}

func TestAStreamedListIsHandedOverWithWhatComesAfterIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := streaming(t, "", opens(
			added("a@3"), added("b@4"), bookmark("4"), added("c@5"), modified("b@6"), deleted("c@7"), initialEnd("8"),
			added("d@9"), modified("a@10"), bookmark("11"),
		)).run()
		w.server.requests.expect(t, "STREAM NotOlderThan")
		w.store.calls.expect(t,
			"begin", "item a@3", "item b@4", "item c@5", "item b@6", "gone c@7", "finish 8",
			"replace 8", "add d@9", "update a@10", "bookmark 11",
		)
		w.server.last().send(deleted("d@12"))
		w.store.calls.expect(t, "delete d@12")
		w.store.expectContents(t, "a@10", "b@6")
		if w.elapsed() > time.Microsecond {
			t.Errorf("it took %v", w.elapsed())
		}
		// The watch of a stream may close at once.
		w.server.then(lists("12"), opens())
		advance(time.Second)
		w.server.last().end()
		w.server.requests.expect(t, "LIST limit=1", "WATCH rv=12")
	})
}

// TestAPanicClosesTheStream, because it may not end the process.
func TestAPanicClosesTheStream(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := streaming(t, "", opens(added("a@3"), initialEnd("8")))
		w.store.itemPanics = true
		resumer := w.open()
		func() {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			_, _ = resumer.ListWithContext(t.Context(), metav1.ListOptions{})
		}()
		if w.server.last().stopped() == 0 {
			t.Error("the watch is open")
		}
	})
}

func TestAStreamedListOfTheStoresVersion(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := streaming(t, "5", opens(added("a@3"), initialEnd("8")))
		w.opts.Relist = because(true, false)
		w.run()
		w.server.requests.expect(t, "STREAM rv=5 NotOlderThan")
		w.store.calls.expect(t, "begin rewrite", "item a@3", "finish 8", "replace 8")
		w.observed.expect(t, "relisting: the test says so", "contact", "contact", "live")
	})
}

// TestAStreamWhoseEndIsMissingIsLogged, as by client-go's Reflector: fake clients accept
// sendInitialEvents, and never send the bookmark.
func TestAStreamWhoseEndIsMissingIsLogged(t *testing.T) {
	const none, stopped = "awaiting required bookmark event for initial events stream, no events received for ",
		"hasn't received required bookmark event marking the end of initial events stream, received last event "
	for name, c := range map[string]struct {
		events     []watch.Event
		told       []string
		ends       watch.Event
		afterwards []string
	}{
		"no event came":     {nil, []string{none + "10s", none + "20s"}, initialEnd("8"), []string{"contact", "awaited bookmark"}},
		"events came":       {[]watch.Event{added("a@3"), bookmark("4")}, []string{stopped + "10s ago", stopped + "20s ago"}, initialEnd("8"), []string{"contact", "awaited bookmark"}},
		"the stream failed": {[]watch.Event{added("a@3")}, []string{stopped + "10s ago", stopped + "20s ago"}, failure(errBusy), []string{"contact", "awaited bookmark"}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := streaming(t, "", opens(c.events...))
				var log journal
				w.opts.Logger = log.logger()
				w.run()
				advance(9 * time.Second)
				w.observed.take()
				log.expect(t)
				advance(12 * time.Second)
				var lines, heard []string
				for _, told := range c.told {
					lines = append(lines, fmt.Sprintf(`"level"=0 "msg"="Warning: event bookmark expired" "err"=%q`, told))
					heard = append(heard, "awaiting bookmark: "+told)
				}
				log.expect(t, lines...)
				w.observed.expect(t, heard...)
				w.server.last().send(c.ends)
				synctest.Wait()
				if heard := w.observed.take(); len(heard) < 2 || !slices.Equal(heard[:2], c.afterwards) {
					t.Errorf("when it had ended the observer heard %q", heard)
				}
				w.stop()
			})
		})
	}
}

// TestAStreamThatGoesOnIsNotLogged, however long it takes.
func TestAStreamThatGoesOnIsNotLogged(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := streaming(t, "", opens())
		var log journal
		w.opts.Logger = log.logger()
		w.run()
		for range 20 {
			w.server.last().send(added("a@3"))
			advance(9 * time.Second)
		}
		w.server.last().send(initialEnd("8"))
		advance(time.Minute)
		log.expect(t)
	})
}

func TestAListThatCannotBeStreamedComesInPages(t *testing.T) {
	const stream, pages = "STREAM rv=5 NotOlderThan", "LIST rv=5 NotOlderThan"
	noObject := watch.Event{Type: watch.Bookmark, Object: &metav1.Status{}}
	for name, c := range map[string]struct {
		answer answer
		calls  []string // Until it is aborted.
	}{
		"the server does not know sendInitialEvents": {fails(apierrors.NewInvalid(metav1.SchemeGroupVersion.WithKind("ListOptions").GroupKind(), "", nil)), nil},
		"the server does not allow it":               {fails(errForbidden), nil},
		"the server fails":                           {fails(errInternal), nil},
		"the network fails":                          {fails(errNetwork), nil},
		"the stream ends with an error":              {opens(added("a@3"), failure(errInternal)), []string{"item a@3"}},
		"a bookmark cannot be understood":            {opens(noObject), nil},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := streaming(t, "5", c.answer, lists("9", "a@3", "b@9"), opens(added("c@10")))
				w.opts.Relist = because(false, false)
				w.run()
				w.server.requests.expect(t, stream, pages, "WATCH rv=9")
				want := append([]string{"begin"}, c.calls...)
				want = append(want, "abort", "begin", "item a@3", "item b@9", "finish 9", "replace 9", "add c@10")
				w.store.calls.expect(t, want...)
				if w.elapsed() > time.Microsecond {
					t.Errorf("it took %v", w.elapsed())
				}
				// The next one is tried as a stream again.
				w.server.then(opens(initialEnd("11")))
				w.server.last().send(failure(errGone))
				advance(firstBackoff)
				w.server.requests.expect(t, "STREAM rv=10 NotOlderThan")
			})
		})
	}
}

func TestAStreamThatPagesWouldNotHelpIsTriedAgain(t *testing.T) {
	for name, c := range map[string]struct {
		answer   answer
		requests []string // After the first stream.
		calls    []string // Between begin and finish.
		backoff  bool
	}{
		"the request is too old":  {fails(errGone), []string{"STREAM NotOlderThan"}, []string{"abort", "begin"}, false},
		"the stream is too old":   {opens(added("a@1"), failure(errGone)), []string{"STREAM NotOlderThan"}, []string{"item a@1", "abort", "begin"}, false},
		"the request is too new":  {fails(tooLarge()), []string{"STREAM NotOlderThan"}, []string{"abort", "begin"}, false},
		"the stream is too new":   {opens(failure(errTooLargeOld)), []string{"STREAM NotOlderThan"}, []string{"abort", "begin"}, false},
		"there are too many":      {fails(errBusy), []string{"STREAM NotOlderThan"}, []string{"abort", "begin"}, true},
		"the server is not there": {fails(errRefused), []string{"STREAM NotOlderThan"}, []string{"abort", "begin"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := streaming(t, "5", c.answer)
				w.opts.Relist = because(false, false)
				end := opens(initialEnd("9"))
				if !c.backoff {
					w.server.then(end)
				}
				w.run()
				if c.backoff {
					w.server.then(end)
					advance(firstBackoff)
				}
				// The store has no version after a relist that failed.
				w.server.requests.expect(t, append([]string{"STREAM rv=5 NotOlderThan"}, c.requests...)...)
				want := append([]string{"begin"}, c.calls...)
				w.store.calls.expect(t, append(want, "finish 9", "replace 9")...)
			})
		})
	}
}

func TestAClientThatDoesNotStreamIsNotAskedTo(t *testing.T) {
	for name, streams := range map[string]bool{"it says so": false, "a feature gate says so": true} {
		t.Run(name, func(t *testing.T) {
			if streams {
				clientfeaturestesting.SetFeatureDuringTest(t, clientfeatures.WatchListClient, false)
			}
			bubble(t, func(t *testing.T) {
				w := newWorld(t, "", lists("9"), opens())
				w.server.streamsLists = streams
				w.run()
				w.server.requests.expect(t, "LIST limit=500", "WATCH rv=9")
			})
		})
	}
}

func TestAListInPages(t *testing.T) {
	all := []string{"begin", "item a@3", "item b@4", "item c@5", "finish 9", "replace 9"}
	for _, c := range []struct {
		name     string
		rv       string
		size     int64
		answers  []answer
		requests []string
		calls    []string
	}{
		{
			"one page", "", 0, []answer{lists("9", "a@3", "b@4", "c@5")},
			[]string{"LIST limit=500"}, all,
		},
		{
			"three pages", "", 0, []answer{page("9", "x", "a@3"), page("9", "y", "b@4"), page("9", "", "c@5")},
			[]string{"LIST limit=500", "LIST limit=500 continue=x", "LIST limit=500 continue=y"}, all,
		},
		{
			"pages of two", "", 2, []answer{page("9", "x", "a@3", "b@4"), page("9", "", "c@5")},
			[]string{"LIST limit=2", "LIST limit=2 continue=x"}, all,
		},
		{
			"not older than the store: all at once", "5", 2, []answer{lists("9", "a@3", "b@4", "c@5")},
			[]string{"LIST rv=5 NotOlderThan"}, all,
		},
		{
			"not older than the store, and the server insists on pages", "5", 0, []answer{page("9", "x", "a@3", "b@4"), lists("9", "c@5")},
			[]string{"LIST rv=5 NotOlderThan", "LIST continue=x"}, all,
		},
		{
			"a page has expired: all at once", "", 0, []answer{page("7", "x", "a@1"), fails(errGone), lists("9", "a@3", "b@4", "c@5")},
			[]string{"LIST limit=500", "LIST limit=500 continue=x", "LIST"},
			append([]string{"begin", "item a@1", "abort"}, all...),
		},
		{
			"a page has expired, of a list not older than the store", "5", 0, []answer{page("7", "x", "a@1"), fails(errGone), lists("9", "a@3", "b@4", "c@5")},
			[]string{"LIST rv=5 NotOlderThan", "LIST continue=x", "LIST"},
			append([]string{"begin", "item a@1", "abort"}, all...),
		},
		{
			"the store's version is too old", "5", 0, []answer{fails(errGone), lists("9", "a@3", "b@4", "c@5")},
			[]string{"LIST rv=5 NotOlderThan", "LIST limit=500"},
			append([]string{"begin", "abort"}, all...),
		},
		{
			"the store's version is too new", "5", 0, []answer{fails(tooLarge()), lists("9", "a@3", "b@4", "c@5")},
			[]string{"LIST rv=5 NotOlderThan", "LIST limit=500"},
			append([]string{"begin", "abort"}, all...),
		},
		{
			"nothing is there", "", 0, []answer{lists("9")},
			[]string{"LIST limit=500"}, []string{"begin", "finish 9", "replace 9"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, c.rv, append(c.answers, opens(added("d@10")))...)
				w.opts.Relist, w.opts.PageSize = because(false, false), c.size
				w.run()
				w.server.requests.expect(t, append(c.requests, "WATCH rv=9")...)
				w.store.calls.expect(t, append(c.calls, "add d@10")...)
				if told := strings.Join(w.observed.take(), "\n"); w.elapsed() > time.Microsecond || strings.Contains(told, "disconnected") {
					t.Errorf("it took %v, and the observer heard\n%s", w.elapsed(), told)
				}
			})
		})
	}
}

func TestAFailedRelistIsTriedAgainAsItWas(t *testing.T) {
	noList := func(context.Context, *server) (any, error) { return configMap("a@1"), nil }
	for _, c := range []struct {
		name    string
		how     *Relisting
		first   answer
		spoil   func(*memory)
		begin   string
		between []string // Of the first relist, after its begin.
	}{
		{"the list fails", because(true, true), fails(errInternal), nil, "begin rewrite rewound", []string{"abort"}},
		{"the list fails, of a plain relist", because(false, false), fails(errInternal), nil, "begin", []string{"abort"}},
		{"the list is too much", because(true, false), fails(errBusy), nil, "begin rewrite", []string{"abort"}},
		{"the list is no list", because(true, true), noList, nil, "begin rewrite rewound", []string{"abort"}},
		{"an item fails", because(true, true), lists("8", "x@1"), func(m *memory) { m.itemErr = errNetwork }, "begin rewrite rewound", []string{"abort"}},
		{"the end fails", because(true, false), lists("8", "x@1"), func(m *memory) { m.finishErr = errNetwork }, "begin rewrite", []string{"item x@1", "abort"}},
		{"the beginning fails", because(true, true), nil, func(m *memory) { m.beginErr = errNetwork }, "begin rewrite rewound", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, "")
				if c.first != nil {
					w.server.then(c.first)
				}
				if c.spoil != nil {
					c.spoil(w.store)
				}
				w.opts.Relist = c.how
				w.run()
				var first []string
				if c.first != nil {
					first = append([]string{c.begin}, c.between...)
				}
				w.store.calls.expect(t, first...)
				if told := strings.Join(w.observed.take(), "\n"); !strings.Contains(told, "\ndisconnected: reflector: relist (the test says so): ") {
					t.Errorf("the observer heard\n%s", told)
				}
				w.server.then(lists("9", "a@3"), opens())
				advance(leastBackoff - 1)
				w.store.calls.expect(t)
				advance(firstBackoff)
				w.store.calls.expect(t, c.begin, "item a@3", "finish 9", "replace 9")
				w.store.expectContents(t, "a@3")
				w.server.requests.take()
				// And that was that: the next one is a plain relist.
				w.server.then(lists("10", "a@3"), opens())
				w.server.last().send(failure(errGone))
				advance(2 * firstBackoff)
				w.store.calls.expect(t, "begin", "item a@3", "finish 10", "replace 10")
			})
		})
	}
}

func TestARelistThatLedNowhereIsFollowedByOneOfTheNewest(t *testing.T) { // kubernetes#133810
	for _, c := range []struct {
		name   string
		events []watch.Event // Of the watch after the relist.
		ends   []answer      // Of what is opened after a normal end.
		next   string
	}{
		{"no event came", nil, nil, "LIST limit=500"},
		{"no event came, from two watches", nil, []answer{lists("6"), opens()}, "LIST limit=500"},
		{"an event came", []watch.Event{added("b@7")}, nil, "LIST rv=7 NotOlderThan"},
		{"a bookmark came", []watch.Event{bookmark("7")}, nil, "LIST rv=7 NotOlderThan"},
		{"an event came, then another watch without one", []watch.Event{added("b@7")}, []answer{lists("7"), opens()}, "LIST rv=7 NotOlderThan"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, "5", lists("6", "a@3"), opens(c.events...))
				w.opts.Relist = because(false, false)
				w.run()
				w.server.requests.expect(t, "LIST rv=5 NotOlderThan", "WATCH rv=6")
				advance(time.Minute)
				if c.ends != nil {
					w.server.then(c.ends...)
					w.server.last().end()
					advance(time.Minute)
					w.server.requests.take()
				}
				w.server.then(lists("8", "a@3"), opens(added("c@9")))
				w.server.last().send(failure(errGone))
				advance(time.Minute)
				w.server.requests.expect(t, c.next, "WATCH rv=8")
				// That is no reason for the one after it.
				w.server.then(lists("10", "a@3"), opens())
				w.force()
				advance(time.Minute)
				w.server.requests.expect(t, "LIST rv=9 NotOlderThan", "WATCH rv=10")
			})
		})
	}
}

func TestAResumedWatchThatExpiresAfterARelistWithoutEventsIsThatToo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, "5", lists("6", "a@3"), opens())
		w.opts.Relist = because(false, false)
		w.run()
		w.server.then(lists("8"), opens(failure(errGone)), lists("8", "a@3"), opens())
		w.server.last().send(undecodable("read tcp 10.0.0.1:1: i/o timeout")) // So the Reflector lists, and that resumes.
		advance(firstBackoff)
		w.server.requests.expect(t,
			"LIST rv=5 NotOlderThan", "WATCH rv=6",
			"LIST limit=1", "WATCH rv=6", "LIST limit=500", "WATCH rv=8")
	})
}

// Pages would bring the same items to the same store.
func TestAnErrorOfTheStoreIsNotTakenForARefusalToStream(t *testing.T) {
	for name, spoil := range map[string]func(*memory){
		"of Item":   func(m *memory) { m.itemErr = errNetwork },
		"of Gone":   func(m *memory) { m.goneErr = errNetwork },
		"of Finish": func(m *memory) { m.finishErr = errNetwork },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := streaming(t, "5", opens(added("a@3"), deleted("a@4"), initialEnd("8")))
				spoil(w.store)
				w.opts.Relist = because(false, false)
				if _, err := w.open().List(metav1.ListOptions{}); !errors.Is(err, errNetwork) {
					t.Errorf("the error is %v", err)
				}
				w.server.requests.expect(t, "STREAM rv=5 NotOlderThan")
			})
		})
	}
}

func TestAnErrorOfBeginRelistIsReturnedAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := streaming(t, "")
		w.store.beginErr = errNetwork
		if _, err := w.open().List(metav1.ListOptions{}); !errors.Is(err, errNetwork) {
			t.Errorf("the error is %v", err)
		}
		w.server.requests.expect(t)
	})
}

func TestAListWithoutAVersionIsFollowedByAWatchWithoutOne(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, "", lists("", "a@3"), opens()).run()
		w.server.requests.expect(t, "LIST limit=500", "WATCH")
		w.store.calls.expect(t, "begin", "item a@3", "finish ", "replace ")
	})
}

// TestAListWithAnObjectNewerThanItselfIsNotResumed: such versions have no common order, so
// the watch may have missed anything.
func TestAListWithAnObjectNewerThanItselfIsNotResumed(t *testing.T) {
	for _, c := range []struct {
		name    string
		streams bool
		answers []answer
		finish  string
	}{
		{"a list", false, []answer{lists("1", "a@7", "c@3")}, "finish "},
		{"a list whose first object is older", false, []answer{lists("4", "a@3", "c@7")}, "finish "},
		{"a page", false, []answer{page("4", "x", "a@3"), page("4", "", "c@7")}, "finish "},
		{"a stream", true, []answer{opens(added("a@7"), added("c@3"), initialEnd("4"))}, "finish "},
		{"a list with an object of its version", false, []answer{lists("7", "a@7", "c@3")}, "finish 7"},
		{"a list without a version", false, []answer{lists("", "a@7", "c@3")}, "finish "},
		{"a list of another order", false, []answer{lists("x", "a@7", "c@3")}, "finish x"},
		{"objects of another order", false, []answer{lists("4", "a@x", "c@y")}, "finish 4"},
		{"a page that is newer than the first", false, []answer{page("4", "x", "a@3"), page("7", "", "c@7")}, "finish 4"},
		{"a page that is older than the first", false, []answer{page("7", "x", "a@7"), page("4", "", "c@3")}, "finish 7"},
		{"a stream with an object that was deleted", true, []answer{opens(added("a@3"), added("c@5"), deleted("c@7"), initialEnd("7"))}, "finish 7"},
		{"a stream with a bookmark before its end", true, []answer{opens(added("a@3"), bookmark("4"), modified("a@7"), initialEnd("7"))}, "finish 7"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, "", c.answers...)
				w.server.streamsLists = c.streams
				if !c.streams {
					w.server.then(opens())
				}
				w.run()
				calls := w.store.calls.take()
				if got := calls[len(calls)-2]; got != c.finish {
					t.Errorf("%q, expected %q", calls, c.finish)
				}
			})
		})
	}
}
