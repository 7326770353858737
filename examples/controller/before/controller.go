package main

import (
	"context"
	"log"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	appsinformers "k8s.io/client-go/informers/apps/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// A Controller says of each Deployment how many Pods it has.
type Controller struct {
	deployments appslisters.DeploymentLister
	pods        corelisters.PodLister
	synced      []cache.DoneChecker
	queue       workqueue.TypedRateLimitingInterface[cache.ObjectName]
}

// NewController adds its handlers to the informers.
func NewController(deployments appsinformers.DeploymentInformer, pods coreinformers.PodInformer) *Controller {
	c := &Controller{
		deployments: deployments.Lister(),
		pods:        pods.Lister(),
		synced:      []cache.DoneChecker{deployments.Informer().HasSyncedChecker(), pods.Informer().HasSyncedChecker()},
		queue:       workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[cache.ObjectName]()),
	}
	must(appsinformers.ToTypedDeploymentInformer(deployments).TypedInformer().AddTypedEventHandler(appsinformers.DeploymentHandlerFuncs{
		AddFunc:    func(d *appsv1.Deployment) { c.queue.Add(cache.MetaObjectToName(d)) },
		UpdateFunc: func(_, d *appsv1.Deployment) { c.queue.Add(cache.MetaObjectToName(d)) },
		DeleteFunc: func(d appsinformers.DeletedDeployment) { c.queue.Add(d.GetObjectName()) },
	}))
	return c
}

// Run works on the queue until ctx is done.
func (c *Controller) Run(ctx context.Context, workers int) {
	if !cache.WaitFor(ctx, "the caches", c.synced...) {
		return
	}
	var working sync.WaitGroup
	for range workers {
		working.Go(func() {
			for c.processNext(ctx) {
			}
		})
	}
	<-ctx.Done()
	c.queue.ShutDown()
	working.Wait()
}

func (c *Controller) processNext(ctx context.Context) bool {
	name, shutdown := c.queue.Get()
	if shutdown {
		return false
	}
	defer c.queue.Done(name)
	if err := c.sync(ctx, name); err != nil {
		log.Printf("%v: %v", name, err)
		c.queue.AddRateLimited(name)
		return true
	}
	c.queue.Forget(name)
	return true
}

func (c *Controller) sync(_ context.Context, name cache.ObjectName) error {
	d, err := c.deployments.Deployments(name.Namespace).Get(name.Name)
	if apierrors.IsNotFound(err) {
		log.Printf("%v is gone", name)
		return nil
	}
	if err != nil {
		return err
	}
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	if err != nil {
		return err
	}
	pods, err := c.pods.Pods(name.Namespace).List(selector)
	if err != nil {
		return err
	}
	log.Printf("%v has %d Pods", name, len(pods))
	return nil
}
