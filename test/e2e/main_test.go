// Package e2e tests warmwatch on a real kube-apiserver.
//
// One control plane serves most tests, each in a namespace of its own. Tests that
// restart or rewind the server borrow another one.
package e2e

import (
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"
	"k8s.io/klog/v2"

	"github.com/warmwatch/warmwatch/test/e2e/agent"
	"github.com/warmwatch/warmwatch/test/e2e/controlplane"
)

var seedFlag = flag.Uint64("seed", 0, "seed of everything random; 0: another one each time")

// shared is the control plane that no test restarts.
var shared *controlplane.ControlPlane

func TestMain(m *testing.M) {
	agent.Main(nil)
	// What the programs under test log goes to the log of their test.
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	zerolog.SetGlobalLevel(zerolog.Disabled) // Toxics of toxiproxy know no other way.
	goleak.VerifyTestMain(controlplane.Suite{Tests: &lender{Tests: m}, Shared: &shared},
		// What toxiproxy leaves of a connection that was cut with data under way.
		goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2.(*ToxicLink).read"),
		goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2/toxics.(*ToxicStub).Run"),
	)
}

// lender has control planes that tests restart and rewind, one test at a time.
type lender struct {
	controlplane.Tests
	mu   sync.Mutex
	free []*controlplane.ControlPlane
}

var lent *lender

// Run runs the tests, and stops the control planes.
func (l *lender) Run() int {
	lent = l
	code := l.Tests.Run()
	for _, cp := range l.free {
		if err := cp.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return code
}

// borrow returns a control plane that no other test uses before this one ends. It may have objects of earlier tests.
func borrow(t *testing.T) *controlplane.ControlPlane {
	t.Helper()
	var cp *controlplane.ControlPlane
	lent.mu.Lock()
	if n := len(lent.free); n > 0 {
		cp, lent.free = lent.free[n-1], lent.free[:n-1]
	}
	lent.mu.Unlock()
	if cp == nil {
		var err error
		if cp, err = controlplane.Start(t.Context(), controlplane.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if t.Failed() { // It may be anything.
			if err := cp.Stop(); err != nil {
				t.Error(err)
			}
			return
		}
		lent.mu.Lock()
		defer lent.mu.Unlock()
		lent.free = append(lent.free, cp)
	})
	return cp
}

// newControlPlane is for a test whose kinds of objects no other test may see.
func newControlPlane(t *testing.T) *controlplane.ControlPlane {
	t.Helper()
	cp, err := controlplane.Start(t.Context(), controlplane.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cp.Stop(); err != nil {
			t.Errorf("stop the control plane: %v", err)
		}
	})
	return cp
}

// newSeed returns the seed of a test, after saying how to have it again.
func newSeed(t *testing.T) uint64 {
	t.Helper()
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("again: go test -run '^%s$' . -seed=%d", t.Name(), seed)
	return seed
}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }
