// Package indexer is a client-go [cache.Indexer] whose objects and index
// entries live in a persist.DB, with a bounded number of decoded objects in
// memory. It can be used alone under client-go's own cache.Reflector.
// The root package is the product; this part of it promises no compatibility.
//
// It keeps these invariants (docs/design/README.md, "Invariants"):
//
//   - A1: an object and its index entries change in one batch.
//   - S2: an object that cannot be read is never served. It is reported to
//     Options.OnCorrupt.
//   - A5: an index is a function of the objects, see Indexer.RebuildIndices.
//
// Unlike in client-go, two calls may return equal objects at different
// addresses, because objects that were evicted from memory are decoded again.
package indexer
