package persist

// WaitForRoom blocks while more than MaxPendingBytes are pending. A writer calls it before an Update that may be large.
// The writer must not hold a lock that an acknowledgement needs. WaitForRoom does not wait for a file that cannot be
// written.
func (db *DB) WaitForRoom() { db.waitForRoom(db.opts.MaxPendingBytes, db.opts.MaxPendingBytes/2) }

// WaitForMuchRoom is for a large write that nobody waits for, such as a first list. It blocks while more than an eighth
// of MaxPendingBytes is pending. From a sixteenth on it makes a commit begin at once, and the caller fills the next
// commit meanwhile. Pending changes take several times their size in memory: decoded, encoded, and in the pages of the
// commit.
func (db *DB) WaitForMuchRoom() {
	db.waitForRoom(db.opts.MaxPendingBytes/8, db.opts.MaxPendingBytes/16)
}

// waitForRoom blocks while more than bound is pending. Past begin it makes a commit begin.
func (db *DB) waitForRoom(bound, begin int64) {
	db.mu.Lock()
	defer db.mu.Unlock()
	for db.overBoundLocked(begin) && db.phase == inUse {
		if db.flushing == nil {
			db.flushRequested = true
			db.wakeCommitter()
		}
		if !db.overBoundLocked(bound) {
			return
		}
		db.waitLocked()
	}
}

// overBoundLocked reports whether more than bound is pending for a file that can be written.
func (db *DB) overBoundLocked(bound int64) bool {
	if !db.writesLocked() || db.failingLocked() {
		return false
	}
	n := db.pending.bytes
	if db.flushing != nil {
		n += db.flushing.bytes
	}
	return n > bound
}
