package informers

import (
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
)

// Of returns the informer of a Cache that informer is, or that it embeds: client-go's groups
// return theirs in a typed informer. It reports false if informer is client-go's own.
//
//	pods, ok := informers.Of(factory.Core().V1().Pods().Informer())
func Of(informer cache.SharedIndexInformer) (*warmwatch.SharedIndexInformer, bool) {
	if s, ok := informer.(*warmwatch.SharedIndexInformer); ok {
		return s, true
	}
	// GetController is a method that wrappers pass on.
	if c, ok := informer.GetController().(interface {
		Informer() *warmwatch.SharedIndexInformer
	}); ok {
		return c.Informer(), true
	}
	return nil, false
}

// AddDurableEventHandler adds a handler that goes on where the last handler of this name
// stopped, see [warmwatch.SharedIndexInformer.AddDurableEventHandler]. If informer is client-go's
// own, for example because the client is a fake, nothing is durable, as in a Cache without a
// file: the handler is told of every object.
func AddDurableEventHandler(informer cache.SharedIndexInformer, name string, h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	if s, ok := Of(informer); ok {
		return s.AddDurableEventHandler(name, h)
	}
	return informer.AddEventHandler(h)
}

// AddTypedDurableEventHandler is AddDurableEventHandler for a typed handler.
func AddTypedDurableEventHandler[T cache.Object](informer cache.SharedIndexInformer, name string, h cache.TypedResourceEventHandler[T]) (cache.ResourceEventHandlerRegistration, error) {
	return cache.NewTypedSharedIndexInformer[T](durable{informer, name}).AddTypedEventHandler(h)
}

// durable makes each handler that is added a durable one.
type durable struct {
	cache.SharedIndexInformer
	name string
}

// AddEventHandlerWithOptions implements [cache.SharedInformer].
func (d durable) AddEventHandlerWithOptions(h cache.ResourceEventHandler, _ cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	return AddDurableEventHandler(d.SharedIndexInformer, d.name, h)
}
