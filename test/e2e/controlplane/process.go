package controlplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// stopTimeout is how long a process may take to end after SIGTERM.
const stopTimeout = 10 * time.Second

// process is one run of a server binary. Its output goes to a file, so that a
// failed start can say why.
type process struct {
	name    string
	cmd     *exec.Cmd
	logPath string
	exited  chan struct{} // Closed once Wait has returned, after waitErr is set.
	waitErr error
}

// startProcess runs the binary and returns once ready answers nil. The output is
// appended to dir/<name>.log.
func startProcess(ctx context.Context, dir, path string, args []string, ready func(context.Context) error) (*process, error) {
	name := filepath.Base(path)
	p := &process{name: name, logPath: filepath.Join(dir, name+".log"), exited: make(chan struct{})}
	logFile, err := os.OpenFile(p.logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("log of %s: %w", name, err)
	}
	defer logFile.Close() // The process has its own descriptor.

	p.cmd = exec.Command(path, args...)
	p.cmd.Stdout, p.cmd.Stderr = logFile, logFile
	p.cmd.SysProcAttr = ProcessAttributes()
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		p.waitErr = p.cmd.Wait()
		close(p.exited)
	}()
	if err := p.awaitReady(ctx, ready); err != nil {
		_ = p.kill() // The error to report is the one of the start.
		if errors.Is(err, context.Canceled) {
			return nil, err
		}
		return nil, fmt.Errorf("%w\n%s", err, p.logTail())
	}
	return p, nil
}

func (p *process) awaitReady(ctx context.Context, ready func(context.Context) error) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.exited:
			return fmt.Errorf("%s ended before it was ready: %w", p.name, exitError(p.waitErr))
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w (last answer: %w)", p.name, ctx.Err(), err)
		case <-tick.C:
		}
	}
}

func exitError(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

// stop asks the process to end, and ends it by force after stopTimeout.
func (p *process) stop() error {
	if p == nil {
		return nil
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop %s: %w", p.name, err)
	}
	select {
	case <-p.exited:
		return nil
	case <-time.After(stopTimeout):
		return p.kill()
	}
}

// kill ends the process at once, as kill -9 does.
func (p *process) kill() error {
	if p == nil {
		return nil
	}
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", p.name, err)
	}
	<-p.exited
	return nil
}

// pid is 0 while the process is not running.
func (p *process) pid() int {
	if p == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

// logTail returns the last lines of the output, for an error message.
func (p *process) logTail() string {
	const lines = 15
	content, err := os.ReadFile(p.logPath)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(string(bytes.TrimSpace(content)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
