package persist

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
)

const (
	// After a failed replacement the next one is tried in minReplaceDelay, then in twice
	// as long each time, up to maxReplaceDelay. The same holds for a file that is damaged
	// again soon after it was replaced, up to maxResetDelay. Replacing a mount point will
	// hardly ever succeed, and each try copies the file first: up to maxBusyDelay.
	minReplaceDelay = time.Second
	maxReplaceDelay = time.Minute
	maxResetDelay   = 5 * time.Minute
	maxBusyDelay    = time.Hour
)

// crashpoint is called between the steps of a replacement. Tests let it fail, or end the
// process.
var crashpoint = func(string) error { return nil }

// reset replaces a file that was found bad while in use, or makes the one that could
// not be had before. Values that can still be read, and pass their checksums, are copied
// into the new file; pending changes are kept. Hooks learn of it by AfterReset, and put in
// again what is missing.
//
// If that fails, it is tried again later. Until then the damaged file is read from, if
// that is safe, and changes wait in memory. If it is not safe, the DB works from memory.
func (db *DB) reset(cause error) {
	db.mu.Lock()
	db.flushRequested = false
	old := opened{db.bolt, db.boltFile, db.boltTxID}
	early := time.Until(db.nextReset)
	if db.closing && !db.resetByClose { // Once: Close must end.
		early, db.resetByClose = 0, true
	}
	db.mu.Unlock()
	var (
		o   opened
		err error
	)
	switch {
	case early > 0:
		err = fmt.Errorf("%w; the file before it was replaced a moment ago, this one will be in %v", cause, early)
	case old.bolt == nil:
		o, err = db.attach()
	default:
		if db.published != nil {
			o, err = db.openPublished()
		}
		if db.published == nil { // There was none, or it is not ours any more.
			o, err = db.successor(old.file, cause, true)
		}
	}
	if err != nil {
		db.notReplaced(old, cause, err)
		return
	}
	db.replaced(old, o, cause)
}

