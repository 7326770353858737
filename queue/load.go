package queue

import (
	"errors"
	"iter"
	"slices"
	"strings"

	"github.com/warmwatch/warmwatch/persist"
)

// loading collects the damage that load finds.
type loading struct {
	garbage []entry // To be removed.
	lost    bool    // Deltas are lost, and it is not known which.
	// stateLost says that the state cannot be read.
	stateLost bool
}

type entry struct {
	bucket persist.Bucket
	key    string
}

// load reads what an earlier process has stored. Damage affects only the consumers of
// what is damaged: see loadRuns for deltas and loadCursors for cursors.
func (q *Log) load() error {
	s, err := q.db.Snapshot(q.deltas.Space)
	if err != nil {
		return err
	}
	defer s.Close()
	var l loading
	if err := q.loadRuns(s, &l); err != nil {
		return err
	}
	var st *logState
	_, err = s.View(stateBucket, stateKey, func(it *persist.Item) (err error) { st, err = persist.ReadJSON[logState](it); return err })
	if err != nil {
		if !errors.Is(err, persist.ErrCorrupt) {
			return err
		}
		q.reportDamage(err, "Could not read what the log has, believing what is there")
		st, l.stateLost = nil, true
	}
	if st != nil {
		q.compareRuns(st, &l)
	} else if err := q.loadHead(s, &l); err != nil {
		return err
	}
	if err := q.loadCursors(s, st, &l); err != nil {
		return err
	}
	if err := q.loadAside(s); err != nil {
		return err
	}
	s.Close() // The Update below may wait for a commit, and a commit for the snapshot.
	for seq := range q.runs.seqs() {
		q.total.add(seq)
	}
	q.total.Last = max(q.total.Last, q.head)
	q.writtenState = st
	q.tailBase, q.loadedHead = q.head, q.head
	q.noteHeadLocked(q.db.Applied()) // Batches of a log that was just stopped may not be durable.
	q.measureLocked()
	_, some := q.runs.last()
	waits := q.durableHead < q.head && some
	if q.aside.rewrite {
		defer q.db.Kick()
	}
	if len(l.garbage) == 0 && !waits {
		return nil
	}
	_, err = q.db.Update(func(b *persist.Batch) {
		if waits {
			b.Urgent()
		}
		for _, e := range l.garbage {
			b.Delete(e.bucket, e.key)
		}
	})
	return err
}

// TellAgain has the handlers of durable names for whom deltas wait told everything again: the
// deletions among them, and all objects; or if all, those of every durable name that is known. It is called
// before the handlers are told anything.
func (q *Log) TellAgain(all bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for name, c := range q.absent {
		if n, _ := q.behindLocked(c.Seq); n > 0 || all {
			c.MayKnow, c.InitialPending = c.knows(), true
			q.absent[name] = c
		}
	}
	for c := range q.consumers {
		n, _ := q.behindLocked(c.cursor.Load())
		if c.durable && !c.isNew && (all || n > 0 && c.Known) {
			c.startLocked(cursor{Seq: c.cursor.Load(), InitialPending: true})
		}
	}
}

// reportDamage reports damage that load repairs.
func (q *Log) reportDamage(err error, what string, keysAndValues ...any) {
	q.onCorrupt(err)
	q.logger.Error(err, what, keysAndValues...)
}

// loadRuns adds to runs the Seqs of all deltas and tombstones. A Seq that has only a
// tombstone had a delta, which is lost.
func (q *Log) loadRuns(s *persist.Snapshot, l *loading) error {
	var deletions runs
	parseSeq := func(bucket persist.Bucket, key string) (seq uint64, ok bool) {
		seq, err := parseDeltaKey(key)
		if err != nil {
			q.reportDamage(&persist.CorruptError{Bucket: bucket, Key: key, Err: err}, "Removing what is no delta")
			l.garbage = append(l.garbage, entry{bucket, key})
		}
		return seq, err == nil
	}
	err := s.Scan(tombstonesBucket, "", func(it *persist.Item) (bool, error) {
		if seq, ok := parseSeq(q.tombstones, it.Key); ok {
			deletions.add(run{from: seq, to: seq, deletions: true})
		}
		return true, nil
	})
	if err != nil {
		return err
	}
	next, stop := iter.Pull(deletions.seqs())
	defer stop()
	tombstoneSeq, more := next()
	addTombstone := func() {
		q.runs.add(run{from: tombstoneSeq, to: tombstoneSeq, deletions: true})
		tombstoneSeq, more = next()
	}
	err = s.Scan(deltasBucket, "", func(it *persist.Item) (bool, error) {
		seq, ok := parseSeq(q.deltas, it.Key)
		if !ok {
			return true, nil
		}
		for more && tombstoneSeq < seq {
			addTombstone()
		}
		deletion := more && tombstoneSeq == seq
		if deletion {
			tombstoneSeq, more = next()
		}
		q.runs.add(run{from: seq, to: seq, bytes: int64(it.SizeBytes()), deletions: deletion})
		return true, nil
	})
	for more {
		addTombstone()
	}
	return err
}

