package informers_test

import (
	"context"
	"log"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	clientgoinformers "k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/informers"
)

// A controller's factory. All that comes after its first line is as with client-go's.
func ExampleNewSharedInformerFactory() {
	run := func(ctx context.Context, cache *warmwatch.Cache, client kubernetes.Interface, handler toolscache.ResourceEventHandler) error {
		factory := informers.NewSharedInformerFactory(cache, client, 30*time.Second)
		defer factory.Shutdown()
		deployments := factory.Apps().V1().Deployments()
		nodes := factory.Core().V1().Nodes().Lister()
		if _, err := deployments.Informer().AddEventHandler(handler); err != nil {
			return err
		}
		factory.StartWithContext(ctx)
		if err := factory.WaitForCacheSyncWithContext(ctx).Err; err != nil {
			return err
		}
		_, err := nodes.Get("node-1")
		<-ctx.Done()
		return err
	}
	_ = run
}

// The Pods of one node, without their managed fields.
func ExampleNewSharedInformerFactoryWithOptions() {
	pods := func(cache *warmwatch.Cache, client kubernetes.Interface, node string) coreinformers.PodInformer {
		factory := informers.NewSharedInformerFactoryWithOptions(cache, client, 0,
			informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = "spec.nodeName=" + node }),
			informers.WithTransform(func(obj any) (any, error) {
				if m, err := meta.Accessor(obj); err == nil {
					m.SetManagedFields(nil)
				}
				return obj, nil
			}),
		)
		return factory.Core().V1().Pods()
	}
	_ = pods
}

// A handler that goes on, in the next process, where it stopped in this one.
func ExampleAddDurableEventHandler() {
	add := func(pods coreinformers.PodInformer) error {
		_, err := informers.AddDurableEventHandler(pods.Informer(), "network", toolscache.ResourceEventHandlerFuncs{
			AddFunc: func(obj any) { log.Println("added", obj.(*corev1.Pod).Name) },
			DeleteFunc: func(obj any) {
				name, err := toolscache.DeletionHandlingObjectToName(obj)
				log.Println("deleted", name, err)
			},
		}, warmwatch.DurableOptions{})
		return err
	}
	_ = add
}

// What only an informer of a Cache has is reached by Of.
func ExampleOf() {
	served := func(factory informers.SharedInformerFactory) bool {
		pods, ok := informers.Of(factory.Core().V1().Pods().Informer())
		return ok && pods.Status().Relists == 0
	}
	_ = served
}

// Custom resources, without a generated client.
func ExampleNewDynamicSharedInformerFactory() {
	widgets := func(cache *warmwatch.Cache, config *rest.Config) (informers.GenericInformer, error) {
		config.Wrap(cache.WrapTransport)
		client, err := dynamic.NewForConfig(config)
		if err != nil {
			return nil, err
		}
		factory := informers.NewDynamicSharedInformerFactory(cache, client, 0)
		return factory.ForResource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}), nil
	}
	_ = widgets
}

// Only the metadata of Secrets.
func ExampleNewMetadataSharedInformerFactory() {
	secrets := func(cache *warmwatch.Cache, config *rest.Config) (informers.GenericInformer, error) {
		config.Wrap(cache.WrapTransport)
		client, err := metadata.NewForConfig(config)
		if err != nil {
			return nil, err
		}
		factory := informers.NewMetadataSharedInformerFactory(cache, client, 0)
		return factory.ForResource(corev1.SchemeGroupVersion.WithResource("secrets")), nil
	}
	_ = secrets
}

// A factory that informer-gen has made: one line for each type, and everything behind it as before.
func ExampleGenerated() {
	deployments := func(cache *warmwatch.Cache, client kubernetes.Interface) clientgoinformers.SharedInformerFactory {
		factory := clientgoinformers.NewSharedInformerFactory(client, 0) // Yours comes from the generated package.
		factory.InformerFor(&appsv1.Deployment{}, informers.Generated[kubernetes.Interface](cache, &appsv1.Deployment{}, client.AppsV1().Deployments("")))
		return factory
	}
	_ = deployments
}
