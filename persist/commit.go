package persist

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/warmwatch/warmwatch/internal/hook"
)

const (
	minRetryDelay = 200 * time.Millisecond
	maxRetryDelay = 10 * time.Second
)

// run is the committer goroutine.
//
// It has a thread of its own unless something urgent waits. A commit computes for
// milliseconds. Linux often queues a woken thread behind the thread that woke it,
// although another processor is idle: on a shared thread the committer delayed
// events (docs/design/decisions.md). On its own thread a commit begins a little later.
func (db *DB) run() {
	defer close(db.done)
	defer runtime.UnlockOSThread()
	alone := false
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		db.mu.Lock()
		events, ended := db.events, db.phase == closed
		db.events = nil
		wait, due := db.nextCommitLocked(time.Now())
		db.mu.Unlock()
		for _, e := range events {
			if e.code == CodeFileDamaged {
				db.markStart(foundDamaged) // The next Open sets the file aside.
			}
			if db.opts.OnEvent != nil {
				db.opts.OnEvent(e.code, e.err)
			}
		}
		if len(events) > 0 {
			continue
		}
		if ended {
			db.closeErr = cmp.Or(db.closeErr, db.closeFile())
			usedPaths.Delete(db.path)
			return
		}
		if due && wait <= 0 {
			db.commit()
			continue
		}
		urgent := due && wait <= db.opts.DurableDelay
		if urgent && alone {
			runtime.UnlockOSThread()
		} else if !urgent && !alone {
			runtime.LockOSThread()
		}
		alone = !urgent
		if !due {
			wait = time.Hour
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-db.wake:
		}
	}
}

// durableGrace is how long commits may fail. After that, applied batches count as durable all the same (S6). A crash
// undoes them.
const durableGrace = 30 * time.Second

// nextCommitLocked returns whether a commit is due, and how long to wait for it.
func (db *DB) nextCommitLocked(now time.Time) (wait time.Duration, due bool) {
	failing := db.failingLocked()
	switch {
	case db.flushRequested:
		return 0, true
	case db.commitAt.IsZero():
		return 0, false
	case db.writes() && !failing && db.pending.bytes >= db.opts.MaxPendingBytes/2:
		return 0, true
	}
	wait = db.commitAt.Sub(now)
	if failing && db.countedTo < db.applied {
		wait = min(wait, db.problem.Load().since.Add(durableGrace).Sub(now))
	}
	return wait, true
}

// commit makes one attempt to write the pending changes. While attempts fail and none is due, it counts the changes as
// durable instead.
func (db *DB) commit() {
	db.mu.Lock()
	if db.failingLocked() && !db.flushRequested && time.Now().Before(db.commitAt) {
		db.countedTo = db.applied // They count as durable, see durableGrace.
		db.announceLocked()
		db.mu.Unlock()
		return
	}
	begin := time.Now()
	flushing, again := db.takeWaitingLocked(begin), db.failingLocked()
	db.mu.Unlock()

	var txID int
	var err error
	if flushing != nil {
		if err = db.waitForReaders(); err == nil {
			txID, err = db.write(db.bolt, flushing, again)
		}
		db.meterCommit(begin, err)
		if isDiskFull(err) {
			db.makeRoom()
		}
	}

	db.mu.Lock()
	defer db.mu.Unlock()
	db.attemptedLocked(flushing, txID, begin, err)
	db.announceLocked()
}

// takeWaitingLocked takes the changes to write. It returns nil if there are none or there is no file.
func (db *DB) takeWaitingLocked(now time.Time) *layer {
	db.flushRequested = false
	db.commitAt = time.Time{}
	db.busySince.Store(&now)
	if db.flushing == nil { // Otherwise the last attempt failed: try the same changes again.
		db.flushingTo = db.applied
		if db.writes() {
			db.flushing, db.pending = db.pending, newLayer()
		}
	}
	return db.flushing
}

// attemptedLocked notes how an attempt has ended.
func (db *DB) attemptedLocked(flushing *layer, txID int, begin time.Time, err error) {
	db.busySince.Store(nil)
	if err != nil {
		db.failedLocked(err)
		return
	}
	if flushing != nil {
		db.boltTxID = txID
	}
	if db.failingLocked() {
		db.events = append(db.events, problem{})
		db.problem.Store(&problem{})
		if len(db.pending.buckets) > 0 { // pending may have counted as durable.
			db.noteChangeLocked(db.opts.DurableDelay)
		}
	}
	db.flushing, db.durable = nil, db.flushingTo
	db.pendingBytes.Store(db.pending.bytes)
	db.unwritten.Store(0)
	if len(db.pending.buckets) > 0 {
		db.unwritten.Store(begin.UnixNano())
	}
}

