package persist

import (
	"cmp"
	"fmt"
	"os"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// Options configures [Open]. The zero value is valid.
type Options struct {
	// CommitInterval is the longest time a change stays in memory only.
	// Default 1s.
	CommitInterval time.Duration
	// DurableDelay is the same for batches marked [Batch.Urgent]. Default 10ms.
	DurableDelay time.Duration
	// CommitBytes is how many pending bytes start a commit at once. Default 8 MiB.
	CommitBytes int64
	// MaxPendingBytes bounds what waits in memory for the committer: past it,
	// Update blocks. The bound is lifted without a file and while commits fail,
	// because the changes then have nowhere else to go. Default 16 MiB.
	MaxPendingBytes int64
	// DurableGrace is how long nothing may be written, because the disk is full or does not
	// answer, before what was applied counts as durable all the same. A crash takes it back.
	// Default 0: however long. Less than 10 s makes no difference where the disk does not answer.
	DurableGrace time.Duration
	// LockTimeout is how long Open waits for another process to release the
	// file. Default 1s.
	LockTimeout time.Duration
	// Logger receives what an operator should know. Default klog's.
	Logger *klog.Logger
}

// orDefault sets an option that is zero.
func orDefault[T ~int64](name string, option *T, value T) error {
	if *option < 0 {
		return fmt.Errorf("persist: %s is negative: %v", name, *option)
	}
	*option = cmp.Or(*option, value)
	return nil
}

func (o Options) withDefaults() (Options, error) {
	err := cmp.Or(
		orDefault("CommitInterval", &o.CommitInterval, time.Second),
		orDefault("DurableDelay", &o.DurableDelay, 10*time.Millisecond),
		orDefault("LockTimeout", &o.LockTimeout, time.Second),
		orDefault("DurableGrace", &o.DurableGrace, 0),
		orDefault("CommitBytes", &o.CommitBytes, 8<<20),
		orDefault("MaxPendingBytes", &o.MaxPendingBytes, 16<<20),
	)
	if err != nil {
		return o, err
	}
	o.DurableDelay = min(o.DurableDelay, o.CommitInterval)
	o.CommitBytes = min(o.CommitBytes, o.MaxPendingBytes)
	if o.Logger == nil {
		l := klog.Background()
		o.Logger = &l
	}
	return o, nil
}

// DB is a map of buckets, in memory first and in one bbolt file soon after.
//
//	Update ──► pending (memory) ──swap──► flushing (memory) ──one bbolt tx──► file
//	             ▲                          ▲                                  ▲
//	readers: ────┴──────────────────────────┴──────────────────────────────────┘
//
// A write:
//
//  1. Update applies the batch to pending, under the lock. It is visible now.
//  2. After CommitInterval (DurableDelay for urgent batches, at once for many
//     bytes) the committer runs the hooks, swaps pending for an empty layer
//     and encodes and writes the old one in one bbolt transaction.
//  3. The batches in it are durable: flushing is dropped, and hooks are called.
//
// A failed commit stays in flushing and is tried again; nothing is lost.
//
// A recovery: [Open] inspects the file before bbolt reads it. A file that is damaged,
// or whose format is unknown, is replaced:
//
//  1. A new file is made beside it, with every value that can be read and passes its
//     checksum, and synced.
//  2. The bad file is set aside, and the new one gets its name. After a crash in
//     between, the next Open finds the new one, which is whole.
//
// A file that turns out to be bad in use, or loses its name then, is replaced likewise.
// A DB that cannot open its file (another process holds it, it is not writable) works
// from memory, and [DB.Err] says why. It tries again, less and less often. Once it can,
// a new file with what is in memory replaces the old one, which is set aside and not
// copied, because the DB has gone on without it.
//
// All methods are safe for concurrent use.
type DB struct {
	givenPath string // The path given to Open.
	path      string // The file itself, where givenPath is a symbolic link.
	opts      Options
	log       klog.Logger

	wake chan struct{} // Capacity 1: tells the committer to look again.
	done chan struct{} // Closed when the committer has ended.

	ended    chan struct{} // Closed when Close has ended, and closeErr is what it returns.
	closeErr error

	mu   sync.RWMutex
	cond sync.Cond // On mu. Broadcast after each commit attempt.

	bolt     *handle  // Nil: memory only.
	boltFile *os.File // bbolt's, used by the committer alone.
	boltTxID int      // The bbolt transaction of the last successful commit.
	// users counts those who have a transaction of bolt open, or are about to begin one.
	users *sync.WaitGroup
	// leavesChecked is set when all leaves were once found to be sound. Until then, leaves has those that
	// were not. Used by the committer alone.
	leavesChecked bool
	leaves        *leafCheck
	pending       *layer
	flushing      *layer // Nil unless a commit is under way or has failed.

	applied, durable, flushingTo uint64 // Numbers of the last batch applied, in the file, in flushing.

	dirtySince, urgentSince time.Time // Zero: nothing waits.
	flushRequested          bool
	grace                   grace
	attempts                int // Commit attempts that have ended.
	retryAt                 time.Time
	retryDelay              time.Duration

	closing     bool
	closed      bool
	degradedErr error                    // Why there is no file.
	commitErr   error                    // Of the last commit attempt.
	encodeErrs  map[unencodableKey]error // Of the values that are in memory only.
	resetCause  error                    // Set when the file must be replaced, now.

	// broken is set once the file could not be opened, begun or replaced, which is tried
	// again at replaceAt. Until then an open file must not be written to. badFile
	// identifies a bad file that is not open. lost: a file was in use, and none is now.
	broken       error
	badFile      os.FileInfo
	lost         bool
	unwritten    bool // The new file has nothing yet of what was in memory only.
	replaceAt    time.Time
	replaceDelay time.Duration

	published *published // Used by the committer alone.

	lastReset, nextReset time.Time // When a file was replaced last, and may be replaced next.
	resetByClose         bool      // Close has had a file replaced without waiting for nextReset.
	resetDelay           time.Duration

	setAsides     []SetAside
	logUnsynced   sync.Once // For directories that cannot be synced.
	loggedFailure string    // The failure that was logged at loggedAt; empty when it is over.
	loggedAt      time.Time
	closers       sync.WaitGroup // They close files that were replaced.

	hooks map[*Hook]struct{}

	// committing is the handle while bbolt commits: the only step of the committer that
	// a dead handle can block.
	committing *handle
	// busySince is when the work on the file began that the committer is at, zero if it is at none.
	busySince time.Time
	// answeredAt is when the disk last answered while a file was copied or inspected.
	answeredAt time.Time
	committer  int // The number of the goroutine that is the committer.

	arena *arena // Used by the committer alone.
}

// A Hook takes part in every commit. Its functions are called by the committer
// goroutine, BeforeCommit also by whoever removes the hook, and it and AfterCommit by a timer while
// the disk does not answer. They may be nil.
type Hook struct {
	// Space, if set, is the space that the hook's owner writes to.
	Space string
	// Last says that BeforeCommit is called after that of all hooks that are not Last. What
	// was done before one of those looked is then in no later commit than what that one puts.
	Last bool
	// BeforeCommit may add to what is about to be written. It runs under the
	// DB's lock, like a function given to Update, and does not read from the DB.
	BeforeCommit func(*Batch)
	// AfterCommit is given the number of the last durable batch, or of the last that counts as
	// durable, see Options.DurableGrace. Called without locks.
	AfterCommit func(durable uint64)
	// AfterReset is called when the file was found corrupt, or without its name,
	// while in use: it was replaced, has lost commits, or cannot be read until it is
	// replaced. What was only in the file may be gone. Called without locks.
	AfterReset func(cause error)
}

// AddHook adds h. The function it returns removes h, after a last BeforeCommit, because a
// Close that is under way may still commit what h puts. What it puts is committed within
// CommitInterval.
func (db *DB) AddHook(h *Hook) (remove func()) {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.hooks[h] = struct{}{}
	return func() {
		db.mu.Lock()
		defer db.mu.Unlock()
		if _, there := db.hooks[h]; there && h.BeforeCommit != nil && !db.closed {
			b := Batch{db: db}
			h.BeforeCommit(&b)
			db.noteChangeLocked(b.urgent)
		}
		delete(db.hooks, h)
	}
}

// Path is the path given to Open.
func (db *DB) Path() string { return db.givenPath }

// Err says why persistence is degraded: there is no file that can be used, the last commit
// failed, the disk does not answer, or a value could not be encoded. Nil if all is well.
func (db *DB) Err() error {
	db.mu.RLock()
	defer db.mu.RUnlock()
	switch {
	case db.degradedErr != nil:
		return db.degradedErr
	case db.commitErr != nil:
		return db.commitErr
	case db.hangsLocked():
		return db.hangErrorLocked()
	}
	for _, err := range db.encodeErrs {
		return err
	}
	return nil
}

// MemoryOnly reports whether there is no file behind the DB.
func (db *DB) MemoryOnly() bool {
	db.mu.RLock()
	defer db.mu.RUnlock()
	return db.memoryOnly()
}

func (db *DB) memoryOnly() bool { return db.bolt == nil }

// Update applies what fn puts into the batch: visible at once, durable with
// the next commit, both as a whole (P1). It returns the number of the batch,
// to be compared with [DB.Durable]. It blocks while more than MaxPendingBytes wait.
// fn runs under the DB's lock, see [Batch]. The error is [ErrClosed] or nil.
func (db *DB) Update(fn func(*Batch)) (uint64, error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	for db.overBoundLocked(db.opts.MaxPendingBytes) && !db.closing {
		db.wakeCommitter()
		db.cond.Wait()
	}
	return db.updateLocked(fn)
}

func (db *DB) updateLocked(fn func(*Batch)) (uint64, error) {
	if db.closing {
		return 0, ErrClosed
	}
	b := Batch{db: db}
	fn(&b)
	db.applied++
	db.noteChangeLocked(b.urgent)
	return db.applied, nil
}

// noteChangeLocked starts the clocks for the next commit.
func (db *DB) noteChangeLocked(urgent bool) {
	wake := false
	if db.dirtySince.IsZero() {
		db.dirtySince, wake = time.Now(), true
	}
	if urgent && db.urgentSince.IsZero() {
		db.urgentSince, wake = time.Now(), true
	}
	if wake || db.pending.bytes >= db.opts.CommitBytes || urgent && db.opts.DurableGrace > 0 && !db.grace.failingSince.IsZero() {
		db.wakeCommitter()
	}
}

// Kick asks for a commit within CommitInterval although nothing was put,
// because a hook has something to put.
func (db *DB) Kick() {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.noteChangeLocked(false)
}

// CommitSoon asks for a commit within DurableDelay, as [Batch.Urgent] does, unless what waits begins
// after the batch with this number.
func (db *DB) CommitSoon(batch uint64) {
	db.mu.Lock()
	defer db.mu.Unlock()
	if batch > db.flushingTo {
		db.noteChangeLocked(true)
	}
}

func (db *DB) wakeCommitter() {
	select {
	case db.wake <- struct{}{}:
	default: // It is about to look already.
	}
}

// Durable is the number of the last batch that is in the file, or counts as durable, see
// Options.DurableGrace. Without a file nothing ever is; batches then count as durable at once, so
// that nobody waits.
func (db *DB) Durable() uint64 {
	db.mu.RLock()
	defer db.mu.RUnlock()
	if db.memoryOnly() {
		return db.applied
	}
	return db.durableLocked()
}

// Applied is the number of the last applied batch.
func (db *DB) Applied() uint64 {
	db.mu.RLock()
	defer db.mu.RUnlock()
	return db.applied
}

// Flush returns nil when all that was applied before the call is durable, or the
// error of a commit attempt that was made for it, or, while the disk does not answer,
// [ErrNoAnswer]. A DB that never had a file returns nil: [DB.Err] has said why since
// Open. A DB that has lost its file returns why.
func (db *DB) Flush() error {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.closed {
		return ErrClosed
	}
	return db.flushLocked()
}

func (db *DB) flushLocked() error {
	for need := db.attempts + 1; db.lost && db.attempts < need && !db.closed && db.broken != nil && !db.givesUpLocked(); {
		db.flushRequested = true
		db.wakeCommitter()
		db.cond.Wait()
	}
	if db.lost {
		return db.degradedErr
	}
	target := db.applied
	for !db.memoryOnly() && db.durable < target {
		if db.closed {
			return ErrClosed
		}
		// An attempt that is under way has begun before the call. If it fails,
		// the one after it decides.
		need := db.attempts + 1
		if db.flushing != nil && db.commitErr == nil {
			need++
		}
		for db.durable < target && db.attempts < need && !db.memoryOnly() && !db.closed && !db.givesUpLocked() {
			db.flushRequested = true
			db.wakeCommitter()
			db.cond.Wait()
		}
		if db.durable < target && db.givesUpLocked() {
			return db.hangErrorLocked()
		}
		// A file that was found corrupt is about to be replaced. The commit is tried
		// again then.
		if db.durable < target && db.commitErr != nil && db.resetCause == nil {
			return db.commitErr
		}
	}
	if db.lost { // While this call waited.
		return db.degradedErr
	}
	return nil
}

// givesUpLocked reports whether Flush goes on without the disk's answer. Close waits for it.
func (db *DB) givesUpLocked() bool { return db.hangsLocked() && !db.closing }

// Close flushes and closes the file. If it returns nil, all that was applied is in the
// file (P4), but for values that [DB.Err] names as not encoded, or there never was one, see
// [DB.Flush]. It waits for open snapshots, and for a disk that does not answer. Further
// calls wait for the first and return what it does; calls of other methods return
// [ErrClosed].
func (db *DB) Close() error {
	db.mu.Lock()
	if db.closing {
		db.mu.Unlock()
		<-db.ended // Not a sync.Once, whose mutex would stop the clock of a synctest bubble.
		return db.closeErr
	}
	defer close(db.ended)
	db.closing = true
	db.cond.Broadcast() // Blocked Updates give up.
	err := db.flushLocked()
	// One more commit has the acknowledgements that hooks have not put yet.
	if err == nil && !db.memoryOnly() {
		db.applied++
		db.noteChangeLocked(true)
		err = db.flushLocked()
	}
	db.closed = true
	db.cond.Broadcast() // Flushes that no attempt will be made for give up, too.
	db.wakeCommitter()
	db.mu.Unlock()

	<-db.done // Nobody replaces the file any more.
	if cerr := (opened{bolt: db.bolt}).close(); err == nil {
		err = cerr
	}
	db.closers.Wait()
	db.closeErr = err
	return err
}
