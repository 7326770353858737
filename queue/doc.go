// Package queue is a durable, ordered log of deltas with one cursor per
// consumer, and a client-go cache.Queue made of it.
//
// It keeps these invariants (docs/design/README.md, "Invariants"):
//
//   - Q1: no delta is removed before every consumer has acknowledged it.
//   - Q3: the memory that the log uses is bounded, whatever a consumer does, but
//     for a few bytes for each deletion that waits: see runs. Deltas older than the
//     tail are read from disk.
//   - Q4: a durable consumer is given only deltas that are durable.
package queue
