package persist

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"
)

// FormatVersion is the version of everything in the file: buckets, keys and
// values. A file with another version is set aside.
const FormatVersion = "1"

const (
	formatBucket = "warmwatch" // The only top level bucket that is not a space.
	formatKey    = "format"
)

// The name of a file that was set aside is the cache file's, then corruptSuffix, then a time in setAsideLayout.
const (
	corruptSuffix  = ".corrupt-"
	setAsideLayout = "20060102T150405.000000000"
)

// usedPaths has the paths of the files that this process has opened.
var usedPaths sync.Map

// Open opens the file at path, or begins one (mode 0600, in a directory created with
// 0700). A symbolic link is followed, also to a file that is not there yet. Open fails
// for bad options, an empty path, a path that is not a regular file, and a path that another DB of this
// process uses ([ErrInUse]). If ctx ends while Open waits for another process, it returns the error of ctx.
//
// Whatever else is wrong with the file, the DB works. A file is set aside as path.corrupt-<time> if it is damaged or of
// another format, or if three processes in a row have died while bbolt opened it. Then a new file is begun, and the
// file that was set aside before is removed. A file that another process holds, or that cannot be written, is left
// alone, and the DB works from memory until it is closed. [DB.Err] says why.
//
// A file is begun in place, so path may be an empty file that is a mount point of its own. But such a file cannot be
// set aside when it is damaged: mount its directory instead.
func Open(ctx context.Context, path string, o Options) (*DB, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := checkRegular(path); err != nil {
		return nil, err
	}
	db := newDB(o)
	if db.path, err = resolve(path); err == nil {
		if _, taken := usedPaths.LoadOrStore(db.path, true); taken {
			return nil, fmt.Errorf("%w: %s", ErrInUse, path)
		}
		err = db.open(ctx)
	}
	if err != nil && (ctx.Err() != nil || o.compact) {
		usedPaths.Delete(db.path)
		return nil, err
	}
	if err != nil {
		p := &problem{CodeNoFile, time.Now(), fmt.Errorf("persist: working from memory: %w", err)}
		if errors.Is(err, ErrLocked) {
			p.code = CodeLocked
		}
		db.problem.Store(p)
	}
	go db.run()
	return db, nil
}

// checkRegular returns an error if path is empty, or is something else than a regular file.
func checkRegular(path string) error {
	if path == "" {
		return errors.New("persist: path is empty")
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("persist: %s is not a regular file (%v)", path, info.Mode().Type())
	}
	return nil
}

// OpenMemory returns a DB that never has a file: [DB.MemoryOnly] is true, and [DB.Err] is nil. It has no goroutine: an
// unused DB is garbage, closed or not.
func OpenMemory(o Options) (*DB, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	db := newDB(o)
	close(db.done)
	return db, nil
}

func newDB(o Options) *DB {
	db := &DB{
		opts:      o,
		wake:      make(chan struct{}, 1),
		done:      make(chan struct{}),
		pending:   newLayer(),
		users:     new(atomic.Int64),
		committed: make(chan struct{}),
	}
	db.problem.Store(&problem{})
	db.latest.Store(&Metrics{})
	return db
}

// maxOpenAttempts bounds how often a file may come and go while it is being opened.
const maxOpenAttempts = 10

