package controllerruntime_test

import (
	"context"
	"log"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/controllerruntime"
)

// The main function that kubebuilder writes, with one other line: ctrl.NewManager was there.
func ExampleNewManager() {
	mgr, err := controllerruntime.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{},
		"/var/lib/operator/cache.db", warmwatch.Options{})
	if err != nil {
		log.Fatal(err)
	}
	addController(mgr)
	if err := mgr.Start(ctrl.SetupSignalHandler()); err != nil {
		log.Fatal(err)
	}
}

// What NewManager does, for a program that makes its manager in another way.
func Example() {
	config := ctrl.GetConfigOrDie()
	opened, err := warmwatch.Open(context.Background(), "/var/lib/operator/cache.db", warmwatch.Options{})
	if err != nil {
		log.Fatal(err)
	}
	config.Wrap(opened.WrapTransport)
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Cache: cache.Options{NewInformer: opened.NewInformer},
	})
	if err != nil {
		log.Fatal(err)
	}
	addController(mgr)
	if err := mgr.Start(ctrl.SetupSignalHandler()); err != nil {
		log.Print(err)
	}
	if err := opened.Close(); err != nil { // Not before Start has returned.
		log.Print(err)
	}
}

func addController(mgr manager.Manager) {
	look := func(_ context.Context, request ctrl.Request) (ctrl.Result, error) {
		log.Println("look at", request)
		return ctrl.Result{}, nil
	}
	if err := ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}).Complete(reconcile.Func(look)); err != nil {
		log.Fatal(err)
	}
}

// A controller whose requests are not lost on the way to the reconciler.
func ExampleNewQueue() {
	setup := func(mgr ctrl.Manager, opened *warmwatch.Cache, reconciler reconcile.Reconciler) error {
		return ctrl.NewControllerManagedBy(mgr).
			For(&corev1.ConfigMap{}).
			WithOptions(controller.Options{NewQueue: controllerruntime.NewQueue(opened)}).
			Complete(reconciler)
	}
	_ = setup
}

// A controller of what is outside the cluster, which has to be removed with its ConfigMap. It is also called for
// ConfigMaps that were deleted while the program did not run.
func ExampleKind() {
	setup := func(mgr ctrl.Manager, opened *warmwatch.Cache, reconciler reconcile.Reconciler) error {
		return ctrl.NewControllerManagedBy(mgr).
			Named("routes").
			WatchesRawSource(controllerruntime.Kind(mgr.GetCache(), "routes", &corev1.ConfigMap{}, &handler.TypedEnqueueRequestForObject[*corev1.ConfigMap]{})).
			WithOptions(controller.Options{NewQueue: controllerruntime.NewQueue(opened)}).
			Complete(reconciler)
	}
	_ = setup
}
