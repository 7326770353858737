package reflector

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/google/go-cmp/cmp"
)

// force demands a relist of every record.
func (w *world) force() {
	w.resumer.ForceRelist(Relisting{Cause: "Forced", Rewrite: true})
	synctest.Wait()
}

func TestARelistForcedBeforeTheStart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, "5", lists("9", "a@3"), opens())
		w.open().ForceRelist(Relisting{Cause: "Forced", Rewrite: true})
		if rv := w.list(); rv != "9" {
			t.Errorf("the list is of version %q", rv)
		}
		w.server.requests.expect(t, "LIST rv=5 NotOlderThan")
		w.store.calls.expect(t, "begin rewrite", "finish 9")
		open, err := w.resumer.Watch(metav1.ListOptions{ResourceVersion: "9", AllowWatchBookmarks: true, TimeoutSeconds: new(int64(300))})
		if err != nil {
			t.Fatal(err)
		}
		open.Stop()
	})
}

func TestARelistForcedWhileAWatchIsOpen(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := openWorld(t)
		w.server.then(lists("9", "a@3"), opens(added("c@10")))
		w.force()
		w.force() // Once is enough.
		w.observed.expect(t, "disconnected: expired")
		if w.server.last().stopped() == 0 {
			t.Error("the watch is open")
		}
		advance(firstBackoff)
		w.server.requests.expect(t, "LIST rv=6 NotOlderThan", "WATCH rv=9")
		w.store.calls.expect(t, "begin rewrite", "finish 9", "replace 9", "add c@10")
		advance(time.Hour)
		w.server.requests.expect(t)
		// What was forced is not remembered.
		w.server.then(lists("11", "a@3"), opens())
		w.server.last().send(failure(errGone))
		advance(firstBackoff)
		w.store.calls.expect(t, "begin", "finish 11", "replace 11")
	})
}

// Whenever a relist is forced, one begins after that, soon, and rewrites.
func TestAForcedRelistIsNotForgotten(t *testing.T) {
	for _, c := range []struct {
		name    string
		relist  *Relisting
		answers []answer
		then    []answer // After the force at 500 ms.
		calls   []string
	}{
		{
			"while the question is asked, and answered by a version", nil,
			[]answer{after(time.Second, lists("9")), opens(added("b@6"))}, []answer{lists("9", "a@3"), opens()},
			[]string{"begin rewrite", "finish 9", "replace 9"},
		},
		{
			"while the question is asked, and not answered", nil,
			[]answer{after(time.Second, fails(errNetwork))}, []answer{lists("9", "a@3"), opens()},
			[]string{"begin rewrite", "finish 9", "replace 9"},
		},
		{
			"while the watch of a List is opened", nil,
			[]answer{lists("9"), after(time.Second, opens(added("b@6")))}, []answer{lists("9", "a@3"), opens()},
			[]string{"begin rewrite", "finish 9", "replace 9"},
		},
		{
			"while the watch of a List is opened, and it expires", nil,
			[]answer{lists("9"), after(time.Second, opens(failure(errGone)))}, []answer{lists("9", "a@3"), opens()},
			[]string{"begin rewrite", "finish 9", "replace 9"},
		},
		{
			"during a relist", because(false, false),
			[]answer{after(time.Second, lists("8", "a@3"))}, []answer{lists("9", "a@3"), opens()},
			[]string{"begin", "finish 8", "replace 8", "begin rewrite", "finish 9", "replace 9"},
		},
		{
			"during a relist that fails", because(false, false),
			[]answer{after(time.Second, fails(errInternal))}, []answer{lists("9", "a@3"), opens()},
			[]string{"begin", "abort", "begin rewrite", "finish 9", "replace 9"},
		},
		{
			"during a relist that finds the server behind", because(false, false),
			[]answer{after(time.Second, fails(tooLarge()))}, []answer{lists("4", "a@3"), opens()},
			[]string{"begin", "abort", "begin rewrite", "finish 4", "replace 4"},
		},
		{
			"while the watch after a relist is opened", because(false, false),
			[]answer{lists("8", "a@3"), after(time.Second, opens())}, []answer{lists("9", "a@3"), opens()},
			[]string{"begin", "finish 8", "replace 8", "begin rewrite", "finish 9", "replace 9"},
		},
		{
			"while the question before the next watch is asked", nil,
			[]answer{lists("5"), closes(added("b@6")), after(time.Second, lists("6")), opens()}, []answer{lists("9", "a@3"), opens()},
			[]string{"replace 5", "add b@6", "begin rewrite", "finish 9", "replace 9"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, "5", append(c.answers, c.then...)...)
				w.first = c.relist
				w.run()
				advance(500 * time.Millisecond)
				w.force()
				advance(10 * time.Second)
				w.store.calls.expect(t, c.calls...)
			})
		})
	}
}

// Whoever demands a relist relies on the store after it, so no demand may be lost.
func TestAnotherDemandDoesNotWeakenTheFirst(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, "5", lists("9", "a@3"))
		w.first = because(true, false)
		w.open().ForceRelist(Relisting{Cause: "Forced"})
		w.list()
		if how := w.lastHow(); !how.Rewrite {
			t.Errorf("relisted by %+v", how)
		}
	})
}

func TestStopEndsAWatchThatNobodyTook(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, "5", lists("9"), opens())
		r := w.open()
		w.list()
		if w.server.last().stopped() != 0 {
			t.Fatal("the watch is stopped already")
		}
		r.Stop()
		if w.server.last().stopped() == 0 {
			t.Error("the watch is open")
		}
		r.Stop()
	})
}

