//go:build linux

package check

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime/debug"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"go.uber.org/goleak"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"
)

// programEnv names the program that a copy of the test binary is to be.
const programEnv = "WARMWATCH_ATTACK_PROGRAM"

// Main is what TestMain calls. programs are for [Run]: each is a test, because
// bubbles are for tests only.
func Main(m *testing.M, programs map[string]func(*testing.T)) {
	// The default handlers include one that sleeps by a clock which began
	// outside of the bubble that it is called in: for decades.
	utilruntime.ErrorHandlers = nil
	klog.SetLogger(logr.Discard())
	if name := os.Getenv(programEnv); name != "" {
		// It exits: 0 if the program did not fail.
		testing.Main(func(string, string) (bool, error) { return true, nil }, []testing.InternalTest{{Name: name, F: programs[name]}}, nil, nil)
	}
	goleak.VerifyTestMain(m)
}

const (
	// maxProgramTime ends a program that hangs. It has no waits by the clock.
	maxProgramTime = 3 * time.Minute
	// maxProgramBytes is what a program may take, without the race detector.
	maxProgramBytes = 512 << 20
)

// A Program is a running program.
type Program struct {
	cmd  *exec.Cmd
	out  bytes.Buffer
	stop context.CancelFunc
}

// StartProgram starts a program of [Main] with an environment and an input.
func StartProgram(t *testing.T, name string, input []byte, env ...string) *Program {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &Program{}
	var ctx context.Context
	ctx, p.stop = context.WithTimeout(t.Context(), maxProgramTime)
	p.cmd = exec.CommandContext(ctx, exe)
	p.cmd.Env = append(append(os.Environ(), programEnv+"="+name), env...)
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = bytes.NewReader(input), &p.out, &p.out
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(syscall.SIGQUIT) } // Says where it hangs.
	p.cmd.WaitDelay = 10 * time.Second
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return p
}

// Kill ends it at once.
func (p *Program) Kill() { _ = p.cmd.Process.Kill() } // Unless it has ended already.

// Wait waits for its end. It is an error if it did not end well, unless it was
// killed by Kill.
func (p *Program) Wait() (killed bool, err error) {
	defer p.stop()
	err = p.cmd.Wait()
	if usage, ok := p.cmd.ProcessState.SysUsage().(*syscall.Rusage); ok && !raced() && int64(usage.Maxrss)*1024 > maxProgramBytes {
		return false, fmt.Errorf("the program took %d MB", usage.Maxrss/1024)
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() && status.Signal() == syscall.SIGKILL {
			return true, nil
		}
	}
	if err != nil {
		return false, fmt.Errorf("the program ended with %w:\n%.20000s", err, p.out.String())
	}
	return false, nil
}

// raced reports whether the race detector is on, which takes memory.
func raced() bool {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return false
	}
	for _, s := range info.Settings {
		if s.Key == "-race" {
			return s.Value == "true"
		}
	}
	return false
}

// FastDir is a directory that is not on a disk, if there is one: nothing here
// waits for a real fsync.
func FastDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "warmwatch-attack-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}
