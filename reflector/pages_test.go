package reflector

import (
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestPagesOfDifferentVersions: what happened between two pages comes by the watch,
// which has to begin at the version of the first one. The next process lists.
func TestPagesOfDifferentVersions(t *testing.T) {
	bubble(t, func(t *testing.T) {
		// b@4 is deleted at 8, after its page was read.
		w := newWorld(t, "", page("7", "x", "a@3", "b@4"), page("9", "", "c@9"), opens(deleted("b@8"), added("c@9"))).run()
		w.server.requests.expect(t, "LIST limit=500", "LIST limit=500 continue=x", "WATCH rv=7")
		w.store.calls.expect(t, "begin", "finish ", "replace 7", "delete b@8", "add c@9")
		w.store.expectContents(t, "a@3", "c@9")
	})
}

// statusError is an answer of a server that does not know a parameter.
func statusError(code int32) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Message: "resourceVersionMatch is not known"}}
}

func TestTheFirstListOfAnEmptyStoreIsAsClientGos(t *testing.T) {
	const first = "LIST rv=0 limit=500"
	for _, c := range []struct {
		name     string
		answers  []answer
		requests []string
	}{
		{"it is answered", []answer{lists("9", "a@3"), opens()}, []string{first, "WATCH rv=9"}},
		{"it comes in pages", []answer{page("9", "x", "a@3"), page("9", "", "b@4"), opens()}, []string{first, "LIST limit=500 continue=x", "WATCH rv=9"}},
		{"it is too old", []answer{fails(errGone), lists("9", "a@3"), opens()}, []string{first, "LIST limit=500", "WATCH rv=9"}},
		{"it is refused", []answer{fails(statusError(400)), lists("9", "a@3"), opens()}, []string{first, "LIST limit=500", "WATCH rv=9"}},
		{
			"the network fails", []answer{fails(errNetwork), after(0, lists("9", "a@3")), opens()},
			[]string{first, first, "WATCH rv=9"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newEmptyWorld(t, c.answers...)
				w.run()
				advance(firstBackoff)
				w.server.requests.expect(t, c.requests...)
			})
		})
	}
	t.Run("the store has something", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			w := newWorld(t, "", lists("9", "a@3"), opens())
			w.run()
			w.server.requests.expect(t, "LIST limit=500", "WATCH rv=9")
		})
	})
	t.Run("the newest is wanted", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			w := newEmptyWorld(t, lists("9", "a@3"), opens())
			w.first = because(true, true)
			w.run()
			w.server.requests.expect(t, "LIST limit=500", "WATCH rv=9")
		})
	})
}

// TestAServerThatPagesItsFirstListIsAskedForPages: it has no watch cache
// (client-go, reflector.go, paginatedResult).
func TestAServerThatPagesItsFirstListIsAskedForPages(t *testing.T) {
	for name, c := range map[string]struct {
		first []answer
		next  string
	}{
		"it does":     {[]answer{page("9", "x", "a@3"), page("9", "", "b@4")}, "LIST rv=9 limit=500 NotOlderThan"},
		"it does not": {[]answer{lists("9", "a@3")}, "LIST rv=9 NotOlderThan"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newEmptyWorld(t, append(c.first, opens())...)
				w.run()
				w.server.requests.take()
				w.server.then(lists("12", "a@3"), opens())
				w.force()
				advance(firstBackoff)
				w.server.requests.expect(t, c.next, "WATCH rv=12")
			})
		})
	}
}

func TestAServerThatRefusesResourceVersionMatchIsAskedForTheNewest(t *testing.T) {
	for _, code := range []int32{http.StatusBadRequest, http.StatusMethodNotAllowed, http.StatusUnprocessableEntity, http.StatusNotImplemented} {
		bubble(t, func(t *testing.T) {
			w := newWorld(t, "5", fails(statusError(code)), lists("9", "a@3"), opens())
			w.first = because(false, false)
			w.run()
			w.server.requests.expect(t, "LIST rv=5 NotOlderThan", "LIST limit=500", "WATCH rv=9")
			w.store.calls.expect(t, "begin", "abort", "begin", "finish 9", "replace 9")
		})
	}
	t.Run("and refuses everything", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			refused := fails(statusError(http.StatusBadRequest))
			w := newWorld(t, "5", refused, refused)
			w.first = because(false, false)
			w.run()
			w.server.requests.expect(t, "LIST rv=5 NotOlderThan", "LIST limit=500")
			w.server.then(lists("9", "a@3"), opens())
			advance(leastBackoff - time.Millisecond)
			w.server.requests.expect(t)
			advance(firstBackoff)
			w.server.requests.expect(t, "LIST limit=500", "WATCH rv=9")
		})
	})
	t.Run("but nobody else", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			w := newWorld(t, "5", fails(errForbidden))
			w.first = because(false, false)
			w.run()
			w.server.requests.expect(t, "LIST rv=5 NotOlderThan")
		})
	})
}

// errCut is what client-go says of an answer that ends too early.
var errCut = fmt.Errorf("unexpected error when reading response body: %w", io.ErrUnexpectedEOF)

// TestAListThatIsCutComesInPages: a connection that does not last for all objects lasts for some.
func TestAListThatIsCutComesInPages(t *testing.T) {
	t.Run("an empty store", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			w := newEmptyWorld(t, fails(errCut), page("9", "x", "a@3"), page("9", "", "b@4"), opens())
			w.run()
			advance(firstBackoff)
			w.server.requests.expect(t, "LIST rv=0 limit=500", "LIST limit=62", "LIST limit=62 continue=x", "WATCH rv=9")
			w.store.expectContents(t, "a@3", "b@4")
			// The next one is asked for at once.
			w.server.then(lists("12", "a@3"), opens())
			w.force()
			advance(2 * firstBackoff)
			w.server.requests.expect(t, "LIST rv=9 NotOlderThan", "WATCH rv=12")
		})
	})
	t.Run("the store has something", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			w := newWorld(t, "5", fails(errCut), page("9", "", "a@3"), opens())
			w.first = because(false, false)
			w.run()
			advance(firstBackoff)
			w.server.requests.expect(t, "LIST rv=5 NotOlderThan", "LIST rv=5 limit=62 NotOlderThan", "WATCH rv=9")
			w.store.calls.take()
		})
	})
}
