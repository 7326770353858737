package persist

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// formatVersion is the version of everything in the file: buckets, keys and
// values. A file with another version is set aside.
const formatVersion = "1"

const (
	formatBucket = "warmwatch" // The only top level bucket that is not a space.
	formatKey    = "format"
)

// Open opens the file at path, or begins one (mode 0600, in a directory created with
// 0700). A symbolic link is followed, also to a file that is not there yet. Open fails
// only for bad options, an empty path, and a path that is not a regular file, such as a
// directory. Whatever else is wrong with the file, the DB works: a bad file is set aside
// as path.corrupt-<time>, and what can still be read is copied into its successor; a file
// that another process holds, or that cannot be written, is left alone, and the DB works
// from memory. [DB.Err] says so.
//
// Where the file cannot be opened, or the disk has no room for a new one, this is tried
// again, less and less often, while the DB works. A warmwatch file that is at path once it
// succeeds is set aside as path.replaced-<time>, because the DB has gone on without it.
// Any other file that has come there since Open is left alone.
//
// A file with nothing in it is begun in place. So path may be a mount point; but a mount
// point that gets damaged cannot be replaced: mount its directory instead.
func Open(path string, o Options) (*DB, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if path == "" {
		return nil, errors.New("persist: path is empty")
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("persist: %s is not a regular file (%v)", path, info.Mode().Type())
	}
	db := newDB(path, o)
	var file opened
	if db.path, err = resolve(path); err == nil {
		if file, err = db.openFile(); db.broken == nil {
			db.broken = err
		}
	}
	if file.bolt != nil {
		// A process that was killed before its fsync may have written the file. That is not
		// durable, and handlers are about to be told of it.
		if syncErr := db.ensureSynced(file.bolt); syncErr != nil {
			db.log.Error(syncErr, "Could not sync the cache file that was found, trying again", "path", path)
			db.applied = 1 // Stands for what was found. The first commit syncs that.
			db.noteChangeLocked(true)
		} else if err == nil {
			_ = os.Remove(db.path + finishedSuffix) // Left by a crash, and not needed any more.
		}
	}
	db.useLocked(file)
	if err != nil { // There is no file, or one that must not be written to.
		db.replaceLaterLocked(err)
	}
	go db.run(0)
	return db, nil
}

// OpenMemory returns a DB that never has a file: [DB.MemoryOnly] is true, and nothing is wrong
// with that. It is closed like any other.
func OpenMemory(o Options) (*DB, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	db := newDB("", o)
	db.useLocked(opened{})
	go db.run(0)
	return db, nil
}

func newDB(path string, o Options) *DB {
	db := &DB{
		givenPath: path,
		opts:      o,
		log:       *o.Logger,
		wake:      make(chan struct{}, 1),
		done:      make(chan struct{}),
		ended:     make(chan struct{}),
		pending:   newLayer(),
		hooks:     map[*Hook]struct{}{},
	}
	db.cond.L = &db.mu
	return db
}

// opened is a file that bbolt has opened.
type opened struct {
	bolt *handle
	file *os.File // bbolt's own.
	txID int      // The file's last transaction.
}

// useLocked has the DB read from and write to o, which may be no file.
func (db *DB) useLocked(o opened) {
	db.bolt, db.boltFile, db.boltTxID = o.bolt, o.file, o.txID
	db.users = new(sync.WaitGroup)
}

// openFile opens the file, after replacing a bad one or beginning a missing one. It may
// return a file beside an error: that one can only be read.
func (db *DB) openFile() (opened, error) {
	db.removeAbandoned()
	for attempts := 0; ; attempts++ {
		f, err := lockFile(db.path, db.opts.LockTimeout)
		if isUnreadable(err) {
			time.Sleep(readAgainDelay)
			f, err = lockFile(db.path, db.opts.LockTimeout)
		}
		if err == nil {
			return db.openLocked(f)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return opened{}, err
		}
		o, err := db.begin()
		if errors.Is(err, fs.ErrExist) && attempts < maxOpenAttempts {
			continue // Another process was faster.
		}
		return o, err
	}
}

// maxOpenAttempts bounds how often a file may come and go while it is being opened.
const maxOpenAttempts = 10

// begin makes a new file where there is none. If a process crashed before it could name
// its finished file, begin names that one and returns [fs.ErrExist].
func (db *DB) begin() (opened, error) {
	finished := db.path + finishedSuffix
	f, err := lockFile(finished, db.opts.LockTimeout)
	if errors.Is(err, fs.ErrNotExist) {
		return db.successor(nil, nil, false)
	}
	if err != nil {
		return opened{}, err
	}
	// It is closed first, because some systems rename no open file. The caller then opens
	// it as if it had always been there.
	if err := errors.Join(f.Close(), publish(finished, db.path)); err != nil {
		return opened{}, err
	}
	return opened{}, fs.ErrExist
}

