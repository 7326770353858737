package queue

import (
	"encoding/binary"
	"fmt"

	"github.com/warmwatch/warmwatch/persist"
)

// readStored returns the deltas behind at, up to limit, from the DB. For a durable consumer there may be none yet. If
// the first delta is lost, the consumer starts over.
func (c *Consumer) readStored(at, limit uint64) ([]Delta, error) {
	q, snapshot := c.q, c.q.db.Snapshot
	if c.durable {
		snapshot = q.db.DurableSnapshot
	}
	s, err := snapshot(q.deltas.Space)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	last, _, err := q.lastStored(s)
	if err != nil {
		return nil, c.lost(at+1, err)
	}
	limit = min(limit, last)
	size, next, damage := 0, at+1, error(nil)
	err = s.Scan(DeltasBucket, keyAfter(at), func(it *persist.Item) (bool, error) {
		number, _, err := ParseDeltaKey(it.Key)
		if err != nil || number != next || number > limit {
			return false, nil
		}
		d, err := q.readDelta(number, it)
		if err != nil {
			damage = err
			return false, nil
		}
		c.buf, size, next = append(c.buf, d), size+d.SizeBytes, next+1
		return len(c.buf) < deltasPerRead && size <= maxReadBytes, nil
	})
	if err != nil {
		return nil, err
	}
	if len(c.buf) == 0 && next <= limit {
		return nil, c.lost(next, damage)
	}
	return c.buf, nil
}

// lost makes the consumer start over because a delta is lost. It does nothing if the consumer was stopped: then the
// delta may have been removed.
func (c *Consumer) lost(number uint64, err error) error {
	q := c.q
	select {
	case <-c.stopped:
		return ErrStopped
	default:
	}
	dropped := false
	_, updateErr := q.db.Update(func(b *persist.Batch) {
		q.mu.Lock()
		defer q.mu.Unlock()
		if dropped = c.p.StartsOver; !dropped { // Otherwise too much was pending since ready looked.
			q.startOverLocked(b, c.p, CauseDamaged)
		}
	})
	if updateErr != nil {
		return updateErr
	}
	if !dropped {
		if err == nil {
			err = &persist.CorruptError{Bucket: q.deltas, Err: fmt.Errorf("delta %d is lost", number)}
		}
		q.onCorrupt(err)
		q.logger.Error(err, "Could not read a delta, its handler starts over", "number", number, "handler", c.p.title())
	}
	return ErrStartOver
}

// lastStored returns the number of the last delta that was stored, and whether a snapshot has it.
func (q *Log) lastStored(s *persist.Snapshot) (last uint64, found bool, err error) {
	found, err = s.View(StateBucket, LastKey, func(it *persist.Item) error {
		payload, err := it.Payload()
		if err != nil {
			return err
		}
		if len(payload) != 8 {
			return &persist.CorruptError{Bucket: q.state, Key: LastKey, Err: errMalformed}
		}
		last = binary.BigEndian.Uint64(payload)
		return nil
	})
	return last, found, err
}

// readDelta reads a delta. A deletion comes without its object if another transform has stored another Go type.
func (q *Log) readDelta(number uint64, it *persist.Item) (d Delta, err error) {
	payload, err := it.Payload()
	if err == nil {
		d, err = parseDelta(payload, q.newObject)
	}
	d.Number, d.SizeBytes = number, len(payload)
	if err == nil && d.Type == "" {
		err = errMalformed
	}
	return d, err
}
