// Package hook lets the tests of several packages step in where nothing else can.
package hook

import "sync/atomic"

// BeforeWrite is called before a persist.DB writes a commit, which fails with its error. Only tests set it: otherwise
// it is nil.
var BeforeWrite atomic.Pointer[func() error]
