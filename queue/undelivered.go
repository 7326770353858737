package queue

import "math"

// undelivered are the deltas that plain consumers are told before their initial list:
// those that the last process's did not acknowledge, and the deletions that come until
// ReleaseUndelivered, because handlers of the last process may know the objects.
// They are kept for every plain consumer that is added by then. Additions and updates
// that come meanwhile are not.
type undelivered struct {
	after, to uint64
	held      bool // Until ReleaseUndelivered. Meanwhile to moves with the head.
	caughtUp  bool

	inheritedTo uint64 // Deltas up to it are of earlier processes. Later, only deletions are held.

	claimed bool // A plain consumer has been told of all.
	lives   int  // So many processes have caught up, and had no plain consumer.
}

// maxUnclaimedLives is how many processes keep undelivered deltas although each has
// ended, in order or by a crash, before ReleaseUndelivered and without a plain consumer.
const maxUnclaimedLives = 3

// inherited returns the undelivered deltas that a process finds: those up to head and
// after the plain cursor. After maxUnclaimedLives processes they are given up, and only
// later ones are held.
func inherited(plain cursor, head uint64) undelivered {
	if plain.Lives >= maxUnclaimedLives {
		plain = cursor{Seq: head}
	}
	return undelivered{after: plain.Seq, to: head, inheritedTo: head, held: true, lives: plain.Lives}
}

// reach moves their end to seq, the number of a write, as long as they are held.
func (u *undelivered) reach(seq uint64) {
	if u.held {
		u.to = seq
	}
}

// heldUpTo reports whether the first delta of a run is held, and up to which Seq the
// same is true of the others.
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

// holdsPack reports whether all deltas of a pack are held.
func (u *undelivered) holdsPack(p packedRuns) bool {
	held, to := u.heldUpTo(run{from: p.from, to: p.to, deletions: p.deletions})
	return held && p.to <= to
}

// CaughtUp notes that the owner has caught up with the server. The process then counts
// as one that keeps undelivered deltas, see maxUnclaimedLives.
func (q *Log) CaughtUp() {
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

// ReleaseUndelivered ends the time in which plain consumers, and those of names that may be lost, are given
// undelivered deltas. Those that were added before still are.
func (q *Log) ReleaseUndelivered() {
	q.mu.Lock()
	changed := q.undelivered.held
	q.undelivered.held = false
	q.nameLost = false
	clear(q.newAgain)
	q.mu.Unlock()
	if changed {
		q.db.Kick()
	}
}

// endUndeliveredLocked decides what becomes of undelivered deltas when the log is
// stopped. If there are plain consumers, the next process finds their cursor. If there
// were, and one was told of all, it finds one at the head, and holds later deletions.
func (q *Log) endUndeliveredLocked() {
	if q.undelivered.held && q.undelivered.claimed && !q.plainFloorSet {
		q.plainFloor, q.plainFloorSet = q.head, true
	}
	q.undelivered.held = q.undelivered.held && !q.plainFloorSet
}
