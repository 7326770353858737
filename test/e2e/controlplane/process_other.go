//go:build !linux

package controlplane

import (
	"errors"
	"syscall"
)

// ProcessAttributes puts a child into a process group of its own, so that a Ctrl-C
// in the terminal reaches it through its parent only, in order.
func ProcessAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// whileSuspended is for Linux, where it is known when the process has stopped.
func (p *process) whileSuspended(func() error) error { return errors.ErrUnsupported }
