// Package controllerruntime has a manager of controller-runtime with its caches in a file. [NewManager] replaces
// ctrl.NewManager. In essence it is these two lines, which programs that make their own manager can write themselves
// (see the Examples):
//
//	config.Wrap(opened.WrapTransport)                        // Before ctrl.NewManager(config, ...).
//	options.Cache.NewInformer = opened.NewInformer           // Of ctrl.Options.
//
// warmwatch.Open returns opened. NewManager also starts controllers up to 0.2 s sooner. The version of
// controller-runtime is v0.25. The tests in test/controllerruntime run a manager on a real API server, and
// controller-runtime's own tests of its cache with warmwatch's informers.
//
// # What works
//
// Everything in cache.Options works: typed, unstructured and metadata objects, each stored separately;
// DefaultNamespaces, ByObject, selectors; transforms; field indices; RemoveInformer. GetInformer works after that,
// too; but if a handler of the removed informer runs for more than 10 s, the new one works from memory.
//
// After a restart objects are listed only if the API server no longer has the history: see the README. A manager for
// several clusters (package cluster) needs a Cache, and a file, for each.
//
// # What to mind
//
// The cache must make its HTTP client of the wrapped rest.Config: do not set cache.Options.HTTPClient or
// cluster.Options.HTTPClient. Through another client the requests cannot be seen, and the informers work from memory.
// The log and the Status of the Cache say so.
//
// The Cache is closed after ctrl.Manager's Start has returned: reconcilers may read until then. If something did not
// end within GracefulShutdownTimeout, if that is 0, or if the lease is lost, the Cache stays open for what still runs,
// until the process ends or Close is called.
//
// Reconcilers begin when the cache has caught up with the server, as after a list. The manager's client waits until
// then. With a negative [warmwatch.Options].ServeStaleAfter they begin at once, with the objects from disk. Then they
// may for a moment act on data that is hours old, or not find what the last process has created. That suits controllers
// that only read, or whose writes are conditional on the resourceVersion. It also works while the API server is away,
// if Options.MapperProvider returns a mapper that does not ask it: controller-runtime's own asks before an informer is
// made.
//
// The file outlives the code of index functions and transforms. Indices are rebuilt when the program's binary changes.
// Objects stay as they were transformed until their next event: set warmwatch.Options.TransformVersion if a new
// transform must apply to all at once. If an index function depends on configuration, so must IndexVersion. Without
// these versions, caches of one file that list the same must have the same transform, and the same function for an
// index of one name.
//
// # What reconcilers get after a restart
//
// Controllers add plain event handlers. As without warmwatch, their workqueues begin empty, and every object is an
// OnAdd of the initial list; controller-runtime's priority queue puts those behind changes. They get no request for an
// object that was deleted while the program did not run. A finalizer keeps an object until its controller has seen the
// deletion; use one where the controller may write to the object. Otherwise use [Kind], a source with the deletions of
// the downtime.
//
// The next process does not repeat a reconcile of a deletion that has failed or was interrupted. With [NewQueue] in the
// options of the controller, requests are in the file until they are done.
//
// GetInformer returns a *warmwatch.SharedIndexInformer, with durable handlers and AddReconciler, unless
// DefaultNamespaces or ByObject.Namespaces is set, even to one namespace. See docs/use.md, "Durable handlers" and
// "Reconcilers".
package controllerruntime
