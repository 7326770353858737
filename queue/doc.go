// Package queue is a durable, ordered log of deltas with one position per
// consumer, and a client-go cache.Queue made of it.
// The root package is the product; this part of it promises no compatibility.
//
// It keeps these invariants (docs/design/README.md, "Invariants"):
//
//   - D2: no delta is removed before every consumer has acknowledged it. A durable
//     consumer gets only durable deltas.
//   - D3: a consumer whose pending deltas are lost or too many starts over.
//   - D6: the memory and the disk that the log uses are bounded, whatever a consumer does.
//     Deltas older than the tail are read from disk.
package queue
