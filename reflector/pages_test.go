package reflector

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
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
			w.server.requests.expect(t, "LIST rv=0 limit=500", "LIST limit=62", "LIST limit=93 continue=x", "WATCH rv=9")
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

// cutServer lists 400 objects. A connection does not last for more than 40, and every third request is cut anyway.
type cutServer struct {
	*server
	lists int // That were begun.
	asked int
	most  int64 // In a page that came.
}

func (s *cutServer) ListWithContext(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
	const objects = 400
	from, _ := strconv.Atoi(o.Continue) // The first page has no number.
	if from == 0 {
		s.lists++
	}
	if s.asked++; o.Limit == 0 || o.Limit > 40 || from > 0 && s.asked%3 == 0 {
		return nil, errCut
	}
	s.most = max(s.most, o.Limit)
	l := &corev1.ConfigMapList{ListMeta: metav1.ListMeta{ResourceVersion: "900"}}
	for i := from; i < min(from+int(o.Limit), objects); i++ {
		l.Items = append(l.Items, *configMap(fmt.Sprintf("o%03d@%d", i, i+1)))
	}
	if next := from + len(l.Items); next < objects {
		l.Continue = strconv.Itoa(next)
	}
	return l, nil
}

// TestAListGoesOnWhereItsPageWasCut, with a shorter page, and nothing comes twice. Otherwise it would never end.
func TestAListGoesOnWhereItsPageWasCut(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newEmptyWorld(t, opens())
		s := &cutServer{server: w.server}
		w.opts.ListerWatcher = s
		w.run()
		advance(5 * time.Minute)
		if calls := w.store.calls.take(); calls[len(calls)-2] != "finish 900" || w.store.indexer.Len() != 400 {
			t.Errorf("the list has not ended: %.1000q, %d objects", calls, w.store.indexer.Len())
		}
		if s.lists != 3 || s.most <= 31 { // 500, 62 and 31 objects were asked for at first.
			t.Errorf("%d lists, pages of up to %d objects, %d requests", s.lists, s.most, s.asked)
		}
		w.server.requests.expect(t, "WATCH rv=900")
	})
}
