package warmwatch_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
)

// An agent that watches the Pods of its node, and after a restart is notified of what it had not handled.
func ExampleOpen() {
	run := func(ctx context.Context, config *rest.Config, node string, handler cache.ResourceEventHandler) error {
		c, err := warmwatch.Open(ctx, "/var/lib/agent/cache.db", warmwatch.Options{})
		if err != nil {
			return err
		}
		defer c.Close()
		config.Wrap(c.WrapTransport) // Before the client is made of it.
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return err
		}

		lw := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "pods", "", fields.OneTermEqualSelector("spec.nodeName", node))
		pods, err := c.NewSharedIndexInformer(lw, &corev1.Pod{}, warmwatch.InformerOptions{})
		if err != nil {
			return err
		}
		if _, err := pods.AddDurableEventHandler("network", handler, warmwatch.DurableOptions{}); err != nil { // Goes on where it stopped.
			return err
		}
		pods.RunWithContext(ctx)
		return nil
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	node := os.Getenv("NODE_NAME")
	if node == "" { // It would be notified of Pods without a node.
		log.Fatal("NODE_NAME is not set")
	}
	config, err := rest.InClusterConfig()
	if err != nil {
		log.Fatal(err)
	}
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { log.Println("added", obj.(*corev1.Pod).Name) },
		UpdateFunc: func(_, obj any) { log.Println("updated", obj.(*corev1.Pod).Name) },
		DeleteFunc: func(obj any) {
			key, _ := cache.DeletionHandlingMetaNamespaceKeyFunc(obj)
			log.Println("deleted", key)
		},
	}
	if err := run(ctx, config, node, handler); err != nil {
		log.Print(err)
	}
}

// An informer factory and a lister of client-go, whose informer of Pods is kept in the file.
func ExampleCache_NewInformer() {
	start := func(ctx context.Context, c *warmwatch.Cache, config *rest.Config) (listers.PodLister, error) {
		config.Wrap(c.WrapTransport) // Before the client is made of it.
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return nil, err
		}
		factory := informers.NewSharedInformerFactory(client, 0)
		// Before anybody asks the factory for its own.
		factory.InformerFor(&corev1.Pod{}, func(client kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
			lw := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "pods", metav1.NamespaceAll, fields.Everything())
			return c.NewInformer(lw, &corev1.Pod{}, resync, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
		})
		pods := factory.Core().V1().Pods().Lister()
		factory.StartWithContext(ctx)
		return pods, factory.WaitForCacheSyncWithContext(ctx).Err
	}
	_ = start
}

// Whatever is wrong, the informers work as well as they can. This is how to hear of it.
func ExampleCache_Status() {
	c, err := warmwatch.Open(context.Background(), "/var/lib/agent/cache.db", warmwatch.Options{})
	if err != nil {
		log.Fatal(err) // The path or the options make no sense.
	}
	defer c.Close()
	http.HandleFunc("/status", func(w http.ResponseWriter, _ *http.Request) {
		if err := json.NewEncoder(w).Encode(c.Status()); err != nil {
			log.Print(err)
		}
	})
	st := c.Status()
	if st.Err != nil {
		log.Printf("%s is not used as it should: %v", st.Path, st.Err)
	}
	for name, informer := range st.Informers {
		if informer.Err != nil {
			log.Printf("%s: %v", name, informer.Err)
		}
	}
}

// An informer with a selector, an index and a transform. What it lists, and the
// versions of what it indexes and transforms by, belong to the data on disk.
func ExampleCache_NewSharedIndexInformer() {
	start := func(ctx context.Context, c *warmwatch.Cache, client kubernetes.Interface) (cache.SharedIndexInformer, error) {
		const selector = "app=web"
		lw := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				o.LabelSelector = selector
				return client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				o.LabelSelector = selector
				return client.CoreV1().Pods(metav1.NamespaceAll).Watch(ctx, o)
			},
		}, client)
		pods, err := c.NewSharedIndexInformer(lw, &corev1.Pod{}, warmwatch.InformerOptions{
			Resource:         corev1.SchemeGroupVersion.WithResource("pods"),
			LabelSelector:    selector,
			Indexers:         cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc},
			IndexVersion:     "1",
			TransformVersion: "1",
		})
		if err != nil {
			return nil, err
		}
		err = pods.SetTransform(func(obj any) (any, error) {
			if m, err := meta.Accessor(obj); err == nil {
				m.SetManagedFields(nil)
			}
			return obj, nil
		})
		if err != nil {
			return nil, err
		}
		go pods.RunWithContext(ctx)
		if !cache.WaitFor(ctx, "pods", pods.HasSyncedChecker()) {
			return nil, context.Cause(ctx)
		}
		return pods, nil
	}
	_ = start
}

// A controller in one call: the file has what is left to be done, also after a crash.
func ExampleSharedIndexInformer_AddReconciler() {
	type makeFunc func(context.Context, *corev1.Pod) error
	type removeFunc func(context.Context, cache.ObjectName) error
	start := func(ctx context.Context, pods *warmwatch.SharedIndexInformer, makeRoute makeFunc, removeRoute removeFunc) error {
		lister := listers.NewPodLister(pods.GetIndexer())
		reconcile := func(ctx context.Context, req warmwatch.ReconcileRequest) (done warmwatch.ReconcileResult, err error) {
			pod, err := lister.Pods(req.Namespace).Get(req.Name)
			if apierrors.IsNotFound(err) { // By its key: req.Deleted has the last known Pods, but may be empty.
				return done, removeRoute(ctx, req.ObjectName)
			}
			if err != nil {
				return done, err // It will be called again, by the next process if need be.
			}
			return done, makeRoute(ctx, pod)
		}
		if _, err := pods.AddReconciler("routes", reconcile, warmwatch.ReconcilerOptions{Workers: 10}); err != nil {
			return err
		}
		pods.RunWithContext(ctx)
		return nil
	}
	_ = start
}

// Routes are gone after a boot, and a new version of the program makes them otherwise. In both cases a start reconciles
// all objects. In every other case it reconciles only what is not done.
func ExampleReconcilerOptions() {
	const version = "v3" // Of what the program makes.
	options := func(routes func(context.Context) ([]cache.ObjectName, error)) (o warmwatch.ReconcilerOptions, err error) {
		boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
		if err != nil {
			return o, err
		}
		o.Epoch = version + " " + string(boot)
		o.Known = routes // Those that are there. So one is removed whose object is gone, whatever becomes of the file.
		return o, nil
	}
	_ = options
}

// The ListFunc and WatchFunc of this program leave out the objects of other shards. All shards make the same request,
// so each one gets a name. Without it a program that is given another shard would resume the objects of the old one.
func ExampleCache_NewInformerFunc() {
	pods := func(c *warmwatch.Cache, lw cache.ListerWatcher, shard, shards int) cache.SharedIndexInformer {
		newInformer := c.NewInformerFunc(warmwatch.InformerOptions{Name: fmt.Sprintf("shard %d of %d", shard, shards)})
		return newInformer(lw, &corev1.Pod{}, 0, cache.Indexers{})
	}
	_ = pods
}
