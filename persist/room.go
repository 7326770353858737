package persist

// UpdateWithRoom is [DB.Update] for large writes. It first blocks while more than MaxPendingBytes are pending. The
// caller must not hold a lock that an acknowledgement needs. While the file cannot be written, it does not block.
func (db *DB) UpdateWithRoom(fn func(*Batch)) error {
	return db.update(db.opts.MaxPendingBytes, fn)
}

// WaitForMuchRoom is for a large write that nobody waits for, such as a first list. It blocks while more than an eighth
// of MaxPendingBytes is pending. From a sixteenth on it makes a commit begin at once, and the caller fills the next
// commit meanwhile. Pending changes take several times their size in memory: decoded, encoded, and in the pages of the
// commit.
func (db *DB) WaitForMuchRoom() {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.waitForRoomLocked(db.opts.MaxPendingBytes / 8)
}

// waitForRoomLocked blocks while more than bound is pending. From half of it on it makes a commit begin.
func (db *DB) waitForRoomLocked(bound int64) {
	for db.overBoundLocked(bound/2) && db.phase == inUse {
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
	if !db.writes() || db.failingLocked() {
		return false
	}
	return db.waitingLocked() > bound
}

// waitingLocked returns how much waits for a commit.
func (db *DB) waitingLocked() int64 {
	n := db.pending.bytes
	if db.flushing != nil {
		n += db.flushing.bytes
	}
	return n
}
