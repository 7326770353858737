package queue

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/persist"
)

// foldGroups are the groups of a pass that later deltas may still join.
type foldGroups map[foldGroupID]*foldGroup

// foldGroupID: the deltas of a key on one side, see foldLimits.side, are a group.
type foldGroupID struct {
	key  string
	side uint64
}

// foldGroup has the Seqs of a group's deltas, and what they become.
type foldGroup struct {
	foldGroupID
	members   []uint64
	deletions []uint64 // Among members.
	// result is what the members after the last deletion become.
	result foldResult
	// isReplacing: the last member is a Replaced deletion, whose update comes next.
	// replaced is the result before it, and before those that it follows at once.
	replaced    foldResult
	isReplacing bool
}

// foldResult is a delta with the old object of first and the new object of last.
type foldResult struct {
	first, last uint64 // Seqs; 0: there is none.
	flags       byte
	typ         cache.DeltaType
	changed     bool // The delta differs from last, as it is stored.
}

// add adds a delta to its group.
func (gs foldGroups) add(seq uint64, h deltaHeader, limits *foldLimits) *foldGroup {
	id := foldGroupID{key: h.key}
	if id.key == "" {
		id.key = string(h.rawKey)
	}
	id.side = limits.side(id.key, seq)
	g := gs[id]
	if g == nil {
		g = &foldGroup{foldGroupID: id}
		gs[id] = g
	}
	g.add(seq, h)
	return g
}

func (gs foldGroups) remove(g *foldGroup) { delete(gs, g.foldGroupID) }

// inOrder returns the groups sorted by their first deltas, so that a batch of folds
// changes adjacent runs.
func (gs foldGroups) inOrder() []*foldGroup {
	return slices.SortedFunc(maps.Values(gs), func(a, b *foldGroup) int { return cmp.Compare(a.members[0], b.members[0]) })
}

// isOver reports whether no later delta can be folded with the group's: its last one is
// a deletion, which stays. So a pass knows no more keys than there are objects.
func (g *foldGroup) isOver() bool { return g.result.last == 0 && !g.isReplacing }

func readHeader(it *persist.Item) (deltaHeader, error) {
	d, encoded, err := storedDelta(it)
	if err != nil {
		return deltaHeader{}, err
	}
	if d != nil {
		return deltaHeader{flags: deltaValue{d}.flags(), typ: d.Type, key: d.Key}, nil
	}
	h, _, _, err := cutDelta(encoded)
	return h, err
}

// add notes the next delta of the key.
func (g *foldGroup) add(seq uint64, h deltaHeader) {
	g.members = append(g.members, seq)
	replaced := h.flags&flagReplaced != 0
	if h.typ == cache.Deleted {
		g.deletions = append(g.deletions, seq)
		if !g.isReplacing { // Else an earlier pass has removed the update between two Replaced deletions.
			g.replaced = g.result
		}
		g.isReplacing, g.result = replaced, foldResult{}
		return
	}
	before, next := g.result, foldResult{first: seq, last: seq, flags: h.flags, typ: h.typ}
	if g.isReplacing {
		before = g.replaced
	}
	switch {
	case before.last == 0:
	case g.isReplacing && before.flags&flagOld == 0: // Nobody was told of the replaced object.
		next.flags, next.typ, next.changed = h.flags&flagNew, cache.Added, true
	case g.isReplacing:
		next.first, next.flags, next.typ, next.changed = before.first, flagOld|flagReplaced|h.flags&flagNew, cache.Updated, true
	default:
		next.first, next.changed = before.first, true
		next.flags = before.flags&(flagOld|flagReplaced) | h.flags&flagNew
		if next.typ = before.typ; before.typ == cache.Sync {
			next.typ = h.typ
		}
	}
	g.result, g.isReplacing, g.replaced = next, false, foldResult{}
}

// foldOp is one fold. It removes the members that are not in keep, and replaces the last
// delta in keep by last, if that is not nil.
type foldOp struct {
	key           string
	members, keep []uint64
	last          persist.Bytes // Encoded.
}

// records calls use with the parts of a stored delta, valid during the call.
func records(s *persist.Snapshot, seq uint64, use func(h deltaHeader, oldRecord, newRecord []byte)) error {
	found, err := s.View(deltasBucket, deltaKey(seq), func(it *persist.Item) error {
		d, encoded, err := storedDelta(it)
		if d != nil {
			ours := *d
			ours.NewValue, ours.OldValue = nil, nil // The values belong to the committer.
			encoded, err = deltaValue{&ours}.AppendTo(nil)
		}
		if err != nil {
			return err
		}
		h, oldRecord, newRecord, err := cutDelta(encoded)
		if err == nil {
			use(h, oldRecord, newRecord)
		}
		return err
	})
	if err == nil && !found {
		err = fmt.Errorf("queue: delta %d is gone", seq)
	}
	return err
}

// join encodes result: a delta of the old object of first and the new object of last.
func (op *foldOp) join(s *persist.Snapshot, result foldResult) error {
	var oldest []byte
	if result.flags&flagOld != 0 {
		if err := records(s, result.first, func(_ deltaHeader, oldRecord, _ []byte) { oldest = slices.Clone(oldRecord) }); err != nil {
			return err
		}
	}
	return records(s, result.last, func(_ deltaHeader, _, newRecord []byte) {
		op.last = appendRecords(result.flags, result.typ, op.key, oldest, newRecord)
	})
}

// appendRecords encodes a delta as deltaValue does.
func appendRecords(flags byte, typ cache.DeltaType, key string, oldRecord, newRecord []byte) []byte {
	b := make([]byte, 0, len(oldRecord)+len(newRecord)+len(key)+32)
	b = appendBytes(append(b, flags), []byte(typ))
	b = appendBytes(b, []byte(key))
	if flags&flagOld != 0 {
		b = binary.BigEndian.AppendUint32(b, uint32(len(oldRecord)))
		b = append(b, oldRecord...)
	}
	return append(b, newRecord...)
}
