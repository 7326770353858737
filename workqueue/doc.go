// Package workqueue has client-go's rate limiting workqueue, whose items outlive the process. An added item is in the
// cache file until Done is called for it, unless it was added again meanwhile. The next process begins with the items
// that are left. See [New].
//
// It keeps the invariant D5 of docs/design/README.md.
package workqueue
