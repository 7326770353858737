// Package queue is a durable, ordered log of deltas with one cursor per
// consumer, and a client-go cache.Queue made of it.
//
// It keeps these invariants (docs/design/README.md, "Invariants"):
//
//   - D2: no delta is removed before every consumer has acknowledged it.
//   - D6: the memory that the log uses is bounded, whatever a consumer does, but
//     for a few bytes for each deletion that waits: see runs. Deltas older than the
//     tail are read from disk.
//   - D2: a durable consumer is given only deltas that are durable.
package queue
