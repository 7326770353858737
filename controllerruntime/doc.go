// Package controllerruntime has a manager of controller-runtime whose caches are kept in a file.
// [NewManager] takes the place of ctrl.NewManager. In essence it is these two lines, which
// programs that make their manager in another way can write themselves (see the Examples):
//
//	config.Wrap(opened.WrapTransport)                        // Before ctrl.NewManager(config, ...).
//	options.Cache.NewInformer = opened.NewInformer           // Of ctrl.Options.
//
// opened is what warmwatch.Open returns. NewManager also starts controllers up to 0.2 s sooner. The version of controller-runtime is v0.25. The tests in
// test/controllerruntime run a manager on a real API server, and controller-runtime's own tests of
// its cache with warmwatch's informers.
//
// # What works
//
// Everything in cache.Options does: typed, unstructured and metadata objects, each of which is kept
// for itself; DefaultNamespaces, ByObject, selectors; transforms; field indices; RemoveInformer, and
// GetInformer after it, where no handler of the removed informer runs for more than 10 s: the new one works
// from memory then. After a restart not all objects are listed, unless the API server has no history
// any more: see the README. A manager for several clusters (package cluster) needs a Cache, and a
// file, for each.
//
// # What to mind
//
// The cache must make its HTTP client of the wrapped rest.Config, which it does unless
// cache.Options.HTTPClient or cluster.Options.HTTPClient is set. Through another client the requests
// cannot be seen, and the informers work from memory: the log says so, and the Status of the Cache.
//
// The Cache is closed after ctrl.Manager's Start has returned: reconcilers may read until then. If something did not
// end within GracefulShutdownTimeout, which is also so where that is 0, or the lease is lost, the Cache stays open for
// what still runs, until the process ends or Close is called.
//
// Reconcilers begin when the cache has all that the server had when the program started, as after a
// list. The manager's client waits until then. With a negative [warmwatch.Options].ServeStaleAfter
// they begin at once, with what the program knew when it ended. Then they may for a moment act on
// data that is hours old, or not find what their last life has created. That also works while the API
// server is away, if Options.MapperProvider returns a mapper that does not ask it: the one of
// controller-runtime asks before an informer is made. For controllers that only read, or whose writes are conditional on the
// resourceVersion, that is often what one wants.
//
// The functions of IndexField and of transforms are code that the file outlives. Indices are
// rebuilt when the program's binary changes. Objects stay as they were transformed until their next
// event: set warmwatch.Options.TransformVersion if a new transform must apply to all at once. What
// an index function reads from configuration must be in IndexVersion. Without these versions two functions of one
// program are taken for one: caches of one file that list the same have the same transform, and the
// same function for an index of one name.
//
// # What reconcilers are told after a restart
//
// Controllers add plain event handlers, so their workqueues begin empty and every object is an
// OnAdd of the initial list, as without warmwatch; controller-runtime's priority queue puts those
// behind what has changed. They get no request for an object that was deleted while the program did
// not run. A finalizer keeps an object until its controller has seen the deletion; use one where the
// controller may write to the object. [Kind] is for all others: it is a source with the deletions of the downtime.
//
// A reconcile of a deletion that has failed, or was interrupted by the end of the process, is
// not repeated. With [NewQueue] in the options of the controller, requests are in the file until they
// are done.
//
// What GetInformer returns is a *warmwatch.SharedIndexInformer, unless DefaultNamespaces or ByObject.Namespaces is set,
// even to one namespace. It takes durable handlers, and has AddReconciler. See docs/use.md, "Durable handlers" and
// "Reconcilers".
package controllerruntime
