package persist

import (
	"errors"
	"fmt"
	"time"

	bolterrors "go.etcd.io/bbolt/errors"
)

// readError notes damage that was met while a bucket was read. It returns err, or [ErrClosed] for bbolt's error of a
// closed file. The zero Bucket means that no transaction could be begun.
func (db *DB) readError(b *handle, bucket Bucket, err error) error {
	if errors.Is(err, bolterrors.ErrDatabaseNotOpen) || errors.Is(err, bolterrors.ErrTxClosed) {
		return ErrClosed
	}
	if !isFileDamage(err) {
		return err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	switch {
	case b == nil || db.phase == closed || db.unreadable.Load():
	case bucket == Bucket{}:
		db.damagedLocked(err)
		db.unreadable.Store(true)
	case !db.pending.bucket(bucket).dropped:
		db.damagedLocked(err)
		db.pending.bucket(bucket).dropped = true // The pending values stay.
	}
	return err
}

func isFileDamage(err error) bool {
	corrupt, ok := errors.AsType[*CorruptError](err)
	return ok && corrupt.Bucket == (Bucket{})
}

// damagedLocked stops writing to the file: it is only read from now on. Changes that are not written stay in pending.
func (db *DB) damagedLocked(err error) {
	if db.writes() {
		db.problem.Store(&problem{CodeFileDamaged, time.Now(), fmt.Errorf("persist: %s is only read: %w", db.path, err)})
	}
	db.mergeBackLocked()
	db.damages.Add(1)
	db.events = append(db.events, problem{code: CodeFileDamaged, err: err})
	db.noteChangeLocked(db.opts.DurableDelay)
	db.wakeCommitter()
	db.announceLocked()
}

// mergeBackLocked puts the layer that could not be committed, if there is one, back under pending.
func (db *DB) mergeBackLocked() {
	l := db.flushing
	if l == nil {
		return
	}
	db.flushing = nil
	for name, bl := range l.buckets {
		p := db.pending.bucket(name)
		if p.dropped {
			continue // The bucket was dropped since, with the values of l.
		}
		p.dropped = bl.dropped
		bl.entries.Scan(func(key string, e entry) bool {
			if newer, found := p.entries.Get(key); found {
				newer.fresh = newer.fresh && e.fresh // Otherwise the file may have the key.
				e = newer
			}
			db.pending.set(name, key, e)
			return true
		})
	}
}
