package queue

import "github.com/warmwatch/warmwatch/persist"

// A tail has the recent deltas.
type tail struct {
	deltas []Delta // Oldest first. Their numbers begin behind base.
	bytes  int
	base   uint64
	// leaving is the number up to which the next Publish drops deltas. Append has stored the needed ones.
	leaving uint64
}

func (t *tail) push(d Delta) {
	t.deltas = append(t.deltas, d)
	t.bytes += d.SizeBytes
}

// drop drops the deltas up to a number.
func (t *tail) drop(number uint64) {
	n := 0
	for ; n < len(t.deltas) && t.deltas[n].Number <= number; n++ {
		t.bytes -= t.deltas[n].SizeBytes
		t.base = t.deltas[n].Number
	}
	clear(t.deltas[:n]) // The objects can be freed before the array.
	if t.deltas = t.deltas[n:]; len(t.deltas) == 0 {
		t.deltas = nil // The array may be large.
	}
}

// after returns the deltas behind a number, which is not below base.
func (t *tail) after(number uint64) []Delta {
	return t.deltas[min(number-t.base, uint64(len(t.deltas))):]
}

// leaveLocked decides which deltas leave the tail: those that every reader of the tail has read, and those that do not
// fit. It stores them if somebody has still to read them.
func (q *Log) leaveLocked(b *persist.Batch) {
	t, bytes := &q.tail, q.tail.bytes
	read, needed, _ := q.neededLocked()
	for i := range t.deltas {
		d := &t.deltas[i]
		if d.Number > read && bytes <= q.tailMax {
			break
		}
		if !d.stored && d.Number > needed {
			q.storeLocked(b, d)
		}
		bytes -= d.SizeBytes
		t.leaving = d.Number
	}
}

// dropReadLocked drops deltas that nobody will read from the tail, up to the first one that must be stored before.
// Outside of a batch it drops only deltas that nobody needs: a stored one may be in a batch that cannot be read yet.
func (q *Log) dropReadLocked(inBatch bool) {
	for p := range q.positions { // There may be very many.
		if p.from == q.tail.base || !inBatch && p.from < q.tail.base {
			return
		}
	}
	read, needed, _ := q.neededLocked()
	number := q.tail.base
	for i := range q.tail.deltas {
		if d := &q.tail.deltas[i]; d.Number > read || !d.stored && d.Number > needed {
			break
		}
		number = q.tail.deltas[i].Number
	}
	q.tail.drop(number)
}
