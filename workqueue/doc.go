// Package workqueue has client-go's rate limiting workqueue, whose items outlive the process. An
// item that was added is in the cache file until Done is called for it without it having been added
// again, and the next process begins with the items that are left. See [New].
//
// It keeps the invariant D5 of docs/design/README.md.
package workqueue
