package persist

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// formatVersion is of everything in the file: buckets, keys and values. A file
// with another version is set aside.
const formatVersion = "1"

const (
	formatBucket = "warmwatch" // The only top level bucket that is not a space.
	formatKey    = "format"
)

// Open opens the file at path, or begins one (mode 0600, in a directory
// created with 0700). It fails only for a path that cannot be meant: empty, or
// a directory. Whatever else is wrong with the file, the DB works: a bad file
// is set aside as path.corrupt-<time>; one that is held by another process or
// cannot be written is left alone and the DB works from memory. [DB.Err] says
// so.
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
	db := &DB{
		path:    path,
		opts:    o,
		log:     *o.Logger,
		wake:    make(chan struct{}, 1),
		done:    make(chan struct{}),
		pending: newLayer(),
		hooks:   map[*Hook]struct{}{},
	}
	db.cond.L = &db.mu
	file, err := db.openFile()
	db.bolt, db.boltFile, db.boltTxID = file.bolt, file.file, file.txID
	if err != nil {
		db.degradedErr = fmt.Errorf("persist: working from memory: %w", err)
		db.log.Error(err, "Could not use the cache file, working from memory", "path", path)
	}
	go db.run(0)
	return db, nil
}

// opened is a file that bbolt has opened.
type opened struct {
	bolt *handle
	file *os.File // bbolt's own.
	txID int      // Of its last transaction.
}

