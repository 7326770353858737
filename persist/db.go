package persist

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
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
	// MaxPendingBytes bounds the changes that wait in memory for the committer. Past half of it a commit begins at
	// once. Past all of it UpdateWithRoom blocks. While nothing can be written there is no bound: the changes have nowhere
	// else to go. Default 16 MiB.
	MaxPendingBytes int64
	// MaxFileBytes bounds the size of the file. At the bound the disk counts as full. A file that is larger already is used,
	// and does not grow. Default 0: no bound.
	MaxFileBytes int64
	// LockTimeout is how long Open waits for another process to release the
	// file. Default 30s; negative: it does not wait.
	LockTimeout time.Duration
	// OnEvent is called with [CodeFileDamaged] when the file, or one more bucket of it, is found damaged in use. What could
	// not be read is then gone. It is called with [CodeNotWritten] when commits begin to fail, and with an empty code and a
	// nil error when commits succeed again. The committer calls it without a lock, and makes no commit before it returns.
	// It may be nil.
	OnEvent func(code Code, err error)
	// Logger receives what an operator should know. Default klog's.
	Logger *klog.Logger

	compact bool // Set by Compact.
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
		orDefault("MaxPendingBytes", &o.MaxPendingBytes, 16<<20),
		orDefault("MaxFileBytes", &o.MaxFileBytes, 0),
	)
	if err != nil {
		return o, err
	}
	o.LockTimeout = cmp.Or(o.LockTimeout, 30*time.Second)
	o.DurableDelay = min(o.DurableDelay, o.CommitInterval)
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
//  2. After CommitInterval (DurableDelay for urgent batches, a minute for idle ones, at once for many bytes) the
//     committer swaps pending for an empty layer, and writes the old one in one bbolt transaction.
//  3. The batches in it are durable: flushing is dropped.
//
// A failed commit stays in flushing and is tried again; nothing is lost. After durableGrace
// the applied batches count as durable all the same.
//
// A recovery: [Open] decides once what becomes of a file.
//
//	lock ──► inspect ──► start marker ──► bbolt opens it ──► walk ──► compact ──► first commit ──► in use
//	  │         │              │ (third)                       │         │             │            │
//	memory      └──────────────┴── bad: set aside, a new one ──┴─────────┘       full: as a         │
//	                               is begun: a cold start                        failed commit   damaged: read only,
//	                                                                                             set aside by the next Open
//
// In use a damaged file is not replaced: the DB stops writing to it, and changes in memory count as durable. A bucket
// that cannot be read counts as dropped. If no transaction can be begun any more, all buckets do. Options.OnEvent is
// called.
//
// All methods are safe for concurrent use.
type DB struct {
	path string // The file itself: symbolic links are followed.
	opts Options

	wake chan struct{} // Capacity 1: the committer must look again.
	done chan struct{} // Closed when the committer has ended, and has closed the file.

	mu sync.RWMutex

	bolt     *handle   // Nil: memory only. It does not change after Open.
	meter              // Its fields are read without mu.
	events   []problem // Not reported to OnEvent yet, without times.
	boltTxID int       // The bbolt transaction of the last successful commit.
	// users counts the transactions of bolt that are open or about to begin. formerUsers counts those that were begun
	// before a commit failed, see waitForReaders. It is nil once there are none.
	users, formerUsers *atomic.Int64

	pending  *layer
	flushing *layer // Nil unless a commit is under way or has failed.

	applied, durable, flushingTo uint64 // Numbers of the last batch applied, in the file, in flushing.
	countedTo                    uint64 // The last batch that has counted as durable without being in the file.

	commitAt       time.Time // When the next commit is due, or the next attempt after a failed one. Zero: none is due.
	flushRequested bool

	phase     phase
	closeErr  error                    // What Close returns once done is closed.
	aside     atomic.Pointer[SetAside] // The file that Open has set aside, if it exists.
	committed chan struct{}            // Closed and replaced when a commit has ended, or more may count as durable.
}

