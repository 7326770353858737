package reflector

import (
	"cmp"
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	clientfeatures "k8s.io/client-go/features"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/watchlist"
	"k8s.io/klog/v2"

	"github.com/warmwatch/warmwatch/checkpoint"
	"github.com/warmwatch/warmwatch/internal/request"
)

// A Store is what a Resumer keeps up to date, together with the Reflector.
type Store interface {
	// ResourceVersion returns the version at which a watch may begin: the store has
	// everything up to it. Empty if it is not known.
	ResourceVersion() string
	// At returns the version of the last event, bookmark or list that was applied. Unlike ResourceVersion it does not
	// wait for what is being applied.
	At() string
	// BeginRelist begins to compare the store with a list. One relist is under
	// way at a time.
	BeginRelist(how Relisting) (Relist, error)
	// Passing is called with the object that an event adds, changes or deletes, before the
	// Reflector gets the event. The Reflector skips an object of another type or kind, and the
	// Store does not know then whether it has everything up to the next event.
	Passing(obj runtime.Object)

	// The rest is compared with what the server answers.

	// Empty reports whether nothing was ever stored.
	Empty() bool
	// Contradicts reports whether the store should have this very version of an object, which is not newer
	// than the store, and has another one or none. It returns false where that is not certain.
	Contradicts(v checkpoint.ObjectVersion) bool
	// Stored returns how many objects the store has.
	Stored() int
	// Counts reports whether the store has so many objects, or may have others because it has refused some.
	Counts(objects int64) bool
	// Comparable reports whether each object of the store is what the server has of it if uid and
	// resourceVersion are the same: the contents of all were compared when the
	// server's schema was this one.
	Comparable(schema string) bool
}

// Relisting says why the store is compared with a list, and how closely.
type Relisting struct {
	Cause checkpoint.Cause
	// Reason is for people, and empty if the Cause says all.
	Reason string
	// Rewrite makes the store write every item anew, even if it has the same.
	Rewrite bool
	// NotOlderThan is the least version of the list if the store has no
	// ResourceVersion, so that time does not go back and a server that is behind is
	// noticed.
	NotOlderThan string
	// Newest means that the list is of the newest state that there is, whatever its version.
	Newest bool
	// Expired means that the server no longer has the history since the store's version, and
	// that nothing else is wrong: the store has what the server once had.
	Expired bool
	// Schema identifies the server's schema of the objects before the list. Empty if it is
	// not known.
	Schema string
}

// String returns the cause and the reason.
func (how Relisting) String() string {
	if how.Reason == "" {
		return string(how.Cause)
	}
	return string(how.Cause) + ": " + how.Reason
}

// A Relist receives the items of a list. One goroutine calls its methods; an error
// of one ends the relist.
type Relist interface {
	// Item receives an object that exists.
	Item(obj runtime.Object) error
	// Known receives the version of an object that exists, and reports whether the store has
	// it. If not, and if the object is not received as an Item, it does not exist.
	Known(v checkpoint.ObjectVersion) (bool, error)
	// Same receives an object that exists, in protobuf, and reports whether the store has the
	// same. If not, the object is received as an Item later. Same does not keep encoded, and
	// may be called by another goroutine, but not once Finish is called.
	Same(v checkpoint.ObjectVersion, encoded []byte) (bool, error)
	// Finish is called after the last object, with the resourceVersion of the list. It is
	// empty if the list has none: the version of the next bookmark is the store's then. If the
	// versions are not ordered, no watch can be resumed at one of them before the next list.
	// After nil the store has these objects and no others, or another relist is already demanded
	// ([Resumer.ForceRelist]), and the store is not served before that is done. Finish reports whether the
	// relist has written anything.
	Finish(resourceVersion string, ordered bool) (changed bool, err error)
	// Abort ends a relist that cannot be finished. The items are not applied, except
	// those that a relist writes as they come. It does nothing after Finish has returned nil.
	Abort()
}

// Options configures [NewResumer].
type Options struct {
	// ListerWatcher says itself if its watches cannot begin with all objects, see k8s.io/client-go/util/watchlist: a
	// wrapper of client-go would hide it.
	ListerWatcher cache.ListerWatcherWithContext
	Store         Store
	Informer      Informer
	// Relist, if set, makes the first List relist in this way instead of resuming.
	Relist *Relisting
	// NeverResume makes every List a relist, for servers that keep no history
	// or accept any resourceVersion.
	NeverResume bool
	// Cluster asks which cluster the server is of, at a start and before each watch that is opened. It returns
	// how to relist if the store is of another one, and nil if it does not know.
	Cluster func(context.Context) *Relisting
	// Ask, if set, asks the server for one object of the list. Its error wraps request.ErrNotSeen or
	// request.ErrUnsupported where only the ListerWatcher can ask.
	Ask func(context.Context) (request.Answer, error)
	// Schema, if set, asks for what Relisting.Schema is. It is set if the requests of the
	// ListerWatcher come to a request.Transport.
	Schema func(context.Context) (string, error)
	// Spread bounds the time that a relist waits after an open watch has expired, because
	// many clients lose their history at once. 0: it does not wait.
	Spread time.Duration
	// PageSize of lists. Default 500.
	PageSize int64
	// Logger defaults to klog's.
	Logger *klog.Logger
}

