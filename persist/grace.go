package persist

import "time"

// grace is how a DB goes on while nothing can be written, where Options.DurableGrace is set: once
// that has lasted as long, what was applied counts as durable. Guarded by db.mu.
type grace struct {
	failingSince time.Time // When commits began to fail; zero while they do not.
	toldAt       time.Time // When countedTo was last raised.
	// countedTo is the number of the last batch that has counted as durable without being in the file.
	countedTo uint64
}

// fails notes that nothing can be written.
func (g *grace) fails() {
	if g.failingSince.IsZero() {
		g.failingSince = time.Now()
	}
}

// nextCountLocked returns whether batches are to count as durable although they cannot be written, and
// in how long.
func (db *DB) nextCountLocked(now time.Time) (wait time.Duration, due bool) {
	since := db.grace.failingSince
	if since.IsZero() {
		since = db.busySince // Perhaps the disk does not answer.
	}
	if db.opts.DurableGrace == 0 || db.memoryOnly() || since.IsZero() || db.durableLocked() >= db.applied {
		return 0, false
	}
	at := since.Add(db.opts.DurableGrace)
	if next := db.grace.toldAt.Add(db.opts.DurableDelay); at.Before(next) {
		at = next
	}
	return at.Sub(now), true
}

// countUnwritten has what was applied count as durable, if that is due.
func (db *DB) countUnwritten() {
	db.mu.Lock()
	wait, due := db.nextCountLocked(time.Now())
	if !due || wait > 0 {
		db.mu.Unlock()
		return
	}
	if db.grace.countedTo <= db.durable { // The first time since something was written.
		db.log.Info("Nothing can be written: durable handlers are told of what is not in the cache file", "path", db.path, "after", db.opts.DurableGrace)
	}
	db.grace.countedTo, db.grace.toldAt = db.applied, time.Now()
	hooks, counted := db.hooksLocked(), db.applied
	db.mu.Unlock()
	callAfterCommit(hooks, counted)
}

func (db *DB) durableLocked() uint64 { return max(db.durable, db.grace.countedTo) }

func callAfterCommit(hooks []*Hook, durable uint64) {
	for _, h := range hooks {
		if h.AfterCommit != nil {
			h.AfterCommit(durable)
		}
	}
}
