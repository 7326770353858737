// Package sink writes what comes from the API server: the events of client-go's Reflector,
// and the items of a relist.
//
// An event goes one way (events.go): Add, Update or Delete stage the object in an
// indexer.Writer, which finds the index entries that change; the delta is made of the change
// and appended to the queue.Log, and the checkpoint is put, in the batch that commits all of
// it; once the batch is visible the delta is published. A relist (relist.go) is staged
// (stage.go) until the list is complete, and then applied in batches of the same kind.
//
// It keeps these promises (README.md):
//
//   - A1: object, index entries, delta and checkpoint of an event are in one batch.
//   - A2: the checkpoint is never ahead of the objects.
//   - A3: only a checkpoint that is complete and trusted is resumed.
package sink
