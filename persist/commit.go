package persist

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
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
func (db *DB) run(committer int) {
	defer runtime.UnlockOSThread()
	alone := false
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		db.mu.Lock()
		if db.committer != committer {
			db.mu.Unlock()
			return
		}
		if db.closed {
			db.mu.Unlock()
			close(db.done)
			return
		}
		wait, due := db.nextCommitLocked(time.Now())
		countIn, counting := db.nextCountLocked(time.Now())
		urgent := !db.urgentSince.IsZero()
		db.mu.Unlock()
		if urgent && alone {
			runtime.UnlockOSThread()
		} else if !urgent && !alone {
			runtime.LockOSThread()
		}
		alone = !urgent
		if counting && countIn <= 0 {
			db.countUnwritten()
			continue
		}
		if due && wait <= 0 {
			db.commit(committer)
			continue
		}
		if !due {
			wait = time.Hour
		}
		if pause := db.checkLeavesIdle(committer); pause > 0 {
			wait = min(wait, pause)
		}
		if counting {
			wait = min(wait, countIn)
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-db.wake:
		}
	}
}

// nextCommitLocked returns whether a commit is due, and in how long.
func (db *DB) nextCommitLocked(now time.Time) (wait time.Duration, due bool) {
	if db.flushRequested || db.resetCause != nil {
		return 0, true
	}
	if db.broken != nil && !db.memoryOnly() {
		return db.replaceAt.Sub(now), true
	}
	if db.broken != nil {
		defer func() { // Whichever comes first.
			if until := db.replaceAt.Sub(now); !due || until < wait {
				wait, due = until, true
			}
		}()
	}
	if db.commitErr != nil {
		return db.retryAt.Sub(now), true
	}
	if db.dirtySince.IsZero() {
		return 0, false
	}
	if !db.memoryOnly() && db.pending.bytes >= db.opts.CommitBytes {
		// The hooks may delete much of it: deltas that were acknowledged soon need not
		// be written.
		db.beforeCommitLocked()
		if db.pending.bytes >= db.opts.CommitBytes/2 {
			return 0, true
		}
		db.cond.Broadcast() // There is room again.
	}
	wait = db.dirtySince.Add(db.opts.CommitInterval).Sub(now)
	if !db.urgentSince.IsZero() {
		wait = min(wait, db.urgentSince.Add(db.opts.DurableDelay).Sub(now))
	}
	return wait, true
}

// commit makes one attempt to write what waits.
func (db *DB) commit(committer int) {
	defer db.work(committer)()
	if cause := db.replacementDue(); cause != nil {
		db.reset(cause)
		return
	}
	db.mu.Lock()
	if db.broken != nil && !db.memoryOnly() {
		db.mu.Unlock() // The file must not be written to.
		return
	}
	flushing, b := db.takeWaitingLocked(), db.bolt
	db.mu.Unlock()

	var w written
	var err error
	if flushing != nil {
		if err = db.ensureSynced(b); err == nil {
			w.txID, w.unencodable, err = db.write(b, flushing)
		}
		if isDiskFull(err) {
			db.makeRoom()
		}
	}

	db.mu.Lock()
	if db.committer != committer { // Another goroutine has taken over, see abandonCommitLocked.
		db.mu.Unlock()
		return
	}
	hooks, durable := db.attemptedLocked(flushing, w, err)
	db.cond.Broadcast()
	db.mu.Unlock()
	callAfterCommit(hooks, durable)
}

// takeWaitingLocked takes what is to be written, nil if there is nothing or no file.
func (db *DB) takeWaitingLocked() *layer {
	db.flushRequested = false
	if db.flushing == nil {
		db.dirtySince, db.urgentSince = time.Time{}, time.Time{}
	}
	// Also before a retry, so that deltas acknowledged meanwhile need not wait in
	// memory until the disk has space again.
	urgent := db.beforeCommitLocked()
	if db.flushing == nil { // Else the last attempt failed: try the same again.
		db.flushingTo = db.applied
		if !db.memoryOnly() {
			db.flushing, db.pending = db.pending, newLayer()
		}
		if urgent { // A hook has more to put, see beforeCommitLocked.
			db.noteChangeLocked(true)
		}
	}
	return db.flushing
}

// written is what a successful write returns.
type written struct {
	txID        int
	unencodable []unencodable
}

// attemptedLocked notes how an attempt has ended. It returns the hooks to call, none after an
// error, and the number of the last durable batch.
func (db *DB) attemptedLocked(flushing *layer, w written, err error) (hooks []*Hook, durable uint64) {
	db.committing, db.busySince = nil, time.Time{}
	db.attempts++
	if err != nil {
		db.failedLocked(err)
		return nil, 0
	}
	if flushing != nil {
		db.logRecoveryLocked()
		db.boltTxID, db.unwritten = w.txID, false
		db.keepUnencodableLocked(w.unencodable)
	}
	db.flushing = nil
	db.commitErr = nil
	db.retryDelay = 0
	db.durable = db.flushingTo
	db.grace.failingSince = time.Time{}
	return db.hooksLocked(), db.durable
}

