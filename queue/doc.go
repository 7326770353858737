// Package queue is a durable, ordered log of deltas with one position per
// consumer, and a client-go cache.Queue made of it.
// The root package is the product; this part of it promises no compatibility.
//
// It keeps these invariants (docs/design/README.md, "Invariants"):
//
//   - D2: no delta is removed before every consumer has acknowledged it, and a durable
//     consumer is given only deltas that are durable.
//   - D3: a consumer to which the past cannot be given starts over.
//   - D6: the memory and the disk that the log uses are bounded, whatever a consumer does.
//     Deltas older than the tail are read from disk.
package queue
