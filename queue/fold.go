package queue

import (
	"errors"
	"slices"

	"github.com/warmwatch/warmwatch/persist"
)

// Folding bounds what is stored for a consumer that does not read. Past MaxBacklogBytes
// the stored deltas of each key become one, with the old object of the first and the new
// object of the last. Deletions stay:
//
//	Updated a→b, Updated b→c          Updated a→c
//	Added a, Updated a→b              Added b
//	Updated a→b, Deleted b            Deleted b
//	Deleted a, Added b, Updated b→c   Deleted a, Added c
//	Deleted a, Added b, Deleted b     Deleted a, Deleted b
//
// The deletion of b in the last line could be removed if nobody was told of b. But a
// process that crashed before the cursor was in the file may have told a consumer.
//
// A pass reads the stored deltas that are not in the tail, in chunks, and notes which
// each key has; it decodes none, and copies the objects of two at a time. It folds no
// delta that a consumer was given with one that it was not. Boundaries are the
// consumer's cursor, the stored cursor, to which a crash takes it back, and the Seqs of
// initial lists, see foldLimits. Each fold is in one batch.
const (
	// foldMembers is how many deltas of a key are folded at once.
	foldMembers = 256
	// foldChunkBytes is about what one read transaction reads.
	foldChunkBytes = 1 << 20
	// foldBatchOps and foldBatchBytes are about what one batch changes.
	foldBatchOps, foldBatchBytes = 512, 1 << 20
	// No pass is due before the backlog has grown by this factor since the last one, or
	// since the backlog was least after it.
	foldGrowth = 2
	// A pass is also due when this much waits in memory for a commit; if none has
	// failed, when it is foldPendingMaxBytes, whatever the DB's MaxPendingBytes.
	foldPendingBytes    = 8 << 20
	foldPendingMaxBytes = 32 << 20
)

// folding is guarded by q.mu.
type folding struct {
	max              int64 // MaxBacklogBytes; negative: none.
	at, pendingAt    int64 // Sizes of backlog and pending past which a pass is due.
	backlog, pending int64 // Bytes of all runs, and of deltas in them that are not durable.
	running          bool
	stopped          bool
	epoch            uint64 // How often something was folded.
}

// measureLocked computes backlog and pending anew from runs. If they have shrunk, the
// next pass is due earlier.
func (q *Log) measureLocked() {
	f := &q.folding
	f.backlog = q.bytesBehindLocked(0)
	f.at = min(f.at, foldGrowth*f.backlog)
	q.measurePendingLocked()
}

func (q *Log) measurePendingLocked() {
	f := &q.folding
	f.pending = q.bytesBehindLocked(q.durableHead)
	f.pendingAt = min(f.pendingAt, foldGrowth*f.pending)
}

// bytesBehindLocked returns about how many bytes the deltas in runs above seq take.
func (q *Log) bytesBehindLocked(seq uint64) (bytes int64) {
	for _, n := range q.runs.sizes(seq) {
		bytes += n
	}
	return bytes
}

// foldIfDueLocked starts a pass if one is due. It ends by itself; Stop waits for it.
func (q *Log) foldIfDueLocked() {
	f := &q.folding
	if f.running || f.stopped || f.max < 0 || (f.backlog <= max(f.at, f.max) && f.pending <= max(f.pendingAt, foldPendingBytes)) {
		return
	}
	f.running = true
	q.folder.Go(q.fold)
}

// fold makes one pass.
func (q *Log) fold() {
	healthy := q.db.Err() == nil
	q.mu.Lock()
	if f := &q.folding; healthy && f.backlog <= max(f.at, f.max) && f.pending < foldPendingMaxBytes {
		f.pendingAt, f.running = f.pending+foldPendingBytes, false
		q.mu.Unlock()
		return
	}
	q.mu.Unlock()
	p := &foldPass{q: q, groups: foldGroups{}}
	err := p.run()
	q.mu.Lock()
	defer q.mu.Unlock()
	f := &q.folding
	before := f.backlog
	q.measureLocked()
	f.at, f.pendingAt, f.running = foldGrowth*f.backlog, foldGrowth*f.pending, false
	if err != nil && !errors.Is(err, persist.ErrClosed) {
		q.logger.Error(err, "Could not fold the deltas that wait")
	} else if p.removed > 0 {
		q.logger.V(2).Info("Deltas that wait were folded", "removed", p.removed, "bytesBefore", before, "bytes", f.backlog)
	}
}

