package controllerruntime_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/go-logr/logr"
	"go.uber.org/goleak"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/warmwatch/warmwatch/test/e2e/controlplane"
)

// shared is the control plane of all tests.
var shared *controlplane.ControlPlane

func TestMain(m *testing.M) {
	log.SetLogger(logr.Discard()) // Each manager has its own logger.
	goleak.VerifyTestMain(suite{m},
		// What wraps a watch of metadata waits for ever with the event that nobody reads after the end,
		// also beside client-go's informers.
		goleak.IgnoreAnyFunction("k8s.io/apimachinery/pkg/watch.(*filteredWatch).loop"),
	)
}

// suite runs the tests while the control plane runs.
type suite struct{ m *testing.M }

func (s suite) Run() int {
	var err error
	if shared, err = controlplane.Start(context.Background(), controlplane.Options{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := s.m.Run()
	if err := shared.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}
