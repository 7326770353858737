package workqueue_test

import (
	"context"
	"log"
	"sync"

	toolscache "k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/workqueue"
)

// A controller as client-go's examples have it. Only the line that makes the queue, and that the handler
// is a durable one, differ.
func Example() {
	run := func(ctx context.Context, cache *warmwatch.Cache, pods *warmwatch.SharedIndexInformer, reconcile func(context.Context, toolscache.ObjectName) error) error {
		queue, err := workqueue.New(cache.Workqueues(), "pods", workqueue.Options[toolscache.ObjectName]{
			LeaveAtShutDown: true, // What waits when ctx is done is for the next process.
		})
		if err != nil {
			return err
		}
		enqueue := func(obj any) {
			if key, err := toolscache.DeletionHandlingObjectToName(obj); err == nil {
				queue.Add(key) // Returning acknowledges the event: from now on the key is in the file instead.
			}
		}
		handler := toolscache.ResourceEventHandlerFuncs{
			AddFunc:    enqueue,
			UpdateFunc: func(_, obj any) { enqueue(obj) },
			DeleteFunc: enqueue,
		}
		if _, err := pods.AddDurableEventHandler("pods", handler, warmwatch.DurableOptions{}); err != nil {
			return err
		}
		work := func() {
			for {
				key, shutdown := queue.Get()
				if shutdown {
					return
				}
				if err := reconcile(ctx, key); err != nil {
					log.Println(key, err)
					queue.AddRateLimited(key)
				} else {
					queue.Forget(key)
				}
				queue.Done(key) // The key stays in the file if it was added again.
			}
		}

		var running sync.WaitGroup
		running.Go(func() { pods.RunWithContext(ctx) })
		if toolscache.WaitFor(ctx, "pods", pods.HasSyncedChecker()) {
			for range 4 {
				running.Go(work)
			}
		}
		<-ctx.Done()
		queue.ShutDown()
		running.Wait()
		return nil
	}
	_ = run
}