// compareRuns compares runs with the state that the last commit has stored. Seqs above
// its last one were never stored, so they are damage and are removed.
func (q *Log) compareRuns(st *logState, l *loading) {
	for last, some := q.runs.last(); some && last > st.Last; last, some = q.runs.last() {
		q.dropLast(last, errors.New("no delta has such a number"), l)
	}
	var found total
	for seq := range q.runs.seqs() {
		found.add(seq)
	}
	if l.lost = found.Count != st.Count || found.Digest != st.Digest; l.lost {
		err := &persist.CorruptError{Bucket: q.deltas, Err: errors.New("deltas are lost")}
		q.reportDamage(err, "The log is not whole, handlers are told everything again", "found", found.Count, "expected", st.Count)
	}
	q.head = max(q.head, st.Last)
}

// dropLast drops the delta of seq, the last one, because it is damage or unreadable.
func (q *Log) dropLast(seq uint64, err error, l *loading) {
	key := deltaKey(seq)
	q.reportDamage(&persist.CorruptError{Bucket: q.deltas, Key: key, Err: err}, "Could not read a delta, removing it", "seq", seq)
	l.garbage = append(l.garbage, entry{q.deltas, key}, entry{q.tombstones, key})
	q.runs.remove([]uint64{seq})
}

// loadHead takes the head from the last delta, if there is no state. It believes a number
// only if the value's checksum matches, because a damaged key may be a number so great
// that none is left above it. Deltas that it does not believe count as lost.
func (q *Log) loadHead(s *persist.Snapshot, l *loading) error {
	for last, some := q.runs.last(); some; last, some = q.runs.last() {
		check := func(it *persist.Item) (err error) {
			if it.Value == nil {
				_, err = it.Payload()
			}
			return err
		}
		var err error
		for _, bucket := range []string{deltasBucket, tombstonesBucket} {
			var found bool
			if found, err = s.View(bucket, deltaKey(last), check); err == nil && found {
				q.head = max(q.head, last)
				return nil
			}
			if err != nil && !errors.Is(err, persist.ErrCorrupt) {
				return err
			}
		}
		q.dropLast(last, errors.Join(err, errors.New("it cannot be read")), l)
		l.lost = true
	}
	return nil
}

// loadCursors reads the cursors. A handler whose cursor is damaged or missing is told
// everything again, deletions included. The state has the keys of all cursors, and so the
// names. If the state is lost too, or the file was damaged, a cursor may be missing, or the key of a
// damaged one be damaged as well: then every handler with a new name is told of the deletions too.
func (q *Log) loadCursors(s *persist.Snapshot, st *logState, l *loading) error {
	var bad []string
	err := s.Scan(cursorsBucket, "", func(it *persist.Item) (bool, error) {
		c, err := persist.ReadJSON[cursor](it)
		if err != nil {
			if !errors.Is(err, persist.ErrCorrupt) {
				return false, err
			}
			q.reportDamage(err, "Could not read a cursor, its handler is told everything again", "cursor", it.Key)
			bad = append(bad, it.Key)
			return true, nil
		}
		q.storedCursors[it.Key] = *c
		q.head = max(q.head, c.Seq)
		return true, nil
	})
	if err != nil {
		return err
	}
	lost := bad
	if st != nil {
		lost = nil
		for _, key := range st.Cursors {
			if _, ok := q.storedCursors[string(key)]; ok {
				continue
			}
			lost = append(lost, string(key))
			if !slices.Contains(bad, string(key)) {
				err := &persist.CorruptError{Bucket: q.cursors, Key: string(key), Err: errors.New("it is lost")}
				q.reportDamage(err, "A cursor is lost, its handler is told everything again", "cursor", string(key))
			}
		}
	}
	for _, key := range bad {
		if !slices.Contains(lost, key) || !strings.HasPrefix(key, durablePrefix) {
			l.garbage = append(l.garbage, entry{q.cursors, key})
		}
	}
	q.nameLost = l.stateLost || st == nil && len(bad)+len(q.storedCursors) > 0
	for key, c := range q.storedCursors {
		if name, ok := strings.CutPrefix(key, durablePrefix); ok {
			c.MayKnow = c.MayKnow || l.lost
			c.InitialPending = c.InitialPending || l.lost && c.Seq < q.head
			q.absent[name] = c
		}
	}
	for _, key := range lost {
		if name, ok := strings.CutPrefix(key, durablePrefix); ok {
			q.absent[name] = cursor{InitialPending: true, MayKnow: true}
		}
	}
	return nil
}
