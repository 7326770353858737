package controlplane

import "syscall"

// ProcessAttributes puts a child into a process group of its own, so that a Ctrl-C
// in the terminal reaches it through its parent only, in order. Should this process
// die before, the kernel ends the child.
func ProcessAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
