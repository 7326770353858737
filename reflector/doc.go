// Package reflector lets client-go's own cache.Reflector begin where a
// persistent store stopped. The root package is the product; this part of it promises no compatibility.
//
// A [Resumer] stands between the Reflector and the caller's ListerWatcher. Its List brings the store up to date, and
// returns an empty list of the store's resourceVersion. It opens the watch at that version if the watch can be resumed.
// Otherwise it first relists into the store, item by item. The Reflector handles everything else (backoff, 429,
// internal errors, bookmarks, type checks).
//
// A [Sink] writes events and lists. Sink.apply shows the way of an event from top to bottom (event.go): transform;
// encode; stage the object in an indexer.Writer, which reads the old one and finds the changed index entries; make the
// delta; commit object, entries, delta and checkpoint as one batch. A relist (item.go) is staged (stage.go) until the
// list is complete, and then applied (apply.go) in batches of the same kind.
//
// It keeps these promises (docs/limits.md):
//
//   - A1: object, index entries, delta and checkpoint of an event are in one batch.
//   - A2: the checkpoint is never ahead of the objects.
//   - A3: a watch is resumed only from a valid resourceVersion, and only if the server has reached that. The server is
//     asked for one object beside the watch (question.go). If the server's answers prove nothing, the process stops
//     asking once the store has caught up.
//   - A4: versions are compared only where they have an order.
//   - A6: it finds out when the store has caught up with the server (caughtup.go).
package reflector
