package controlplane

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// ProcessAttributes puts a child into a process group of its own, so that a Ctrl-C
// in the terminal reaches it through its parent only, in order. Should this process
// die before, the kernel ends the child.
func ProcessAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// whileSuspended stops the process in the middle of what it does. Then its files are as kill -9 would leave them.
func (p *process) whileSuspended(do func() error) error {
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	err := p.awaitSuspended()
	if err == nil {
		err = do()
	}
	return errors.Join(err, p.cmd.Process.Signal(syscall.SIGCONT))
}

// awaitSuspended waits until no thread runs.
func (p *process) awaitSuspended() error {
	for {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.pid()))
		if err != nil || len(threads) == 0 {
			return errors.Join(fmt.Errorf("%s has no threads", p.name), err)
		}
		running := 0
		for _, thread := range threads {
			stat, err := os.ReadFile(thread)
			if state := stat[bytes.LastIndexByte(stat, ')')+1:]; err != nil || !bytes.HasPrefix(state, []byte(" T")) {
				running++
			}
		}
		if running == 0 {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
}
