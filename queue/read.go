package queue

import (
	"cmp"
	"errors"
	"slices"

	"github.com/warmwatch/warmwatch/persist"
)

// read returns the stored deltas with a Seq above after and up to limit, as many
// as one read returns. A delta that cannot be read has only its Seq.
func (q *Log) read(after, limit uint64) ([]Delta, error) {
	s, err := q.db.Snapshot(q.deltas.Space)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	ds, _, err := q.readFrom(s, nil, after, limit)
	return ds, err
}

// readFrom is read from a snapshot, into the memory of ds. It also returns the Seq up to which it has read all.
func (q *Log) readFrom(s *persist.Snapshot, ds []Delta, after, limit uint64) (_ []Delta, upTo uint64, err error) {
	size, upTo := 0, limit
	ds = ds[:0]
	err = s.Scan(deltasBucket, deltaKey(after+1), func(it *persist.Item) (bool, error) {
		seq, err := parseDeltaKey(it.Key)
		if err != nil {
			return true, nil // load removes it.
		}
		if seq > limit {
			return false, nil
		}
		if len(ds) == deltasPerRead || size > maxReadBytes {
			upTo = ds[len(ds)-1].Seq
			return false, nil
		}
		d, err := q.readDelta(seq, it)
		if err != nil {
			q.reportDelta(seq, err)
			d = Delta{Seq: seq}
		}
		size += d.SizeBytes
		ds = append(ds, d)
		return true, nil
	})
	return ds, upTo, err
}

// reportDelta reports once that a delta is damaged: each consumer reads it, also after the damage was repaired.
func (q *Log) reportDelta(seq uint64, err error) {
	if _, reported := q.reported.LoadOrStore(seq, struct{}{}); reported {
		return
	}
	q.onCorrupt(err)
	q.logger.V(4).Info("Could not read a delta", "seq", seq, "err", err)
}

func (q *Log) readDelta(seq uint64, it *persist.Item) (Delta, error) {
	d, encoded, err := storedDelta(it)
	switch {
	case err != nil:
		return Delta{}, err
	case d != nil && seq <= q.loadedHead: // Its objects may be of another type.
		return *d, d.checkTypes(q.newObject)
	case d != nil:
		return *d, nil
	}
	return parseDelta(seq, encoded, q.newObject)
}

// readUndelivered is readFrom, but replaces lost deletions by their tombstones and
// leaves out other lost deltas: the initial list covers additions and updates.
func (q *Log) readUndelivered(s *persist.Snapshot, ds []Delta, after, limit uint64) (_ []Delta, upTo uint64, err error) {
	if ds, upTo, err = q.readFrom(s, ds, after, limit); err != nil {
		return nil, 0, err
	}
	has := func(seq uint64) (int, bool) {
		return slices.BinarySearchFunc(ds, seq, func(d Delta, seq uint64) int { return cmp.Compare(d.Seq, seq) })
	}
	found := 0
	err = s.Scan(tombstonesBucket, deltaKey(after+1), func(it *persist.Item) (bool, error) {
		seq, err := parseDeltaKey(it.Key)
		if err != nil {
			return true, nil
		}
		if seq > upTo {
			return false, nil
		}
		i, there := has(seq)
		if there && ds[i].Type != "" {
			return true, nil
		}
		if found == deltasPerRead {
			upTo = seq - 1
			ds = slices.DeleteFunc(ds, func(d Delta) bool { return d.Seq > upTo })
			return false, nil
		}
		found++
		t, err := persist.ReadJSON[tombstone](it)
		if err != nil {
			q.onCorrupt(err)
			q.logger.Error(err, "Could not read a tombstone either, a deletion is lost", "seq", seq)
			return true, nil
		}
		d := t.delta(seq, q.newObject)
		if there {
			ds[i] = d
		} else {
			ds = slices.Insert(ds, i, d)
		}
		return true, nil
	})
	return slices.DeleteFunc(ds, func(d Delta) bool { return d.Type == "" }), upTo, err
}

// readStored fills buf from the DB with deltas after at, up to limit. If there are none,
// it moves the cursor past them. If the first of them is lost, it leaves the cursor and
// returns ErrLost.
func (c *Consumer) readStored(at, limit uint64, undelivered bool) error {
	q := c.q
	s, err := q.db.Snapshot(q.deltas.Space)
	if err != nil {
		return err
	}
	defer s.Close()
	var upTo uint64
	if undelivered {
		c.buf, upTo, err = q.readUndelivered(s, c.buf, at, limit)
	} else {
		c.buf, upTo, err = q.readFrom(s, c.buf, at, limit)
	}
	if err != nil {
		return err
	}
	if !undelivered {
		q.mu.Lock()
		seq, lost := q.lostLocked(c.buf, at, upTo)
		closed := c.closed
		q.mu.Unlock()
		if lost && closed { // A removed consumer does not hold its deltas any more.
			return ErrStopped
		}
		if lost && c.restartable() {
			c.buf = slices.DeleteFunc(c.buf, func(d Delta) bool { return d.Seq >= seq })
			upTo = seq - 1
			if len(c.buf) == 0 {
				c.restart(seq)
				return ErrLost
			}
		}
		c.buf = slices.DeleteFunc(c.buf, func(d Delta) bool { return d.Type == "" })
	}
	if len(c.buf) == 0 {
		c.cursor.Store(upTo)
	}
	return nil
}

// restartable reports whether the consumer's handler can be told everything again.
// Pop's caller cannot.
func (c *Consumer) restartable() bool { return c.durable || c.name == "" }

// restart notes, durably with the next commit, that the consumer has to be told
// everything again, because the delta of seq is lost.
func (c *Consumer) restart(seq uint64) {
	q := c.q
	q.mu.Lock()
	c.initialPending.Store(true)
	c.startsOver, c.retellTo, c.initialList.done = true, 0, false
	q.mu.Unlock()
	q.logger.Error(nil, "A delta is lost, a handler is told everything again", "seq", seq, "consumer", c.name)
	q.reportDelta(seq, &persist.CorruptError{Bucket: q.deltas, Key: deltaKey(seq), Err: errors.New("it is lost")})
}
