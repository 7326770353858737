package persist

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// A handle is a file that bbolt has opened. It keeps goroutines from waiting for ever on
// a lock that bbolt does not release.
//
// Where neither meta page is valid, bbolt panics in Begin, and keeps the locks that it
// has taken there: whoever begins a transaction then, ends one, or closes the file,
// waits without end. So handle checks the meta pages before Begin, which makes that
// panic rare. If it happens all the same (the damage came in between), the handle is dead:
// nobody takes bbolt's locks through it any more, open transactions are not ended, and
// bbolt's mapping stays. These rules spare the goroutines that are in bbolt at that moment:
//
//   - one goroutine at a time is in Begin or Close, under mu;
//   - a read transaction is ended under mu as well, or, if mu is held, by a goroutine
//     that nobody waits for: Begin may be waiting for just this transaction, to map the
//     file anew;
//   - a commit that is under way on a dead handle is given up, with its goroutine, see
//     [DB.abandonCommitLocked].
//
// None of this does harm where bbolt releases its locks when it panics.
type handle struct {
	*bolt.DB
	file     *os.File // bbolt's.
	pageSize int64

	mu   sync.Mutex
	dead atomic.Bool // Set under mu.
	// noWriter: bbolt may still hold the writer's lock, which readers do not need. Set under mu.
	noWriter atomic.Bool

	readersMu sync.Mutex
	readers   map[int]int // How many read transactions are open, by id.
	// readersBelow, if not 0, means that no commit may begin while a read transaction with a
	// lower id is open, see commitFailed. The committer's alone.
	readersBelow int

	// checkMeta is [handle.metaIsValid], except in tests of what happens without it.
	checkMeta func() error

	syncing  sync.Mutex   // Held by [DB.ensureSynced].
	synced   atomic.Bool  // Set under syncing, as is unsynced. Cleared when a commit has failed.
	unsynced error        // How the disk failed to sync the file.
	sync     func() error // file.Sync, except in tests.
	awaiting *awaitedSync // Guarded by readersMu, nil if no reader waits.
}

var errDead = errors.New("bbolt has panicked with its locks held")

// newHandle wraps a database that bbolt has opened and nobody uses yet.
func newHandle(b *bolt.DB, file *os.File) *handle {
	h := &handle{DB: b, file: file, pageSize: int64(b.Info().PageSize), readers: map[int]int{}}
	h.checkMeta, h.sync = h.metaIsValid, file.Sync
	return h
}

// Begin begins a transaction. A read transaction is ended by end. What bbolt returns for a writable one
// says that the file is damaged. That the meta pages could not be read may say nothing of it.
func (h *handle) Begin(writable bool) (tx *bolt.Tx, err error) {
	if err := h.checkMeta(); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.dead.Load() || (writable && h.noWriter.Load()) {
		return nil, &CorruptError{Err: errDead}
	}
	err = guard(func() (err error) {
		tx, err = h.DB.Begin(writable)
		return err
	})
	switch {
	case !errors.Is(err, ErrCorrupt):
	case writable:
		h.noWriter.Store(true)
	default:
		h.dead.Store(true)
	}
	switch {
	case writable:
		err = errorBeforeCommit(err)
	case err == nil:
		h.countReader(tx.ID(), 1)
	}
	return tx, err
}

// end ends a read transaction, or gives it up if the handle is dead.
func (h *handle) end(tx *bolt.Tx) {
	if h.dead.Load() {
		return
	}
	id := tx.ID()
	if !h.mu.TryLock() {
		go func() { // Whoever holds mu may wait for tx to end.
			_ = guard(tx.Rollback)
			h.countReader(id, -1)
		}()
		return
	}
	defer h.mu.Unlock()
	if h.dead.Load() {
		return
	}
	if guard(tx.Rollback) != nil { // Rollback of a read transaction fails only by a panic.
		h.dead.Store(true)
	}
	h.countReader(id, -1)
}

func (h *handle) countReader(id, n int) {
	h.readersMu.Lock()
	defer h.readersMu.Unlock()
	if h.readers[id] += n; h.readers[id] == 0 {
		delete(h.readers, id)
	}
}

