package reflector

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch/checkpoint"
)

var (
	resource = schema.GroupResource{Resource: "configmaps"}
	// errGoneOld is what servers before 1.18 said.
	errGoneOld   = apierrors.NewGone("gone") //nolint:staticcheck // Deprecated, but still to be understood.
	errForbidden = apierrors.NewForbidden(resource, "", nil)
	errRefused   = &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
)

func TestErrorsOfTheServerAreUnderstood(t *testing.T) {
	type meaning struct{ expired, tooLarge, notUnderstood bool }
	status := func(code int32) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Code: code, Message: "Too large resource version"}}
	}
	for _, c := range []struct {
		name string
		err  error
		want meaning
	}{
		{"nothing", nil, meaning{}},
		{"expired", errGone, meaning{expired: true}},
		{"gone, as servers before 1.18 said", errGoneOld, meaning{expired: true}},
		{"too large, by its cause", tooLarge(), meaning{tooLarge: true}},
		{"another timeout", apierrors.NewTimeoutError("too slow", 1), meaning{}},
		{"the words, but no timeout", status(http.StatusInternalServerError), meaning{}},
		{"bad request", apierrors.NewBadRequest("?"), meaning{notUnderstood: true}},
		{"forbidden", errForbidden, meaning{}},
		{"not found", apierrors.NewNotFound(resource, ""), meaning{}},
		{"method not allowed", apierrors.NewMethodNotSupported(resource, "list"), meaning{notUnderstood: true}},
		{"invalid", status(http.StatusUnprocessableEntity), meaning{notUnderstood: true}},
		{"unauthorized", apierrors.NewUnauthorized("who are you?"), meaning{}},
		{"too many requests", errBusy, meaning{}},
		{"internal error", errInternal, meaning{}},
		{"unavailable", apierrors.NewServiceUnavailable("soon"), meaning{}},
		{"below the errors", status(http.StatusPermanentRedirect), meaning{}},
		{"above those", status(500), meaning{}},
		{"the network", errNetwork, meaning{}},
		{"cancelled", context.Canceled, meaning{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			errs := []error{c.err}
			if c.err != nil {
				errs = append(errs, fmt.Errorf("wrapped: %w", c.err))
			}
			for _, err := range errs {
				if got := (meaning{isExpired(err), isTooLarge(err), isNotUnderstood(err)}); got != c.want {
					t.Errorf("%v is %+v, expected %+v", err, got, c.want)
				}
			}
		})
	}
}

func TestAValidResourceVersionIsResumedAfterOneQuestion(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, "5", lists("9", "x@9"), opens(added("b@6"))).run()
		if w.elapsed() > time.Microsecond {
			t.Errorf("it took %v", w.elapsed())
		}
		w.server.requests.expect(t, "LIST limit=1", "WATCH rv=5")
		w.store.calls.expect(t, "replace 5", "add b@6")
		w.observed.expect(t, "contact", "resuming at 5", "live", "contact")
		w.server.last().send(modified("a@7"), deleted("b@8"), bookmark("9"))
		w.store.calls.expect(t, "update a@7", "delete b@8", "bookmark 9")
		w.store.expectContents(t, "a@7")
		w.observed.expect(t, "contact", "contact", "contact")
	})
}

func TestAListThatResumesIsEmptyAndOfTheStoresVersion(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, "5", lists("5"), opens())
		r := w.open()
		if rv := w.list(); rv != "5" {
			t.Errorf("the list is of version %q", rv)
		}
		if !r.IsWatchListSemanticsUnSupported() {
			t.Error("the Reflector would not call List")
		}
		open, err := r.Watch(metav1.ListOptions{ResourceVersion: "5"})
		if err != nil {
			t.Fatal(err)
		}
		defer open.Stop()
		w.server.last().send(added("b@6"))
		if e := <-open.ResultChan(); e.Object.(*corev1.ConfigMap).Name != "b" {
			t.Errorf("the first event is %v", e)
		}
		w.server.requests.expect(t, "LIST limit=1", "WATCH rv=5")
	})
}

func TestWhatMakesTheFirstListARelist(t *testing.T) {
	demand := Relisting{Cause: "Demanded", Rewrite: true}
	for _, c := range []struct {
		name, rv string
		change   func(*world)
		list     string
		how      Relisting
	}{
		{"there is no version", "", nil, "LIST limit=500", Relisting{Cause: checkpoint.CauseNoVersion}},
		{
			"it is never resumed", "5", func(w *world) { w.opts.NeverResume = true },
			"LIST rv=5 NotOlderThan", Relisting{Cause: checkpoint.CauseNeverResume},
		},
		{"an option says so", "5", func(w *world) { w.first = &demand }, "LIST rv=5 NotOlderThan", demand},
		{"it is another server", "5", func(w *world) {
			w.first = &Relisting{Cause: "AnotherOne", Newest: true}
		}, "LIST limit=500", Relisting{Cause: "AnotherOne", Newest: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, c.rv, lists("9", "a@3", "b@9"), opens())
				want := []string{c.list, "WATCH rv=9"}
				if c.change != nil {
					c.change(w)
				}
				w.run()
				w.server.requests.expect(t, want...)
				w.store.expectContents(t, "a@3", "b@9")
				if diff := cmp.Diff(c.how, w.lastHow()); diff != "" {
					t.Errorf("relisted otherwise (-want +got):\n%s", diff)
				}
				w.observed.expect(t, "relisting: "+string(c.how.Cause), "contact", "live")
			})
		})
	}
}

func TestAQuestionThatFailsIsAskedAgainAndNothingIsLost(t *testing.T) {
	for name, err := range map[string]error{
		"unauthorized":         apierrors.NewUnauthorized("who are you?"),
		"forbidden":            errForbidden, // Until a server that has just started knows its roles.
		"not found":            apierrors.NewNotFound(resource, ""),
		"too many requests":    errBusy,
		"internal error":       errInternal,
		"unavailable":          apierrors.NewServiceUnavailable("soon"),
		"another timeout":      apierrors.NewTimeoutError("too slow", 1),
		"network error":        errNetwork,
		"connection refused":   errRefused,
		"an answer that is no": nil,
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				first := fails(err)
				if err == nil { // A list of no kind.
					first = func(context.Context, *server) (any, error) { return configMap("a@1"), nil }
				}
				w := newWorld(t, "5", first).run()
				w.server.requests.expect(t, "LIST limit=1")
				if heard := w.observed.take(); len(heard) != 1 || !strings.HasPrefix(heard[0], "disconnected: ") {
					t.Errorf("the observer heard %q", heard)
				}
				w.server.then(lists("5"), opens(added("b@6")))
				advance(leastBackoff - 1)
				w.server.requests.expect(t)
				advance(firstBackoff - leastBackoff + 1)
				w.server.requests.expect(t, "LIST limit=1", "WATCH rv=5")
				w.store.calls.expect(t, "replace 5", "add b@6")
			})
		})
	}
}

func TestTheErrorOfAListWrapsTheServers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, "5", fails(errNetwork), lists("9"), fails(errNetwork), lists("9"), fails(errGone), fails(errNetwork))
		r := w.open()
		for _, want := range []string{
			"reflector: ask the server for its version: " + errNetwork.Error(),
			"reflector: watch from resourceVersion 5: " + errNetwork.Error(),
			"reflector: relist (Expired: too old resource version: 5 (8)): " + errNetwork.Error(),
		} {
			if _, err := r.List(metav1.ListOptions{}); !errors.Is(err, errNetwork) || err.Error() != want {
				t.Errorf("the error is %q, expected %q", err, want)
			}
		}
	})
}
