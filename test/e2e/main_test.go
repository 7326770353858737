// Package e2e tests warmwatch on a real kube-apiserver.
//
// One control plane serves most tests, each in a namespace of its own. Tests that
// restart or rewind the server start another one.
package e2e

import (
	"flag"
	"io"
	"math/rand/v2"
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
	goleak.VerifyTestMain(controlplane.Suite{Tests: m, Shared: &shared},
		// What toxiproxy leaves of a connection that was cut with data under way.
		goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2.(*ToxicLink).read"),
		goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2/toxics.(*ToxicStub).Run"),
	)
}

// newControlPlane is for tests that restart or rewind it.
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
