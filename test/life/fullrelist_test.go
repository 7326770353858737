package life_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/recorder"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

// every sets FullRelistEvery.
func every(d time.Duration) process.Setup {
	return func(o *warmwatch.Options, _ *warmwatch.InformerOptions) { o.FullRelistEvery = d }
}

// takeFullLists returns how many lists of all objects were asked for since the last call.
func takeFullLists(f *source.Source) (n int) {
	for _, r := range f.TakeRequests() {
		if strings.HasPrefix(r, "LIST") && !strings.HasSuffix(r, "limit=1") && !strings.HasSuffix(r, "continue") {
			n++
		}
	}
	return n
}

// TestAFullRelistFindsWhatTheServerHasLost from its watch, and handlers are notified of just that (A5).
func TestAFullRelistFindsWhatTheServerHasLost(t *testing.T) {
	relist := func(relist func(*process.Process) func(context.Context) error) func(*testing.T, *process.Process, *source.Source) {
		return func(t *testing.T, p *process.Process, _ *source.Source) {
			if err := relist(p)(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
	for name, find := range map[string]func(*testing.T, *process.Process, *source.Source){
		"after FullRelistEvery": func(t *testing.T, _ *process.Process, f *source.Source) {
			bubble.Advance(19 * time.Hour)
			if n := takeFullLists(f); n > 0 {
				t.Errorf("%d lists before that", n)
			}
			bubble.Advance(10 * time.Hour)
			if n := takeFullLists(f); n != 1 {
				t.Errorf("%d lists", n)
			}
		},
		"by Relist":          relist(func(p *process.Process) func(context.Context) error { return p.Informer.Relist }),
		"by that of a Cache": relist(func(p *process.Process) func(context.Context) error { return p.Cache.Relist }),
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Run(t, func(t *testing.T) {
				f := source.New(t, source.ConfigMap("a", "old"), source.ConfigMap("b", "x"), source.ConfigMap("c", "old"), source.ConfigMap("d", "x"))
				p := process.Launch(t, testsupport.Path(t), f, process.ByContent)
				r, _ := recorder.Add(t, p.Informer)
				d := process.AddDurable(t, p, "d")
				p.Run()
				bubble.Settle()
				f.Lose(func() {
					convert(f, "a", "new")
					f.Remove("b")
					f.Put(source.ConfigMap("c", "new"), source.ConfigMap("n", "x"))
				})
				f.Put(source.ConfigMap("e", "x"))
				bubble.Settle()
				r.Take()
				d.Take()
				f.TakeRequests()
				find(t, p, f)
				bubble.Settle()
				want := []string{"lost ns/b@2", "update ns/a@1→1", "update ns/c@3→6", "add ns/n@7"}
				r.Expect(t, want...)
				d.Expect(t, want...)
				process.ExpectEqual(t, p.Informer, f)
				f.Put(source.ConfigMap("e", "x")) // The watch goes on.
				bubble.Settle()
				r.Expect(t, "update ns/e@8→9")
			})
		})
	}
}

// TestAFullRelistWaitsForAQuietSecond, and at most for a tenth of FullRelistEvery.
func TestAFullRelistWaitsForAQuietSecond(t *testing.T) {
	informer := func(t *testing.T, o process.Setup) (f *source.Source, busy func(time.Duration)) {
		f = source.New(t, source.ConfigMap("a"))
		process.Launch(t, testsupport.Path(t), f, o).Run()
		bubble.Settle()
		f.TakeRequests()
		return f, func(d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); {
				f.Bookmark()
				bubble.Advance(500 * time.Millisecond)
			}
		}
	}
	for range 4 { // It is due after 48 to 72 minutes.
		bubble.Run(t, func(t *testing.T) {
			f, busy := informer(t, every(time.Hour))
			bubble.Advance(44 * time.Minute)
			busy(7 * time.Minute)
			if n := takeFullLists(f); n > 0 {
				t.Errorf("%d lists while events came", n)
			}
		})
	}
	bubble.Run(t, func(t *testing.T) {
		f, busy := informer(t, every(time.Hour))
		bubble.Advance(44 * time.Minute)
		busy(36 * time.Minute)
		if n := takeFullLists(f); n != 1 {
			t.Errorf("%d lists, expected one in spite of the events", n)
		}
	})
	bubble.Run(t, func(t *testing.T) {
		f, _ := informer(t, every(-1))
		bubble.Advance(1000 * time.Hour)
		if n := takeFullLists(f); n > 0 {
			t.Errorf("%d lists, although there is none to be", n)
		}
	})
}

