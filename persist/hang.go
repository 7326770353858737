package persist

import (
	"fmt"
	"time"
)

// hangingCommit is how long a commit, or other work on the file, may take before it counts as a
// commit that fails: the disk may never answer, as a network's. Then the hooks are called every
// hangingHooks, so that what was acknowledged does not stay in memory.
const (
	hangingCommit = 10 * time.Second
	hangingHooks  = time.Second
)

func (db *DB) hangsLocked() bool {
	return !db.busySince.IsZero() && time.Since(db.busySince) >= hangingCommit
}

func (db *DB) hangErrorLocked() error {
	return fmt.Errorf("persist: %s: %w after %v", db.path, ErrNoAnswer, time.Since(db.busySince).Round(time.Second))
}

// work notes that a committer is at work on the file, until end is called. If that takes too long,
// all who wait for it go on.
func (db *DB) work(committer int) (end func()) {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.busySince = time.Now()
	var timer *time.Timer // Set before the function can have the lock.
	ended := false
	timer = time.AfterFunc(hangingCommit, func() {
		db.mu.Lock()
		hangs := !ended && db.checkHangLocked(committer, timer)
		db.mu.Unlock()
		if hangs {
			db.countUnwritten()
		}
	})
	return func() {
		timer.Stop()
		db.mu.Lock()
		defer db.mu.Unlock()
		ended = true
		if db.committer == committer {
			db.busySince = time.Time{}
		}
	}
}

// checkHangLocked reports whether the work of a committer takes too long. If so, all who wait for it
// go on. The timer is that of the next check.
func (db *DB) checkHangLocked(committer int, timer *time.Timer) bool {
	switch {
	case db.committer != committer || db.busySince.IsZero():
		return false
	case !db.hangsLocked(): // It has waited for readers, see waitsForReaders.
		timer.Reset(hangingCommit - time.Since(db.busySince))
		return false
	}
	why := "The disk does not answer, keeping the changes in memory"
	if !db.replacementHangsLocked() {
		why = "A file is still being copied or inspected, keeping the changes in memory"
	}
	db.logFailureLocked(db.hangErrorLocked(), why)
	db.beforeCommitLocked()
	db.cond.Broadcast()
	timer.Reset(hangingHooks)
	return true
}
