package queue

import "math"

// orphans are what the plain consumers of this process are told before they are told
// of all objects: the deltas that those of the last process did not acknowledge, and
// the deletions that come until ReleaseOrphans. For until a plain consumer begins, all
// that may know an object is one of the last process. They wait for every plain
// consumer, without holding what else comes after them.
type undelivered struct {
	after, to uint64
	held      bool // Until ReleaseOrphans, and until then to moves.
	caughtUp  bool

	inheritedTo uint64 // Those up to here are of the last process. Behind that only deletions are held.

	claimed bool // A plain consumer has been told of them.
	lives   int  // So many processes have caught up, and had no plain consumer.
}

// maxUnclaimedLives is how many processes keep orphans that no plain consumer comes
// for: they end before ReleaseOrphans, each in order or by a crash.
const maxUnclaimedLives = 3

// inherited are the orphans that a process finds: the deltas up to head behind the
// cursor that the plain consumers of the last one share. Where these have waited for
// long enough they are given up, and those that are still to come are held.
func inherited(plain cursor, head uint64) undelivered {
	if plain.Lives >= maxUnclaimedLives {
		plain = cursor{Seq: head}
	}
	return undelivered{after: plain.Seq, to: head, inheritedTo: head, held: true, lives: plain.Lives}
}

// reach has them end at seq, the number of a write, as long as they are held.
func (u *undelivered) reach(seq uint64) {
	if u.held {
		u.to = seq
	}
}

// stretch reports whether the first delta of a run is held, and up to which Seq that
// is so for the run.
func (u *undelivered) heldUpTo(r run) (held bool, to uint64) {
	switch {
	case !u.held || r.from > u.to:
		return false, math.MaxUint64
	case r.from <= u.after:
		return false, u.after
	case r.from <= u.inheritedTo:
		return true, u.inheritedTo
	}
	return r.deletions, u.to
}

// hold reports whether all deltas of a pack are held.
func (u *undelivered) holdsPack(p packedRuns) bool {
	held, to := u.heldUpTo(run{from: p.from, to: p.to, deletions: p.deletions})
	return held && p.to <= to
}

// CaughtUp notes that the owner has caught up with the server: this is one of the
// processes in which a plain consumer may come for the orphans.
func (q *DeltaFIFO) CaughtUp() {
	q.mu.Lock()
	changed := q.undelivered.held && !q.undelivered.caughtUp
	if changed {
		q.undelivered.caughtUp = true
		q.undelivered.lives++
	}
	q.mu.Unlock()
	if changed {
		q.db.Kick()
	}
}

// ReleaseOrphans ends the time in which plain consumers are told of orphans. Those
// that were added before still are.
func (q *DeltaFIFO) ReleaseOrphans() {
	q.mu.Lock()
	changed := q.undelivered.held
	q.undelivered.held = false
	q.mu.Unlock()
	if changed {
		q.db.Kick()
	}
}

// endOrphansLocked decides what becomes of the orphans when the log is stopped. If there
// are plain consumers, the next process finds their cursor. If there were, and all that
// waited was told, it finds one at the end: what is deleted from now on they know.
func (q *DeltaFIFO) endUndeliveredLocked() {
	if q.undelivered.held && q.undelivered.claimed && !q.plainFloorSet {
		q.plainFloor, q.plainFloorSet = q.head, true
	}
	q.undelivered.held = q.undelivered.held && !q.plainFloorSet
}