// Resumer is a ListerWatcher for a cache.Reflector. Use it with one Reflector,
// whose store is, or feeds, Options.Store.
type Resumer struct {
	lw          cache.ListerWatcherWithContext
	store       Store
	informer    Informer
	cluster     func(context.Context) *Relisting
	directly    func(context.Context) (request.Answer, error)
	schema      func(context.Context) (string, error) // Nil if requests are not seen.
	neverResume bool
	spread      time.Duration
	pageSize    int64
	log         klog.Logger

	// listing serialises Lists: a Reflector that is stopped leaves its List
	// running (client-go, reflector.go, list).
	listing sync.Mutex
	// Guarded by listing:
	// paginated: the server pages even lists that its watch cache could serve.
	// wasCut: the last relist by version was cut, or put off by the server.
	// byItem: a watch may begin with all objects, and as far as is known its request comes to a request.Transport.
	paginated, wasCut, byItem bool
	// cuts is how many lists were cut since the last complete one.
	cuts     int
	changed  bool // By the last complete list.
	watchers sync.WaitGroup

	mu      sync.Mutex
	stopped bool
	// next is how the next List relists; nil: it resumes.
	next *Relisting
	// spreadFor is the relist that has waited for its turn.
	spreadFor   *Relisting
	questioning questioning
	caughtUp    bool // The store has caught up with the server once.
	// eventless: no event came since the last relist. If the watch then
	// expires, the relist made no progress (kubernetes#133810).
	eventless bool
	// consistent: the next relist asks for the newest state there is.
	consistent bool
	// handover is the open watch that the Reflector's next Watch gets.
	handover *handover
	current  *watcher
}

var (
	_ cache.ListerWatcher            = (*Resumer)(nil)
	_ cache.ListerWatcherWithContext = (*Resumer)(nil)
)

// NewResumer returns a Resumer.
func NewResumer(o Options) *Resumer {
	r := &Resumer{
		lw:          o.ListerWatcher,
		store:       o.Store,
		informer:    o.Informer,
		cluster:     o.Cluster,
		directly:    o.Ask,
		schema:      o.Schema,
		neverResume: o.NeverResume,
		spread:      o.Spread,
		pageSize:    o.PageSize,
		next:        o.Relist,
		log:         klog.Background(),
	}
	if r.pageSize == 0 {
		r.pageSize = 500
	}
	if o.Logger != nil {
		r.log = *o.Logger
	}
	r.byItem = clientfeatures.FeatureGates().Enabled(clientfeatures.WatchListClient) &&
		!watchlist.DoesClientNotSupportWatchListSemantics(o.ListerWatcher)
	return r
}

// IsWatchListSemanticsUnSupported makes the Reflector always call List, see
// k8s.io/client-go/util/watchlist.
func (r *Resumer) IsWatchListSemanticsUnSupported() bool { return true }

// List implements [cache.Lister].
func (r *Resumer) List(o metav1.ListOptions) (runtime.Object, error) {
	return r.ListWithContext(context.Background(), o)
}

// Watch implements [cache.Watcher].
func (r *Resumer) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return r.WatchWithContext(context.Background(), o)
}

// Stop is called after the Reflector has ended. It ends a watch that was kept for the
// Reflector, and waits for the others. It does not wait for a List that hangs in a
// ListerWatcher that ignores its context; the Store must refuse what that may still bring.
func (r *Resumer) Stop() {
	r.mu.Lock()
	r.stopped = true
	left := r.handover
	r.handover = nil
	r.mu.Unlock()
	if left != nil {
		left.Stop()
	}
	r.watchers.Wait()
}

// ForceRelist makes the Reflector relist now, because the store cannot be relied
// on: it ends the open watch as expired. It does not block.
func (r *Resumer) ForceRelist(how Relisting) {
	r.demand(how)
	r.mu.Lock()
	w := r.current
	r.mu.Unlock()
	if w != nil {
		w.expire(how.String())
	}
}

