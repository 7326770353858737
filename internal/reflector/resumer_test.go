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
)

var (
	resource = schema.GroupResource{Resource: "configmaps"}
	// errGoneOld is what servers before 1.18 said.
	errGoneOld = apierrors.NewGone("gone") //nolint:staticcheck // Deprecated, but still to be understood.
	// errTooLargeOld is what servers before 1.18.6 said.
	errTooLargeOld = apierrors.NewTimeoutError("Too large resource version: 5, current: 3", 1)
	errForbidden   = apierrors.NewForbidden(resource, "", nil)
	errRefused     = &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
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
		{"too large, by its words", errTooLargeOld, meaning{tooLarge: true}},
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
		if w.elapsed() != 0 {
			t.Errorf("it took %v", w.elapsed())
		}
		w.server.requests.expect(t, "LIST rv=5 limit=1 NotOlderThan", "WATCH rv=5")
		w.store.calls.expect(t, "replace 5", "add b@6")
		w.observed.expect(t, "contact", "resuming at 5, server at 9", "live since 0s", "contact")
		w.server.last().send(modified("a@7"), deleted("b@8"), bookmark("9"))
		w.store.calls.expect(t, "update a@7", "delete b@8", "bookmark 9")
		w.store.expectContents(t, "a@7")
		w.observed.expect(t, "contact", "contact", "contact")
	})
}

// TestARelistOfAnotherHistoryIsLoggedOnce, however often it is tried, and an ordinary one
// not at all.
func TestARelistOfAnotherHistoryIsLoggedOnce(t *testing.T) {
	for _, c := range []struct {
		name    string
		answers []answer // Before a list that fails, and another one.
		change  func(*world)
		reason  string // Empty: nothing is logged.
	}{
		{"the server is behind", []answer{fails(tooLarge())}, nil, "the server is behind resourceVersion 5"},
		{"the server answers at an older version", []answer{lists("4")}, nil, "another history: the server answered at version 4, below resourceVersion 5"},
		{"it is another cluster", nil, func(w *world) {
			asked := false
			w.opts.BeforeList = func(context.Context) (*Relisting, error) {
				if asked {
					return nil, nil
				}
				asked = true
				return &Relisting{Reason: "cluster differs", Rewrite: true, Rewound: true}, nil
			}
		}, "cluster differs"},
		{
			"a relist finds that the server is behind", []answer{fails(errGone), fails(tooLarge()), lists("4")}, nil,
			"resourceVersion 5 is too old, and the server is behind resourceVersion 5",
		},
		{"the version is too old", []answer{fails(errGone), fails(errGone)}, nil, ""},
		{"the caller knows it", nil, func(w *world) { w.opts.Relist = because(true, true) }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, "5", append(c.answers, fails(errInternal))...)
				var log journal
				w.opts.Logger = log.logger()
				if c.change != nil {
					c.change(w)
				}
				w.run()
				w.server.then(lists("9", "a@3"), opens())
				advance(firstBackoff)
				w.store.expectContents(t, "a@3")
				if c.reason == "" {
					log.expect(t)
					return
				}
				log.expect(t, fmt.Sprintf(`"level"=0 "msg"="Relisting" "reason"=%q`, c.reason))
				if heard := strings.Join(w.observed.take(), "\n"); !strings.Contains(heard, "relisting: "+c.reason) {
					t.Errorf("the observer heard\n%s", heard)
				}
			})
		})
	}
}

// TestAServerThatComesBackBehindIsLogged, once.
func TestAServerThatComesBackBehindIsLogged(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, "5", lists("5"), opens())
		var log journal
		w.opts.Logger = log.logger()
		w.run()
		advance(time.Minute)
		w.server.then(fails(tooLarge()), lists("3", "a@3"), opens())
		w.server.last().end()
		advance(2 * firstBackoff)
		w.store.expectContents(t, "a@3")
		log.expect(t, `"level"=0 "msg"="Relisting" "reason"="the server is behind resourceVersion 5"`)
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
		w.server.requests.expect(t, "LIST rv=5 limit=1 NotOlderThan", "WATCH rv=5")
	})
}

