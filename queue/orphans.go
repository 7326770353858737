package queue

import "math"

// orphans are what the plain consumers of this process are told before they are told
// of all objects: the deltas that those of the last process did not acknowledge, and
// the deletions that come until ReleaseOrphans. For until a plain consumer begins, all
// that may know an object is one of the last process. They wait for every plain
// consumer, without holding what else comes after them.
type orphans struct {
	after, to uint64
	held      bool // Until ReleaseOrphans, and until then to moves.
	caughtUp  bool

	stored uint64 // Those up to here are of the last process. Behind that only deletions are held.

	claimed bool // A plain consumer has been told of them.
	lives   int  // So many processes have caught up, and had no plain consumer.
}

// maxUnclaimedLives is how many processes keep orphans that no plain consumer comes
// for: they end before ReleaseOrphans, each in order or by a crash.
const maxUnclaimedLives = 3

// inherited are the orphans that a process finds: the deltas up to head behind the
// cursor that the plain consumers of the last one share. Where these have waited for
// long enough they are given up, and those that are still to come are held.
func inherited(plain cursor, head uint64) orphans {
	if plain.Lives >= maxUnclaimedLives {
		plain = cursor{Seq: head}
	}
	return orphans{after: plain.Seq, to: head, stored: head, held: true, lives: plain.Lives}
}

// reach has them end at seq, the number of a write, as long as they are held.
func (o *orphans) reach(seq uint64) {
	if o.held {
		o.to = seq
	}
}

// stretch reports whether the first delta of a run is held, and up to which Seq that
// is so for the run.
func (o *orphans) stretch(r run) (held bool, to uint64) {
	switch {
	case !o.held || r.from > o.to:
		return false, math.MaxUint64
	case r.from <= o.after:
		return false, o.after
	case r.from <= o.stored:
		return true, o.stored
	}
	return r.deletions, o.to
}

// hold reports whether all deltas of a pack are held.
func (o *orphans) hold(p packedRuns) bool {
	held, to := o.stretch(run{from: p.from, to: p.to, deletions: p.deletions})
	return held && p.to <= to
}

// CaughtUp notes that the owner has caught up with the server: this is one of the
// processes in which a plain consumer may come for the orphans.
func (q *DeltaFIFO) CaughtUp() {
	q.mu.Lock()
	changed := q.orphans.held && !q.orphans.caughtUp
	if changed {
		q.orphans.caughtUp = true
		q.orphans.lives++
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
	changed := q.orphans.held
	q.orphans.held = false
	q.mu.Unlock()
	if changed {
		q.db.Kick()
	}
}

// endOrphansLocked decides what becomes of the orphans when the log is stopped. If there
// are plain consumers, the next process finds their cursor. If there were, and all that
// waited was told, it finds one at the end: what is deleted from now on they know.
func (q *DeltaFIFO) endOrphansLocked() {
	if q.orphans.held && q.orphans.claimed && !q.floorSet {
		q.plainFloor, q.floorSet = q.head, true
	}
	q.orphans.held = q.orphans.held && !q.floorSet
}
