package queue

import "github.com/warmwatch/warmwatch/persist"

// A tail has the recent deltas.
type tail struct {
	deltas []Delta // Oldest first. Their numbers begin behind base.
	bytes  int
	base   uint64
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

// leaveLocked drops deltas from the tail: those that every reader of the tail has read, and those that do not fit. It
// stores a delta in b if a consumer still needs it. Without a batch it stops at the first delta that it would store.
func (q *Log) leaveLocked(b *persist.Batch) {
	t := &q.tail
	for p := range q.positions { // There may be very many.
		if p.from == t.base && t.bytes <= q.tailMax {
			return
		}
	}
	read, needed, _ := q.neededLocked()
	leaving, bytes := t.base, t.bytes
	for i := range t.deltas {
		d := &t.deltas[i]
		stores := !d.stored && d.Number > needed
		if d.Number > read && bytes <= q.tailMax || stores && b == nil {
			break
		}
		if stores {
			q.storeLocked(b, d)
		}
		bytes -= d.SizeBytes
		leaving = d.Number
	}
	t.drop(leaving)
}