func TestStopWaitsForTheOpenWatch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, "5", says("5"), opens())
		r := w.open()
		w.list()
		open, err := r.Watch(metav1.ListOptions{ResourceVersion: "5"})
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			time.Sleep(time.Minute)
			open.Stop()
		}()
		r.Stop()
		if w.elapsed().Round(time.Microsecond) != time.Minute {
			t.Errorf("it waited for %v", w.elapsed())
		}
		w.observed.expect(t, "contact", "resuming at 5", "live", "disconnected")
	})
}

func TestStopDoesNotWaitForAListThatHangs(t *testing.T) {
	for name, c := range map[string]struct {
		rv     string
		before []answer
		hangs  answer // Goes on when the test is over.
		after  []answer
	}{
		"the question":            {"5", nil, lists("9"), nil},
		"the question, no change": {"5", nil, lists("5"), nil},
		"the watch":               {"5", []answer{lists("9")}, opens(), nil},
		"the watch, no change":    {"5", []answer{lists("5")}, opens(), nil},
		"a page":                  {"", nil, lists("9"), nil},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				proceed := make(chan struct{})
				w := newWorld(t, c.rv, append(append(c.before, heedless(proceed, c.hangs)), c.after...)...)
				w.run()
				w.stop()
				if w.elapsed() > time.Microsecond {
					t.Errorf("it waited for %v", w.elapsed())
				}
				close(proceed)
				synctest.Wait() // server.check sees whether what it brings is stopped.
			})
		})
	}
}

func TestACancelledContextEndsAList(t *testing.T) {
	cluster := func(o *Options) {
		o.Cluster = func(ctx context.Context) *Relisting {
			<-ctx.Done()
			return nil
		}
	}
	for name, c := range map[string]struct {
		rv      string
		change  func(*Options)
		answers []answer
		after   time.Duration
	}{
		"in the question for the cluster":   {"5", cluster, []answer{lists("9"), opens()}, time.Hour},
		"in the question":                   {"5", nil, []answer{hangs}, time.Second},
		"in the question after a long time": {"5", nil, []answer{hangs}, time.Hour},
		"in the request to watch":           {"5", nil, []answer{lists("9"), hangs}, time.Hour},
		"while the watch is looked at":      {"5", nil, []answer{lists("9"), opens()}, time.Millisecond},
		"in a page":                         {"", nil, []answer{page("9", "x"), hangs}, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, c.rv, c.answers...)
				if c.change != nil {
					c.change(&w.opts)
				}
				r := w.open()
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(c.after, cancel)
				if _, err := r.ListWithContext(ctx, metav1.ListOptions{}); !errors.Is(err, context.Canceled) {
					t.Errorf("the error is %v", err)
				}
				if w.elapsed() != c.after {
					t.Errorf("it returned after %v", w.elapsed())
				}
				w.server.requests.take()
				if _, err := r.ListWithContext(ctx, metav1.ListOptions{}); !errors.Is(err, context.Canceled) {
					t.Errorf("the error of another List is %v", err)
				}
				w.server.requests.expect(t)
			})
		})
	}
}

func TestACancelledContextEndsAWatchThatIsOpened(t *testing.T) {
	for name, answers := range map[string][]answer{
		"in the question":         {hangs},
		"in the request to watch": {lists("5"), hangs},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, "5", answers...)
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(time.Second, cancel)
				o := metav1.ListOptions{ResourceVersion: "5", AllowWatchBookmarks: true, TimeoutSeconds: new(int64(300))}
				if _, err := w.open().WatchWithContext(ctx, o); !errors.Is(err, context.Canceled) {
					t.Errorf("the error is %v", err)
				}
				if w.elapsed() != time.Second {
					t.Errorf("it returned after %v", w.elapsed())
				}
			})
		})
	}
}

func TestEverythingInOneOrder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, "5", lists("9"), closes(added("b@6")), lists("6"), fails(errGone)).run()
		advance(10)
		want := []string{
			question5, "contact", "WATCH rv=5", "resuming at 5", "replace 5", "live", "contact", "disconnected", "add b@6",
			"LIST limit=1", "contact", "WATCH rv=6", "disconnected: expired",
		}
		got := w.all.take()
		// The watch is read ahead of the store.
		for i := range got {
			if got[i] == "add b@6" && i+1 < len(got) && got[i+1] == "disconnected" {
				got[i], got[i+1] = got[i+1], got[i]
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("the first life (-want +got):\n%s", diff)
		}
		w.server.then(page("9", "x", "a@3"), lists("9", "c@9"), opens())
		advance(firstBackoff)
		got = w.all.take()
		for i := range got {
			if strings.HasPrefix(got[i], "live") { // The backoff is random.
				got[i] = "live"
			}
		}
		want = []string{
			"relisting: Expired", "begin", "LIST rv=6 NotOlderThan", "contact", "LIST continue=x", "contact", "finish 9",
			"replace 9", "WATCH rv=9", "live",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("the second life (-want +got):\n%s", diff)
		}
	})
}

// TestARelistForcedWhileAWatchIsLookedAt comes at once, and leaves no watch open
// that the Reflector could take later.
func TestARelistForcedWhileAWatchIsLookedAt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, "5", lists("9"), opens(), lists("9", "a@3"), opens()).run()
		looked := w.server.last()
		w.force()
		advance(unmeteredQuiet)
		if looked.stopped() == 0 {
			t.Error("the watch that nobody will take is open")
		}
		w.server.requests.expect(t, question5, "WATCH rv=5", "LIST rv=5 NotOlderThan", "WATCH rv=9")
		w.store.expectContents(t, "a@3")
	})
}
