// Package persist keeps warmwatch's one file, a bbolt database. No other
// package of this module imports bbolt.
// The root package is the product; this part of it promises no compatibility.
//
// A [DB] is a map of buckets with string keys. Changes go into memory first
// and are visible at once; a committer goroutine writes them to the file in
// groups. Of the contract (docs/limits.md) it keeps these:
//
//   - A1: what one [DB.Update] puts is visible and durable as a whole.
//   - S1: the batches up to [DB.Durable] survive a crash and a power cut. The exception is S6: nothing could be written
//     for 30 s.
//   - S2: every value is sealed with a CRC-32C over space, bucket, key and payload.
//   - S3: [Open] decides once what becomes of a file; in use nothing is replaced. Every use of bbolt recovers from
//     panics and from faults in the mapped file.
//   - S4, S5: one process uses a file; a process without a file works from memory.
//   - S6: where nothing can be written, nothing waits for room.
//   - S7: after [DB.Close] returns nil, all applied batches are in the file.
//
// No byte slice from bbolt is used after its transaction ends: [DB.View] and [Snapshot.Scan] lend payloads for the
// duration of a callback.
package persist
