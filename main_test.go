package warmwatch_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"

	"github.com/go-logr/logr"
	"go.uber.org/goleak"
)

// programEnv names the program that a copy of the test binary is to be.
const programEnv = "WARMWATCH_TEST_PROGRAM"

// programs run in processes of their own: to crash, or to hold a file.
var programs = map[string]func() error{}

func TestMain(m *testing.M) {
	// The default handlers include one that sleeps by a clock which began
	// outside of the bubble that it is called in: for decades.
	utilruntime.ErrorHandlers = nil
	if name := os.Getenv(programEnv); name != "" {
		if err := programs[name](); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
		os.Exit(0)
	}
	klog.SetLogger(logr.Discard())
	goleak.VerifyTestMain(m)
}

// program returns a command that runs one of programs in this test binary.
func program(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, args...)
	cmd.Env = append(os.Environ(), programEnv+"="+name)
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// crash runs a program that is expected to end itself, and returns what it
// printed.
func crash(t *testing.T, name string, env ...string) string {
	t.Helper()
	var out bytes.Buffer
	cmd := program(t, name)
	cmd.Env = append(cmd.Env, env...)
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 2 { // What the runtime does after a panic.
		t.Fatalf("the program %s did not crash: %v\n%s", name, err, &out)
	}
	return out.String()
}
