package persist

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

const (
	minRetryDelay = 200 * time.Millisecond
	maxRetryDelay = 10 * time.Second

	arenaChunkBytes = 1 << 20 // An arena grows by chunks of this size,
	arenaIdleChunks = 8       // and keeps this many of them between commits.
)

// An arena is where a commit encodes values. They stay in place until the next
// reset, because bbolt keeps the slices it is given until its transaction ends.
type arena struct {
	chunks [][]byte // Each of arenaChunkBytes or more.
	used   int      // How many chunks hold values; the last of these is being filled.
}

// room returns a chunk to append n bytes to.
func (a *arena) room(n int) []byte {
	if a.used > 0 {
		if c := a.chunks[a.used-1]; cap(c)-len(c) >= n {
			return c
		}
	}
	if a.used == len(a.chunks) || cap(a.chunks[a.used]) < n {
		a.chunks = append(a.chunks[:a.used], make([]byte, 0, max(n, arenaChunkBytes)))
	}
	a.used++
	return a.chunks[a.used-1]
}

// filled takes back the chunk that room returned, with values appended.
func (a *arena) filled(c []byte) { a.chunks[a.used-1] = c }

func (a *arena) reset() {
	a.chunks = a.chunks[:min(len(a.chunks), arenaIdleChunks)]
	for i := range a.chunks {
		if a.chunks[i] = a.chunks[i][:0]; cap(a.chunks[i]) > arenaChunkBytes {
			a.chunks[i] = make([]byte, 0, arenaChunkBytes)
		}
	}
	a.used = 0
}

