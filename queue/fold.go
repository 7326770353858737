package queue

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/persist"
)

// Folding bounds what waits for a consumer that does not read: past MaxBacklogBytes,
// the stored deltas of one key become one, with the first one's old object and the
// last one's new one, but for deletions, which stay:
//
//	Updated a→b, Updated b→c          Updated a→c
//	Added a, Updated a→b              Added b
//	Updated a→b, Deleted b            Deleted b
//	Deleted a, Added b, Updated b→c   Deleted a, Added c
//	Deleted a, Added b, Deleted b     Deleted a, Deleted b
//
// The last of these might go as well, if nobody was told of b. But a consumer may have
// been, by a process that crashed before its cursor was in the file.
//
// A pass goes over the stored deltas that are not in the tail, in chunks, and notes
// for each key which there are; contents are only read of two deltas at a time. It
// folds no delta that a consumer has been given with one that it has not: neither by
// the consumer's cursor, nor by the one that the file has, to which a crash takes it
// back. Each fold is in one batch.
const (
	// foldMembers of one key are folded at most at once.
	foldMembers = 256
	// foldChunkBytes are read in one transaction.
	foldChunkBytes = 1 << 20
	// foldBatchOps and foldBatchBytes are changed in one batch.
	foldBatchOps, foldBatchBytes = 512, 1 << 20
	// A pass that gained little is not repeated before the backlog has grown by this
	// factor.
	foldGrowth = 2
	// So much is folded while it waits in memory for a commit. If none has failed it
	// may be more, because MaxPendingBytes of the DB are none of ours.
	foldPendingBytes    = 8 << 20
	foldPendingMaxBytes = 32 << 20
)

// folding is guarded by q.mu.
type folding struct {
	max              int64 // MaxBacklogBytes; negative: none.
	at, pendingAt    int64 // When the next pass is due.
	backlog, pending int64 // Bytes of runs; of those that are not durable.
	running          bool
	stopped          bool
	folded           uint64 // Deltas that are gone by it.
}

// measureLocked computes from runs what is otherwise kept up to date.
func (q *DeltaFIFO) measureLocked() {
	q.folding.backlog, q.folding.pending = 0, 0
	for _, r := range q.runs {
		q.folding.backlog += r.bytes
	}
	q.measurePendingLocked()
}

func (q *DeltaFIFO) measurePendingLocked() {
	q.folding.pending = q.bytesBehindLocked(q.durableHead)
}

// bytesBehindLocked is about what the stored deltas behind seq take, but for those in
// the tail.
func (q *DeltaFIFO) bytesBehindLocked(seq uint64) (n int64) {
	for _, r := range q.runs[q.runAfterLocked(seq):] {
		_, rest := r.cut(seq)
		n += rest.bytes
	}
	return n
}

// foldIfDueLocked starts a pass if one is due. It ends by itself; Stop waits for it.
func (q *DeltaFIFO) foldIfDueLocked() {
	f := &q.folding
	if f.running || f.stopped || f.max < 0 || (f.backlog <= max(f.at, f.max) && f.pending <= max(f.pendingAt, foldPendingBytes)) {
		return
	}
	f.running = true
	q.folder.Go(q.fold)
}

// fold makes one pass.
func (q *DeltaFIFO) fold() {
	healthy := q.db.Err() == nil
	q.mu.Lock()
	if f := &q.folding; healthy && f.backlog <= max(f.at, f.max) && f.pending < foldPendingMaxBytes {
		f.pendingAt, f.running = f.pending+foldPendingBytes, false
		q.mu.Unlock()
		return
	}
	q.mu.Unlock()
	p := &foldPass{q: q, groups: map[string]*foldGroup{}}
	err := p.run()
	q.mu.Lock()
	defer q.mu.Unlock()
	f := &q.folding
	before := f.backlog
	q.measureLocked()
	f.at, f.pendingAt, f.running = foldGrowth*f.backlog, foldGrowth*f.pending, false
	f.folded += p.removed
	if err != nil && !errors.Is(err, persist.ErrClosed) {
		q.log.Error(err, "Could not fold the deltas that wait")
	} else if p.removed > 0 {
		q.log.V(2).Info("Deltas that wait were folded", "removed", p.removed, "bytesBefore", before, "bytes", f.backlog)
	}
}

