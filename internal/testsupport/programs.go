package testsupport

import (
	"bytes"
	"errors"
	"os/exec"
	"runtime/debug"
	"testing"
	"time"
)

// Crash runs a program that is expected to end itself, and returns what it
// printed.
func Crash(t *testing.T, name string, env ...string) string {
	t.Helper()
	var out bytes.Buffer
	cmd := Program(t, name)
	cmd.Env = append(cmd.Env, env...)
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 2 { // What the runtime does after a panic.
		t.Fatalf("the program %s did not crash: %v\n%s", name, err, &out)
	}
	return out.String()
}

// EndIfHanging ends a program that hangs, with the stacks of all its goroutines.
func EndIfHanging() {
	time.AfterFunc(2*time.Minute, func() {
		debug.SetTraceback("all")
		panic("the program hangs")
	})
}