func TestWhatMakesTheFirstListARelist(t *testing.T) {
	demand := Relisting{Reason: "so it was demanded", Rewrite: true}
	for _, c := range []struct {
		name, rv string
		change   func(*world)
		list     string
		how      Relisting
	}{
		{"there is no version", "", nil, "LIST limit=500", Relisting{Reason: "nothing to resume from"}},
		{"the version is 0", "0", nil, "LIST rv=0 limit=500", Relisting{Reason: "nothing to resume from"}},
		{
			"it is never resumed", "5", func(w *world) { w.opts.NeverResume = true },
			"LIST rv=5 NotOlderThan", Relisting{Reason: "this resource is never resumed"},
		},
		{"an option says so", "5", func(w *world) { w.opts.Relist = &demand }, "LIST rv=5 NotOlderThan", demand},
		{"the store has no version, an option knows one", "", func(w *world) {
			w.opts.Relist = &Relisting{Reason: "old", NotOlderThan: "4"}
		}, "LIST rv=4 NotOlderThan", Relisting{Reason: "old", NotOlderThan: "4"}},
		{"the store's version counts for more", "5", func(w *world) {
			w.opts.Relist = &Relisting{Reason: "old", NotOlderThan: "4"}
		}, "LIST rv=5 NotOlderThan", Relisting{Reason: "old", NotOlderThan: "4"}},
		{"the server was rewound", "5", func(w *world) {
			w.opts.Relist = &Relisting{Reason: "rewound", Rewound: true}
		}, "LIST limit=500", Relisting{Reason: "rewound", Rewound: true, Newest: true}},
		{"BeforeList demands it", "5", func(w *world) {
			w.opts.BeforeList = func(context.Context) (*Relisting, error) {
				w.server.requests.note("BeforeList")
				return &demand, nil
			}
		}, "LIST rv=5 NotOlderThan", demand},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, c.rv, lists("9", "a@3", "b@9"), opens())
				want := []string{c.list, "WATCH rv=9"}
				if c.change != nil {
					c.change(w)
				}
				if w.opts.BeforeList != nil {
					want = append([]string{"BeforeList"}, want...)
				}
				w.run()
				w.server.requests.expect(t, want...)
				w.store.expectContents(t, "a@3", "b@9")
				if diff := cmp.Diff(c.how, w.store.lastHow()); diff != "" {
					t.Errorf("relisted otherwise (-want +got):\n%s", diff)
				}
				w.observed.expect(t, "relisting: "+c.how.Reason, "contact", "live since 0s")
			})
		})
	}
}

func TestBeforeListIsCalledBeforeEachListAndItsErrorEndsTheList(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, "5")
		errs := []error{errNetwork, nil, nil}
		w.opts.BeforeList = func(context.Context) (*Relisting, error) {
			err := errs[0]
			errs = errs[1:]
			return nil, err
		}
		w.run()
		w.observed.expect(t, "disconnected: "+errNetwork.Error())
		w.server.requests.expect(t)
		w.server.then(lists("5"), opens())
		advance(firstBackoff)
		w.server.requests.expect(t, "LIST rv=5 limit=1 NotOlderThan", "WATCH rv=5")
		if len(errs) != 1 {
			t.Fatalf("called %d times", 3-len(errs))
		}
		w.server.last().send(failure(errInternal)) // Then the Reflector lists anew.
		w.server.then(lists("5"), opens())
		advance(2 * firstBackoff)
		if len(errs) != 0 {
			t.Error("not called before the second list")
		}
		w.store.calls.expect(t, "replace 5", "replace 5")
	})
}

