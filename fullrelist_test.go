package warmwatch_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// lose makes changes of which no watch tells, neither one that is open nor a later one.
func (f *source) lose(changes func()) {
	var open map[*stream]struct{}
	var history int
	f.with(func() { open, history, f.streams = f.streams, len(f.history), map[*stream]struct{}{} })
	changes()
	f.with(func() { f.streams, f.history = open, f.history[:history] })
}

// every sets FullRelistEvery.
func every(d time.Duration) setup {
	return func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.FullRelistEvery = d }
}

// takeFullLists returns how many lists of all objects were asked for since the last call.
func (f *source) takeFullLists() (n int) {
	for _, r := range f.takeRequests() {
		if strings.HasPrefix(r, "LIST") && !strings.HasSuffix(r, "limit=1") && !strings.HasSuffix(r, "continue") {
			n++
		}
	}
	return n
}

// TestAFullRelistFindsWhatTheServerHasLost from its watch, and handlers are told of just that (A5).
func TestAFullRelistFindsWhatTheServerHasLost(t *testing.T) {
	relist := func(relist func(*process) func(context.Context) error) func(*testing.T, *process, *source) {
		return func(t *testing.T, p *process, _ *source) {
			if err := relist(p)(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
	for name, find := range map[string]func(*testing.T, *process, *source){
		"after FullRelistEvery": func(t *testing.T, _ *process, f *source) {
			advance(19 * time.Hour)
			if n := f.takeFullLists(); n > 0 {
				t.Errorf("%d lists before that", n)
			}
			advance(10 * time.Hour)
			if n := f.takeFullLists(); n != 1 {
				t.Errorf("%d lists", n)
			}
		},
		"by Relist":          relist(func(p *process) func(context.Context) error { return p.informer.Relist }),
		"by that of a Cache": relist(func(p *process) func(context.Context) error { return p.cache.Relist }),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newSource(t, configMap("a", "old"), configMap("b", "x"), configMap("c", "old"), configMap("d", "x"))
				p := launch(t, testsupport.Path(t), f, withContentIndex)
				r, _ := add(t, p.informer)
				d := addDurable(t, p, "d")
				p.run()
				settle()
				f.lose(func() { f.convert("a", "new"); f.remove("b"); f.put(configMap("c", "new"), configMap("n", "x")) })
				f.put(configMap("e", "x"))
				settle()
				r.take()
				d.take()
				f.takeRequests()
				find(t, p, f)
				settle()
				want := []string{"lost ns/b@2", "update ns/a@1→1", "update ns/c@3→6", "add ns/n@7"}
				r.expect(t, want...)
				d.expect(t, want...)
				expectEqual(t, p.informer, f)
				f.put(configMap("e", "x")) // The watch goes on.
				settle()
				r.expect(t, "update ns/e@8→9")
			})
		})
	}
}

// TestAFullRelistWaitsForAQuietSecond, and at most for a tenth of FullRelistEvery.
func TestAFullRelistWaitsForAQuietSecond(t *testing.T) {
	informer := func(t *testing.T, o setup) (f *source, busy func(time.Duration)) {
		f = newSource(t, configMap("a"))
		launch(t, testsupport.Path(t), f, o).run()
		settle()
		f.takeRequests()
		return f, func(d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); {
				f.bookmark()
				advance(500 * time.Millisecond)
			}
		}
	}
	for range 12 { // It is due after 48 to 72 minutes.
		bubble(t, func(t *testing.T) {
			f, busy := informer(t, every(time.Hour))
			advance(44 * time.Minute)
			busy(7 * time.Minute)
			if n := f.takeFullLists(); n > 0 {
				t.Errorf("%d lists while events came", n)
			}
		})
	}
	bubble(t, func(t *testing.T) {
		f, busy := informer(t, every(time.Hour))
		advance(44 * time.Minute)
		busy(36 * time.Minute)
		if n := f.takeFullLists(); n != 1 {
			t.Errorf("%d lists, expected one in spite of the events", n)
		}
	})
	bubble(t, func(t *testing.T) {
		f, _ := informer(t, every(-1))
		advance(10000 * time.Hour)
		if n := f.takeFullLists(); n > 0 {
			t.Errorf("%d lists, although there is none to be", n)
		}
	})
}

// TestAStartResumesHoweverOldTheLastFullListIs, and lists in the first quiet second. The clock may have gone back since.
func TestAStartResumesHoweverOldTheLastFullListIs(t *testing.T) {
	path := testsupport.Path(t)
	first := func(t *testing.T) {
		f := newSource(t, configMap("a", "old"))
		launch(t, path, f, nil).run()
		settle()
	}
	for name, c := range map[string]struct{ before, after, found time.Duration }{
		"long ago":      {0, 1000 * time.Hour, 5 * time.Second},
		"in the future": {1000 * time.Hour, 0, 30 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			path = testsupport.Path(t)
			bubble(t, func(t *testing.T) {
				advance(c.before)
				first(t)
			})
			bubble(t, func(t *testing.T) {
				advance(c.after)
				f := newSource(t, configMap("a", "old"))
				f.convert("a", "new")
				p := launch(t, path, f, nil)
				d := addDurable(t, p, "d")
				p.run()
				if got := contentOf(t, p.informer, "ns/a"); got != "old" {
					t.Errorf("it begins with the content %q", got)
				}
				advance(c.found)
				if st := p.informer.Status(); st.Resumes != 1 || st.Relists != 1 || st.StartedFrom != "disk" {
					t.Errorf("status %+v", st)
				}
				if got := contentOf(t, p.informer, "ns/a"); got != "new" {
					t.Errorf("the store has the content %q", got)
				}
				d.take()
			})
		})
	}
}

// TestRelistWaitsForTheServer as long as its context lets it, and the informer runs. Calls at one time share a list.
func TestRelistWaitsForTheServer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a", "old"))
		p := launch(t, testsupport.Path(t), f, nil)
		early := make(chan error, 1)
		go func() { early <- p.informer.Relist(t.Context()) }() // Before it runs.
		settle()
		p.run()
		settle()
		if err := <-early; err != nil {
			t.Error(err)
		}
		for _, relist := range []func(context.Context) error{p.informer.Relist, p.cache.Relist} {
			f.convert("a", "new")
			f.setDown(errUnreachable)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if err := relist(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("while the server is away: %v", err)
			}
			cancel()
			f.setDown(nil)
			advance(2 * time.Minute)
			if got := contentOf(t, p.informer, "ns/a"); got != "new" {
				t.Errorf("once the server is back the store has the content %q", got)
			}
			f.convert("a", "old")
		}
		f.takeRequests()
		for range 2 {
			hold := make(chan struct{})
			f.with(func() { f.hold = hold })
			var wg sync.WaitGroup
			for range 5 {
				wg.Go(func() {
					if err := p.informer.Relist(t.Context()); err != nil {
						t.Error(err)
					}
				})
				settle()
			}
			close(hold)
			wg.Wait()
			if n := f.takeFullLists(); n != 1 {
				t.Errorf("%d lists", n)
			}
		}
		expectEqual(t, p.informer, f)
		f.setDown(errUnreachable)
		ended := make(chan error, 1)
		go func() { ended <- p.informer.Relist(t.Context()) }()
		settle()
		p.stop()
		if err := <-ended; err == nil {
			t.Error("the informer has ended, and nothing was listed")
		}
		if err := p.informer.Relist(t.Context()); err == nil {
			t.Error("the informer had ended before")
		}
	})
}
