// A controller in client-go's pattern, whose informers go on where the last process stopped. The
// directory before has the same one with client-go alone.
package main

import (
	"context"
	"flag"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/informers"
)

func main() {
	kubeconfig := flag.String("kubeconfig", os.Getenv("KUBECONFIG"), "path to a kubeconfig; empty in a Pod")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	config := must(clientcmd.BuildConfigFromFlags("", *kubeconfig))
	client := must(kubernetes.NewForConfig(config))
	cache := must(warmwatch.Open(ctx, "cache.db", warmwatch.Options{}))
	defer cache.Close()
	factory := informers.NewSharedInformerFactory(cache, client, 30*time.Second)
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
