package persist

// WaitForRoom blocks while more than an eighth of MaxPendingBytes is pending. From a sixteenth on it has a
// commit begin at once, so that the caller fills the next one while this one is written. A writer of much
// that nobody waits for, such as a first list, calls it before each Update: what is pending takes several
// times its size in memory, decoded, encoded, and in the pages of the commit. Like Update, WaitForRoom does
// not wait for a file that cannot be written.
func (db *DB) WaitForRoom() {
	db.mu.Lock()
	defer db.mu.Unlock()
	bound := db.opts.MaxPendingBytes / 8
	for db.overBoundLocked(bound/2) && !db.closing {
		if db.flushing == nil {
			db.flushRequested = true
			db.wakeCommitter()
		}
		if !db.overBoundLocked(bound) {
			return
		}
		db.cond.Wait()
	}
}

// overBoundLocked reports whether more than bound is pending for a file that can be written.
func (db *DB) overBoundLocked(bound int64) bool {
	if !db.writesLocked() || db.commitErr != nil {
		return false
	}
	n := db.pending.bytes
	if db.flushing != nil {
		n += db.flushing.bytes
	}
	return n > bound
}