// A phase of a DB. A DB does not go back to an earlier one.
type phase int

const (
	inUse   phase = iota
	reading       // The file is only read, see OpenReadOnly. There is no committer.
	closing       // Close makes the last commit.
	closed        // Only the committer uses the file, to close it.
)

// Path is the path of the file. Symbolic links of the path given to Open are followed.
func (db *DB) Path() string { return db.path }

// hangingCommit is how long a commit may take before it is a problem.
const hangingCommit = 10 * time.Second

// A Code says what is wrong with the file of a DB.
type Code string

// The codes are spelled as their constants, without the word Code.
const (
	CodeLocked      Code = "Locked"      // Another process holds the file: the DB works from memory.
	CodeNoFile      Code = "NoFile"      // The file can be neither opened nor created: the DB works from memory.
	CodeFileDamaged Code = "FileDamaged" // The file was found damaged in use, and is only read.
	CodeNotWritten  Code = "NotWritten"  // The last commit has failed, and is tried again.
	CodeDiskHangs   Code = "DiskHangs"   // A commit has been under way for more than 10 s.
)

// A problem in the meter has one of the first four codes. There is one problem at a time, because a damaged file is
// not written to any more.
type problem struct {
	code  Code
	since time.Time
	err   error // Nil: there is none.
}

// Problem says why persistence is degraded, and since when. since is zero if that is not known. The error is nil if all
// is well. It takes no lock.
func (db *DB) Problem() (code Code, since time.Time, err error) {
	p := *db.problem.Load()
	if begin := db.busySince.Load(); p.err == nil && begin != nil && time.Since(*begin) >= hangingCommit {
		p = problem{CodeDiskHangs, *begin, fmt.Errorf("persist: %s: a commit has been under way for %v", db.path, time.Since(*begin).Round(time.Second))}
	}
	return p.code, p.since, p.err
}

// MemoryOnly reports whether there is no file behind the DB, or the file cannot be read any more. It takes no lock.
func (db *DB) MemoryOnly() bool { return db.bolt == nil || db.unreadable.Load() }

// writes reports whether changes are written to a file. It takes no lock.
func (db *DB) writes() bool {
	return db.bolt != nil && db.problem.Load().code != CodeFileDamaged
}

// failingLocked reports whether the last commit has failed.
func (db *DB) failingLocked() bool { return db.problem.Load().code == CodeNotWritten }

// Update applies what fn puts into the batch: visible at once, durable with
// the next commit, both as a whole (A1). Unlike [DB.UpdateWithRoom] it does not wait for the disk.
// fn runs under the DB's lock, see [Batch]. The error is [ErrClosed] or nil.
func (db *DB) Update(fn func(*Batch)) error { return db.update(math.MaxInt64, fn) }

func (db *DB) update(bound int64, fn func(*Batch)) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.waitForRoomLocked(bound)
	if db.phase != inUse {
		return ErrClosed
	}
	b := Batch{db: db, delay: db.opts.CommitInterval}
	fn(&b)
	db.applied++
	db.pendingBytes.Store(db.waitingLocked())
	if db.unwritten.Load() == 0 {
		db.unwritten.Store(time.Now().UnixNano())
	}
	db.noteChangeLocked(b.delay)
	return nil
}

// noteChangeLocked makes a commit begin after a delay, or earlier. While commits fail, the change may count as durable
// instead.
func (db *DB) noteChangeLocked(delay time.Duration) {
	if db.failingLocked() {
		db.wakeCommitter()
		return
	}
	at := time.Now().Add(delay)
	earlier := db.commitAt.IsZero() || at.Before(db.commitAt)
	if earlier {
		db.commitAt = at
	}
	if earlier || db.pending.bytes >= db.opts.MaxPendingBytes/2 {
		db.wakeCommitter()
	}
}

