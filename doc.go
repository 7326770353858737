// Package warmwatch provides a [cache.SharedIndexInformer] whose store,
// indices, undelivered deltas and resourceVersion live in one file. A restarted
// program reads its cache from disk, resumes the watch where it stopped,
// delivers what it missed, deletions too, and relists, with a diff, only when
// the API server no longer holds the history.
//
// [Open] opens the file, [Cache.NewSharedIndexInformer] makes an informer in
// it, and the rest is as in client-go, with two additions:
// [SharedIndexInformer.AddDurableEventHandler], for handlers that go on where
// they stopped, and [SharedIndexInformer.Status].
//
// The file can be deleted while no program uses it; durable handlers are then told
// of every object again. Whatever happens to the file, the program keeps running and
// the cache becomes correct again, see [Open].
package warmwatch