// A foldPass is used by one goroutine.
type foldPass struct {
	q       *Log
	limits  foldLimits // As of its begin.
	groups  foldGroups
	ops     []foldOp
	opCount int
	opBytes int
	removed uint64
}

// run folds each segment between two positions of consumers.
func (p *foldPass) run() error {
	q := p.q
	q.mu.Lock()
	limits, ok := q.foldLimitsLocked()
	at, upTo := q.floorLocked(), q.tailBase
	spans := append(limits.spans, span{q.durableHead, q.durableHead}) // A durable delta must not become part of one that is not.
	q.mu.Unlock()
	if !ok {
		return nil
	}
	p.limits = limits
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
	for _, g := range p.groups.inOrder() {
		if err := p.finish(g); err != nil {
			return err
		}
	}
	clear(p.groups)
	return nil
}

func (q *Log) isStopped() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.folding.stopped
}

// note reads a chunk of deltas into groups, and returns the Seq up to which it has read.
// It finishes the groups that later deltas cannot join.
func (p *foldPass) note(after, end uint64) (upTo uint64, err error) {
	s, err := p.q.db.Snapshot(p.q.deltas.Space)
	if err != nil {
		return 0, err
	}
	defer s.Close()
	upTo = end
	bytes, full := 0, false
	var ended []*foldGroup
	err = s.Scan(deltasBucket, deltaKey(after+1), func(it *persist.Item) (bool, error) {
		seq, err := parseDeltaKey(it.Key)
		if err != nil {
			return true, nil
		}
		if seq > end {
			return false, nil
		}
		h, err := readHeader(it)
		if err == nil { // Else the consumer that reads it reports it.
			g := p.groups.add(seq, h, &p.limits)
			full = len(g.members) >= foldMembers && !g.isReplacing
			if full || g.isOver() {
				p.groups.remove(g)
				ended = append(ended, g)
			}
		}
		if bytes += it.SizeBytes(); bytes > foldChunkBytes || full {
			upTo = seq
			return false, nil
		}
		return true, nil
	})
	s.Close()
	for _, g := range ended {
		if err == nil {
			err = p.finish(g)
		}
	}
	return upTo, err
}

// finish adds the fold of a group, if there is anything to fold, to the next batch.
func (p *foldPass) finish(g *foldGroup) error {
	op := foldOp{key: g.key, members: g.members, keep: g.deletions}
	if g.result.last != 0 {
		op.keep = append(op.keep, g.result.last) // After all deletions: keep stays sorted.
	}
	if len(op.members) <= len(op.keep) || g.isReplacing {
		return nil
	}
	if g.result.changed {
		s, err := p.q.db.Snapshot(p.q.deltas.Space)
		if err != nil {
			return err
		}
		err = op.join(s, g.result)
		s.Close()
		if err != nil { // The deltas stay: the consumer that reads them reports what is wrong.
			p.q.logger.V(4).Info("Could not fold the deltas of an object", "key", g.key, "err", err)
			return nil
		}
	}
	p.ops = append(p.ops, op)
	p.opCount += len(op.members)
	p.opBytes += len(op.last)
	if p.opCount < foldBatchOps && p.opBytes < foldBatchBytes {
		return nil
	}
	return p.apply()
}

// apply applies the waiting folds in one batch, but not those that the position of a
// consumer crosses by now.
func (p *foldPass) apply() error {
	if len(p.ops) == 0 {
		return nil
	}
	q := p.q
	_, err := q.db.Update(func(b *persist.Batch) {
		q.mu.Lock()
		defer q.mu.Unlock()
		limits, ok := q.foldLimitsLocked()
		if !ok || q.folding.stopped {
			return
		}
		floor, folded := q.floorLocked(), false
		var removed []uint64
		for _, op := range p.ops {
			first, last := op.members[0], op.members[len(op.members)-1]
			if first <= floor || limits.crosses(op.key, first, last) {
				continue
			}
			folded = true
			for _, seq := range op.members {
				if _, stays := slices.BinarySearch(op.keep, seq); !stays {
					q.removeDeltaLocked(b, seq, false) // All deletions stay.
					removed = append(removed, seq)
				}
			}
			if op.last != nil {
				b.Put(q.deltas, deltaKey(op.keep[len(op.keep)-1]), op.last)
			}
		}
		if folded {
			q.folding.epoch++
		}
		slices.Sort(removed)
		q.runs.remove(removed)
		p.removed += uint64(len(removed))
	})
	p.ops, p.opCount, p.opBytes = nil, 0, 0
	return err
}
