package queue

import "slices"

// foldLimits are the positions of consumers, which no fold crosses.
type foldLimits struct {
	spans        []span
	initialLists []initialList
}

// side returns the greatest Seq below seq as of which an initial list has read the key.
// Deltas of different sides are not folded.
func (l *foldLimits) side(key string, seq uint64) (side uint64) {
	for i := range l.initialLists {
		if at := l.initialLists[i].seq(key); at < seq {
			side = max(side, at)
		}
	}
	return side
}

// span is what a consumer may have been given, and may be given again: after from, up to to.
type span struct{ from, to uint64 }

// crosses reports whether a fold of the deltas of a key from first to last would mix
// what somebody was given with what it was not.
func (l *foldLimits) crosses(key string, first, last uint64) bool {
	given := func(s span) bool { return first <= s.to && last > s.from }
	return slices.ContainsFunc(l.spans, given) || l.side(key, first) != l.side(key, last)
}

// foldLimitsLocked returns the positions of consumers; not ok if nothing may be folded.
func (q *Log) foldLimitsLocked() (limits foldLimits, ok bool) {
	stored := func(name string, at uint64) uint64 {
		if c, found := q.storedCursors[durablePrefix+name]; found {
			return min(at, c.Seq)
		}
		return at
	}
	add := func(from, to uint64) { limits.spans = append(limits.spans, span{from, to}) }
	for c := range q.consumers {
		at := c.cursor.Load()
		from := at
		if c.name != "" {
			if !c.durable { // Pop returns every delta.
				return foldLimits{}, false
			}
			from = stored(c.name, at)
		}
		add(from, max(at, c.readTo))
		if len(c.initialList.ranges) > 0 {
			limits.initialLists = append(limits.initialLists, c.initialList)
		}
	}
	for name, at := range q.absent {
		if name == popName {
			return foldLimits{}, false
		}
		add(stored(name, at.Seq), max(at.Seq, q.absentReadTo[name]))
	}
	return limits, true
}