// run is the committer goroutine.
//
// It has a thread of its own unless something urgent waits. A commit computes for
// milliseconds, and Linux often queues a thread that is woken behind the one that woke
// it, although another processor is idle: on a shared thread the committer delayed
// events (docs/design/speed.md). On its own thread a commit begins a little later.
func (db *DB) run() {
	defer close(db.done)
	defer runtime.UnlockOSThread()
	alone := false
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		db.mu.Lock()
		untold, closed := db.untold, db.closed
		wait, due := db.nextCommitLocked(time.Now())
		urgent := !db.urgentSince.IsZero()
		db.mu.Unlock()
		if untold != nil {
			db.tellDamage()
			continue
		}
		if closed {
			return
		}
		if urgent && alone {
			runtime.UnlockOSThread()
		} else if !urgent && !alone {
			runtime.LockOSThread()
		}
		alone = !urgent
		if due && wait <= 0 {
			db.commit()
			continue
		}
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

// durableGrace is how long commits may fail before what was applied counts as durable all the same (S6). A crash
// takes it back.
const durableGrace = 30 * time.Second

// nextCommitLocked returns whether a commit is due, and in how long.
func (db *DB) nextCommitLocked(now time.Time) (wait time.Duration, due bool) {
	switch {
	case db.flushRequested:
		return 0, true
	case db.dirtySince.IsZero():
		return db.retryAt.Sub(now), db.commitErr != nil
	case db.writesLocked() && db.commitErr == nil && db.pending.bytes >= db.opts.MaxPendingBytes/2:
		return 0, true
	}
	wait = db.dirtySince.Add(db.opts.CommitInterval).Sub(now)
	if !db.urgentSince.IsZero() {
		wait = min(wait, db.urgentSince.Add(db.opts.DurableDelay).Sub(now))
	}
	if db.commitErr != nil {
		wait = min(db.retryAt.Sub(now), max(wait, db.failingSince.Add(durableGrace).Sub(now)))
	}
	return wait, true
}

// commit makes one attempt to write what waits. While attempts fail, and none is due, it counts it as durable.
func (db *DB) commit() {
	db.mu.Lock()
	if db.commitErr != nil && !db.flushRequested && time.Now().Before(db.retryAt) {
		db.countLocked()
		db.mu.Unlock()
		return
	}
	flushing, b := db.takeWaitingLocked(), db.bolt
	db.mu.Unlock()

	var w written
	var err error
	if flushing != nil {
		if err = db.waitForReaders(); err == nil {
			w, err = db.write(b, flushing)
		}
		if isDiskFull(err) {
			db.makeRoom()
		}
	}

	db.mu.Lock()
	defer db.mu.Unlock()
	db.attemptedLocked(flushing, w, err)
	db.announceLocked()
}

// countLocked has what was applied count as durable although it is not in the file.
func (db *DB) countLocked() {
	if db.countedTo <= db.durable { // The first time since something was written.
		db.log.Info("Nothing can be written: durable handlers are told of what is not in the cache file", "path", db.path, "after", durableGrace)
	}
	db.dirtySince, db.urgentSince = time.Time{}, time.Time{}
	db.countedTo = db.applied
	db.announceLocked()
}

// takeWaitingLocked takes what is to be written, nil if there is nothing or no file.
func (db *DB) takeWaitingLocked() *layer {
	db.flushRequested = false
	db.dirtySince, db.urgentSince = time.Time{}, time.Time{}
	if db.flushing == nil { // Else the last attempt failed: try the same again.
		db.flushingTo = db.applied
		if db.writesLocked() {
			db.flushing, db.pending = db.pending, newLayer()
		}
	}
	return db.flushing
}

// written is what a successful write returns.
type written struct {
	txID        int
	unencodable []unencodable
}

// attemptedLocked notes how an attempt has ended.
func (db *DB) attemptedLocked(flushing *layer, w written, err error) {
	db.busySince = time.Time{}
	db.attempts++
	if err != nil {
		db.failedLocked(err)
		return
	}
	if db.commitErr != nil {
		db.log.Info("The cache file is written to again", "path", db.path)
	}
	if flushing != nil {
		db.boltTxID = w.txID
		db.keepUnencodableLocked(w.unencodable)
		if db.commitErr != nil && len(db.pending.buckets) > 0 { // It may have counted as durable.
			db.noteChangeLocked(true)
		}
	}
	db.flushing, db.commitErr, db.retryDelay, db.failingSince = nil, nil, 0, time.Time{}
	db.durable = db.flushingTo
}

// failedLocked notes that a commit has failed: it is tried again, unless the file is damaged.
func (db *DB) failedLocked(err error) {
	if !db.writesLocked() { // It was found to be damaged meanwhile.
		return
	}
	db.unsynced = true
	if errors.Is(err, ErrCorrupt) {
		db.damagedLocked(err)
		return
	}
	if db.commitErr == nil {
		db.log.Error(err, "Could not write to the cache file, keeping the changes in memory, where they are not durable", "path", db.path)
		db.failingSince = time.Now()
	}
	if db.formerUsers == nil {
		db.formerUsers, db.users = db.users, new(atomic.Int64)
	}
	db.commitErr = prefixed(err, "commit to %s", db.path)
	db.retryDelay = min(max(2*db.retryDelay, minRetryDelay), maxRetryDelay)
	db.retryAt = time.Now().Add(db.retryDelay)
	db.noteChangeLocked(true) // To count as durable.
}

// An unencodable value is replaced in the file by unencodableValue, which the next
// process takes for corruption and relists. This process keeps the value in memory.
type unencodable struct {
	bucket Bucket
	key    string
	entry  entry
	err    error // Nil: it failed in an earlier commit.
}

type unencodableKey struct {
	bucket Bucket
	key    string
}

// keepUnencodableLocked puts back the values that the last commit could not encode.
// So each commit has all of them.
func (db *DB) keepUnencodableLocked(us []unencodable) {
	before := db.encodeErrs
	db.encodeErrs = nil
	if len(us) > 0 {
		db.encodeErrs = make(map[unencodableKey]error, len(us))
	}
	for _, u := range us {
		k := unencodableKey{u.bucket, u.key}
		if u.err != nil {
			if len(before) == 0 && len(db.encodeErrs) == 0 {
				db.log.Error(u.err, "Could not encode a value, keeping it in memory only", "bucket", shortened(u.bucket.String()), "key", shortened(u.key))
			}
			db.encodeErrs[k] = fmt.Errorf("persist: encode bucket %q, key %q: %w", shortened(u.bucket.String()), shortened(u.key), u.err)
		} else {
			db.encodeErrs[k] = before[k]
		}
		if _, newer := db.pending.lookup(u.bucket, u.key); !newer {
			u.entry.unencodable, u.entry.fresh = true, false
			db.pending.set(u.bucket, u.key, u.entry)
		}
	}
}

// write puts a layer into the file, in one transaction.
func (db *DB) write(b *handle, l *layer) (w written, err error) {
	if db.arena == nil {
		db.arena = new(arena)
	}
	defer db.arena.reset()
	if db.unsynced {
		if err := db.sync(b); err != nil {
			return w, err
		}
		db.unsynced = false
	}
	err = guard(func() error {
		tx, err := b.Begin(true)
		if err != nil {
			return err
		}
		defer func() { _ = guard(tx.Rollback) }() // Does nothing after Commit.
		if tx.ID()-1 < db.boltTxID {
			return corruptFile("it went back from transaction %d to %d", db.boltTxID, tx.ID()-1)
		}
		for _, name := range l.sortedBuckets() {
			if w.unencodable, err = writeBucket(tx, name, l.buckets[name], db.arena, w.unencodable); err != nil {
				return errorBeforeCommit(err)
			}
		}
		w.txID = tx.ID()
		return tx.Commit()
	})
	return w, err
}

const (
	// maxReadersWait is how long a commit waits for readers before it counts as failed. Close has to
	// wait for them in any case.
	maxReadersWait = time.Second
	readersPause   = 5 * time.Millisecond
)

// waitForReaders waits until those have ended who were reading when a commit failed. If only the fsync behind
// its meta page has failed, the transaction is visible. But bbolt has rolled it back, and has
// read its freelist again: the pages that it has freed count as free, although older read
// transactions use them.
func (db *DB) waitForReaders() error {
	for begin := time.Now(); ; time.Sleep(readersPause) {
		db.mu.Lock()
		if db.formerUsers == nil || db.formerUsers.Load() == 0 {
			db.formerUsers, db.busySince = nil, time.Now()
			db.mu.Unlock()
			return nil
		}
		closing := db.closing
		db.mu.Unlock()
		if !closing && time.Since(begin) >= maxReadersWait {
			return errors.New("persist: a commit has failed, and what was in the file before it is still being read")
		}
	}
}

func writeBucket(tx *bolt.Tx, name Bucket, bl *bucketLayer, a *arena, bad []unencodable) ([]unencodable, error) {
	if err := name.check(); err != nil {
		bl.entries.Scan(func(k string, e entry) bool {
			if e.value != nil {
				bad = append(bad, unencodable{name, k, e, err})
			}
			return true
		})
		return bad, nil
	}
	space, err := tx.CreateBucketIfNotExists([]byte(name.Space))
	if err != nil {
		return bad, err
	}
	if bl.dropped {
		if err := space.DeleteBucket([]byte(name.Name)); err != nil && !errors.Is(err, bolterrors.ErrBucketNotFound) {
			return bad, err
		}
	}
	bucket, err := space.CreateBucketIfNotExists([]byte(name.Name))
	if err != nil {
		return bad, err
	}
	var key []byte
	bl.entries.Scan(func(k string, e entry) bool {
		key = append(append(key[:0], keyPrefix), k...)
		if e.value == nil {
			err = bucket.Delete(key)
			return err == nil
		}
		if e.unencodable {
			bad = append(bad, unencodable{name, k, e, nil})
			return true // The file has unencodableValue, or nothing.
		}
		if len(k) > MaxKeyBytes {
			bad = append(bad, unencodable{name, k, e, fmt.Errorf("a key of %d bytes, the file has room for %d", len(k), MaxKeyBytes)})
			return true
		}
		sealed, encodeErr := a.seal(name, k, e.value)
		if encodeErr != nil {
			bad = append(bad, unencodable{name, k, e, encodeErr})
			sealed = unencodableValue
		}
		err = bucket.Put(key, sealed)
		return err == nil
	})
	return bad, err
}

// seal encodes a value and appends its checksum.
func (a *arena) seal(name Bucket, key string, v Value) (sealed []byte, err error) {
	defer func() { // A panic of the value's code does not make the file corrupt.
		if p := recover(); p != nil {
			sealed, err = nil, fmt.Errorf("panic: %v", p)
		}
	}()
	chunk := a.room(v.SizeBytes() + sealRoomBytes)
	start := len(chunk)
	filled, err := v.AppendTo(chunk)
	if err != nil {
		return nil, err
	}
	if size := len(filled) - start + checksumBytes; size > maxValueBytes {
		return nil, fmt.Errorf("a value of %d bytes, the file has room for %d", size, maxValueBytes)
	}
	filled = seal(filled, start, name, key)
	a.filled(filled)
	return filled[start:len(filled):len(filled)], nil
}

// sealRoomBytes is room for the checksum, and for a size estimate that is a
// little too low. A lower one costs a copy.
const sealRoomBytes = 256

// unencodableValue is too short for a checksum, so it never reads as a value.
var unencodableValue = []byte{0}
