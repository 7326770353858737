package controllerruntime

import (
	"context"
	"fmt"

	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/warmwatch/warmwatch"
)

// Kind is source.Kind of controller-runtime on a durable handler, for WatchesRawSource of a controller's builder. After
// a restart it goes on where it stopped: it brings the deletions of the downtime too, and leaves out unchanged objects.
// name is the name of the handler, see AddDurableEventHandler of [warmwatch.SharedIndexInformer]. A restarted program
// uses the same name. Two sources of one object need two names.
//
// Use it with [NewQueue]: when the handler returns, its change is acknowledged, and the request is in the file before.
// With another queue a request that waits at the end of the process is lost.
//
// If the last state of a deleted object is lost, the event has an object with only namespace and name, and
// DeleteStateUnknown is true.
//
// The source fails if the informer of the object is not warmwatch's. That is also so if DefaultNamespaces or
// ByObject.Namespaces of the cache.Options is set, even to one namespace: controller-runtime then puts its own informer
// in front.
func Kind[object client.Object](
	c cache.Cache, name string, obj object,
	handler handler.TypedEventHandler[object, reconcile.Request], predicates ...predicate.TypedPredicate[object],
) source.SyncingSource {
	return source.Kind(durableCache{c, name}, obj, handler, predicates...)
}

// A durableCache has informers whose handlers are durable.
type durableCache struct {
	cache.Cache

	name string
}

func (c durableCache) GetInformer(ctx context.Context, object client.Object, options ...cache.InformerGetOption) (cache.Informer, error) {
	informer, err := c.Cache.GetInformer(ctx, object, options...)
	return durableInformer{informer, c.name, object}, err
}

type durableInformer struct {
	cache.Informer

	name    string
	example client.Object
}

// AddEventHandlerWithOptions is what source.Kind calls.
func (i durableInformer) AddEventHandlerWithOptions(h toolscache.ResourceEventHandler, o toolscache.HandlerOptions) (toolscache.ResourceEventHandlerRegistration, error) {
	informer, ok := i.Informer.(*warmwatch.SharedIndexInformer)
	if !ok {
		return nil, fmt.Errorf("controllerruntime: durable handler %q: the informer of %T is a %T: a cache.Options that restricts namespaces has no durable handlers", i.name, i.example, i.Informer)
	}
	return informer.AddDurableEventHandler(i.name, namedDeletions{h, i.example}, warmwatch.DurableOptions{HandlerOptions: o})
}

// namedDeletions gives a deletion whose last state is lost an object with the key.
type namedDeletions struct {
	toolscache.ResourceEventHandler

	example client.Object
}

func (h namedDeletions) OnDelete(obj any) {
	if lost, ok := obj.(toolscache.DeletedFinalStateUnknown); ok && lost.Obj == nil {
		if key, err := toolscache.ParseObjectName(lost.Key); err == nil {
			named := h.example.DeepCopyObject().(client.Object)
			named.SetNamespace(key.Namespace)
			named.SetName(key.Name)
			lost.Obj = named
		}
		obj = lost
	}
	h.ResourceEventHandler.OnDelete(obj)
}