// failedLocked notes that a commit has failed: it is tried again, unless the file is damaged.
func (db *DB) failedLocked(err error) {
	if !db.writes() { // The file was found to be damaged meanwhile.
		return
	}
	if errors.Is(err, ErrCorrupt) {
		db.damagedLocked(err)
		return
	}
	since := db.problem.Load().since
	if !db.failingLocked() {
		db.events = append(db.events, problem{code: CodeNotWritten, err: err})
		since = time.Now()
	}
	if errors.Is(err, bolterrors.ErrMaxSizeReached) {
		db.mergeBackLocked() // Nothing was written. Together with later deletions it may fit.
	}
	if db.formerUsers == nil {
		db.formerUsers, db.users = db.users, new(atomic.Int64)
	}
	db.problem.Store(&problem{CodeNotWritten, since, fmt.Errorf("persist: commit to %s: %w", db.path, err)})
	// The delay is as long as commits have failed so far: it doubles.
	db.commitAt = time.Now().Add(min(max(time.Since(since), minRetryDelay), maxRetryDelay))
}

// write puts a layer into the file in one transaction, and returns its number. After a failed commit it first syncs the
// present content of the file.
func (db *DB) write(b *handle, l *layer, again bool) (txID int, err error) {
	if before := hook.BeforeWrite.Load(); before != nil {
		if err := (*before)(); err != nil {
			return 0, err
		}
	}
	if again {
		if err := db.sync(b); err != nil {
			return 0, err
		}
	}
	err = b.update(func(tx *bolt.Tx) error {
		tx.OnCommit(func() {
			stats := tx.Stats()
			db.writtenBytes.Add(stats.GetPageAlloc())
		})
		if txID = tx.ID(); txID-1 < db.boltTxID {
			return corruptFile("it went back from transaction %d to %d", db.boltTxID, txID-1)
		}
		for _, name := range l.sortedBuckets() {
			if err := writeBucket(tx, name, l.buckets[name]); err != nil {
				return err
			}
		}
		return nil
	})
	return txID, err
}

const (
	// maxReadersWait is how long a commit waits for readers before it counts as failed. Close waits for them in any
	// case.
	maxReadersWait = time.Second
	readersPause   = 5 * time.Millisecond
)

// waitForReaders waits until the read transactions have ended that were open when a commit failed. If only the fsync
// behind the commit's meta page has failed, the transaction is visible. But bbolt has rolled it back, and has read its
// freelist again: the pages that the transaction has freed count as free, although older read transactions use them.
func (db *DB) waitForReaders() error {
	for begin := time.Now(); ; time.Sleep(readersPause) {
		db.mu.Lock()
		if db.formerUsers == nil || db.formerUsers.Load() == 0 {
			db.formerUsers = nil
			db.mu.Unlock()
			return nil
		}
		patient := db.phase == closing
		db.mu.Unlock()
		if !patient && time.Since(begin) >= maxReadersWait {
			return errors.New("persist: a commit has failed, and what was in the file before it is still being read")
		}
	}
}

func writeBucket(tx *bolt.Tx, name Bucket, bl *bucketLayer) error {
	space, err := tx.CreateBucketIfNotExists([]byte(name.Space))
	if err != nil {
		return err
	}
	if bl.dropped {
		if err := space.DeleteBucket([]byte(name.Name)); err != nil && !errors.Is(err, bolterrors.ErrBucketNotFound) {
			return err
		}
		if bl.entries.Len() == 0 {
			return nil
		}
	}
	bucket, err := space.CreateBucketIfNotExists([]byte(name.Name))
	if err != nil {
		return err
	}
	if tx.DB().NoSync { // A compaction brings all keys in order, so pages can be full.
		bucket.FillPercent = 1
	}
	var key []byte
	bl.entries.Scan(func(k string, e entry) bool {
		key = append(append(key[:0], keyPrefix), k...)
		if e.sealed == nil {
			err = bucket.Delete(key)
		} else {
			err = bucket.Put(key, e.sealed) // bbolt keeps it until the transaction ends.
		}
		return err == nil
	})
	return err
}