// commitFailed is called after Commit of a transaction has failed. If only the fsync behind
// its meta page has failed, the transaction is visible. But bbolt has rolled it back, and has
// read its freelist again: the pages that it has freed count as free, although older read
// transactions use them. So the next commit waits for the end of those.
func (h *handle) commitFailed(id int) {
	h.synced.Store(false)
	if m, err := (&inspector{f: h.file}).meta(2 * h.pageSize); err != nil || txIDOf(m) >= uint64(id) {
		h.readersBelow = id
	}
}

// waitForReaders waits while a commit might write over pages of an open read transaction, see
// commitFailed, for as long as goOn says. Then it returns an error.
func (h *handle) waitForReaders(goOn func(since time.Time) bool) error {
	err := h.checkReaders()
	for begin := time.Now(); err != nil && !h.stuck() && goOn(begin); err = h.checkReaders() {
		time.Sleep(readersPause)
	}
	return err
}

const readersPause = 5 * time.Millisecond

func (h *handle) checkReaders() error {
	if h.readersBelow == 0 {
		return nil
	}
	h.mu.Lock() // Begin counts its transaction under it.
	defer h.mu.Unlock()
	h.readersMu.Lock()
	defer h.readersMu.Unlock()
	for id := range h.readers {
		if id < h.readersBelow {
			return fmt.Errorf("persist: the fsync of transaction %d has failed, and transaction %d is still being read", h.readersBelow, id)
		}
	}
	h.readersBelow = 0
	return nil
}

// endWrite rolls a write transaction back after an error, or panic. The caller returns
// that one, so endWrite returns none; but after a panic of its own, bbolt may still hold
// the writer's lock.
func (h *handle) endWrite(tx *bolt.Tx) {
	if err := guard(tx.Rollback); errors.Is(err, ErrCorrupt) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.noWriter.Store(true)
	}
}

// stuck reports whether bbolt may hold one of its locks for ever. Then it cannot close the
// file.
func (h *handle) stuck() bool { return h.dead.Load() || h.noWriter.Load() }

// Close waits for the open transactions, and closes the file. If bbolt is stuck, it does
// nothing and returns an error.
func (h *handle) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stuck() {
		return &CorruptError{Err: errDead}
	}
	return guard(h.DB.Close)
}

// ensureSynced has the content of a file, and its name, written to the disk, once. A process
// may have been killed between the last write of its last commit and the fsync, or
// between giving the file its name and syncing the directory. Nothing is durable before.
//
// The newest meta page is written again before: an fsync that has failed, in this process or
// an earlier one, may have lost it, and the kernel does not try again. bbolt believes that page
// as soon as it is written, and the next commit writes over pages of the one before. So all of
// this is due again after a commit that has failed.
//
// A file that the disk has failed to sync counts as damaged, and is replaced: a second
// fsync may succeed although some of the content was lost.
func (db *DB) ensureSynced(h *handle) error {
	if h.synced.Load() {
		return nil
	}
	h.syncing.Lock()
	defer h.syncing.Unlock()
	switch {
	case h.synced.Load():
		return nil
	case h.unsynced != nil:
		return h.unsynced
	}
	if err := h.rewriteMeta(); err != nil {
		return err
	}
	if err := db.withCachePath(h.sync()); isUnreadable(err) {
		h.unsynced = &CorruptError{Err: err}
		return h.unsynced
	} else if err != nil {
		return err
	}
	if err := db.syncName(filepath.Dir(db.path)); err != nil {
		return err
	}
	h.synced.Store(true)
	return nil
}

// awaitSynced is ensureSynced for a reader, which does not wait for a disk that does not answer.
func (db *DB) awaitSynced(h *handle) error {
	if h.synced.Load() {
		return nil
	}
	db.mu.RLock()
	hangs := db.hangsLocked()
	db.mu.RUnlock()
	if !hangs { // Else the committer has the lock, perhaps for ever.
		a := h.awaited(db)
		select {
		case <-a.done:
			return a.err
		case <-time.After(hangingCommit):
		}
	}
	return fmt.Errorf("persist: sync %s: %w", db.path, ErrNoAnswer)
}

