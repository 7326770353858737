// A manager as kubebuilder writes it, whose caches go on where the last process stopped. The
// directory before has the same one without warmwatch.
package main

import (
	"flag"
	"os"

	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/controllerruntime"
)

func main() {
	metrics := flag.String("metrics-bind-address", "0", "address of the metrics endpoint; 0 disables it")
	probes := flag.String("health-probe-bind-address", "0", "address of the probe endpoint; 0 disables it")
	logging := zap.Options{Development: true}
	logging.BindFlags(flag.CommandLine)
	flag.Parse()
	ctrl.SetLogger(zap.New(zap.UseFlagOptions(&logging)))
	setup := ctrl.Log.WithName("setup")

	mgr, err := controllerruntime.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{
		Scheme:                 clientgoscheme.Scheme,
		Metrics:                metricsserver.Options{BindAddress: *metrics},
		HealthProbeBindAddress: *probes,
	}, "cache.db", warmwatch.Options{})
	if err != nil {
		setup.Error(err, "unable to start manager")
		os.Exit(1)
	}
	if err := (&Reconciler{Client: mgr.GetClient()}).SetupWithManager(mgr); err != nil {
		setup.Error(err, "unable to create controller")
		os.Exit(1)
	}
	if err := mgr.AddReadyzCheck("readyz", healthz.Ping); err != nil {
		setup.Error(err, "unable to set up ready check")
		os.Exit(1)
	}
	setup.Info("starting manager")
	if err := mgr.Start(ctrl.SetupSignalHandler()); err != nil {
		setup.Error(err, "problem running manager")
		os.Exit(1)
	}
}
