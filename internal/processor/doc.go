// Package processor tells event handlers of the deltas in a queue.Log: the part of an
// informer that client-go calls sharedProcessor.
//
// Each handler has a listener, a goroutine of its own that reads the log at its own
// cursor. It tells the handler of all objects first, which is the initial list, and then of
// every delta. A durable handler of a known name begins with the deltas. One that starts over
// is told of the deletions that wait for it before the list.
//
// It keeps these invariants (docs/design/README.md, "Invariants"):
//
//   - D2: a delta is acknowledged after its handler has returned.
//   - D2: a handler that may know an object is told of its deletion.
//   - D2: deltas that the initial list covers already are left out.
package processor
