package reflector

import (
	"errors"
	"strings"
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

func TestAWatchThatFailsAgainAtTheSameVersionMeansARelist(t *testing.T) {
	const question, relist = "LIST rv=6 limit=1 NotOlderThan", "LIST rv=6 NotOlderThan"
	illegal := undecodable("unable to decode watch event: unexpected EOF at \"dial: i/o timeout\"")
	noStatus := watch.Event{Type: watch.Error, Object: configMap("x@1")}
	for _, c := range []struct {
		name    string
		first   watch.Event // Of the open watch of openWorld; zero: it ends.
		answers []answer
		want    []string
		reason  string
	}{
		{
			"internal errors", failure(errInternal), []answer{lists("9"), opens(failure(errInternal)), lists("9", "a@3"), opens()},
			[]string{question, "WATCH rv=6", relist, "WATCH rv=9"}, errInternal.Error(),
		},
		{
			"an event that cannot be decoded", illegal, []answer{lists("9"), opens(illegal), lists("9", "a@3"), opens()},
			[]string{question, "WATCH rv=6", relist, "WATCH rv=9"}, apierrors.FromObject(illegal.Object).Error(),
		},
		{
			"errors of no kind", noStatus, []answer{lists("9"), opens(noStatus), lists("9", "a@3"), opens()},
			[]string{question, "WATCH rv=6", relist, "WATCH rv=9"}, apierrors.FromObject(noStatus.Object).Error(),
		},
		{
			"two errors, and one of the network in between", failure(errInternal),
			[]answer{lists("9"), fails(errNetwork), lists("9"), opens(failure(errInternal)), lists("9", "a@3"), opens()},
			[]string{question, "WATCH rv=6", question, "WATCH rv=6", relist, "WATCH rv=9"}, errInternal.Error(),
		},
		{
			"two requests to watch are refused", watch.Event{},
			[]answer{lists("9"), fails(apierrors.NewBadRequest("no")), lists("9"), fails(apierrors.NewBadRequest("no")), lists("9", "a@3"), opens()},
			[]string{question, "WATCH rv=6", question, "WATCH rv=6", relist, "WATCH rv=9"}, "no",
		},
		{
			"after a version that events brought", failure(errInternal),
			[]answer{lists("9"), opens(added("c@7"), failure(errInternal)), lists("9"), opens(failure(errInternal)), lists("9", "a@3"), opens()},
			[]string{question, "WATCH rv=6", "LIST rv=7 limit=1 NotOlderThan", "WATCH rv=7", "LIST rv=7 NotOlderThan", "WATCH rv=9"}, errInternal.Error(),
		},
		{
			"a bookmark in between", failure(errInternal),
			[]answer{lists("9"), opens(bookmark("7"), failure(errInternal)), lists("9"), opens()},
			[]string{question, "WATCH rv=6", "LIST rv=7 limit=1 NotOlderThan", "WATCH rv=7"}, "",
		},
		{
			"a watch in between that ends as it should", failure(errInternal),
			[]answer{lists("6"), after(time.Second, opens()), lists("9"), opens(failure(errInternal)), lists("9"), opens()},
			[]string{question, "WATCH rv=6", question, "WATCH rv=6", question, "WATCH rv=6"}, "",
		},
		{
			"too many requests", failure(errBusy), []answer{lists("9"), opens(failure(errBusy)), lists("9"), opens(failure(errBusy)), lists("9"), opens()},
			[]string{question, "WATCH rv=6", question, "WATCH rv=6", question, "WATCH rv=6"}, "",
		},
		{
			"the network, as client-go tells it", undecodable("http2: client connection lost"),
			[]answer{lists("9"), opens(undecodable("stream error: stream ID 5; INTERNAL_ERROR; received from peer")), lists("9"), opens(undecodable("read tcp 10.0.0.1:1->10.0.0.2:2: read: no route to host")), lists("9"), opens()},
			[]string{question, "WATCH rv=6", question, "WATCH rv=6", question, "WATCH rv=6"}, "",
		},
		{
			"the network, before it is a watch", watch.Event{}, []answer{lists("9"), fails(errNetwork), lists("9"), fails(errRefused), lists("9"), opens()},
			[]string{question, "WATCH rv=6", question, "WATCH rv=6", question, "WATCH rv=6"}, "",
		},
		{
			"the server is not up yet", watch.Event{},
			[]answer{lists("9"), fails(apierrors.NewServiceUnavailable("soon")), lists("9"), fails(apierrors.NewUnauthorized("who")), lists("9"), fails(apierrors.NewTimeoutError("slow", 1)), lists("9"), opens()},
			[]string{question, "WATCH rv=6", question, "WATCH rv=6", question, "WATCH rv=6", question, "WATCH rv=6"}, "",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := openWorld(t)
				w.server.then(c.answers...)
				if c.first.Type == "" {
					w.server.last().end()
				} else {
					w.server.last().send(c.first)
				}
				for range 30 { // A watch that has nothing to say ends.
					advance(time.Minute)
					if last := w.server.last(); w.server.left() > 0 && last.stopped() == 0 {
						last.end()
					}
				}
				w.server.requests.expect(t, c.want...)
				how := w.store.lastHow()
				if c.reason == "" && how.Reason != "no relist was begun" {
					t.Errorf("relisted: %+v", how)
				}
				if c.reason != "" && (!strings.HasPrefix(how.Reason, "the watch has failed twice at resourceVersion ") || !strings.HasSuffix(how.Reason, ": "+c.reason)) {
					t.Errorf("the reason is %q", how.Reason)
				}
			})
		})
	}
}

// TestARelistAfterAWatchThatFailedIsNoLoop: the next watch begins at the version of
// the list, and has to fail twice itself.
func TestARelistAfterAWatchThatFailedIsNoLoop(t *testing.T) {
	for _, rv := range []string{"5", "9"} { // That of a server that lags; that of one that has gone on.
		bubble(t, func(t *testing.T) {
			w := newWorld(t, "5", lists("9"), opens(failure(errInternal))).run()
			w.server.then(lists("9"), opens(failure(errInternal)), lists(rv, "a@3"), opens(failure(errInternal)))
			advance(firstBackoff)
			w.server.requests.expect(t, question5, "WATCH rv=5", question5, "WATCH rv=5", "LIST rv=5 NotOlderThan", "WATCH rv="+rv)
			w.store.calls.expect(t, "begin", "item a@3", "finish "+rv, "replace "+rv)
			// Its history is not gone, so the next list need not be of the newest either.
			w.server.then(lists("10"), opens(failure(errInternal)), lists("12", "a@3"), opens(added("c@13")))
			advance(time.Minute)
			w.server.requests.expect(t, "LIST rv="+rv+" limit=1 NotOlderThan", "WATCH rv="+rv, "LIST rv="+rv+" NotOlderThan", "WATCH rv=12")
			w.store.calls.expect(t, "begin", "item a@3", "finish 12", "replace 12", "add c@13")
			advance(time.Hour)
			w.server.requests.expect(t)
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
				w.opts.Relist = c.how
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
