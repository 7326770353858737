// Package informers has client-go's informer factories, with informers that live in a
// [warmwatch.Cache]. One line and an import change:
//
//	factory := informers.NewSharedInformerFactory(client, resync)        // k8s.io/client-go/informers
//	factory := informers.NewSharedInformerFactory(cache, client, resync) // This package.
//
// What the functions return has client-go's interfaces, so everything behind that line stays as
// it is: the groups, versions and resources with their informers, typed informers and listers,
// InformerFor, ForResource, Start, WaitForCacheSync and Shutdown. Informers are those of
// [warmwatch.Cache.NewInformer], whose identity is what client-go's own informer asks for:
// resource, namespace and selectors. After a restart WaitForCacheSync returns when the caches have caught up with the
// server, see [warmwatch.Options].ServeStaleAfter. Where a factory is made for a second time in one Cache, with
// the same namespace and options, the informers that run later work from memory.
//
// A Cache is for one cluster: open another one for the factories of another.
//
// The client's transport need not be wrapped by [warmwatch.Cache.WrapTransport]: a factory knows
// its requests.
//
// An informer is client-go's own, in memory, with nothing kept across a restart,
//
//   - if the client is a fake: nothing changes for tests;
//   - if the client is another one than [kubernetes.Clientset], such as one that embeds a
//     Clientset and replaces a part of it, because the informer would not ask that part;
//   - if InformerFor was given a function that makes one: what that lists, and what it does to it,
//     only itself can know. Where it returns what [warmwatch.Cache.NewInformer] does, the
//     informer lives in the Cache;
//   - if a newer client-go has a group that this package does not know yet.
//
// The log of the Cache says so, except for fakes and unknown groups.
//
// [AddDurableEventHandler] and [AddReconciler] take what factories return. With a fake client they work in memory.
//
// Factories that informer-gen made for a CustomResourceDefinition have an InformerFor as well, which takes what
// [Generated] returns: one line for each type.
//
// Why it is made so is in docs/design/decisions.md, "A factory runs client-go's informer for an instant".
package informers
