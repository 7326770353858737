package reflector

import (
	"errors"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// undecodable is what client-go makes of an event that it cannot read, whatever the
// reason.
func undecodable(reason string) watch.Event {
	status := apierrors.NewClientErrorReporter(500, "GET", "ClientWatchDecoding").
		AsObject(errors.New("unable to decode an event from the watch stream: " + reason))
	return watch.Event{Type: watch.Error, Object: status}
}

// TestAWatchThatFailsInTheServerIsListed at once, as client-go does: an event that cannot be read comes again.
func TestAWatchThatFailsInTheServerIsListed(t *testing.T) {
	noStatus := watch.Event{Type: watch.Error, Object: configMap("x@1")}
	for name, c := range map[string]struct {
		end   watch.Event // Zero: the next watch is refused.
		again answer
		lists bool
	}{
		"an internal error":                     {failure(errInternal), nil, true},
		"an event that cannot be decoded":       {undecodable("unable to decode watch event: unexpected EOF at \"dial: i/o timeout\""), nil, true},
		"an error of no kind":                   {noStatus, nil, true},
		"the request to watch is refused":       {watch.Event{}, fails(apierrors.NewBadRequest("no")), true},
		"too many requests":                     {failure(errBusy), nil, false},
		"the network, as client-go tells it":    {undecodable("http2: client connection lost"), nil, false},
		"the network, before it is a watch":     {watch.Event{}, fails(errNetwork), false},
		"the server is not up yet":              {watch.Event{}, fails(apierrors.NewServiceUnavailable("soon")), false},
		"the server does not know the user yet": {watch.Event{}, fails(apierrors.NewUnauthorized("who")), false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := openWorld(t)
				advance(time.Minute)
				var want []string
				if c.again != nil {
					w.server.then(lists("9"), c.again)
					want = append(want, question5, "WATCH rv=6")
				}
				if c.lists {
					w.server.then(lists("9", "a@3"), opens())
					want = append(want, "LIST rv=6 NotOlderThan", "WATCH rv=9")
				} else {
					w.server.then(lists("9"), opens())
					want = append(want, question5, "WATCH rv=6")
				}
				if c.end.Type == "" {
					w.server.last().end()
				} else {
					w.server.last().send(c.end)
				}
				advance(time.Minute)
				w.server.requests.expect(t, want...)
			})
		})
	}
}

// TestAServerThatCannotWatchIsListed as client-go lists it: once for each watch that it
// refuses, and never from etcd.
func TestAServerThatCannotWatchIsListed(t *testing.T) {
	refused := fails(apierrors.NewMethodNotSupported(schema.GroupResource{Resource: "configmaps"}, "watch"))
	for name, c := range map[string]struct {
		how   *Relisting
		first []answer
		want  []string
	}{
		"from the start": {because(false, false), []answer{lists("6", "a@3"), refused}, []string{"LIST rv=5 NotOlderThan", "WATCH rv=6"}},
		"after a resumption": {
			nil, []answer{lists("6"), refused, lists("6", "a@3"), refused},
			[]string{question5, "WATCH rv=5", "LIST rv=5 NotOlderThan", "WATCH rv=6"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, "5", c.first...)
				w.first = c.how
				w.run()
				w.server.requests.expect(t, c.want...)
				w.server.then(lists("6", "a@3"), refused, lists("7", "a@3"), refused, lists("8", "a@3"), opens(added("c@9")))
				advance(time.Minute)
				w.server.requests.expect(t, "LIST rv=6 NotOlderThan", "WATCH rv=6", "LIST rv=6 NotOlderThan", "WATCH rv=7", "LIST rv=7 NotOlderThan", "WATCH rv=8")
				w.store.expectContents(t, "a@3", "c@9")
			})
		})
	}
}
