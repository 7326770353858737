// Package processor calls event handlers for the deltas in a queue.Log: the part of an informer that client-go calls
// sharedProcessor.
//
// Each handler has a listener, a goroutine of its own that reads the log at its own cursor. A new handler gets OnAdd
// for every object first, which is the initial list, and then every delta. A durable handler of a known name begins
// with the pending deltas. One that starts over gets the pending deletions, then the initial list.
//
// It keeps these invariants (docs/design/README.md, "Invariants"):
//
//   - D2: a delta is acknowledged after its handler has returned.
//   - D2: a handler that may know an object gets its deletion.
//   - D2: deltas that the initial list covers already are left out.
package processor
