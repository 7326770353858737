//go:build unix

package corrupt

import "syscall"

// quit makes a Go program print its goroutines and end.
const quit = syscall.SIGQUIT
