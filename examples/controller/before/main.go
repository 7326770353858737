// A controller in client-go's pattern: an informer factory, listers and a workqueue. The directory
// after has the same one with warmwatch.
package main

import (
	"context"
	"flag"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	kubeconfig := flag.String("kubeconfig", os.Getenv("KUBECONFIG"), "path to a kubeconfig; empty in a Pod")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	config := must(clientcmd.BuildConfigFromFlags("", *kubeconfig))
	client := must(kubernetes.NewForConfig(config))
	factory := informers.NewSharedInformerFactory(client, 30*time.Second)
	defer factory.Shutdown()
	controller := NewController(factory.Apps().V1().Deployments(), factory.Core().V1().Pods())
	factory.StartWithContext(ctx)
	controller.Run(ctx, 2)
}

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}
