//go:build !linux

package main

import "syscall"

// processAttributes puts an agent into a process group of its own, so that a Ctrl-C
// in the terminal reaches it through its parent only.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
