package reflector

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// because is how a relist of the store's version is demanded.
func because(rewrite, newest bool) *Relisting {
	return &Relisting{Cause: "TheTest", Rewrite: rewrite, Newest: newest}
}

func TestAListInPages(t *testing.T) {
	all := []string{"begin", "finish 9", "replace 9"}
	for _, c := range []struct {
		name     string
		rv       string
		answers  []answer
		requests []string
		calls    []string
	}{
		{
			"one page", "", []answer{lists("9", "a@3", "b@4", "c@5")},
			[]string{"LIST limit=500"}, all,
		},
		{
			"three pages", "", []answer{page("9", "x", "a@3"), page("9", "y", "b@4"), page("9", "", "c@5")},
			[]string{"LIST limit=500", "LIST limit=500 continue=x", "LIST limit=500 continue=y"}, all,
		},
		{
			"not older than the store: all at once", "5", []answer{lists("9", "a@3", "b@4", "c@5")},
			[]string{"LIST rv=5 NotOlderThan"}, all,
		},
		{
			"not older than the store, and the server insists on pages", "5", []answer{page("9", "x", "a@3", "b@4"), lists("9", "c@5")},
			[]string{"LIST rv=5 NotOlderThan", "LIST continue=x"}, all,
		},
		{
			"a page has expired: all at once", "", []answer{page("7", "x", "a@1"), fails(errGone), lists("9", "a@3", "b@4", "c@5")},
			[]string{"LIST limit=500", "LIST limit=500 continue=x", "LIST"},
			all,
		},
		{
			"a page has expired, of a list not older than the store", "5", []answer{page("7", "x", "a@1"), fails(errGone), lists("9", "a@3", "b@4", "c@5")},
			[]string{"LIST rv=5 NotOlderThan", "LIST continue=x", "LIST rv=5 NotOlderThan"},
			all,
		},
		{
			"the store's version is too old", "5", []answer{fails(errGone), lists("9", "a@3", "b@4", "c@5")},
			[]string{"LIST rv=5 NotOlderThan", "LIST limit=500"},
			append([]string{"begin", "abort"}, all...),
		},
		{
			"the store's version is too new", "5", []answer{fails(tooLarge()), lists("9", "a@3", "b@4", "c@5")},
			[]string{"LIST rv=5 NotOlderThan", "LIST limit=500"},
			append([]string{"begin", "abort"}, all...),
		},
		{
			"nothing is there", "", []answer{lists("9")},
			[]string{"LIST limit=500"}, []string{"begin", "finish 9", "replace 9"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, c.rv, append(c.answers, opens(added("d@10")))...)
				w.first = because(false, false)
				w.run()
				w.server.requests.expect(t, append(c.requests, "WATCH rv=9")...)
				w.store.calls.expect(t, append(c.calls, "add d@10")...)
				if heard := strings.Join(w.observed.take(), "\n"); w.elapsed() > time.Microsecond || strings.Contains(heard, "disconnected") {
					t.Errorf("it took %v, and the observer heard\n%s", w.elapsed(), heard)
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
		begin   string
		between []string // Of the first relist, after its begin.
	}{
		{"the list fails", because(true, true), fails(errInternal), "begin rewrite", []string{"abort"}},
		{"the list fails, of a plain relist", because(false, false), fails(errInternal), "begin", []string{"abort"}},
		{"the list is too much", because(true, false), fails(errBusy), "begin rewrite", []string{"abort"}},
		{"the list is no list", because(true, true), noList, "begin rewrite", []string{"abort"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, "")
				if c.first != nil {
					w.server.then(c.first)
				}
				w.first = c.how
				w.run()
				var first []string
				if c.first != nil {
					first = append([]string{c.begin}, c.between...)
				}
				w.store.calls.expect(t, first...)
				if heard := strings.Join(w.observed.take(), "\n"); !strings.Contains(heard, "\ndisconnected: reflector: relist (TheTest): ") {
					t.Errorf("the observer heard\n%s", heard)
				}
				w.server.then(lists("9", "a@3"), opens())
				advance(leastBackoff - 1)
				w.store.calls.expect(t)
				advance(firstBackoff)
				w.store.calls.expect(t, c.begin, "finish 9", "replace 9")
				w.store.expectContents(t, "a@3")
				w.server.requests.take()
				// And that was that: the next one is a plain relist.
				w.server.then(lists("10", "a@3"), opens())
				w.server.last().send(failure(errGone))
				advance(2 * firstBackoff)
				w.store.calls.expect(t, "begin", "finish 10", "replace 10")
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
				w.first = because(false, false)
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
		w.first = because(false, false)
		w.run()
		w.server.then(lists("8"), opens(failure(errGone)), lists("8", "a@3"), opens())
		w.server.last().send(undecodable("read tcp 10.0.0.1:1: i/o timeout")) // So the Reflector lists, and that resumes.
		advance(firstBackoff)
		w.server.requests.expect(t,
			"LIST rv=5 NotOlderThan", "WATCH rv=6",
			"LIST limit=1", "WATCH rv=6", "LIST limit=500", "WATCH rv=8")
	})
}

func TestAnErrorOfTheStoreIsReturnedAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, "")
		w.store.Stop()
		if _, err := w.open().List(metav1.ListOptions{}); !errors.Is(err, errStopped) {
			t.Errorf("the error is %v", err)
		}
		w.server.requests.expect(t)
	})
}

func TestAListWithoutAVersionIsFollowedByAWatchWithoutOne(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, "", lists("", "a@3"), opens()).run()
		w.server.requests.expect(t, "LIST limit=500", "WATCH")
		w.store.calls.expect(t, "begin", "finish ", "replace ")
	})
}

// TestAListWithAnObjectNewerThanItselfIsNotResumed: such versions have no common order, so
// the watch may have missed anything.
func TestAListWithAnObjectNewerThanItselfIsNotResumed(t *testing.T) {
	for _, c := range []struct {
		name    string
		answers []answer
		finish  string
	}{
		{"a list", []answer{lists("1", "a@7", "c@3")}, "finish "},
		{"a list whose first object is older", []answer{lists("4", "a@3", "c@7")}, "finish "},
		{"a page", []answer{page("4", "x", "a@3"), page("4", "", "c@7")}, "finish "},
		{"a list with an object of its version", []answer{lists("7", "a@7", "c@3")}, "finish 7"},
		{"a list without a version", []answer{lists("", "a@7", "c@3")}, "finish "},
		{"a list of another order", []answer{lists("x", "a@7", "c@3")}, "finish x"},
		{"objects of another order", []answer{lists("4", "a@x", "c@y")}, "finish 4"},
		{"a page that is newer than the first", []answer{page("4", "x", "a@3"), page("7", "", "c@7")}, "finish "},
		{"a page that is older than the first", []answer{page("7", "x", "a@7"), page("4", "", "c@3")}, "finish 7"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, "", c.answers...)
				w.server.then(opens())
				w.run()
				calls := w.store.calls.take()
				if got := calls[len(calls)-2]; got != c.finish {
					t.Errorf("%q, expected %q", calls, c.finish)
				}
			})
		})
	}
}
