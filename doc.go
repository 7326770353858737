// Package warmwatch provides a [cache.SharedIndexInformer] whose store, indices, undelivered deltas and resourceVersion
// live in one file. A restarted program reads its cache from disk, resumes the watch where it stopped, and delivers the
// changes that it missed, deletions too. Only if the API server no longer holds the history it relists, with a diff.
//
// [Open] opens the file. [Cache.NewSharedIndexInformer] makes an informer. Unless options say what it lists, it learns
// that from the first request of its ListerWatcher. [Cache.NewInformer] has the signature that informer factories take.
// The rest is as in client-go, with three additions: [SharedIndexInformer.AddDurableEventHandler], for handlers that go
// on where they stopped; [SharedIndexInformer.AddReconciler], for work that is kept until it is done; and
// [SharedIndexInformer.Status]. Package informers has client-go's factories, and package workqueue its workqueue.
//
// The file can be deleted while no program uses it. Durable handlers and reconcilers then start over. Whatever happens
// to the file, the program keeps running and the cache becomes correct again: see [Open].
//
// The design and its invariants (A1 to S7) are in docs/design/README.md, "Data flow" and "Invariants".
package warmwatch
