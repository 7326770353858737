package reflector

import (
	"context"
	"testing"
	"time"
)

// TestRelistsAfterALostHistorySpread: a restarted server is not asked by all clients at once.
func TestRelistsAfterALostHistorySpread(t *testing.T) {
	for _, c := range []struct {
		name    string
		objects int
		spread  time.Duration
		longest time.Duration // The wait is shorter.
	}{
		{"a small list does not wait", 999, 10 * time.Second, 0},
		{"a share of 100 µs for each object", 20_000, 10 * time.Second, 2 * time.Second},
		{"no longer than the bound", 1_000_000, 3 * time.Second, 3 * time.Second},
		{"no wait is asked for", 20_000, -1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			waited := false
			for range 30 {
				bubble(t, func(t *testing.T) {
					w := newWorld(t, "5", lists("5"), opens())
					w.withPast().stored, w.opts.Spread = c.objects, c.spread
					w.run()
					var first, again time.Duration
					at := func(elapsed *time.Duration, then answer) answer {
						return func(ctx context.Context, s *server) (any, error) {
							*elapsed = w.elapsed()
							return then(ctx, s)
						}
					}
					w.server.then(at(&first, fails(errNetwork)), at(&again, lists("9", "b@9")), opens())
					w.server.last().send(failure(errGone))
					advance(time.Minute)
					w.store.expectContents(t, "b@9")
					if first >= c.longest+firstBackoff {
						t.Errorf("it listed after %v", first)
					}
					waited = waited || first > firstBackoff
					// The list that has failed is tried again after client-go's backoff alone.
					if again-first > 2*firstBackoff {
						t.Errorf("it waited for %v before it tried again", again-first)
					}
				})
			}
			if waited != (c.longest > 0) { // Beside client-go's backoff.
				t.Errorf("it waited: %t", waited)
			}
		})
	}
}

// TestAStartAfterALostHistoryDoesNotWait, because nothing else has brought it about.
func TestAStartAfterALostHistoryDoesNotWait(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, "5", lists("9"), opens(failure(errGone)), lists("9", "b@9"), opens())
		w.withPast().stored, w.opts.Spread = 1_000_000, time.Hour
		w.run()
		advance(time.Millisecond)
		w.store.expectContents(t, "b@9")
	})
}
