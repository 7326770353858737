package persist

// WaitForRoom waits while more than a quarter of MaxPendingBytes waits to be written, and has that
// written at once. Who writes much that nobody waits for, such as a first list, calls it before each
// Update: what waits takes several times its size in memory, decoded, encoded, and in the pages of the
// commit. Like Update, WaitForRoom does not wait for a file that cannot be written, nor for one that
// has to be replaced.
func (db *DB) WaitForRoom() {
	db.mu.Lock()
	defer db.mu.Unlock()
	for db.overBoundLocked(db.opts.MaxPendingBytes/4) && db.broken == nil && !db.closing {
		if db.flushing == nil {
			db.flushRequested = true
			db.wakeCommitter()
		}
		db.cond.Wait()
	}
}

// overBoundLocked reports whether more than bound waits to be written to a file that can be written.
func (db *DB) overBoundLocked(bound int64) bool {
	if db.memoryOnly() || db.commitErr != nil || db.hangsLocked() {
		return false
	}
	n := db.pending.bytes
	if db.flushing != nil {
		n += db.flushing.bytes
	}
	return n > bound
}