// demand makes the next List relist, as closely as this demand and those that were
// not met yet need. It returns the merged demand, which relist takes.
func (r *Resumer) demand(how Relisting) *Relisting {
	r.mu.Lock()
	defer r.mu.Unlock()
	if before := r.next; before != nil {
		how.Rewrite, how.Newest = how.Rewrite || before.Rewrite, how.Newest || before.Newest
		how.NotOlderThan = cmp.Or(how.NotOlderThan, before.NotOlderThan)
	}
	r.next = &how
	return r.next
}

// found demands a relist because the server's history is not the store's, which an operator should know. What else
// makes the Resumer relist is ordinary, and what the owner of the Resumer demands, the owner has logged.
func (r *Resumer) found(how Relisting) *Relisting {
	r.log.Info("Relisting", "cause", how.Cause, "reason", how.Reason)
	return r.demand(how)
}

// ListWithContext brings the store up to date and returns an empty list of its
// resourceVersion. It does not use the options, which are the Reflector's guess.
func (r *Resumer) ListWithContext(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
	r.listing.Lock()
	defer r.listing.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	rv, err := r.update(ctx)
	if err != nil {
		r.doubt()
		r.informer.Disconnected(err)
		return nil, err
	}
	return &metav1.List{ListMeta: metav1.ListMeta{ResourceVersion: rv}}, nil
}

func (r *Resumer) update(ctx context.Context) (rv string, err error) {
	how := r.forced()
	rv = r.store.ResourceVersion()
	switch {
	case how != nil:
	case rv == "" || rv == "0":
		how = &Relisting{Cause: checkpoint.CauseNoVersion}
	case r.neverResume:
		how = &Relisting{Cause: checkpoint.CauseNeverResume}
	default:
		if how, err = r.resume(ctx, rv); how == nil {
			return rv, err
		}
	}
	if rv == "" {
		rv = how.NotOlderThan
	}
	r.informer.Relisting(*how)
	level := 2
	if how.Expired && !r.isCaughtUp() { // The start has said that the watch is resumed.
		level = 0
	}
	r.log.V(level).Info("Relisting", "cause", how.Cause, "reason", how.Reason)
	if err := r.spreadOut(ctx, how); err != nil {
		return "", err
	}
	return r.relist(ctx, rv, how)
}

// WatchWithContext implements [cache.WatcherWithContext].
func (r *Resumer) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	open := r.takeHandover()
	if how := r.forced(); how != nil { // Demanded since the List.
		if open != nil {
			open.Stop()
		}
		return nil, apierrors.NewResourceExpired(how.String())
	}
	if open == nil {
		var err error
		if open, err = r.reopen(ctx, o); err != nil {
			r.informer.Disconnected(err)
			return nil, err
		}
	}
	w := newWatcher(r, open)
	r.mu.Lock()
	r.current = w
	how := r.next
	r.mu.Unlock()
	if how != nil { // Demanded while the watch was opened.
		w.expire(how.String())
	}
	r.informer.Live()
	r.watchers.Go(w.run)
	if open.answer != nil {
		r.watchers.Go(func() { r.follow(w) })
	}
	return w, nil
}

// reopen opens a watch without a List before it, or behind a list that has left none open.
func (r *Resumer) reopen(ctx context.Context, o metav1.ListOptions) (*handover, error) {
	open, how, err := r.open(ctx, o)
	switch {
	case err != nil:
		r.doubt()
	case how != nil:
		err = apierrors.NewResourceExpired(how.String())
	}
	return open, err
}

// An ending is how a watch has ended, or why it could not be opened.
type ending struct {
	err      error // Nil if the watch was closed without one.
	early    bool  // It has ended before its time.
	sawEvent bool
	byEvent  bool // The error was an event of the open watch.
}

// ended decides what the next List does after a watch has ended. It relists if the watch has expired, or has
// failed in the server, as client-go does; else it resumes at the store's version. Only a list after an expired
// watch may have to be the newest: the history of any other is still there. ended returns how to relist, or nil.
func (r *Resumer) ended(e ending) *Relisting {
	if e.early || e.err != nil {
		r.doubt()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.sawEvent {
		r.eventless = false
	}
	switch {
	case r.next != nil:
	case isExpired(e.err):
		r.next = &Relisting{Cause: checkpoint.CauseExpired, Reason: e.err.Error(), Expired: true}
		r.consistent = r.eventless
	case isFailure(e.err, e.byEvent):
		r.next = &Relisting{Cause: checkpoint.CauseWatchFailed, Reason: e.err.Error()}
	}
	return r.next
}

func expiredStatus(reason string) *metav1.Status {
	s := apierrors.NewResourceExpired(reason).Status()
	return &s
}
