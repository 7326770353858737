// Package testsupport has what the tests of several packages use.
package testsupport

import (
	"flag"
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"

	"github.com/warmwatch/warmwatch/internal/hook"
)

var seedFlag = flag.Int64("seed", 0, "seed of the random tests; 0 takes the time")

// Quiet is a logger that discards.
var Quiet klog.Logger

// programEnv names the program that a copy of the test binary runs.
const programEnv = "WARMWATCH_TEST_PROGRAM"

// Programs run in processes of their own: to hold a file, to be killed, or because they
// crash.
type Programs map[string]func(args []string) error

// Main is for TestMain. It runs the tests, which must leave no goroutine behind, without
// logs; or one of the programs, if [Program] has started this process.
func Main(m *testing.M, programs Programs, o ...goleak.Option) {
	flag.Parse()
	// The default handlers include one that sleeps by a clock which began outside of the
	// bubble that it is called in: for decades.
	utilruntime.ErrorHandlers = nil
	if name := os.Getenv(programEnv); name != "" {
		if err := programs[name](flag.Args()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
		os.Exit(0)
	}
	klog.SetLogger(Quiet)
	goleak.VerifyTestMain(m, o...)
}

// Program returns a command that runs one of the test's programs.
func Program(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, args...)
	// Under the race detector a process sleeps for a second before it exits.
	race := strings.TrimSpace(os.Getenv("GORACE") + " atexit_sleep_ms=0")
	cmd.Env = append(os.Environ(), programEnv+"="+name, "GORACE="+race)
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// Rand returns a source of randomness, and logs the seed that replays it.
func Rand(t testing.TB) *rand.Rand {
	t.Helper()
	seed := *seedFlag
	if seed == 0 {
		seed = time.Now().UnixNano()
	}
	t.Logf("replay with -seed=%d", seed)
	return rand.New(rand.NewSource(seed))
}

// Path returns the path of a cache file that does not exist, in a directory of its own.
func Path(t testing.TB) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "cache.db")
}

// Rounds is how often a test repeats what it does: full times, or short times under -short,
// with which all tests are run many times over.
func Rounds(full, short int) int {
	if testing.Short() {
		return min(full, short)
	}
	return full
}

// A Held commit waits for Release to be closed. Started is closed when it has begun.
type Held struct{ Started, Release chan struct{} }

// HoldCommit holds up the next commit to any file.
func HoldCommit(t testing.TB) Held {
	h := Held{make(chan struct{}), make(chan struct{})}
	BeforeCommit(t, func() {
		close(h.Started)
		<-h.Release
	})
	return h
}

// BeforeCommit has the next commit to any file begin with fn.
func BeforeCommit(t testing.TB, fn func()) {
	var once sync.Once
	beforeWrite(t, func() error { once.Do(fn); return nil })
}

// EachCommit has fn called before each commit to any file until stop is called: the commit before is complete then. fn
// must not wait for the DB.
func EachCommit(t testing.TB, fn func()) (stop func()) {
	beforeWrite(t, func() error { fn(); return nil })
	return func() { hook.BeforeWrite.Store(nil) }
}

// FailCommits has all commits to any file fail until heal is called.
func FailCommits(t testing.TB) (heal func()) {
	beforeWrite(t, func() error { return syscall.ENOSPC })
	return func() { hook.BeforeWrite.Store(nil) }
}

func beforeWrite(t testing.TB, fn func() error) {
	hook.BeforeWrite.Store(&fn)
	t.Cleanup(func() { hook.BeforeWrite.Store(nil) })
}