// A foldPass is used by one goroutine.
type foldPass struct {
	q       *DeltaFIFO
	groups  map[string]*foldGroup
	ops     []foldOp
	opCount int
	opBytes int
	removed uint64
}

// foldGroup is what a pass knows of one key: what is left of its deltas, and which
// there are.
type foldGroup struct {
	members   []uint64
	deletions []uint64 // Among members.
	// cur is what follows the last one: the old object is first's, the new one last's.
	cur foldCur
	// replaced is what was before a Replaced deletion, whose update comes next.
	replaced    foldCur
	isReplacing bool
}

type foldCur struct {
	first, last uint64 // 0: there is none.
	flags       byte   // Of the result.
	typ         cache.DeltaType
	changed     bool // It is not as last is.
}

// rawDelta is the persist.Value of a delta that is encoded.
type rawDelta []byte

func (v rawDelta) SizeBytes() int                      { return len(v) }
func (v rawDelta) AppendTo(dst []byte) ([]byte, error) { return append(dst, v...), nil }

// span is what a consumer may have been given, and may be given again.
type span struct{ from, to uint64 }

// foldSpansLocked returns where consumers are, or nothing if nothing may be folded.
func (q *DeltaFIFO) foldSpansLocked() (spans []span, ok bool) {
	stored := func(key string, at uint64) uint64 {
		if c, found := q.stored[key]; found {
			return min(at, c.Seq)
		}
		return at
	}
	for c := range q.consumers {
		at, key := c.cursor.Load(), plainCursor
		if c.name != "" {
			if !c.durable { // Pop counts.
				return nil, false
			}
			key = durablePrefix + c.name
		}
		spans = append(spans, span{stored(key, at), max(at, c.readTo)})
	}
	for name, at := range q.absent {
		if name == popName {
			return nil, false
		}
		spans = append(spans, span{stored(durablePrefix+name, at.Seq), max(at.Seq, q.absentTo[name])})
	}
	if c, found := q.stored[plainCursor]; found {
		spans = append(spans, span{c.Seq, c.Seq})
	}
	if q.floorSet {
		spans = append(spans, span{q.plainFloor, q.plainFloor})
	}
	if q.orphans.held {
		spans = append(spans, span{q.orphans.after, q.orphans.after}, span{q.orphans.to, q.orphans.to})
	}
	return spans, true
}

// touches reports whether a fold of the deltas from first to last would mix what
// a consumer was given with what it was not.
func (s span) touches(first, last uint64) bool { return first <= s.to && last > s.from }

// run goes over the segments between the places where consumers are.
func (p *foldPass) run() error {
	q := p.q
	q.mu.Lock()
	spans, ok := q.foldSpansLocked()
	at, upTo := q.floorLocked(), q.tailBase
	spans = append(spans, span{q.durableHead, q.durableHead}) // What is durable need not wait for what is not.
	q.mu.Unlock()
	if !ok {
		return nil
	}
	ends := []uint64{upTo}
	for _, s := range spans {
		ends = append(ends, min(s.from, upTo), min(s.to, upTo))
	}
	slices.Sort(ends)
	for _, end := range slices.Compact(ends) {
		if end <= at {
			continue
		}
		if !slices.ContainsFunc(spans, func(s span) bool { return s.from <= at && s.to >= end }) {
			if err := p.segment(at, end); err != nil {
				return err
			}
		}
		at = end
	}
	return p.apply()
}

func (p *foldPass) segment(at, end uint64) error {
	for at < end {
		next, err := p.note(at, end)
		if err != nil {
			return err
		}
		if p.q.isStopped() {
			return persist.ErrClosed
		}
		at = next
	}
	for key, g := range p.groups {
		if err := p.finish(key, g); err != nil {
			return err
		}
	}
	clear(p.groups)
	return nil
}

func (q *DeltaFIFO) isStopped() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.folding.stopped
}

