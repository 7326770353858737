package queue

import (
	"slices"
	"testing"

	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// version is a delta of one key, with the numbers of the old and the new object.
type version struct {
	seq      uint64
	h        deltaHeader
	old, new int
}

// foldVersions does what a pass does with the deltas of one key.
func foldVersions(deltas []version) []version {
	bySeq := map[uint64]version{}
	g := &foldGroup{}
	for _, d := range deltas {
		bySeq[d.seq] = d
		g.add(d.seq, d.h)
	}
	if g.isReplacing {
		return deltas
	}
	var kept []version
	for _, seq := range g.deletions {
		kept = append(kept, bySeq[seq])
	}
	if r := g.result; r.last != 0 {
		last := bySeq[r.last]
		if r.changed {
			last.h.flags, last.h.typ = r.flags, r.typ
			last.old = 0
			if r.flags&flagOld != 0 {
				last.old = bySeq[r.first].old
			}
		}
		kept = append(kept, last)
	}
	return kept
}

// TestWhatIsFoldedCanBeFoldedAgain: a handler is told of each change from what it knows,
// whatever parts of a key's deltas were folded, in whatever order.
func TestWhatIsFoldedCanBeFoldedAgain(t *testing.T) {
	rnd := testsupport.Rand(t)
	for range 2000 {
		var deltas []version
		object := 0 // What there is.
		for seq := uint64(1); seq < 24; seq++ {
			d := version{seq: seq, old: object, new: int(seq)}
			switch {
			case object == 0:
				d.h = deltaHeader{flags: flagNew, typ: cache.Added}
			case rnd.Intn(4) == 0:
				d.h, d.new, d.old = deltaHeader{flags: flagNew, typ: cache.Deleted}, object, 0
			case rnd.Intn(2) == 0:
				deltas = append(deltas, version{seq: seq, h: deltaHeader{flags: flagNew | flagReplaced, typ: cache.Deleted}, new: object})
				seq++
				d.seq, d.new = seq, int(seq)
				d.h = deltaHeader{flags: flagNew | flagOld | flagReplaced, typ: cache.Updated}
			default:
				d.h = deltaHeader{flags: flagNew | flagOld, typ: cache.Updated}
			}
			deltas = append(deltas, d)
			if object = d.new; d.h.typ == cache.Deleted {
				object = 0
			}
		}
		var deletions []version
		for _, d := range deltas {
			if d.h.typ == cache.Deleted {
				deletions = append(deletions, d)
			}
		}
		all := slices.Clone(deltas)
		for range 4 {
			from := rnd.Intn(len(deltas))
			to := from + 1 + rnd.Intn(len(deltas)-from)
			deltas = slices.Replace(deltas, from, to, foldVersions(slices.Clone(deltas[from:to]))...)
		}
		plain, durable := 0, 0 // What each handler knows.
		for _, d := range deltas {
			replaced := d.h.flags&flagReplaced != 0
			switch {
			case d.h.typ != cache.Deleted:
				if d.old != plain {
					t.Fatalf("a plain handler that knows %d is told of %+v\n%+v\nof %+v", plain, d, deltas, all)
				}
				if known := durable; (replaced && known != 0) || (!replaced && d.old != known) {
					t.Fatalf("a durable handler that knows %d is told of %+v\n%+v\nof %+v", known, d, deltas, all)
				}
				plain, durable = d.new, d.new
			case replaced: // A plain handler is told of the update only.
				durable = 0
			default:
				plain, durable = 0, 0
			}
		}
		if plain != object || durable != object {
			t.Fatalf("the handlers know %d and %d, there is %d: %+v\nof %+v", plain, durable, object, deltas, all)
		}
		deltas = slices.DeleteFunc(deltas, func(d version) bool { return d.h.typ != cache.Deleted })
		if !slices.EqualFunc(deltas, deletions, func(a, b version) bool { return a.seq == b.seq && a.new == b.new }) {
			t.Fatalf("the deletions are %+v\nof %+v", deltas, all)
		}
	}
}
