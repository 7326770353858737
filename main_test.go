package warmwatch_test

import (
	"bytes"
	"errors"
	"os/exec"
	"runtime/debug"
	"testing"
	"time"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

// programs run in processes of their own: to crash, or to hold a file.
var programs = testsupport.Programs{}

func TestMain(m *testing.M) { testsupport.Main(m, programs) }

// crash runs a program that is expected to end itself, and returns what it
// printed.
func crash(t *testing.T, name string, env ...string) string {
	t.Helper()
	var out bytes.Buffer
	cmd := testsupport.Program(t, name)
	cmd.Env = append(cmd.Env, env...)
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 2 { // What the runtime does after a panic.
		t.Fatalf("the program %s did not crash: %v\n%s", name, err, &out)
	}
	return out.String()
}

// endIfHanging ends a program that hangs, with the stacks of all its goroutines.
func endIfHanging() {
	time.AfterFunc(2*time.Minute, func() {
		debug.SetTraceback("all")
		panic("the program hangs")
	})
}
