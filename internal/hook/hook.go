// Package hook has what only tests set, of several packages.
package hook

import "sync/atomic"

// BeforeWrite is called before a persist.DB writes a commit, which fails with the error. Nil: it is not.
var BeforeWrite atomic.Pointer[func() error]