// openFound opens a file that lockFile has locked, if it is sound. If it is bad, it
// returns the file, locked, and what is wrong with it. It inspects the file before bbolt
// reads it, because bbolt would end the process over some files, and write to others that
// are not ours; and under the lock, because another process's commit looks like damage.
func (db *DB) openFound(f *os.File) (o opened, bad *os.File, err error) {
	in, err := inspectFile(f, false)
	if err == nil {
		err = guard(func() error { return checkFormat(f, f.Name()) })
	}
	if err == nil {
		if o, err = openInspected(in, f.Name(), f, db.opts.LockTimeout); isBad(err) {
			bad, err = lockAgain(db.path, err)
		}
		return o, bad, err
	}
	if !isBad(err) {
		return opened{}, nil, errors.Join(err, f.Close())
	}
	return opened{}, f, err
}

// openLocked opens a file that lockFile has locked, or replaces it.
func (db *DB) openLocked(f *os.File) (opened, error) {
	if isBlank(f) {
		return db.beginBlank(f)
	}
	o, f, cause := db.openFound(f)
	if f == nil {
		return o, cause
	}
	o, err := db.successor(f, cause, true)
	if err == nil {
		_ = f.Close() // It was only read, so an error of Close loses nothing.
		return o, nil
	}
	err = fmt.Errorf("%w; and it could not be replaced: %w", cause, err)
	if db.badFile, _ = f.Stat(); db.badFile != nil { // Else attach could not tell it from another file.
		db.broken = cause
	}
	if errors.Is(cause, ErrCorrupt) {
		if in, bad := inspectFile(f, true); bad == nil {
			if o, bad := openInspected(in, f.Name(), f, db.opts.LockTimeout); bad == nil {
				return o, err
			}
		}
	}
	_ = f.Close() // Unless bbolt has.
	return opened{}, err
}

// openInspected opens a file whose branches were inspected. With an error it is closed.
func openInspected(in *inspector, path string, f *os.File, timeout time.Duration) (opened, error) {
	o, err := openBolt(path, f, in.readOnly, timeout)
	if err == nil {
		err = in.checkLeaves(o.bolt)
	}
	if err != nil && o.bolt != nil {
		_ = guard(o.close)
		o = opened{}
	}
	return o, err
}

// lockAgain locks a file that bbolt has refused, and closed.
func lockAgain(path string, cause error) (*os.File, error) {
	f, err := lockFile(path, 0)
	if err != nil {
		return nil, errors.Join(cause, err)
	}
	return f, cause
}

func isBad(err error) bool {
	return errors.Is(err, ErrCorrupt) || errors.Is(err, ErrUnknownFormat)
}

// Files beside the cache file begin with its name and one of these.
const (
	corruptSuffix  = ".corrupt-"  // A bad file, kept so that somebody can find out why it is bad.
	replacedSuffix = ".replaced-" // A sound file that this process has gone on without.
	newSuffix      = ".new-"      // A file that is being made, or was when its process crashed.
	finishedSuffix = ".finished"  // A whole file that is about to get the name of the cache file.

	setAsideLayout = "20060102T150405.000000000" // Follows the first two.
)

func isTime(s string) bool {
	_, err := time.Parse(setAsideLayout, s)
	return err == nil
}

// isNumber reports whether s is what os.CreateTemp appends.
func isNumber(s string) bool {
	_, err := strconv.ParseUint(s, 10, 64)
	return err == nil
}

// keptSetAside is how many files of each kind are kept: the newest, and the oldest ones,
// of which the first may be somebody else's file that was in the way.
const keptSetAside = 3

// A SetAside is a file that could not be used, and was replaced.
type SetAside struct {
	Path  string    // Where it is now.
	Time  time.Time // When it was set aside.
	Cause string    // What was wrong with it, or why it could not be used.
}

// SetAside lists the files that this DB has set aside and not removed since.
func (db *DB) SetAside() []SetAside {
	db.mu.RLock()
	defer db.mu.RUnlock()
	return slices.Clone(db.setAsides)
}

func (db *DB) setAside(cause error) error {
	now, suffix := time.Now(), corruptSuffix
	if !isBad(cause) {
		suffix = replacedSuffix
	}
	aside := db.path + suffix + now.UTC().Format(setAsideLayout)
	if err := os.Rename(db.path, aside); errors.Is(err, syscall.EBUSY) {
		return fmt.Errorf("%w: if it is a mount point, mount the directory that it is in instead", err)
	} else if err != nil {
		return err
	}
	db.log.Error(cause, "Set the cache file aside and begin a new one", "path", db.path, "aside", aside)
	// The oldest ones stay, and this one.
	others := slices.DeleteFunc(db.filesBeside(suffix, isTime), func(name string) bool { return name == aside })
	if keep := keptSetAside - 1; len(others) > keep {
		db.removeSetAside(others[keep:])
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	db.setAsides = append(db.setAsides, SetAside{aside, now, cause.Error()})
	return nil
}

// makeRoom is called when the disk is full. It removes the files that were set aside, but
// for the first of each kind, and reports whether there were any.
func (db *DB) makeRoom() bool {
	var names []string
	for _, suffix := range []string{corruptSuffix, replacedSuffix} {
		if found := db.filesBeside(suffix, isTime); len(found) > 1 {
			names = append(names, found[1:]...)
		}
	}
	db.removeSetAside(names)
	return len(names) > 0
}

func (db *DB) removeSetAside(names []string) {
	db.remove(names)
	db.mu.Lock()
	defer db.mu.Unlock()
	db.setAsides = slices.DeleteFunc(db.setAsides, func(a SetAside) bool { return slices.Contains(names, a.Path) })
}

// createNew makes a file beside the cache file, and locks it, so that others know that it is
// being made.
func (db *DB) createNew() (*os.File, error) {
	f, err := os.CreateTemp(filepath.Dir(db.path), filepath.Base(db.path)+newSuffix+"*") // 0600
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		return nil, err
	}
	locked, err := lockFile(f.Name(), 0)
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return locked, err
}

