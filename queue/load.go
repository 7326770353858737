package queue

import (
	"errors"
	"fmt"
	"slices"

	"github.com/warmwatch/warmwatch/persist"
)

// load reads the deltas and positions of an earlier process, and removes the deltas that nobody needs.
func (q *Log) load() error {
	var garbage []string
	err := q.db.Read(q.deltas.Space, func(s *persist.Snapshot) error {
		last, known, err := q.lastStored(s)
		if known = known && err == nil; err != nil {
			if !errors.Is(err, persist.ErrCorrupt) {
				return err
			}
			q.corrupt(err, "Could not read the state of the queue", "")
		}
		if err := q.loadHandlers(s); err != nil {
			return err
		}
		if garbage, err = q.loadDeltas(s, last, known); err != nil {
			return err
		}
		q.head = max(last, q.stored.last)
		for _, p := range q.names {
			q.head = max(q.head, p.Cursor)
		}
		q.checkPositions(known)
		q.showNamesLocked()
		return nil
	})
	if err != nil {
		return err
	}
	q.tail.base = q.head
	for _, p := range q.names {
		q.showLocked(p)
	}
	return errors.Join(q.repair(), q.removeUnneeded(garbage))
}

func (q *Log) loadHandlers(s *persist.Snapshot) error {
	return s.Scan(HandlersBucket, "", func(it *persist.Item) (bool, error) {
		p := &position{name: it.Key, from: never, why: CauseUnfinished}
		var err error
		switch p.Handled, err = persist.ReadJSON[Handled](it); {
		case err == nil:
		case errors.Is(err, persist.ErrCorrupt):
			q.corrupt(err, "Could not read how far a handler has come, it starts over", it.Key)
			p.StartsOver, p.why = true, CauseDamaged
		default:
			return false, err
		}
		q.names[p.name], q.positions[p] = p, struct{}{}
		return true, nil
	})
}

// loadDeltas finds the deltas up to last, if that is known. All other keys are garbage. A missing delta is found when
// it is to be read.
func (q *Log) loadDeltas(s *persist.Snapshot, last uint64, known bool) (garbage []string, err error) {
	st := &q.stored
	st.first, st.last = 1, 0
	err = s.Scan(DeltasBucket, "", func(it *persist.Item) (bool, error) {
		number, deletes, err := ParseDeltaKey(it.Key)
		if err != nil || known && number > last {
			garbage = append(garbage, it.Key)
			return true, nil
		}
		if st.last < st.first {
			st.first = number
		}
		if st.last = number; deletes {
			st.deletions = append(st.deletions, number)
		}
		for _, p := range q.names {
			if number > p.Cursor && (deletes || !p.StartsOver) {
				p.bytes += int64(it.SizeBytes())
			}
		}
		return true, nil
	})
	return garbage, err
}

// checkPositions makes all handlers start over if the number of the last delta is not known.
func (q *Log) checkPositions(known bool) {
	for _, p := range q.names {
		if !p.StartsOver && !known {
			err := &persist.CorruptError{Bucket: q.deltas, Err: fmt.Errorf("deltas behind %d are lost", p.Cursor)}
			q.corrupt(err, "Could not find all deltas, a handler starts over", p.name)
			p.StartsOver, p.why = true, CauseDamaged
		}
		if !p.StartsOver {
			p.from = p.Cursor
		}
	}
}

// repair stores the positions that start over, because damage was found.
func (q *Log) repair() error {
	if !q.damaged {
		return nil
	}
	return q.db.Update(func(b *persist.Batch) {
		q.putLastLocked(b, q.head)
		for _, p := range q.names {
			q.putLocked(b, p)
		}
	})
}

// corrupt reports damage that load has found.
func (q *Log) corrupt(err error, what string, name string) {
	q.damaged = true
	q.onCorrupt(err)
	q.logger.Error(err, what, "handler", name)
}

// removeUnneeded removes the deltas that nobody needs, and garbage.
func (q *Log) removeUnneeded(garbage []string) error {
	s := &q.stored
	if len(q.names) == 0 && (s.first <= s.last || len(garbage) > 0) {
		err := q.db.Update(func(b *persist.Batch) { b.Drop(q.deltas) })
		s.first, s.last, s.deletions = q.head+1, q.head, nil
		return err
	}
	for keys := range slices.Chunk(garbage, maxTrim) {
		err := q.db.Update(func(b *persist.Batch) {
			for _, key := range keys {
				b.Delete(q.deltas, key)
			}
		})
		if err != nil {
			return err
		}
	}
	for more := true; more; {
		err := q.db.Update(func(b *persist.Batch) {
			q.mu.Lock()
			defer q.mu.Unlock()
			q.trimLocked(b)
			_, all, _ := q.neededLocked()
			more = s.first <= min(all, s.last)
		})
		if err != nil {
			return err
		}
	}
	return nil
}
