package queue

import "testing"

// TestWhereOrphansAreGivenUpThoseOfTheNextDowntimeAreHeld: only those are removed that
// have waited for three processes, and not what was deleted since.
func TestWhereOrphansAreGivenUpThoseOfTheNextDowntimeAreHeld(t *testing.T) {
	for name, again := range map[string]func(*testing.T, *DeltaFIFO) *DeltaFIFO{"stopped": reopen, "crashed": crash} {
		t.Run(name, func(t *testing.T) {
			q := newLog(t, openDB(t, tempPath(t), manual), Options{})
			q.CaughtUp()
			q.Plain()
			publishUpTo(t, q, 1, 5)
			q = reopen(t, q)
			for range maxUnclaimedLives {
				q.CaughtUp()
				commitAnew(t, q)
				q = again(t, q)
			}
			publishUpTo(t, q, 6, 10) // While no process ran, as it finds out now.
			q.CaughtUp()
			publishUpTo(t, q, 11, 15)
			commitAnew(t, q)
			want := deletions(upTo(6, 15))
			wantSeqs(t, "held", want, onDisk(t, q.db, true))
			for i := range maxUnclaimedLives {
				if i == maxUnclaimedLives-1 {
					wantSeqs(t, "told", want, orphansOf(t, q.Plain(), 9))
				}
				q = again(t, q)
				q.CaughtUp()
				commitAnew(t, q)
			}
			q.ReleaseOrphans()
			commitAnew(t, q)
			wantSeqs(t, "left", nil, onDisk(t, q.db, true))
		})
	}
}