// aboutToBeLocked is how long an empty new file counts as in use, because the process that
// makes it may not have locked it yet.
const aboutToBeLocked = time.Minute

// removeAbandoned removes the files that processes were making when they crashed.
func (db *DB) removeAbandoned() {
	for _, name := range db.filesBeside(newSuffix, isNumber) {
		info, err := os.Stat(name)
		if err != nil {
			continue
		}
		age := time.Since(info.ModTime()) // Negative, if the clock has gone back.
		if abandonedAge > 0 && age < abandonedAge || info.Size() == 0 && age.Abs() < aboutToBeLocked {
			continue
		}
		if f, err := lockFile(name, 0); err == nil { // Its process has ended.
			db.remove([]string{name})
			_ = f.Close()
		}
	}
}

// filesBeside lists, sorted, the files beside the cache file whose names are its name, suffix
// and a rest that ours accepts. If the directory cannot be read, it returns none.
func (db *DB) filesBeside(suffix string, ours func(string) bool) []string {
	dir, base := filepath.Split(db.path)
	entries, _ := os.ReadDir(filepath.Clean(dir))
	var names []string
	for _, e := range entries {
		if rest, found := strings.CutPrefix(e.Name(), base+suffix); found && ours(rest) && e.Type().IsRegular() {
			names = append(names, dir+e.Name())
		}
	}
	return names
}

// remove removes files. Those that it cannot remove are tried again the next time.
func (db *DB) remove(names []string) {
	for _, name := range names {
		if err := os.Remove(name); err != nil {
			db.log.Error(err, "Could not remove an old file", "path", name)
		}
	}
}

// PageBytes is the page size of new bbolt files. A leaf has at least two objects.
// Two Pods fit into a page of 8 KiB, whose buffer bbolt uses again; for longer
// leaves it allocates. Existing files keep their page size.
const PageBytes = 8 << 10

// boltOptions leaves the freelist synced: otherwise bbolt walks all pages in a
// goroutine of its own when it opens a file, which takes long, and ends the
// process at a corrupt page.
func boltOptions(timeout time.Duration) *bolt.Options {
	return &bolt.Options{
		Timeout:         timeout,
		PageSize:        PageBytes,
		FreelistType:    bolt.FreelistMapType,
		InitialMmapSize: initialMapBytes,
		NoStatistics:    true,
	}
}

// allocBytes is by how much the file grows.
const allocBytes = 4 << 20

// openBolt has bbolt use f, an open file; if f is nil, bbolt opens path itself. If it
// returns an error, f is closed, and the error is a [CorruptError], [ErrLocked], or the
// file system's.
func openBolt(path string, f *os.File, readOnly bool, timeout time.Duration) (o opened, err error) {
	o.file = f
	options := boltOptions(timeout)
	options.ReadOnly = readOnly
	options.OpenFile = func(name string, flag int, mode os.FileMode) (_ *os.File, err error) {
		if o.file == nil {
			o.file, err = openFile(name, flag, mode)
		}
		return o.file, err
	}
	err = guard(func() (err error) {
		b, err := bolt.Open(path, 0o600, options)
		if err == nil {
			o.bolt = newHandle(b, o.file)
		}
		return err
	})
	if err == nil {
		o.bolt.AllocSize = allocBytes
		err = view(o.bolt, func(tx *bolt.Tx) error {
			o.txID = tx.ID()
			return nil
		})
		if err != nil {
			err = errors.Join(err, guard(o.bolt.Close))
		}
	}
	if err == nil {
		return o, nil
	}
	if o.file != nil { // bbolt has closed it, unless it panicked: then its mapping would keep the lock.
		_ = errors.Join(unlockFile(o.file), o.file.Close())
	}
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		err = fmt.Errorf("%w: %s", ErrLocked, path)
	case errors.Is(err, bolterrors.ErrInvalid), errors.Is(err, bolterrors.ErrChecksum), errors.Is(err, bolterrors.ErrVersionMismatch):
		err = &CorruptError{Err: err}
	}
	return opened{}, err
}
