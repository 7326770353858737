// Package reflector lets client-go's own cache.Reflector begin where a
// persistent store stopped.
//
// A [Resumer] stands between the Reflector and the caller's ListerWatcher. Its
// List brings the store up to date: if the watch can be resumed at the store's
// resourceVersion, it returns an empty list of that version, and else relists
// into the store, item by item, before it returns one. The Reflector handles
// everything else (backoff, 429, internal errors, bookmarks, type checks).
//
// It keeps these invariants (docs/design/README.md, "Invariants"):
//
//   - C1: without a valid resourceVersion it never resumes.
//   - C2: the server is asked whether it has reached a resourceVersion. Only if
//     it does not answer, or refuses a list as too new, its own version is compared with
//     the store's; so is that of each list.
//   - I2: a watch that cannot be trusted to be complete is never resumed.
package reflector
