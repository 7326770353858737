package queue

import (
	"math"
	"strings"

	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/persist"
)

// ListsPending reports whether a consumer is about to read its initial list. It would take what is
// published meanwhile for something that the list has told.
func (q *Log) ListsPending() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for c := range q.consumers {
		if !c.listBegun && (c.name == "" || c.initialPending.Load()) {
			return true
		}
	}
	return false
}

// Names makes the durable names of another log's space known, which is that of a file that could not
// be had at first. Those that this log does not have get a cursor at the head: their handlers are
// told everything, and what is published from now on. What is set aside for them still is. Names that were
// forgotten meanwhile stay forgotten. Deletions that are published from now on are held for plain consumers
// until ReleaseUndelivered.
func (q *Log) Names(s *persist.Snapshot) error {
	var names []string
	err := s.Scan(cursorsBucket, durablePrefix, func(it *persist.Item) (bool, error) {
		name, ok := strings.CutPrefix(it.Key, durablePrefix)
		if ok {
			names = append(names, name)
		}
		return ok, nil
	})
	if err != nil {
		return err
	}
	objects, panics, err := q.ofOther().readAside(s, func() {})
	if err != nil {
		return err
	}
	written := q.db.Written()
	_, err = q.db.Update(func(b *persist.Batch) {
		q.mu.Lock()
		defer q.mu.Unlock()
		if !q.undelivered.held && !q.undelivered.released {
			q.undelivered = inherited(cursor{Seq: q.head}, q.head)
		}
		for _, name := range names {
			if q.forgotten[name] > written || q.knowsLocked(name) {
				continue
			}
			q.absent[name] = cursor{Seq: q.head, InitialPending: true, MayKnow: true}
			q.storeLocked(b, durablePrefix+name, q.absent[name])
			for _, o := range objects[name] {
				q.putAsideLocked(b, name, o)
			}
			if p, some := panics[name]; some {
				q.putPanicsLocked(b, name, p)
			}
		}
	})
	return err
}

func (q *Log) knowsLocked(name string) bool {
	for c := range q.consumers {
		if c.name == name {
			return true
		}
	}
	_, absent := q.absent[name]
	return absent
}

// ofOther returns a log that reads what another log has in this space. Damage that it finds is not in
// this log's space.
func (q *Log) ofOther() *Log {
	return &Log{deltas: q.deltas, newObject: q.newObject, onCorrupt: func(error) {}, logger: q.logger}
}

// Deletions calls fn with the deletions that wait in another log's space for any consumer, or are
// set aside there.
func (q *Log) Deletions(s *persist.Snapshot, fn func(Delta) error) error {
	other := q.ofOther()
	for after, limit := uint64(0), uint64(math.MaxUint64-1); after < limit; {
		ds, upTo, err := other.readUndelivered(s, nil, after, limit)
		if err != nil {
			return err
		}
		for i := range ds {
			if ds[i].Type != cache.Deleted {
				continue
			}
			if err := fn(ds[i]); err != nil {
				return err
			}
		}
		after = upTo
	}
	aside, _, err := other.readAside(s, func() {})
	if err != nil {
		return err
	}
	for _, objects := range aside {
		for _, o := range objects {
			if !o.owed() {
				continue
			}
			if err := fn(o.delta); err != nil {
				return err
			}
		}
	}
	return nil
}
