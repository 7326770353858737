package persist

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// Metrics are numbers of a DB. Counters count since Open. Times are zero if there is none.
type Metrics struct {
	// Bytes is the size of the file, and FreeBytes the part of it that no used page is in, as of Open or the last attempt
	// to commit. Zero without a file.
	Bytes, FreeBytes int64
	// Commits counts the attempts that have succeeded, FailedCommits the others.
	Commits, FailedCommits int64
	// CommitDurations counts the attempts by duration: element n those of at most 1 ms · 2ⁿ and more than the element
	// before, the last one all longer ones. CommitTime is the sum of the durations.
	CommitDurations [15]int64
	CommitTime      time.Duration
	// WrittenBytes is about how much commits have written to the file.
	WrittenBytes int64
	// PendingBytes is how much waits in memory for a commit. Unwritten is when the oldest of these changes was made. Both
	// are zero if nothing is written to the file any more.
	PendingBytes int64
	Unwritten    time.Time
	// OldestSnapshot is about when the oldest open snapshot began: all commits since then have found a snapshot open, or
	// another read. While one is open, bbolt reuses no page that was freed since.
	OldestSnapshot time.Time
	// Damages counts how often the file, or a bucket of it, was found damaged, at Open or in use. DamagedValues counts
	// the reads of values whose checksum has failed.
	Damages, DamagedValues int64
}

// A meter has what [DB.Problem] and [DB.Metrics] return, to be read without a lock.
type meter struct {
	problem    atomic.Pointer[problem]   // Never nil. Replaced under DB.mu.
	unreadable atomic.Bool               // The file is left alone: no transaction can be begun. Set under DB.mu.
	busySince  atomic.Pointer[time.Time] // When the commit that is under way began, or nil.
	commits    atomic.Pointer[Metrics]   // Never nil. Replaced by Open and the committer. It lacks the numbers below.

	pendingBytes, unwritten, damages, damagedValues atomic.Int64 // unwritten is in nanoseconds since 1970.
}

// Metrics returns the present numbers. It takes no lock.
func (db *DB) Metrics() Metrics {
	m := *db.meter.commits.Load()
	m.PendingBytes, m.Damages, m.DamagedValues = db.meter.pendingBytes.Load(), db.meter.damages.Load(), db.meter.damagedValues.Load()
	if since := db.meter.unwritten.Load(); since != 0 {
		m.Unwritten = time.Unix(0, since)
	}
	return m
}

// meterPendingLocked notes how much waits for a commit.
func (db *DB) meterPendingLocked() {
	var bytes, since int64
	if db.writesLocked() {
		bytes, since = db.waitingLocked()
	}
	db.meter.pendingBytes.Store(bytes)
	db.meter.unwritten.Store(since)
}

// meterCommit counts an attempt to commit. Only the committer calls it.
func (db *DB) meterCommit(begin time.Time, writtenBytes int64, err error) {
	m, took := *db.meter.commits.Load(), time.Since(begin)
	if err == nil {
		m.Commits++
	} else {
		m.FailedCommits++
	}
	m.CommitDurations[min(bits.Len64(uint64((took-1)/time.Millisecond)), len(m.CommitDurations)-1)]++
	m.CommitTime += took
	m.WrittenBytes += writtenBytes
	if !db.isRead() {
		m.OldestSnapshot = time.Time{}
	} else if m.OldestSnapshot.IsZero() {
		m.OldestSnapshot = begin
	}
	m.look(db.bolt)
	db.meter.commits.Store(&m)
}

// look notes the size of a file. If it cannot be read, the numbers stay.
func (m *Metrics) look(b *handle) {
	if size, free, err := usage(b.file); err == nil {
		m.Bytes, m.FreeBytes = size, free
	}
}
