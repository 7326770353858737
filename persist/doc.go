// Package persist keeps warmwatch's one file, a bbolt database. No other
// package of this module imports bbolt.
//
// A [DB] is a map of buckets with string keys. Changes go into memory first
// and are visible at once; a committer goroutine writes them to the file in
// groups. It keeps these invariants (docs/design/README.md, "Invariants"):
//
//   - P1: what one [DB.Update] puts is visible and durable as a whole.
//   - P3: no bbolt slice outlives its transaction. [DB.View] and
//     [Snapshot.Scan] lend payloads for the duration of a callback.
//   - P4: after [DB.Close] returns nil, all that was applied is in the file.
//   - P5: a file is used by one process at a time (flock).
//   - P6: no content of the file ends the process. Every value is sealed with
//     a CRC-32C over bucket, key and payload; every use of bbolt recovers from
//     panics and from faults in the mapped file.
package persist