// An awaitedSync is an ensureSynced that readers wait for, all of them for the same one.
type awaitedSync struct {
	done chan struct{} // Closed when it has ended.
	err  error
}

// awaited returns the one that is under way, or begins one.
func (h *handle) awaited(db *DB) *awaitedSync {
	h.readersMu.Lock()
	defer h.readersMu.Unlock()
	if h.awaiting != nil {
		return h.awaiting
	}
	a := &awaitedSync{done: make(chan struct{})}
	h.awaiting = a
	go func() {
		defer close(a.done)
		a.err = db.ensureSynced(h)
		h.readersMu.Lock()
		defer h.readersMu.Unlock()
		h.awaiting = nil
	}()
	return a
}

// rewriteMeta writes the newest meta once more, as it is.
func (h *handle) rewriteMeta() error {
	if h.IsReadOnly() {
		return nil
	}
	m, err := (&inspector{f: h.file}).meta(2 * h.pageSize)
	if err != nil {
		return err
	}
	page := int64(txIDOf(m) % 2) // Meta.Write in bbolt's internal/common/meta.go.
	_, err = h.file.WriteAt(m, page*h.pageSize+metaOffset)
	return err
}

// metaIsValid returns a [CorruptError] unless there is a valid meta page, and the file
// is long enough for both: else bbolt must not be asked for a transaction.
func (h *handle) metaIsValid() error {
	var head [metaOffset + metaBytes]byte
	for _, at := range [...]int64{h.pageSize, 0} { // The second one first: it shows that the file is long enough.
		switch _, err := readAt(h.file, head[:], at); {
		case errors.Is(err, os.ErrClosed):
			return bolterrors.ErrDatabaseNotOpen
		case errors.Is(err, io.EOF): // bbolt would fault when it reads its mapping there.
			return &CorruptError{Err: fmt.Errorf("read a meta page: %w", err)}
		case err != nil:
			return fmt.Errorf("persist: read a meta page: %w", err)
		case soundMeta(head[metaOffset:]):
			return nil
		}
	}
	return corruptFile("neither meta page is valid")
}

// soundMeta reports whether bbolt would accept a meta.
func soundMeta(m []byte) bool {
	return binary.NativeEndian.Uint32(m) == metaMagic && binary.NativeEndian.Uint32(m[metaVersionAt:]) == metaVersion &&
		metaSum(m) == binary.NativeEndian.Uint64(m[metaChecksumAt:])
}

// metaSum is the FNV-1a hash that a meta should have as its checksum. It is computed
// for each transaction, so it allocates nothing.
func metaSum(m []byte) uint64 {
	h := uint64(14695981039346656037)
	for _, b := range m[:metaChecksumAt] {
		h = (h ^ uint64(b)) * 1099511628211
	}
	return h
}

// view runs fn in a read transaction.
func view(h *handle, fn func(*bolt.Tx) error) error {
	return guard(func() error {
		tx, err := h.Begin(false)
		if err != nil {
			return err
		}
		defer h.end(tx)
		return fn(tx)
	})
}

// beginCommit notes that bbolt is about to commit. On a dead handle it returns an error,
// because the commit would not return.
func (db *DB) beginCommit(b *handle) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	if b.dead.Load() {
		return &CorruptError{Err: errDead}
	}
	db.committing = b
	return nil
}

// abandonCommitLocked gives up a commit that is under way on a dead handle, where it may
// wait for ever. The attempt counts as failed, what was to be written stays in flushing,
// and a new goroutine is the committer. The old one, should it ever go on, only ends.
func (db *DB) abandonCommitLocked() bool {
	if db.committing == nil || !db.committing.dead.Load() {
		return false
	}
	db.committing, db.busySince, db.arena = nil, time.Time{}, nil
	db.committer++
	db.attempts++
	db.cond.Broadcast()
	go db.run(db.committer)
	return true
}
