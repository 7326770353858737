package queue

import (
	"errors"
	"math"
	"strings"

	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/persist"
)

// Names makes the durable names of another log's space known, which is that of a file that could not
// be had at first, also those whose cursors the file has lost. Those that this log does not have get a cursor at the
// head: their handlers are told everything, and what is published from now on. What is set aside for them still is.
// Names that were forgotten meanwhile stay forgotten. Deletions that are published from now on are held for plain
// consumers, and for names that may be lost, until ReleaseUndelivered; not if that was called before. Consumers that there
// are already inherit deletions after the head, see [Consumer.InheritsFrom]. Nothing is published meanwhile.
func (q *Log) Names(s *persist.Snapshot) error {
	names, mayLack, err := namesIn(s)
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
		q.nameLost = q.nameLost || mayLack && q.undelivered.held
		for c := range q.consumers {
			c.tookOverAt = min(c.tookOverAt, q.head)
		}
		for name := range names {
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

// namesIn returns the durable names of a log's space, and whether it may lack some, see loadCursors.
func namesIn(s *persist.Snapshot) (names map[string]struct{}, mayLack bool, err error) {
	var sound, damaged []string // Keys of cursors.
	err = s.Scan(cursorsBucket, "", func(it *persist.Item) (bool, error) {
		if _, err := persist.ReadJSON[cursor](it); err == nil {
			sound = append(sound, it.Key)
		} else if errors.Is(err, persist.ErrCorrupt) {
			damaged = append(damaged, it.Key)
		} else {
			return false, err
		}
		return true, nil
	})
	if err != nil {
		return nil, false, err
	}
	var st *logState
	_, err = s.View(stateBucket, stateKey, func(it *persist.Item) (err error) { st, err = persist.ReadJSON[logState](it); return err })
	if err != nil && !errors.Is(err, persist.ErrCorrupt) {
		return nil, false, err
	}
	keys := sound
	if st != nil {
		for _, key := range st.Cursors {
			keys = append(keys, string(key))
		}
	} else {
		keys = append(keys, damaged...)
	}
	mayLack = err != nil || st == nil && len(keys) > 0 || s.Salvaged()
	names = map[string]struct{}{}
	for _, key := range keys {
		if name, isDurable := strings.CutPrefix(key, durablePrefix); isDurable {
			names[name] = struct{}{}
		}
	}
	return names, mayLack, nil
}

func (q *Log) knowsLocked(name string) bool {
	_, absent := q.absent[name]
	return absent || q.consumerLocked(name) != nil
}

// ofOther returns a log that reads what another log has in this space. Damage that it finds is not in
// this log's space, and is not logged, because the space may be read once a second.
func (q *Log) ofOther() *Log {
	return &Log{deltas: q.deltas, newObject: q.newObject, onCorrupt: func(error) {}}
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