// CommitSoon returns the number of the last batch, and asks for its commit within DurableDelay, as [Batch.Urgent] does,
// unless a commit has begun to write that batch.
func (db *DB) CommitSoon() (batch uint64) {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.applied > db.flushingTo {
		db.noteChangeLocked(db.opts.DurableDelay)
	}
	return db.applied
}

func (db *DB) wakeCommitter() {
	select {
	case db.wake <- struct{}{}:
	default: // The committer is about to look already.
	}
}

// Durable is the number of the last batch that is in the file or counts as durable. If there is no file, or the file is
// not written to, all batches count as durable at once: nobody waits then. They also do once nothing could be written
// for 30 s, see S6.
func (db *DB) Durable() uint64 {
	db.mu.RLock()
	defer db.mu.RUnlock()
	if !db.writes() {
		return db.applied
	}
	return max(db.durable, db.countedTo)
}

// Committed is closed when a commit has ended, or more counts as durable for another reason. Call it before
// [DB.Durable].
func (db *DB) Committed() <-chan struct{} {
	db.mu.RLock()
	defer db.mu.RUnlock()
	return db.committed
}

// announceLocked wakes everybody who waits for a commit.
func (db *DB) announceLocked() {
	close(db.committed)
	db.committed = make(chan struct{})
}

// waitLocked waits for announceLocked. It releases db.mu meanwhile.
func (db *DB) waitLocked() {
	committed := db.committed
	db.mu.Unlock()
	<-committed
	db.mu.Lock()
}

// Flush returns nil when all batches that were applied before the call are in the file. Otherwise it returns the error
// of a commit attempt that was made for them. A DB that never had a file returns nil: [DB.Err] has said why since Open.
// A DB whose file was found damaged in use returns that error.
func (db *DB) Flush() error {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.phase == closed {
		return ErrClosed
	}
	return db.flushLocked()
}

func (db *DB) flushLocked() error {
	for target := db.applied; db.writes() && db.durable < target; {
		db.flushRequested = true
		db.wakeCommitter()
		// An attempt that is under way has begun before the call. If it fails, the one after it decides.
		for db.durable < target && db.writes() && (db.flushRequested || db.busySince.Load() != nil) {
			if db.waitLocked(); db.phase == closed {
				return ErrClosed
			}
		}
		if db.durable < target && db.failingLocked() {
			return db.problem.Load().err
		}
	}
	if p := db.problem.Load(); p.code == CodeFileDamaged {
		return p.err
	}
	return nil
}

// Close flushes and closes the file. If it returns nil, all applied batches are in the file (S7), or there never was
// one, see [DB.Flush]. It waits for open snapshots, and for a disk that does not answer. Further calls wait for the
// first and return its result. Calls of other methods return [ErrClosed].
func (db *DB) Close() error {
	db.mu.Lock()
	if db.phase == reading {
		db.phase = closed
		db.mu.Unlock()
		return db.closeFile()
	}
	if db.phase == inUse {
		db.phase = closing
		db.announceLocked() // Calls that wait for room give up.
		db.closeErr = db.flushLocked()
		db.phase = closed
		db.announceLocked() // No attempt will be made for other flushes. They give up, too.
		db.wakeCommitter()
	}
	db.mu.Unlock()
	<-db.done
	return db.closeErr
}

// closeFile closes the file. If the file was found damaged, it does not call bbolt, which may hold its locks. The
// mapping stays then.
func (db *DB) closeFile() error {
	switch {
	case db.bolt == nil:
		return nil
	case db.writes():
		return guard(db.bolt.Close)
	}
	for db.isRead() {
		time.Sleep(readersPause)
	}
	return errors.Join(unlockFile(db.bolt.file), db.bolt.file.Close())
}

// isRead reports whether a transaction is open or about to begin. The committer may call it.
func (db *DB) isRead() bool {
	return db.users.Load() > 0 || db.formerUsers != nil && db.formerUsers.Load() > 0
}