// note reads some deltas, and returns how far.
func (p *foldPass) note(after, end uint64) (upTo uint64, err error) {
	s, err := p.q.db.Snapshot(p.q.deltas.Space)
	if err != nil {
		return 0, err
	}
	defer s.Close()
	upTo = end
	bytes := 0
	var full []string
	err = s.Scan(deltasBucket, deltaKey(after+1), func(it *persist.Item) (bool, error) {
		seq, err := parseDeltaKey(it.Key)
		if err != nil {
			return true, nil
		}
		if seq > end {
			return false, nil
		}
		h, err := readHead(it)
		if err == nil { // Else whoever reads it will say so.
			if h.key == "" {
				h.key = string(h.rawKey)
			}
			g := p.groups[h.key]
			if g == nil {
				g = new(foldGroup)
				p.groups[h.key] = g
			}
			g.add(seq, h)
			if len(g.members) == foldMembers && !g.isReplacing {
				full = append(full, h.key)
			}
		}
		if bytes += it.SizeBytes(); bytes > foldChunkBytes || len(full) > 0 {
			upTo = seq
			return false, nil
		}
		return true, nil
	})
	s.Close()
	for _, key := range full {
		g := p.groups[key]
		delete(p.groups, key)
		if err == nil {
			err = p.finish(key, g)
		}
	}
	return upTo, err
}

// head is all of a delta but its objects.
type head struct {
	flags  byte
	typ    cache.DeltaType
	key    string
	rawKey []byte // Instead of key, valid as long as the item.
}

func readHead(it *persist.Item) (head, error) {
	if v, inMemory := it.Value.(deltaValue); inMemory {
		return head{flags: v.flags(), typ: v.Type, key: v.Key}, nil
	}
	payload, inMemory := it.Value.(rawDelta)
	if !inMemory {
		var err error
		if payload, err = it.Payload(); err != nil {
			return head{}, err
		}
	}
	h, _, _, err := cutDelta(payload)
	return h, err
}

// cutDelta cuts what AppendTo made into its parts.
func cutDelta(p []byte) (h head, oldRecord, newRecord []byte, err error) {
	if len(p) == 0 {
		return h, nil, nil, errMalformed
	}
	h.flags = p[0]
	typ, p, err := cutBytes(p[1:])
	if err != nil {
		return h, nil, nil, err
	}
	if h.rawKey, p, err = cutBytes(p); err != nil {
		return h, nil, nil, err
	}
	h.typ = cache.DeltaType(typ)
	if h.flags&flagOld != 0 {
		if len(p) < 4 {
			return h, nil, nil, errMalformed
		}
		n := binary.BigEndian.Uint32(p)
		if uint64(n) > uint64(len(p)-4) {
			return h, nil, nil, errMalformed
		}
		oldRecord, p = p[4:4+n], p[4+n:]
	}
	if h.flags&flagNew != 0 {
		newRecord = p
	}
	return h, oldRecord, newRecord, nil
}

