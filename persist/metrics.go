package persist

import (
	"math/bits"
	"os"
	"sync/atomic"
	"time"
)

// Metrics are numbers of a DB. Counters count since Open. A time that does not exist is zero.
type Metrics struct {
	// Bytes is the size of the file, FreeBytes the part in free pages, as of Open or the last attempt to commit. Zero
	// without a file.
	Bytes, FreeBytes int64
	// Commits counts the attempts that succeeded, FailedCommits the others.
	Commits, FailedCommits int64
	// CommitDurations counts the attempts by duration. Element n has those of at most 1 ms · 2ⁿ that are longer than in
	// the element before. The last element has all longer ones. CommitTime is the sum of the durations.
	CommitDurations [15]int64
	CommitTime      time.Duration
	// WrittenBytes is about how much commits have written to the file.
	WrittenBytes int64
	// PendingBytes is the size of the changes that wait in memory for a commit. Unwritten is about when the oldest of
	// them was made. Both are zero if nothing is written to a file.
	PendingBytes int64
	Unwritten    time.Time
	// OldestSnapshot is about when the oldest open snapshot began: each commit since then has found one, or another
	// read. While one is open, bbolt reuses no page that was freed since.
	OldestSnapshot time.Time
	// Damages counts how often the file, or a bucket of it, was found damaged, at Open or in use. DamagedValues counts
	// the reads of values with a wrong checksum.
	Damages, DamagedValues int64
}

// A meter has what [DB.Problem] and [DB.Metrics] return. It is read without a lock.
type meter struct {
	problem    atomic.Pointer[problem]   // Never nil. Replaced under DB.mu.
	unreadable atomic.Bool               // The file is left alone: no transaction can be begun. Set under DB.mu.
	busySince  atomic.Pointer[time.Time] // When the commit that is under way began, or nil.
	latest     atomic.Pointer[Metrics]   // Never nil. Replaced by Open and the committer. It lacks the numbers below.

	// unwritten is in nanoseconds since 1970.
	writtenBytes, pendingBytes, unwritten, damages, damagedValues atomic.Int64
}

// Metrics returns the present numbers. It takes no lock.
func (db *DB) Metrics() Metrics {
	m := *db.latest.Load()
	m.WrittenBytes, m.Damages, m.DamagedValues = db.writtenBytes.Load(), db.damages.Load(), db.damagedValues.Load()
	if since := db.unwritten.Load(); since != 0 && db.writes() {
		m.PendingBytes, m.Unwritten = db.pendingBytes.Load(), time.Unix(0, since)
	}
	return m
}

// meterCommit counts an attempt to commit. Only the committer calls it.
func (db *DB) meterCommit(begin time.Time, err error) {
	m, took := *db.latest.Load(), time.Since(begin)
	if err == nil {
		m.Commits++
	} else {
		m.FailedCommits++
	}
	m.CommitDurations[min(bits.Len64(uint64((took-1)/time.Millisecond)), len(m.CommitDurations)-1)]++
	m.CommitTime += took
	if !db.isRead() {
		m.OldestSnapshot = time.Time{}
	} else if m.OldestSnapshot.IsZero() {
		m.OldestSnapshot = begin
	}
	m.measure(db.bolt.file)
	db.latest.Store(&m)
}

// measure notes the size of a file. If it cannot be read, the numbers stay. Pages that the newest transaction freed
// count as free.
func (m *Metrics) measure(f *os.File) {
	info, err := f.Stat()
	meta, metaErr := newestMeta(f)
	if err != nil || metaErr != nil {
		return
	}
	page := make([]byte, pageHeaderBytes+8)
	if readAt(f, page, int64(word(meta, metaFreelistAt)*pageSizeOf(meta))) == nil {
		free, _ := headerOf(page).entries(page)
		m.Bytes = info.Size()
		m.FreeBytes = m.Bytes - int64((word(meta, metaHighAt)-free)*pageSizeOf(meta))
	}
}
