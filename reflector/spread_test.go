package reflector

import (
	"fmt"
	"testing"
	"time"
)

// fill puts so many objects into the store.
func (w *world) fill(objects int) {
	w.t.Helper()
	r := relistOf(w.t, w.store.Sink)
	for i := range objects {
		if err := r.item(configMap(fmt.Sprintf("o%d@3", i))); err != nil {
			w.t.Fatal(err)
		}
	}
	if _, err := r.finish("5"); err != nil {
		w.t.Fatal(err)
	}
	w.store.calls.take()
}

// TestRelistsAfterALostHistorySpread: a restarted server is not asked by all clients at once.
func TestRelistsAfterALostHistorySpread(t *testing.T) {
	for _, c := range []struct {
		name    string
		objects int
		spread  time.Duration
		longest time.Duration // The wait is shorter.
	}{
		{"a small list does not wait", 999, 10 * time.Second, 0},
		{"a share of 100 µs for each object", 1_500, 10 * time.Second, 150 * time.Millisecond},
		{"no longer than the bound", 1_500, 20 * time.Millisecond, 20 * time.Millisecond},
		{"no wait is asked for", 1_500, -1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, "5")
				w.fill(c.objects)
				w.opts.Spread = c.spread
				r := w.open()
				how := &Relisting{Expired: true}
				for _, wasOpen := range []bool{false, true} {
					if r.current = nil; wasOpen {
						r.current = new(watcher)
					}
					waited := false
					for range 30 {
						begun := time.Now()
						if err := r.spreadOut(t.Context(), how); err != nil {
							t.Fatal(err)
						}
						if d := time.Since(begun); d > 0 {
							waited = true
							if d >= c.longest {
								t.Errorf("it waited for %v", d)
							}
						}
					}
					if want := wasOpen && c.longest > 0; waited != want { // A start does not wait: nothing else has brought it about.
						t.Errorf("a watch was open: %v, it waited: %v", wasOpen, waited)
					}
				}
				r.current = nil
			})
		})
	}
}