// waitForReset waits while a damaged file is being replaced, so that the caller can
// read its successor instead of returning an error, until that hangs.
func (db *DB) waitForReset(hangsLocked func() bool) {
	db.mu.RLock()
	usable := db.resetCause == nil
	db.mu.RUnlock()
	if usable {
		return
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	for db.resetCause != nil && !db.closed && !hangsLocked() {
		db.cond.Wait()
	}
}

// replacementHangsLocked is hangsLocked for those who wait for the replacement of a damaged file to the end: that
// of a large one takes as long as the disk needs, and goes on while it answers.
func (db *DB) replacementHangsLocked() bool {
	return db.hangsLocked() && time.Since(db.answeredAt) >= hangingCommit
}

func (db *DB) answered() {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.answeredAt = time.Now()
}

// replacementDue returns why the file is to be replaced now, or nil.
func (db *DB) replacementDue() error {
	db.mu.RLock()
	cause, broken, b := db.resetCause, db.broken, db.bolt
	due := db.flushRequested || !time.Now().Before(db.replaceAt)
	db.mu.RUnlock()
	switch {
	case cause == nil && broken != nil && due:
		return broken
	case cause == nil && broken == nil && b != nil && mayReplaceOpenFiles:
		return checkName(b.file, db.path)
	}
	return cause
}

// errMemoryNewer is why attach sets a sound file aside: its cursors are older than what
// handlers were told since.
var errMemoryNewer = errors.New("persist: this process could not have the file at first, and has gone on without it")

// attach makes a file for a DB that works from memory. It replaces a file that is there
// already only if that is sound and nobody holds it, or if it is the bad one that was
// found there before. It copies nothing from it, because the DB has gone on without it.
func (db *DB) attach() (opened, error) {
	f, err := lockFile(db.path, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return db.begin()
	case err != nil:
		return opened{}, err
	case isBlank(f):
		return db.beginBlank(f)
	}
	found, bad, err := db.openFound(f)
	if err == nil {
		defer func() { _ = found.close() }() // It was only locked and read.
		return db.successor(found.file, errMemoryNewer, false)
	}
	if bad == nil {
		return opened{}, err
	}
	defer func() { _ = bad.Close() }() // Only read.
	if info, statErr := bad.Stat(); statErr != nil || db.badFile == nil || !os.SameFile(info, db.badFile) {
		return opened{}, fmt.Errorf("%w since Open, and is left alone: %w", &os.PathError{Op: "create", Path: db.path, Err: fs.ErrExist}, err)
	}
	return db.successor(bad, err, false)
}

// successor makes a file, with the readable values of the bad one if keep is set, and,
// once it is whole, gives it the name of the cache file. The bad file, if any, is set
// aside. Whatever happens meanwhile, either it or its whole successor is there.
func (db *DB) successor(bad *os.File, cause error, keep bool) (opened, error) {
	o, err := db.makeSuccessor(bad, cause, keep)
	if isDiskFull(err) && db.makeRoom() {
		o, err = db.makeSuccessor(bad, cause, keep)
	}
	return o, err
}

func (db *DB) makeSuccessor(bad *os.File, cause error, keep bool) (o opened, err error) {
	if err := errors.Join(db.makeDir(filepath.Dir(db.path)), db.checkPlace(bad)); err != nil { // Before much is written.
		return opened{}, err
	}
	f, err := db.createNew()
	if err != nil {
		return opened{}, err
	}
	tmp := f.Name()
	defer func() {
		if err != nil {
			_ = guard(o.close)
			_ = os.Remove(tmp) // This fails if the file has another name by now.
			o = opened{}
		}
	}()
	if o, err = openBolt(tmp, f, false, time.Second); err == nil {
		o.bolt.NoSync = true
		from := bad
		if !keep {
			from = nil
		}
		err = db.fill(&o, from, cause)
	}
	if err != nil {
		return o, fmt.Errorf("begin %s: %w", db.path, err)
	}
	var p *published
	if !mayReplaceOpenFiles {
		info, err := o.file.Stat()
		p = &published{info, o.txID}
		if err := errors.Join(err, guard(o.close)); err != nil {
			return opened{}, err
		}
		o = opened{}
	}
	db.answered()
	former, err := db.swap(tmp, bad, cause)
	if err != nil {
		return o, err
	}
	db.answered()
	if !mayReplaceOpenFiles {
		if o, err = openBolt(db.path, nil, false, db.opts.LockTimeout); err != nil {
			db.published = p
			return o, err
		}
	}
	db.syncPublished(o, former)
	return o, nil
}

// syncPublished has the name of a new file survive a power failure.
func (db *DB) syncPublished(o opened, former string) {
	if err := db.ensureSynced(o.bolt); err != nil { // Too late to go back. The next commit syncs it again.
		db.log.Error(err, "Could not sync the name of the cache file", "path", db.path)
	} else {
		_ = os.Remove(former) // If this fails, the next process does it; a second name does no harm.
	}
}

// published is a successor that was closed to get its name, and could not be opened again.
type published struct {
	info os.FileInfo
	txID int
}

// openPublished opens that successor later. If another process has replaced it, removed it
// or written to it meanwhile, it is not ours any more, and published becomes nil.
func (db *DB) openPublished() (opened, error) {
	p := db.published
	f, err := lockFile(db.path, db.opts.LockTimeout)
	if errors.Is(err, fs.ErrNotExist) {
		db.published = nil
	}
	if err != nil {
		return opened{}, err
	}
	if info, err := f.Stat(); err != nil || !os.SameFile(info, p.info) {
		db.published = nil
		return opened{}, errors.Join(err, f.Close())
	}
	o, err := openBolt(db.path, f, false, db.opts.LockTimeout)
	if err != nil {
		return o, err
	}
	if o.txID != p.txID {
		db.published = nil
		return opened{}, guard(o.close)
	}
	db.syncPublished(o, db.path+finishedSuffix)
	return o, nil
}

func (o opened) close() error {
	if o.bolt == nil {
		return nil
	}
	return o.bolt.Close()
}

// fill writes the format into a new file, and what can be read of the file that it replaces
// because of cause, if from is not nil, and syncs it. A file that has no name yet that anybody
// looks for has NoSync set: it is synced once, at the end.
func (db *DB) fill(o *opened, from *os.File, cause error) error {
	return guard(func() error {
		err := o.bolt.Update(func(tx *bolt.Tx) error {
			format, err := tx.CreateBucketIfNotExists([]byte(formatBucket))
			if err != nil {
				return err
			}
			o.txID = tx.ID()
			return errors.Join(format.Put([]byte(formatKey), []byte(formatVersion)), crashpoint("the new file is begun"))
		})
		if err == nil && from != nil {
			err = db.salvage(from, cause, o)
		}
		if err != nil {
			return err
		}
		o.bolt.NoSync = false
		if err := o.bolt.Sync(); err != nil {
			return err
		}
		return crashpoint("the new file is whole")
	})
}

// swap gives a whole file the name of the cache file, instead of the bad one, if there is
// one. After a crash in between nothing may have that name; then begin finds the whole
// file under the name finished, which the file may keep beside the new one.
func (db *DB) swap(tmp string, bad *os.File, cause error) (finished string, err error) {
	finished = tmp
	if bad != nil {
		finished = db.path + finishedSuffix
		if err := os.Rename(tmp, finished); err != nil {
			return "", err
		}
		err := errors.Join(db.syncDir(filepath.Dir(db.path)), crashpoint("the new file is known as finished"), db.checkPlace(bad))
		db.answered()
		if err == nil && isAt(bad, db.path) {
			err = db.setAside(cause)
		}
		if err != nil {
			_ = os.Remove(finished) // Nobody needs it while the bad file is in place.
			return "", err
		}
		if err := crashpoint("the bad file is set aside"); err != nil {
			return "", err
		}
	}
	return finished, publish(finished, db.path)
}

// checkPlace returns an error if there is a bad file, and another one has its name now:
// that one must not be replaced.
func (db *DB) checkPlace(bad *os.File) error {
	if bad == nil || isAt(bad, db.path) {
		return nil
	}
	_, err := os.Lstat(db.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return errors.Join(fmt.Errorf("another file or directory is at %s, and is left alone: nothing is stored until it is removed", db.path), err)
}

// replaced has the DB go on with the new file.
func (db *DB) replaced(old, o opened, cause error) {
	db.mu.Lock()
	users := db.users
	db.useLocked(o)
	db.leavesChecked = true // This process has just written them.
	if failed := db.flushing; failed != nil {
		db.mergeBackLocked(failed)
		db.flushing = nil
	}
	for k := range db.encodeErrs { // The new file has no unencodableValue for them yet.
		if e, found := db.pending.lookup(k.bucket, k.key); found && e.unencodable {
			e.unencodable = false
			db.pending.set(k.bucket, k.key, e)
		}
	}
	var hooks []*Hook
	if old.bolt != nil {
		db.pending.noneFresh()
		db.markSalvagedLocked()
		hooks = db.hooksLocked()
	} else {
		// What was counted as durable has to be written now.
		db.durable, db.unwritten = db.applied, true
		db.applied++
	}
	now := time.Now()
	if now.Sub(db.lastReset) > 2*maxResetDelay {
		db.resetDelay = 0
	}
	db.resetDelay = min(max(2*db.resetDelay, minReplaceDelay), maxResetDelay)
	db.lastReset, db.nextReset = now, now.Add(db.resetDelay)
	db.broken, db.badFile, db.lost, db.degradedErr = nil, nil, false, nil
	db.commitErr, db.retryDelay, db.resetCause, db.replaceDelay = nil, 0, nil, 0
	db.grace.failingSince = time.Time{}
	db.busySince = time.Time{}
	db.noteChangeLocked(true)
	db.cond.Broadcast()
	db.mu.Unlock()
	db.published = nil
	db.discard(old, users)
	callAfterReset(hooks, cause)
}

// readable reports whether a damaged file may be read, and up to which transaction.
func (db *DB) readable(o opened) (txID int, ok bool) {
	in, err := inspectFile(db.noting(o.file), true)
	if err == nil {
		err = in.checkLeaves(o.bolt)
	}
	if err == nil {
		err = view(o.bolt, func(tx *bolt.Tx) error {
			txID = tx.ID()
			return nil
		})
	}
	return txID, err == nil
}

// notReplaced has the DB go on without a new file.
func (db *DB) notReplaced(old opened, cause, err error) {
	var (
		readable bool
		txID     int
	)
	if old.bolt != nil {
		txID, readable = db.readable(old)
	}
	db.mu.Lock()
	users := db.users
	db.broken, db.busySince = cause, time.Time{}
	var hooks []*Hook
	switch {
	case old.bolt == nil:
	case !readable:
		if db.badFile, _ = old.file.Stat(); db.badFile == nil { // attach could not recognize it.
			db.broken = nil
		}
		db.lost, db.commitErr = true, nil
		db.useLocked(opened{})
		if db.flushing != nil {
			db.mergeBackLocked(db.flushing)
			db.flushing = nil
		}
		db.markSalvagedLocked()
		hooks = db.hooksLocked()
	case txID < old.txID: // Commits are lost.
		db.boltTxID = txID
		db.pending.noneFresh()
		hooks = db.hooksLocked()
	}
	db.replaceLaterLocked(err)
	if old.bolt != nil {
		db.beforeCommitLocked() // Acknowledged deltas need not wait in memory for a new file.
		db.noteChangeLocked(true)
	}
	db.cond.Broadcast()
	db.mu.Unlock()
	if !readable {
		db.discard(old, users)
	}
	callAfterReset(hooks, cause)
}

// replaceLaterLocked has the file replaced, or made, later; err says why not now.
func (db *DB) replaceLaterLocked(err error) {
	if db.memoryOnly() {
		db.logFailureLocked(err, "Could not use the cache file, working from memory")
		db.degradedErr = prefixed(err, "working from memory")
	} else {
		db.logFailureLocked(err, "Could not replace the cache file, keeping the changes in memory until then")
		db.commitErr = prefixed(err, "replace %s", db.path)
		db.grace.fails()
	}
	db.attempts++
	db.resetCause = nil
	most := maxReplaceDelay
	switch {
	case errors.Is(err, syscall.EBUSY):
		most = maxBusyDelay
	}
	db.replaceDelay = min(max(2*db.replaceDelay, minReplaceDelay), most)
	db.replaceAt = time.Now().Add(db.replaceDelay)
	if db.replaceAt.Before(db.nextReset) {
		db.replaceAt = db.nextReset
	}
}

// discard closes a file that was replaced, once its last users have ended. If bbolt is
// stuck, its mapping, and with it the disk space, stays until the process ends.
func (db *DB) discard(old opened, users interface{ Wait() }) {
	if old.bolt == nil {
		return
	}
	db.closers.Go(func() {
		users.Wait()
		err := old.bolt.Close()
		if errors.Is(err, errDead) {
			err = unlockFile(old.file) // Not closed: a commit that was given up may still use it.
		}
		if err != nil {
			db.log.Error(err, "Could not close a damaged cache file", "path", db.path)
		}
	})
}

func callAfterReset(hooks []*Hook, cause error) {
	for _, h := range hooks {
		if h.AfterReset != nil {
			h.AfterReset(cause)
		}
	}
}
