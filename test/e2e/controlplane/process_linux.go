package controlplane

import "syscall"

// processAttributes puts a server into a process group of its own, so that a
// Ctrl-C in the terminal reaches it through Stop only, in order. Should this
// process die without a Stop, the kernel ends the server.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
