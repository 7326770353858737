// An agent that keeps a file for each Pod of its node. What was left to be done when it ended, however
// it ended, it does when it starts again: it also removes the files of Pods that were deleted meanwhile.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/debug"
	warmprom "github.com/warmwatch/warmwatch/prometheus"
)

var (
	kubeconfig = flag.String("kubeconfig", os.Getenv("KUBECONFIG"), "path to a kubeconfig; empty in a Pod")
	node       = flag.String("node", os.Getenv("NODE_NAME"), "name of the node")
	path       = flag.String("cache", "cache.db", "the cache file, in a directory of the node that outlives Pods")
	dir        = flag.String("dir", "pods", "directory of the files")
	epoch      = flag.String("epoch", "", "what has to be the same for the files to be there, for example the boot id; empty: each start makes all files")
	status     = flag.String("status", "", "address that serves the page of the cache, with POST /compare and POST /relist, and /readyz, to operators only; empty disables it")
	probe      = flag.String("probe", "", "address that serves /readyz and /metrics to the cluster; empty disables it")
)

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) (err error) {
	if *node == "" { // It would be sent the Pods that have no node yet.
		return errors.New("whose Pods? Set NODE_NAME, or -node")
	}
	if err := os.MkdirAll(*dir, 0o755); err != nil {
		return err
	}
	// Without a server the agent does its work with what the disk has.
	c, err := warmwatch.Open(ctx, *path, warmwatch.Options{ServeStaleAfter: 5 * time.Second})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	config.Wrap(c.WrapTransport) // Before the client is made of it.
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	if err := serve(c); err != nil {
		return err
	}

	lw := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "pods", "", fields.OneTermEqualSelector("spec.nodeName", *node))
	pods, err := c.NewSharedIndexInformer(lw, &corev1.Pod{}, warmwatch.InformerOptions{})
	if err != nil {
		return err
	}
	a := &agent{listers.NewPodLister(pods.GetIndexer())}
	o := warmwatch.ReconcilerOptions{Workers: 4}
	o.Known = a.known
	if *epoch != "" {
		o.Epoch = version + " " + *epoch
	}
	if _, err := pods.AddReconciler("files", a.reconcile, o); err != nil {
		return err
	}
	pods.RunWithContext(ctx) // It returns when all reconciles have returned, and only then the Cache is closed.
	return nil
}

// serve serves what the cluster may ask, and beside it, for operators, the page.
func serve(c *warmwatch.Cache) error {
	collector, err := warmprom.NewCollector(c)
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector)
	ready := debug.ReadyCheck(c)
	probes, page := http.NewServeMux(), http.NewServeMux()
	probes.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	probes.HandleFunc("/readyz", func(w http.ResponseWriter, r *http.Request) {
		if err := ready(r); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	page.Handle("/readyz", probes)
	page.Handle("/", debug.Handler(c, debug.Options{Actions: true}))
	for address, handler := range map[string]http.Handler{*probe: probes, *status: page} {
		if address != "" {
			go func() { log.Print(http.ListenAndServe(address, handler)) }()
		}
	}
	return nil
}

// version changes when the contents of the files do. Then all files are made anew.
const version = "v1"

type agent struct{ pods listers.PodLister }

// reconcile makes the file of one Pod what it should be. It may be called twice for one change, and once for
// several. Where it fails, it is called again, by the next process if need be. Each start calls it for all Pods, or,
// with an epoch, for those that are not done.
func (a *agent) reconcile(_ context.Context, req warmwatch.ReconcileRequest) (warmwatch.ReconcileResult, error) {
	return warmwatch.ReconcileResult{}, a.makeFile(req.ObjectName)
}

func (a *agent) makeFile(key cache.ObjectName) error {
	file := filepath.Join(*dir, key.Namespace+"_"+key.Name)
	pod, err := a.pods.Pods(key.Namespace).Get(key.Name)
	switch {
	case apierrors.IsNotFound(err): // Any other error does not mean that the Pod is gone.
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		log.Printf("%s is gone", key)
		return nil
	case err != nil:
		return err
	}
	if err := os.WriteFile(file, fmt.Appendf(nil, "%s %s\n", pod.UID, pod.Status.PodIP), 0o644); err != nil {
		return err
	}
	log.Printf("%s is there", key)
	return nil
}

// known returns the Pods that have files. So a file is removed whose Pod is gone, even if the cache file was lost.
func (a *agent) known(context.Context) (keys []cache.ObjectName, err error) {
	files, err := os.ReadDir(*dir)
	for _, file := range files {
		if namespace, name, ok := strings.Cut(file.Name(), "_"); ok {
			keys = append(keys, cache.NewObjectName(namespace, name))
		}
	}
	return keys, err
}