func TestTheAnswerToTheQuestionMayMeanARelist(t *testing.T) {
	behind := Relisting{Reason: "the server is behind resourceVersion 5", Rewrite: true, Rewound: true, Newest: true}
	refused := func(err error) Relisting {
		return Relisting{Reason: fmt.Sprintf("the server did not answer whether it has reached resourceVersion 5: %v", err), Unanswered: true}
	}
	badRequest := apierrors.NewBadRequest("what is NotOlderThan?")
	for _, c := range []struct {
		name string
		err  error
		how  Relisting
	}{
		{"too large", tooLarge(), behind},
		{"too large, in the words of servers before 1.18.6", errTooLargeOld, behind},
		{"too large, wrapped", fmt.Errorf("the client says: %w", tooLarge()), behind},
		{"expired", errGone, Relisting{Reason: "resourceVersion 5 is too old", Expired: true}},
		{"gone, as servers before 1.18 said", errGoneOld, Relisting{Reason: "resourceVersion 5 is too old", Expired: true}},
		{"bad request", badRequest, refused(badRequest)},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				list, listed := "LIST rv=5 NotOlderThan", "6"
				if c.how.Rewound {
					list, listed = "LIST limit=500", "4"
				}
				w := newWorld(t, "5", fails(c.err), lists(listed, "b@4"), opens()).run()
				w.server.requests.expect(t, "LIST rv=5 limit=1 NotOlderThan", list, "WATCH rv="+listed)
				if w.elapsed() != 0 {
					t.Errorf("it took %v", w.elapsed())
				}
				if diff := cmp.Diff(c.how, w.store.lastHow()); diff != "" {
					t.Errorf("relisted otherwise (-want +got):\n%s", diff)
				}
				w.store.expectContents(t, "b@4")
				w.observed.expect(t, "relisting: "+c.how.Reason, "contact", "live since 0s")
			})
		})
	}
}

func TestAListThatIsOlderThanTheStoreIsTakenForAnotherHistory(t *testing.T) {
	older := opens(added("b@4"), initialEnd("4"))
	for _, c := range []struct {
		streams  bool
		answers  []answer
		requests []string
	}{
		{false, []answer{lists("4", "b@4"), lists("4", "b@4"), opens()}, []string{"LIST rv=5 NotOlderThan", "LIST limit=500", "WATCH rv=4"}},
		{true, []answer{older, older}, []string{"STREAM rv=5 NotOlderThan", "STREAM NotOlderThan"}}, // The stream is the watch.
	} {
		t.Run(fmt.Sprintf("streamed: %t", c.streams), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, "5", append([]answer{fails(errGone)}, c.answers...)...)
				w.server.streamsLists = c.streams
				w.run()
				w.server.requests.expect(t, append([]string{"LIST rv=5 limit=1 NotOlderThan"}, c.requests...)...)
				if how := w.store.lastHow(); !how.Rewound || !how.Rewrite {
					t.Errorf("relisted by version: %+v", how)
				}
				w.store.expectContents(t, "b@4")
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
				w.server.requests.expect(t, "LIST rv=5 limit=1 NotOlderThan")
				if told := w.observed.take(); len(told) != 1 || !strings.HasPrefix(told[0], "disconnected: ") {
					t.Errorf("the observer was told %q", told)
				}
				w.server.then(lists("5"), opens(added("b@6")))
				advance(leastBackoff - 1)
				w.server.requests.expect(t)
				advance(firstBackoff - leastBackoff + 1)
				w.server.requests.expect(t, "LIST rv=5 limit=1 NotOlderThan", "WATCH rv=5")
				w.store.calls.expect(t, "replace 5", "add b@6")
			})
		})
	}
}

func TestTheErrorOfAListWrapsTheServers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, "5", fails(errNetwork), lists("9"), fails(errNetwork), fails(errGone), fails(errNetwork))
		r := w.open()
		for _, want := range []string{
			"reflector: ask for resourceVersion 5: " + errNetwork.Error(),
			"reflector: watch from resourceVersion 5: " + errNetwork.Error(),
			"reflector: relist (resourceVersion 5 is too old): " + errNetwork.Error(),
		} {
			if _, err := r.List(metav1.ListOptions{}); !errors.Is(err, errNetwork) || err.Error() != want {
				t.Errorf("the error is %q, expected %q", err, want)
			}
		}
	})
}

