package controllerruntime_test

import (
	"context"
	"log"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/warmwatch/warmwatch"
)

// The main function that kubebuilder writes. What is new is marked.
func Example() {
	config := ctrl.GetConfigOrDie()
	opened, err := warmwatch.Open("/var/lib/operator/cache.db", warmwatch.Options{SyncPolicy: warmwatch.SyncFromServer}) // New.
	if err != nil {
		log.Fatal(err)
	}
	config.Wrap(opened.WrapTransport) // New.
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Cache: cache.Options{NewInformer: opened.NewInformer}, // New.
	})
	if err != nil {
		log.Fatal(err)
	}
	look := func(_ context.Context, request ctrl.Request) (ctrl.Result, error) {
		log.Println("look at", request)
		return ctrl.Result{}, nil
	}
	if err := ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}).Complete(reconcile.Func(look)); err != nil {
		log.Fatal(err)
	}
	if err := mgr.Start(ctrl.SetupSignalHandler()); err != nil {
		log.Print(err)
	}
	if err := opened.Close(); err != nil { // New.
		log.Print(err)
	}
}
