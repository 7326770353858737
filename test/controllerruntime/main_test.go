package controllerruntime_test

import (
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
	goleak.VerifyTestMain(controlplane.Suite{Tests: m, Shared: &shared},
		// What wraps a watch of metadata waits for ever with the event that nobody reads after the end,
		// also beside client-go's informers.
		goleak.IgnoreAnyFunction("k8s.io/apimachinery/pkg/watch.(*filteredWatch).loop"),
		// What joins the registrations of several namespaces waits for ever for a handler whose informer
		// ends before it has delivered everything, also beside client-go's.
		goleak.IgnoreAnyFunction("sigs.k8s.io/controller-runtime/pkg/cache.newMultiNamespaceInformerHandlerRegistration.func1"),
	)
}