// add notes the next delta of the key.
func (g *foldGroup) add(seq uint64, h head) {
	g.members = append(g.members, seq)
	replaced := h.flags&flagReplaced != 0
	if h.typ == cache.Deleted {
		g.deletions = append(g.deletions, seq)
		g.isReplacing, g.replaced, g.cur = replaced, g.cur, foldCur{}
		return
	}
	before, next := g.cur, foldCur{first: seq, last: seq, flags: h.flags, typ: h.typ}
	if g.isReplacing {
		before = g.replaced
	}
	switch {
	case before.last == 0:
	case g.isReplacing && before.flags&flagOld == 0: // Nobody has heard of what was replaced.
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
	g.cur, g.isReplacing, g.replaced = next, false, foldCur{}
}

// finish makes the fold of a group, if there is one, and puts it with the next batch.
func (p *foldPass) finish(key string, g *foldGroup) error {
	op := foldOp{members: g.members, keep: g.deletions}
	if g.cur.last != 0 {
		op.keep = append(op.keep, g.cur.last) // Behind all deletions.
	}
	if len(op.members) <= len(op.keep) || g.isReplacing {
		return nil
	}
	s, err := p.q.db.Snapshot(p.q.deltas.Space)
	if err != nil {
		return err
	}
	defer s.Close()
	if g.cur.changed {
		err = op.join(s, key, g.cur)
	}
	if err != nil { // It stays as it is: who reads it will say what is wrong.
		p.q.log.V(4).Info("Could not fold the deltas of an object", "key", key, "err", err)
		return nil
	}
	s.Close()
	p.ops = append(p.ops, op)
	p.opCount += len(op.members)
	p.opBytes += len(op.last)
	if p.opCount < foldBatchOps && p.opBytes < foldBatchBytes {
		return nil
	}
	return p.apply()
}

// foldOp is one fold: of members only keep stay, and the last of these is now last, if
// that is not nil.
type foldOp struct {
	members, keep []uint64
	last          rawDelta
}

// records lends the parts of a stored delta.
func records(s *persist.Snapshot, seq uint64, use func(h head, oldRecord, newRecord []byte)) error {
	found, err := s.View(deltasBucket, deltaKey(seq), func(it *persist.Item) (err error) {
		payload, encoded := it.Value.(rawDelta)
		if v, inMemory := it.Value.(deltaValue); inMemory {
			d := *v.Delta
			d.NewValue, d.OldValue = nil, nil // The committer's.
			payload, err = deltaValue{&d}.AppendTo(nil)
		} else if !encoded {
			payload, err = it.Payload()
		}
		if err != nil {
			return err
		}
		h, oldRecord, newRecord, err := cutDelta(payload)
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

// join makes one delta of the first one's old object and the last one's new one.
func (op *foldOp) join(s *persist.Snapshot, key string, cur foldCur) error {
	var oldest []byte
	if cur.flags&flagOld != 0 {
		if err := records(s, cur.first, func(_ head, oldRecord, _ []byte) { oldest = slices.Clone(oldRecord) }); err != nil {
			return err
		}
	}
	return records(s, cur.last, func(_ head, _, newRecord []byte) {
		op.last = appendRecords(cur.flags, cur.typ, key, oldest, newRecord)
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

// apply puts the folds that wait into one batch, but for those that a consumer has
// come in between of.
func (p *foldPass) apply() error {
	if len(p.ops) == 0 {
		return nil
	}
	q := p.q
	_, err := q.db.Update(func(b *persist.Batch) {
		q.mu.Lock()
		defer q.mu.Unlock()
		spans, ok := q.foldSpansLocked()
		if !ok || q.folding.stopped {
			return
		}
		floor := q.floorLocked()
		var removed []uint64
		for _, op := range p.ops {
			first, last := op.members[0], op.members[len(op.members)-1]
			if first <= floor || slices.ContainsFunc(spans, func(s span) bool { return s.touches(first, last) }) {
				continue
			}
			for _, seq := range op.members {
				if _, stays := slices.BinarySearch(op.keep, seq); !stays {
					q.removeDeltaLocked(b, seq)
					removed = append(removed, seq)
				}
			}
			if op.last != nil {
				b.Put(q.deltas, deltaKey(op.keep[len(op.keep)-1]), op.last)
			}
		}
		q.removeFromRunsLocked(removed)
		p.removed += uint64(len(removed))
	})
	p.ops, p.opCount, p.opBytes = nil, 0, 0
	return err
}

// removeFromRunsLocked removes Seqs, which are there.
func (q *DeltaFIFO) removeFromRunsLocked(removed []uint64) {
	if len(removed) == 0 {
		return
	}
	slices.Sort(removed)
	from := q.runAfterLocked(removed[0] - 1)
	var kept []run
	i := from
	for ; i < len(q.runs) && len(removed) > 0; i++ {
		r := q.runs[i]
		for len(removed) > 0 && removed[0] <= r.to {
			var head run
			head, r = r.cut(removed[0] - 1)
			if head.from != 0 && head.from <= head.to {
				kept = append(kept, head)
			}
			_, r = r.cut(removed[0])
			removed = removed[1:]
			if r.from > r.to {
				break
			}
		}
		if r.from <= r.to {
			kept = append(kept, r)
		}
	}
	q.runs = slices.Replace(q.runs, from, i, kept...)
}
