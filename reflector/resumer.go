package reflector

import (
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

// Relisting says why the store is compared with a list, and how closely.
type Relisting struct {
	Cause checkpoint.Cause
	// Reason is for people, and empty if the Cause says all.
	Reason string
	// Rewrite makes the store write every item anew, even an unchanged one.
	Rewrite bool
	// Newest means that the list shows the newest state, whatever its version.
	Newest bool
	// Expired means that the server no longer has the history since the store's version. Nothing else is wrong: the
	// store equals a former state of the server.
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

// Options configures [NewResumer]. A field is required unless its comment says what zero means.
type Options struct {
	// ListerWatcher itself says if its watches cannot begin with all objects (k8s.io/client-go/util/watchlist). A
	// wrapper of client-go would hide that.
	ListerWatcher cache.ListerWatcherWithContext
	// Sink is kept up to date by the Resumer and the Reflector. It is loaded already.
	Sink *Sink
	// NeverResume makes every List a relist, for servers that keep no history
	// or accept any resourceVersion.
	NeverResume bool
	// Cluster asks which cluster the server belongs to, at a start and before each watch. It returns how to relist if
	// the store is of another cluster, and nil if it does not know.
	Cluster func(context.Context) *Relisting
	// Ask asks the server for one object of the list. It is nil if the requests of the ListerWatcher are not seen. Its
	// error wraps request.ErrNotSeen or request.ErrUnsupported if only the ListerWatcher can ask.
	Ask func(context.Context) (request.Answer, error)
	// Schema asks for Relisting.Schema. It is nil where Ask is nil.
	Schema func(context.Context) (string, error)
	// Spread bounds the time that a relist waits after an open watch has expired, because
	// many clients lose their history at once. 0: it does not wait.
	Spread time.Duration
}

// A Resumer is a ListerWatcher for a cache.Reflector. Use it with one Reflector,
// whose store is Options.Sink.
//
//	client-go's Reflector                  Resumer                            server
//	        │ List ─────────────────────────► may the watch be resumed?
//	        │                                 ├─ yes: Watch at the checkpoint ──► keeps it open
//	        │                                 └─ no:  List ─────────────────────► all objects
//	        │                                         │ compared, staged, applied
//	        │ an empty list, at the store's version   ▼
//	        │ ◄───────────────────────────── Sink ── persist.DB
//	        │ Watch at that version ────────► the open watch, or a new one
//	        │ ◄────────────────────────────── events, as they come
//	        │ Add, Update, Delete, Bookmark ► Sink
//
// After a failed watch the Reflector waits 0.8 to 1.6 s before its next List.
//
// The Reflector believes that it lists. In fact List brings the store up to date, and returns an empty list. So the
// Reflector's Replace has nothing to do. Its backoff, its types and its errors are client-go's.
//
// An event:
//  1. The watcher reads it ahead, and notes that the server has sent something.
//  2. The Reflector takes it, and calls Add, Update, Delete or Bookmark of the Sink.
//  3. Sink.apply writes it as one batch, with its delta (event.go).
//
// A start:
//  1. The Reflector calls List. The store has a version: the Resumer asks the question, and opens the watch beside it.
//  2. The answer does not contradict the store: the Resumer waits until the watch has sent an event or is quiet.
//  3. List returns an empty list. The Reflector calls Watch, and gets the watch that is open.
//  4. The store has caught up when the watch is quiet, or has reached the version of the answer (caughtup.go).
//
// A 410:
//  1. The watcher notes how to relist, and passes the error on. The Reflector calls List.
//  2. The Resumer lists metadata, and gets each changed object by name. Where that would not prove that the store
//     equals the list, it lists all objects.
//  3. The list is complete: the Sink applies the differences, and the store is at the version of the list.
//  4. List returns an empty list of that version, and the Reflector calls Watch.
type Resumer struct {
	opts     Options
	lw       cache.ListerWatcherWithContext
	sink     *Sink
	informer Informer
	log      klog.Logger
	streams  bool // A watch may begin with all objects.

	// listing serialises Lists: a Reflector that is stopped leaves its List
	// running (client-go, reflector.go, list).
	listing sync.Mutex
	// Guarded by listing:
	paginated bool // The server pages even lists that its watch cache could serve.
	wasCut    bool // The last relist by version was cut, or the server put it off.
	cuts      int  // How many lists were cut since the last complete one.
	watchers  sync.WaitGroup

	mu sync.Mutex
	// next is how the next List relists; nil: it resumes.
	next        *Relisting
	questioning questioning
	caughtUp    bool // The store has caught up with the server once.
	// listed is the version of the last relist. If a watch expires while the store is still at that version, the relist
	// made no progress (kubernetes#133810).
	listed string
	// handover is the open watch that the Reflector's next Watch gets.
	handover *watcher
	current  *watcher
}

var (
	_ cache.ListerWatcher            = (*Resumer)(nil)
	_ cache.ListerWatcherWithContext = (*Resumer)(nil)
)

// NewResumer returns a Resumer.
func NewResumer(o Options) *Resumer {
	return &Resumer{
		opts:     o,
		lw:       o.ListerWatcher,
		sink:     o.Sink,
		informer: o.Sink.informer,
		log:      o.Sink.logger,
		streams: o.Schema != nil && clientfeatures.FeatureGates().Enabled(clientfeatures.WatchListClient) &&
			!watchlist.DoesClientNotSupportWatchListSemantics(o.ListerWatcher),
	}
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

// Stop is called after the Reflector and its context have ended. It ends a watch that was kept for the Reflector, and
// waits for the others. It does not wait for a List whose ListerWatcher ignores its context. The Sink must refuse the
// items of such a List.
func (r *Resumer) Stop() {
	if left := r.takeHandover(); left != nil {
		left.end()
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

// demand makes the next List relist. Earlier demands that were not met yet are merged into this one: the closest
// comparison wins. demand returns the merged demand, which relist takes.
func (r *Resumer) demand(how Relisting) *Relisting {
	r.mu.Lock()
	defer r.mu.Unlock()
	if before := r.next; before != nil {
		how.Rewrite, how.Newest = how.Rewrite || before.Rewrite, how.Newest || before.Newest
	}
	r.next = &how
	return r.next
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
	how := r.demanded()
	rv = r.sink.resourceVersion()
	switch {
	case how != nil:
	case rv == "":
		how = &Relisting{Cause: checkpoint.CauseNoVersion}
	case r.opts.NeverResume:
		how = &Relisting{Cause: checkpoint.CauseNeverResume}
	default:
		if how, err = r.resume(ctx, rv); how == nil {
			return rv, err
		}
	}
	if rv == "" { // The list must not be older than anything that the store has seen.
		rv = r.sink.lastVersion()
	}
	r.informer.Relisting(*how)
	r.log.V(2).Info("Relisting", "cause", how.Cause, "reason", how.Reason)
	if err := r.spreadOut(ctx, how); err != nil {
		return "", err
	}
	return r.relist(ctx, rv, how)
}

// WatchWithContext implements [cache.WatcherWithContext].
func (r *Resumer) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	w := r.takeHandover()
	if how := r.demanded(); how != nil { // Demanded since the List.
		if w != nil {
			w.end()
		}
		return nil, apierrors.NewResourceExpired(how.String())
	}
	if w == nil {
		var err error
		if w, err = r.reopen(ctx, o); err != nil {
			r.informer.Disconnected(err)
			return nil, err
		}
	}
	r.mu.Lock()
	r.current = w
	how := r.next
	r.mu.Unlock()
	if how != nil { // Demanded while the watch was opened.
		w.expire(how.String())
	}
	r.informer.Live()
	r.watchers.Go(w.run)
	if w.answer != nil {
		r.watchers.Go(func() { r.follow(w) })
	}
	return w, nil
}

// reopen opens a watch if no List has left one open.
func (r *Resumer) reopen(ctx context.Context, o metav1.ListOptions) (*watcher, error) {
	w, how, err := r.open(ctx, o)
	switch {
	case err != nil:
		r.doubt()
	case how != nil:
		err = apierrors.NewResourceExpired(how.String())
	}
	return w, err
}

// An ending is how a watch has ended, or why it could not be opened.
type ending struct {
	err     error // Nil if the watch was closed without one.
	early   bool  // The watch has ended before its time.
	byEvent bool  // The error was an event of the open watch.
}

// ended decides what the next List does after a watch has ended, and returns how to relist, or nil. As in client-go the
// List relists if the watch has expired, or has failed in the server. Otherwise it resumes at the store's version. If
// the watch has expired while the store is still at the version of the last relist, the list must be the newest.
func (r *Resumer) ended(e ending) *Relisting {
	if e.early || e.err != nil {
		r.doubt()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.next != nil:
	case isExpired(e.err):
		r.next = &Relisting{Cause: checkpoint.CauseExpired, Reason: e.err.Error(), Expired: true, Newest: r.sink.at() == r.listed}
	case isFailure(e.err, e.byEvent):
		r.next = &Relisting{Cause: checkpoint.CauseWatchFailed, Reason: e.err.Error()}
	}
	return r.next
}

func expiredStatus(reason string) *metav1.Status {
	s := apierrors.NewResourceExpired(reason).Status()
	return &s
}
