// Package informers has client-go's informer factories, with informers that live in a
// [warmwatch.Cache]. One line and an import change:
//
//	factory := informers.NewSharedInformerFactory(client, resync)        // k8s.io/client-go/informers
//	factory := informers.NewSharedInformerFactory(cache, client, resync) // This package.
//
// The functions return client-go's interfaces, so everything behind that line stays as it is: the groups, versions and
// resources with their informers, typed informers and listers, InformerFor, ForResource, Start, WaitForCacheSync and
// Shutdown. The informers are made by [warmwatch.Cache.NewInformer]. Their identity is what client-go's own informer
// asks for: resource, namespace and selectors. After a restart WaitForCacheSync returns when the caches have caught up
// with the server, see [warmwatch.Options].ServeStaleAfter. If a Cache has two factories with the same namespace and
// options, the informers that run later work from memory.
//
// A Cache is for one cluster: open one for each.
//
// The transport of a [kubernetes.Clientset] need not be wrapped by [warmwatch.Cache.WrapTransport]: the factory knows
// its requests. The transports of dynamic and metadata clients must be wrapped.
//
// An informer is client-go's own, in memory, and keeps nothing across a restart,
//
//   - if the client is a fake: nothing changes for tests;
//   - if the client is not a [kubernetes.Clientset], for example if it embeds one and replaces a part, because the
//     informer would not ask that part;
//   - if the program's function for InformerFor makes one: the factory cannot know what it lists. If the function
//     returns an informer of [warmwatch.Cache.NewInformer], that lives in the Cache;
//   - if a newer client-go has a group that this package does not know yet.
//
// The log of the Cache says so, except for fakes and unknown groups.
//
// [AddDurableEventHandler] and [AddReconciler] take what factories return. With a fake client they work in memory.
//
// Factories that informer-gen made for a CustomResourceDefinition take one line for each type: InformerFor with
// [Generated].
//
// The reasons are in docs/design/decisions.md, "A factory runs client-go's informer for an instant".
package informers