// open opens the file. It begins a missing or empty one, and sets a bad one aside.
func (db *DB) open(ctx context.Context) (err error) {
	for range maxOpenAttempts {
		var f *os.File
		f, err = db.lock(ctx)
		if errors.Is(err, fs.ErrNotExist) {
			if err = makeDir(filepath.Dir(db.path)); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		bad, _ := f.Stat()
		switch err = db.openLocked(ctx, f); {
		case isBad(err) && !db.opts.compact:
			if err := db.setAside(ctx, bad, err); err != nil {
				return err
			}
		case !isDiskFull(err) || !db.makeRoom():
			return err
		}
	}
	return err
}

func isBad(err error) bool {
	return errors.Is(err, ErrCorrupt) || errors.Is(err, ErrUnknownFormat)
}

// openLocked opens a file that this process has locked, unless it is bad. It inspects the file before bbolt reads it:
// bbolt would end the process over some files, and write to others that are not ours. It does so under the lock,
// because another process's commit looks like damage. After an error f is closed.
func (db *DB) openLocked(ctx context.Context, f *os.File) error {
	in, err := db.inspect(f)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	deaths := db.starts()
	db.markStart(deaths + 1)
	defer db.unmarkStart()
	defer func() { _ = os.Remove(db.path + compactingSuffix) }() // A process that has died may have left it.
	b, err := db.openBolt(f)
	if err != nil {
		return err
	}
	crashpoint()
	if in != nil {
		err = in.walk(b.DB)
	}
	if err == nil && (deaths == 0 || db.opts.compact) { // After a death the compaction may be the reason.
		b, err = db.compact(ctx, b)
	}
	if err != nil {
		return errors.Join(err, guard(b.Close))
	}
	switch err = db.firstCommit(b); {
	case isBad(err):
		return errors.Join(err, unlockFile(b.file)) // Not closed: bbolt may hold its locks after a panic.
	case err != nil && in == nil: // The next Open finds an empty file, too.
		return errors.Join(err, b.file.Truncate(0), guard(b.Close))
	case err != nil:
		db.useUnsynced(b, err)
	}
	db.use(b)
	return nil
}

// use makes b the file of the DB.
func (db *DB) use(b *handle) {
	db.bolt = b
	m := &Metrics{}
	m.measure(b.file)
	db.latest.Store(m)
}

// inspect returns no inspector for an empty file.
func (db *DB) inspect(f *os.File) (*inspector, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Size() == 0 {
		_ = f.Chmod(0o600) // Like any new file. This fails if another user owns it.
		return nil, nil
	}
	if err := db.checkStarts(); err != nil {
		return nil, err
	}
	return inspect(f)
}

// firstCommit is the commit that Open makes itself. Before that, it makes the content of the file and the file's name
// durable: the process that wrote it may have been killed before its fsync.
func (db *DB) firstCommit(b *handle) error {
	if err := db.sync(b); err != nil {
		return err
	}
	return b.update(func(tx *bolt.Tx) error {
		db.boltTxID = tx.ID()
		format, err := tx.CreateBucketIfNotExists([]byte(formatBucket))
		if err == nil {
			err = format.Put([]byte(formatKey), []byte(FormatVersion))
		}
		return err
	})
}

// useUnsynced makes the DB begin as if its last commit had failed: the content of the file may not be durable.
func (db *DB) useUnsynced(b *handle, err error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	if m, err := newestMeta(b.file); err == nil {
		db.boltTxID = int(txIDOf(m)) - 1
	}
	db.bolt, db.applied, db.flushingTo, db.flushing = b, 1, 1, newLayer()
	db.failedLocked(err)
}

// sync makes the newest transaction of a file, and the file's name, durable.
func (db *DB) sync(b *handle) error {
	dir := filepath.Dir(db.path)
	return cmp.Or(b.rewriteMeta(), syncDir(dir), syncDir(filepath.Dir(dir)))
}

// A SetAside is a file that could not be used, and was renamed.
type SetAside struct {
	Path   string    // Where it is now.
	Time   time.Time // When it was set aside.
	Reason string    // What was wrong with it, for people.
}

// SetAside returns the file that this DB has set aside and not removed since, if any. It takes no lock.
func (db *DB) SetAside() []SetAside {
	if aside := db.aside.Load(); aside != nil {
		return []SetAside{*aside}
	}
	return nil
}

// setAside renames a bad file, and removes the files that were set aside before. It locks the file anew, because bbolt
// may have closed it.
func (db *DB) setAside(ctx context.Context, bad os.FileInfo, cause error) error {
	f, err := db.lock(ctx)
	if err != nil {
		return errors.Join(cause, err)
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err != nil || bad == nil || !os.SameFile(bad, info) {
		return err // Another process has set it aside.
	}
	db.damages.Add(1)
	db.removeSetAside()
	now := time.Now()
	aside := db.path + corruptSuffix + now.UTC().Format(setAsideLayout)
	if err := os.Rename(db.path, aside); err != nil {
		return errors.Join(cause, err)
	}
	db.unmarkStart()
	db.aside.Store(&SetAside{aside, now, cause.Error()})
	return nil
}

// makeRoom removes the files that were set aside, and reports whether there were any.
func (db *DB) makeRoom() bool {
	some := db.removeSetAside()
	db.aside.Store(nil)
	return some
}