// TestAStartResumesHoweverOldTheLastFullListIs, and lists in the first quiet second. The clock may have gone back
// since.
func TestAStartResumesHoweverOldTheLastFullListIs(t *testing.T) {
	path := testsupport.Path(t)
	first := func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a", "old"))
		process.Launch(t, path, f, nil).Run()
		bubble.Settle()
	}
	for name, c := range map[string]struct{ before, after, found time.Duration }{
		"long ago":      {0, 1000 * time.Hour, 5 * time.Second},
		"in the future": {1000 * time.Hour, 0, 30 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			path = testsupport.Path(t)
			bubble.Run(t, func(t *testing.T) {
				bubble.Advance(c.before)
				first(t)
			})
			bubble.Run(t, func(t *testing.T) {
				bubble.Advance(c.after)
				f := source.New(t, source.ConfigMap("a", "old"))
				convert(f, "a", "new")
				p := process.Launch(t, path, f, nil)
				d := process.AddDurable(t, p, "d")
				p.Run()
				if got := contentOf(t, p.Informer, "ns/a"); got != "old" {
					t.Errorf("it begins with the content %q", got)
				}
				bubble.Advance(c.found)
				if st := p.Informer.Status(); st.Resumes != 1 || st.Relists != 1 || st.StartedFrom != "disk" {
					t.Errorf("status %+v", st)
				}
				if got := contentOf(t, p.Informer, "ns/a"); got != "new" {
					t.Errorf("the store has the content %q", got)
				}
				d.Take()
			})
		})
	}
}

// TestRelistWaitsForTheServer as long as its context lets it, and the informer runs. Calls at one time share a list.
func TestRelistWaitsForTheServer(t *testing.T) {
	bubble.Run(t, func(t *testing.T) {
		f := source.New(t, source.ConfigMap("a", "old"))
		p := process.Launch(t, testsupport.Path(t), f, nil)
		early := make(chan error, 1)
		go func() { early <- p.Informer.Relist(t.Context()) }() // Before it runs.
		bubble.Settle()
		p.Run()
		bubble.Settle()
		if err := <-early; err != nil {
			t.Error(err)
		}
		for _, relist := range []func(context.Context) error{p.Informer.Relist, p.Cache.Relist} {
			convert(f, "a", "new")
			f.SetDown(source.ErrUnreachable)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			if err := relist(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("while the server is away: %v", err)
			}
			cancel()
			f.SetDown(nil)
			bubble.Advance(2 * time.Minute)
			if got := contentOf(t, p.Informer, "ns/a"); got != "new" {
				t.Errorf("once the server is back the store has the content %q", got)
			}
			convert(f, "a", "old")
		}
		f.TakeRequests()
		for range 2 {
			hold := make(chan struct{})
			f.With(func() { f.Hold = hold })
			var wg sync.WaitGroup
			for range 5 {
				wg.Go(func() {
					if err := p.Informer.Relist(t.Context()); err != nil {
						t.Error(err)
					}
				})
				bubble.Settle()
			}
			close(hold)
			wg.Wait()
			if n := takeFullLists(f); n != 1 {
				t.Errorf("%d lists", n)
			}
		}
		process.ExpectEqual(t, p.Informer, f)
		f.SetDown(source.ErrUnreachable)
		ended := make(chan error, 1)
		go func() { ended <- p.Informer.Relist(t.Context()) }()
		bubble.Settle()
		p.Stop()
		if err := <-ended; err == nil {
			t.Error("the informer has ended, and nothing was listed")
		}
		if err := p.Informer.Relist(t.Context()); err == nil {
			t.Error("the informer had ended before")
		}
	})
}
