package persist

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime/debug"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// A handle is a file that bbolt has opened.
type handle struct {
	*bolt.DB
	file     *os.File // The file that bbolt uses.
	pageSize int64
}

// boltOptions leaves the freelist synced. Otherwise bbolt walks all pages in a goroutine of its own when it opens a
// file. That takes long, and ends the process at a corrupt page.
func boltOptions() *bolt.Options {
	return &bolt.Options{
		Timeout:         boltTimeout,
		PageSize:        PageBytes,
		FreelistType:    bolt.FreelistMapType,
		InitialMmapSize: initialMapBytes,
		NoStatistics:    true,
	}
}

// PageBytes is the page size of new bbolt files. A leaf has at least two objects.
// Two Pods fit into a page of 8 KiB, whose buffer bbolt uses again; for longer
// leaves it allocates. Existing files keep their page size.
const PageBytes = 8 << 10

// allocBytes is by how much the file grows.
const allocBytes = 4 << 20

// openBolt opens a file with bbolt. After an error the file is closed.
func (db *DB) openBolt(f *os.File) (*handle, error) {
	options := boltOptions()
	if db.phase == reading {
		options.ReadOnly, options.Timeout = true, 1 // It does not wait.
	}
	options.OpenFile = func(string, int, os.FileMode) (*os.File, error) { return f, nil }
	var b *bolt.DB
	err := guard(func() (err error) {
		b, err = bolt.Open(f.Name(), 0o600, options)
		return err
	})
	if err == nil {
		b.AllocSize, b.MaxSize = allocBytes, int(min(db.opts.MaxFileBytes, math.MaxInt)) // Not earlier: Windows refuses to open a longer file.
		return &handle{DB: b, file: f, pageSize: int64(b.Info().PageSize)}, nil
	}
	_ = errors.Join(unlockFile(f), f.Close()) // bbolt has closed it, unless bbolt panicked: its mapping would keep the lock.
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		err = fmt.Errorf("%w: %s%s", ErrLocked, f.Name(), holder(f.Name()))
	case db.phase == reading, errors.Is(err, bolterrors.ErrInvalid), errors.Is(err, bolterrors.ErrChecksum), errors.Is(err, bolterrors.ErrVersionMismatch):
		err = &CorruptError{Err: err}
	}
	return nil, err
}

// Begin begins a transaction. It first checks the meta pages: if neither is valid, bbolt panics and keeps the locks
// that it has taken.
func (h *handle) Begin(writable bool) (tx *bolt.Tx, err error) {
	if err := h.checkMeta(); err != nil {
		return nil, err
	}
	err = guard(func() (err error) {
		tx, err = h.DB.Begin(writable)
		return err
	})
	if !errors.Is(err, bolterrors.ErrDatabaseNotOpen) {
		err = errorBeforeCommit(err)
	}
	return tx, err
}

// checkMeta returns a [CorruptError] unless there is a valid meta page, and the file is long enough for both. If a read
// fails, the other page may do.
func (h *handle) checkMeta() error {
	var head [metaOffset + metaBytes]byte
	var failed error
	for _, at := range [...]int64{h.pageSize, 0} { // The second one first: it shows that the file is long enough.
		switch _, err := h.file.ReadAt(head[:], at); {
		case errors.Is(err, os.ErrClosed):
			return bolterrors.ErrDatabaseNotOpen
		case errors.Is(err, io.EOF): // bbolt would fault when it reads its mapping there.
			return &CorruptError{Err: fmt.Errorf("read a meta page: %w", err)}
		case err != nil:
			failed = fmt.Errorf("persist: read a meta page: %w", err)
		case soundMeta(head[metaOffset:]):
			return nil
		}
	}
	return cmp.Or(failed, corruptFile("neither meta page is valid"))
}

// rewriteMeta writes the newest meta page once more, as it is, and syncs the file. A failed fsync, in this process or
// an earlier one, may have lost that page, and the kernel does not try again. bbolt uses a meta page as soon as it is
// written, and the next commit overwrites pages of the transaction before.
func (h *handle) rewriteMeta() error {
	m, err := newestMeta(h.file)
	if err != nil { // Not damage yet: only Open takes it for that if a device cannot read (S6).
		return fmt.Errorf("persist: read a meta page: %v", err) //nolint:errorlint // It is not to be a CorruptError.
	}
	page := int64(txIDOf(m) % 2) // Meta.Write in bbolt's internal/common/meta.go.
	if _, err := h.file.WriteAt(m, page*h.pageSize+metaOffset); err != nil {
		return err
	}
	return h.file.Sync()
}

// update runs fn in a write transaction, and commits it.
func (h *handle) update(fn func(*bolt.Tx) error) error {
	return guard(func() error {
		tx, err := h.Begin(true)
		if err != nil {
			return err
		}
		defer func() { _ = guard(tx.Rollback) }() // Does nothing after Commit.
		if err := fn(tx); err != nil {
			return errorBeforeCommit(err)
		}
		return tx.Commit()
	})
}

// guard calls f and turns a panic, or a fault in the mapped file, into a
// [CorruptError]: bbolt panics where an assertion fails, and reading it
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
