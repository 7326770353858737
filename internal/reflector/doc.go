// Package reflector lets client-go's own cache.Reflector begin where a
// persistent store stopped.
//
// A [Resumer] stands between the Reflector and the caller's ListerWatcher. Its
// List brings the store up to date: if the watch can be resumed at the store's
// resourceVersion, it returns an empty list of that version, and else relists
// into the store, item by item, before it returns one. The Reflector handles
// everything else (backoff, 429, internal errors, bookmarks, type checks).
//
// It keeps these promises (README.md):
//
//   - A3: a watch is resumed only from a valid resourceVersion, and only if the server has reached that. It is asked
//     for one object beside the watch (question.go).
//   - A4: versions are compared only where they have an order. Where the answers say nothing, the process does not ask
//     again once the store has caught up.
//   - A6: it finds out when the store has caught up with the server (caughtup.go).
package reflector