// beforeCommitLocked lets the hooks change what waits, and reports whether one of
// them has put only a part, and wants to put the rest soon.
func (db *DB) beforeCommitLocked() (urgent bool) {
	batch := Batch{db: db}
	for _, last := range []bool{false, true} {
		for h := range db.hooks {
			if h.Last == last && h.BeforeCommit != nil {
				h.BeforeCommit(&batch)
			}
		}
	}
	return batch.urgent
}

func (db *DB) hooksLocked() []*Hook {
	return slices.Collect(maps.Keys(db.hooks))
}

func (db *DB) failedLocked(err error) {
	if errors.Is(err, ErrCorrupt) {
		db.resetCause = err
	}
	err = db.withCachePath(err)
	db.logFailureLocked(err, "Could not write to the cache file, keeping the changes in memory, where they are not durable")
	db.commitErr = prefixed(err, "commit to %s", db.path)
	db.grace.fails()
	db.retryDelay = min(max(2*db.retryDelay, minRetryDelay), maxRetryDelay)
	db.retryAt = time.Now().Add(db.retryDelay)
}

// logAgainAfter is the time between two log lines about a failure that lasts.
const logAgainAfter = time.Hour

// logFailureLocked logs a failure that may recur, unless its last log line is recent.
func (db *DB) logFailureLocked(err error, what string) {
	if what != db.loggedFailure || time.Since(db.loggedAt) >= logAgainAfter {
		db.loggedFailure, db.loggedAt = what, time.Now()
		db.log.Error(err, what, "path", db.path)
	}
}

// logRecoveryLocked logs that the logged failure, if any, is over.
func (db *DB) logRecoveryLocked() {
	if db.loggedFailure != "" {
		db.loggedFailure = ""
		db.log.Info("The cache file is written to", "path", db.path)
	}
}

// withCachePath has an error name db.path, and not the file's name while it was made. No
// other goroutine may have the error yet.
func (db *DB) withCachePath(err error) error {
	if p := (*os.PathError)(nil); errors.As(err, &p) && strings.HasPrefix(p.Path, db.path+newSuffix) {
		p.Path = db.path
	}
	return err
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
func (db *DB) write(b *handle, l *layer) (txID int, bad []unencodable, err error) {
	if db.arena == nil {
		db.arena = new(arena)
	}
	a := db.arena // A committer that takes over makes its own.
	defer a.reset()
	err = guard(func() error {
		if err := b.waitForReaders(db.waitsForReaders); err != nil {
			return err
		}
		tx, err := b.Begin(true)
		if err != nil {
			return err
		}
		committed := false
		defer func() {
			if !committed {
				b.endWrite(tx)
			}
		}()
		if err := checkNotBack(tx.ID()-1, db.boltTxID); err != nil {
			return err
		}
		if db.boltFile != nil { // Else salvage is writing a new file.
			if err := checkFreelist(db.boltFile); err != nil {
				return err
			}
			if err := checkBuckets(db.boltFile, tx, l); err != nil {
				return err
			}
		}
		if err := db.checkLeaves(b, tx, l); err != nil {
			return err
		}
		for _, name := range l.sortedBuckets() {
			if bad, err = writeBucket(tx, name, l.buckets[name], a, bad); err != nil {
				return errorBeforeCommit(err)
			}
		}
		if err := markSpacesOfLongKeys(tx, bad); err != nil {
			return errorBeforeCommit(err)
		}
		txID = tx.ID()
		if err := db.beginCommit(b); err != nil {
			return err
		}
		err = errorOfCommit(tx.Commit())
		if committed = err == nil; !committed {
			b.commitFailed(txID)
		}
		return err
	})
	return txID, bad, err
}

// maxReadersWait is how long a commit waits for readers before it counts as failed. Close has to
// wait for them in any case.
const maxReadersWait = time.Second

func (db *DB) waitsForReaders(since time.Time) bool {
	db.mu.Lock()
	defer db.mu.Unlock()
	if !db.busySince.IsZero() {
		db.busySince = time.Now() // It is not the disk that does not answer.
	}
	return db.closing || time.Since(since) < maxReadersWait
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
			return true // The file has unencodableValue, or its space is marked.
		}
		if len(k) > MaxKeyBytes {
			bad = append(bad, unencodable{name, k, e, fmt.Errorf("a key of %d bytes, the file has room for %d", len(k), MaxKeyBytes)})
			return true // See markSpacesOfLongKeys.
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

// guard calls f and turns a panic, or a fault in the mapped file, into a
// [CorruptError] (P6): bbolt panics where an assertion fails, and reading it
// faults where the file has shrunk.
func guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = &CorruptError{Err: fmt.Errorf("panic: %v", p)}
		}
	}()
	return f()
}