// openFile opens the file, after setting a bad one aside or creating a missing
// one.
func (db *DB) openFile() (opened, error) {
	db.removeAbandoned()
	err := db.checkFile()
	if err == nil {
		o, err := openExisting(db.path, db.opts.LockTimeout)
		if !isBad(err) {
			return o, err
		}
		if _, err := db.setAside(err); err != nil {
			return opened{}, err
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		return opened{}, err
	}
	if err := create(db.path); err != nil {
		return opened{}, err
	}
	return openExisting(db.path, db.opts.LockTimeout)
}

// checkFile looks at the file before bbolt does, which would end the process
// over some files and write to others that are not ours. A bad file is gone
// afterwards, and the error os.ErrNotExist. The file is judged, and set aside,
// under its lock: another process's commit looks like damage.
func (db *DB) checkFile() error {
	unlock, err := lockFile(db.path, db.opts.LockTimeout)
	if err != nil {
		return err
	}
	defer unlock()
	err = inspect(db.path, false)
	if !isBad(err) {
		return err
	}
	if _, err := db.setAside(err); err != nil {
		return err
	}
	return os.ErrNotExist
}

func isBad(err error) bool {
	return errors.Is(err, ErrCorrupt) || errors.Is(err, ErrUnknownFormat)
}

// Files beside the cache file begin with its name and one of these.
const (
	asideSuffix = ".corrupt-" // A bad file, for those who want to know why.
	newSuffix   = ".new-"     // One that is being made, or was when a process crashed.

	asideTime = "20060102T150405.000000000" // Follows asideSuffix.
)

func isTime(s string) bool {
	_, err := time.Parse(asideTime, s)
	return err == nil
}

// isNumber: what os.CreateTemp appends.
func isNumber(s string) bool {
	_, err := strconv.ParseUint(s, 10, 64)
	return err == nil
}

// asideFiles are kept: the oldest ones, of which the first may be somebody
// else's file that was in the way, and the newest.
const asideFiles = 3

func (db *DB) setAside(cause error) (aside string, err error) {
	aside = db.path + asideSuffix + time.Now().UTC().Format(asideTime)
	if err := os.Rename(db.path, aside); err != nil {
		return "", errors.Join(cause, err)
	}
	db.log.Error(cause, "Set the cache file aside and begin a new one", "path", db.path, "aside", aside)
	// The oldest ones stay, and this one.
	others := slices.DeleteFunc(db.beside(asideSuffix, isTime), func(name string) bool { return name == aside })
	if keep := asideFiles - 1; len(others) > keep {
		db.remove(others[keep:])
	}
	return aside, nil
}

// abandoned is how old a file is that nobody makes any more.
const abandoned = time.Hour

// removeAbandoned removes what processes have left that crashed when they made
// a file.
func (db *DB) removeAbandoned() {
	db.remove(slices.DeleteFunc(db.beside(newSuffix, isNumber), func(name string) bool {
		info, err := os.Stat(name)
		return err != nil || time.Since(info.ModTime()) < abandoned
	}))
}

// beside lists the files beside the cache file whose names go on with suffix and
// then something of ours, sorted. If they cannot be listed, there are none to be
// removed.
func (db *DB) beside(suffix string, ours func(string) bool) []string {
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

// remove removes files. Those that cannot be are tried again the next time.
func (db *DB) remove(names []string) {
	for _, name := range names {
		if err := os.Remove(name); err != nil {
			db.log.Error(err, "Could not remove an old file", "path", name)
		}
	}
}

// PageBytes is bbolt's page in files that are begun. A leaf has at least two
// objects, and one of two Pods fits into a page of 8 KiB, whose buffer bbolt uses
// again; for longer leaves it allocates. Files with other pages stay as they are.
const PageBytes = 8 << 10

// boltOptions has the freelist synced: without it bbolt walks all pages in a
// goroutine of its own when it opens a file, and a corrupt page then ends the
// process. It also makes opening fast.
func boltOptions(timeout time.Duration) *bolt.Options {
	mapBytes := 64 << 20
	if math.MaxInt > math.MaxInt32 {
		// Address space only. Growing the map waits for all readers.
		mapBytes = 1 << 30
	}
	return &bolt.Options{
		Timeout:         timeout,
		PageSize:        PageBytes,
		FreelistType:    bolt.FreelistMapType,
		InitialMmapSize: mapBytes,
		NoStatistics:    true,
	}
}

// allocBytes is by how much the file grows.
const allocBytes = 4 << 20

// create begins a file: at a temporary path first, because bbolt's first
// initialisation is not crash-safe.
func create(path string) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, filepath.Base(path)+newSuffix+"*") // 0600
	if err != nil {
		return err
	}
	tmp := f.Name()
	defer func() { _ = os.Remove(tmp) }() // Gone already after a rename.
	if err := f.Close(); err != nil {
		return err
	}
	err = guard(func() error {
		b, err := bolt.Open(tmp, 0o600, boltOptions(time.Second))
		if err != nil {
			return err
		}
		b.AllocSize = allocBytes
		err = b.Update(func(tx *bolt.Tx) error {
			format, err := tx.CreateBucketIfNotExists([]byte(formatBucket))
			if err != nil {
				return err
			}
			return format.Put([]byte(formatKey), []byte(formatVersion))
		})
		return errors.Join(err, b.Close())
	})
	if err != nil {
		return fmt.Errorf("begin %s: %w", path, err)
	}
	// A link does not replace the file of a process that was faster. Some file
	// systems have no links.
	if err := os.Link(tmp, path); err != nil && !errors.Is(err, os.ErrExist) {
		if err := os.Rename(tmp, path); err != nil {
			return err
		}
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// openExisting opens a whole and known file, or says what it is instead:
// [ErrCorrupt], [ErrUnknownFormat], [ErrLocked], or the file system's error.
func openExisting(path string, timeout time.Duration) (o opened, err error) {
	options := boltOptions(timeout)
	options.OpenFile = func(name string, flag int, mode os.FileMode) (f *os.File, err error) {
		o.file, err = os.OpenFile(name, flag, mode)
		return o.file, err
	}
	err = guard(func() (err error) {
		b, err := bolt.Open(path, 0o600, options)
		if err == nil {
			o.bolt = newHandle(b, o.file)
		}
		return err
	})
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return opened{}, fmt.Errorf("%w: %s", ErrLocked, path)
	case errors.Is(err, bolterrors.ErrInvalid), errors.Is(err, bolterrors.ErrChecksum), errors.Is(err, bolterrors.ErrVersionMismatch):
		return opened{}, &CorruptError{Err: err}
	case err != nil:
		return opened{}, err
	}
	o.bolt.AllocSize = allocBytes
	err = view(o.bolt, func(tx *bolt.Tx) error {
		o.txID = tx.ID()
		format := tx.Bucket([]byte(formatBucket))
		if format == nil {
			return fmt.Errorf("%w: %s is not a warmwatch cache", ErrUnknownFormat, path)
		}
		if v := string(format.Get([]byte(formatKey))); v != formatVersion {
			return fmt.Errorf("%w: %s has version %q, expected %q", ErrUnknownFormat, path, v, formatVersion)
		}
		return nil
	})
	if err != nil {
		return opened{}, errors.Join(err, o.bolt.Close())
	}
	return o, nil
}

// reset replaces a file that was found corrupt while in use. What can still be
// read, and passes its checksum, is copied into the new one; what was pending
// is kept. The owners of the spaces, told by AfterReset, put in the rest again.
func (db *DB) reset(cause error) {
	// The old handle is given up without Close: a commit that has panicked holds
	// bbolt's locks, and snapshots may still be open on it. Its descriptor and
	// flock live on the renamed file.
	db.mu.RLock()
	old := db.bolt
	db.mu.RUnlock()
	aside, err := db.setAside(cause)
	var o opened
	if err == nil {
		o, err = db.openFile()
	}
	if err == nil {
		if o.txID, err = salvage(old, aside, o.bolt, o.txID); err != nil {
			db.log.Error(err, "Could not salvage all of the corrupt cache file", "path", db.path)
			err = nil
		}
	}

	db.mu.Lock()
	db.bolt, db.boltFile, db.boltTxID = o.bolt, o.file, o.txID
	db.leavesChecked = true // Of a file that was just written.
	if failed := db.flushing; failed != nil {
		db.mergeBackLocked(failed)
		db.flushing = nil
	}
	for k := range db.encodeErrs { // The new file has no marks of them yet.
		if e, found := db.pending.lookup(k.bucket, k.key); found && e.unencodable {
			e.unencodable = false
			db.pending.set(k.bucket, k.key, e)
		}
	}
	db.markSalvagedLocked()
	db.commitErr, db.retryDelay, db.resetCause = nil, 0, nil
	if err != nil {
		db.degradedErr = fmt.Errorf("persist: working from memory: %w", err)
	}
	db.noteChangeLocked(true)
	hooks := db.hooksLocked()
	db.cond.Broadcast()
	db.mu.Unlock()

	for _, h := range hooks {
		if h.AfterReset != nil {
			h.AfterReset(cause)
		}
	}
}

// mergeBackLocked puts a layer that could not be committed under pending.
func (db *DB) mergeBackLocked(l *layer) {
	for name, bl := range l.buckets {
		p := db.pending.bucket(name)
		if p.dropped {
			continue // Dropped since: nothing shines through.
		}
		p.dropped = bl.dropped
		bl.entries.Scan(func(key string, e entry) bool {
			if _, newer := db.pending.buckets[name].entries.Get(key); !newer {
				e.fresh = e.fresh && db.memoryOnly() // May be in the file, if only the last step failed.
				db.pending.set(name, key, e)
			}
			return true
		})
	}
}

// salvage copies what is whole from a damaged file, if that is safe to walk. It
// returns the last transaction of the new one.
func salvage(old *handle, aside string, b *handle, txID int) (int, error) {
	if err := inspect(aside, true); err != nil {
		return txID, err
	}
	err := view(old, func(tx *bolt.Tx) error {
		return tx.ForEach(func(space []byte, spaceBucket *bolt.Bucket) (err error) {
			if string(space) == formatBucket {
				return nil
			}
			if txID, err = markSalvaged(b, string(space), txID); err != nil {
				return err
			}
			return spaceBucket.ForEachBucket(func(name []byte) (err error) {
				txID, err = copyBucket(spaceBucket.Bucket(name), b, Bucket{string(space), string(name)}, txID)
				return err
			})
		})
	})
	return txID, err
}

// salvagedBucket has the mark of a space that was in a damaged file: something
// may be missing, whatever the rest of the space says.
const (
	salvagedBucket = "salvaged"
	salvagedKey    = "mark"
)

// Salvaged reports whether the space was in a file that was found corrupt
// while in use, and has not been forgiven since: something may be missing.
func (db *DB) Salvaged(space string) bool {
	found, err := db.View(Bucket{space, salvagedBucket}, salvagedKey, func(*Item) error { return nil })
	return found || errors.Is(err, ErrCorrupt)
}

// ForgetSalvage removes the mark, once the owner of the space has put in
// everything that there is.
func (db *DB) ForgetSalvage(space string) error {
	_, err := db.Update(func(b *Batch) { b.Delete(Bucket{space, salvagedBucket}, salvagedKey) })
	return err
}

// markSalvaged is written before anything else of the space.
func markSalvaged(b *handle, space string, txID int) (int, error) {
	l := newLayer()
	l.set(Bucket{space, salvagedBucket}, salvagedKey, entry{value: Bytes(nil)})
	id, _, err := (&DB{}).write(b, l)
	if err != nil {
		return txID, err
	}
	return id, nil
}

// markSalvagedLocked does the same for all spaces in use.
func (db *DB) markSalvagedLocked() {
	spaces := map[string]struct{}{}
	for b := range db.pending.buckets {
		spaces[b.Space] = struct{}{}
	}
	for h := range db.hooks {
		spaces[h.Space] = struct{}{}
	}
	delete(spaces, "")
	for space := range spaces {
		db.pending.set(Bucket{space, salvagedBucket}, salvagedKey, entry{value: Bytes(nil)})
	}
}

// salvageKeys are copied in one transaction.
const salvageKeys = 1000

// copyBucket copies the values that pass their checksums. A damaged page ends
// the bucket, not the salvage.
func copyBucket(from *bolt.Bucket, to *handle, name Bucket, txID int) (int, error) {
	l := newLayer()
	flush := func() error {
		writer := &DB{}
		id, _, err := writer.write(to, l)
		if err == nil {
			txID, l = id, newLayer()
		}
		return err
	}
	n := 0
	var writeErr error
	_ = guard(func() error { // What is behind the damage is lost, and comes again from the server.
		return from.ForEach(func(k, v []byte) error {
			if len(k) == 0 || len(k) > bolt.MaxKeySize {
				return nil
			}
			payload, err := unseal(name, string(k[1:]), v)
			if err != nil {
				return nil //nolint:nilerr // Left out: that is what salvaging means.
			}
			l.set(name, string(k[1:]), entry{value: Bytes(append([]byte(nil), payload...))})
			if n++; n%salvageKeys == 0 {
				writeErr = flush()
			}
			return writeErr
		})
	})
	if writeErr == nil {
		writeErr = flush()
	}
	return txID, writeErr
}