func TestAServerThatHesitatesIsAskedForItsOwnVersion(t *testing.T) {
	question := "LIST rv=5 limit=1 NotOlderThan"
	for _, c := range []struct {
		name     string
		answers  []answer
		requests []string
		told     []string
	}{
		{
			"and is ahead", []answer{lists("10"), opens(added("b@6"))},
			[]string{question, "LIST limit=1", "WATCH rv=5"},
			[]string{"contact", "resuming at 5, server at 10", "live since 5s", "contact"},
		},
		{
			"and is at the same version", []answer{lists("5"), opens()},
			[]string{question, "LIST limit=1", "WATCH rv=5"},
			[]string{"contact", "resuming at 5, server at 5", "live since 5s"},
		},
		{
			"and is behind", []answer{lists("4"), lists("4", "a@4"), opens()},
			[]string{question, "LIST limit=1", "LIST limit=500", "WATCH rv=4"},
			[]string{"relisting: the server is behind resourceVersion 5", "contact", "live since 5s"},
		},
		{
			"and has a version that says nothing, but reaches the store's", []answer{lists("x"), after(time.Hour, lists("x")), opens(added("b@6"))},
			[]string{question, "LIST limit=1", question, "WATCH rv=5"},
			[]string{"contact", "resuming at 5, server at x", "live since 1h0m5s", "contact"},
		},
		{
			"and has a version that says nothing, and is behind", []answer{lists(""), after(time.Minute, fails(tooLarge())), lists("4", "a@4"), opens()},
			[]string{question, "LIST limit=1", question, "LIST limit=500", "WATCH rv=4"},
			[]string{"relisting: the server is behind resourceVersion 5", "contact", "live since 1m5s"},
		},
		{
			"and answers with an error then", []answer{fails(errNetwork), lists("5"), opens()},
			[]string{question, "LIST limit=1", question, "WATCH rv=5"},
			nil,
		},
		{
			"and takes long for that too", []answer{after(time.Hour, lists("10")), opens(added("b@6"))},
			[]string{question, "LIST limit=1", "WATCH rv=5"},
			[]string{"contact", "resuming at 5, server at 10", "live since 1h0m5s", "contact"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, "5", append([]answer{hangs}, c.answers...)...).run()
				advance(5*time.Second - 1)
				w.server.requests.expect(t, question)
				advance(2 * time.Hour)
				w.server.requests.expect(t, c.requests[1:]...)
				if c.told != nil {
					w.observed.expect(t, c.told...)
				}
				if behind := c.requests[len(c.requests)-1] == "WATCH rv=4"; behind {
					w.store.calls.expect(t, "begin rewrite rewound", "item a@4", "finish 4", "replace 4")
				}
			})
		})
	}
}

func TestAServerThatAnswersInTimeIsNotAskedTwice(t *testing.T) {
	for name, c := range map[string]struct {
		question answer
		then     []string
	}{
		"after 4.9 s, that it is there":  {after(4900*time.Millisecond, lists("5")), []string{"WATCH rv=5"}},
		"after 4.9 s, that it is behind": {after(4900*time.Millisecond, fails(tooLarge())), []string{"LIST limit=500", "WATCH rv=5"}},
		"after 6 s, by a client of no context": {func(ctx context.Context, s *server) (any, error) {
			time.Sleep(6 * time.Second)
			return lists("5")(ctx, s)
		}, []string{"WATCH rv=5"}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, "5", c.question)
				if len(c.then) > 1 {
					w.server.then(lists("5", "a@3"))
				}
				w.server.then(opens())
				w.run()
				advance(10 * time.Second)
				w.server.requests.expect(t, append([]string{"LIST rv=5 limit=1 NotOlderThan"}, c.then...)...)
			})
		})
	}
}
