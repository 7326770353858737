// Package reflector lets client-go's own cache.Reflector begin where a
// persistent store stopped.
//
// A [Resumer] stands between the Reflector and the caller's ListerWatcher. Its
// List means "bring the store up to date": it answers with an empty list at the
// store's resourceVersion if the watch can be resumed there, and else relists
// into the store, item by item, before it answers. Everything else (backoff,
// 429, internal errors, bookmarks, type checks) stays the Reflector's.
//
// It keeps these invariants (docs/design/README.md, "Invariants"):
//
//   - C1: without a valid resourceVersion it never resumes.
//   - C2: the server is asked whether it has reached a resourceVersion. Only if
//     it does not say, its own version is compared with the store's.
//   - I2: a watch that cannot be trusted to be complete is never resumed.
package reflector
