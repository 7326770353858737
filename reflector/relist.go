package reflector

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/warmwatch/warmwatch/checkpoint"
	"github.com/warmwatch/warmwatch/internal/request"
)

// relist compares the store with a list. It asks for one that is not older than the
// store, so that time does not go back. If the server cannot return that, or the watch
// after such a list expired without an event, it asks for the newest, which is right whatever its version. The first
// list into an empty store may have any version, as client-go's, so the watch cache serves it.
func (r *Resumer) relist(ctx context.Context, rv string, asked *Relisting) (string, error) {
	cluster := r.askCluster(ctx)
	schema := r.askSchema(ctx)
	select {
	case how := <-cluster:
		if how != nil {
			asked = r.found(*how)
		}
	case <-ctx.Done():
		return "", ctx.Err()
	}
	how := *asked
	how.Schema = schema
	r.mu.Lock()
	how.Newest = how.Newest || r.consistent
	r.mu.Unlock()
	switch {
	case how.Newest:
		rv = ""
	case rv == "" && r.store.Empty():
		rv = anyVersion
	}
	listed, err := r.relistAt(ctx, rv, how)
	if rv != "" && (isExpired(err) || isTooLarge(err) || isNotUnderstood(err)) {
		how.Newest = true
		how.Expired = how.Expired && !isTooLarge(err) // It would not return single objects at the version of the newest list either.
		asked = r.demand(how)                         // So that the next List relists as closely if this one fails.
		how = *asked
		listed, err = r.relistAt(ctx, "", how)
	}
	if isBrokenOff(err) {
		r.cuts++
	}
	if err != nil {
		return "", fmt.Errorf("reflector: relist (%v): %w", how, err)
	}
	r.cuts = 0
	r.relisted(r.changed)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next == asked { // Else another relist was demanded meanwhile.
		r.next = nil
	}
	r.eventless, r.consistent = true, false
	return listed, nil
}

const (
	// spreadObject is how much longer a relist may wait for each object that it lists: more
	// than the API server needs for it.
	spreadObject = 100 * time.Microsecond
	// spreadLeast: smaller lists do not wait.
	spreadLeast = 1000
)

// spreadOut waits for a random share of Options.Spread before a relist of many objects, if the
// server has lost the history under an open watch. The store is served meanwhile. It waits once,
// however often the relist is tried.
func (r *Resumer) spreadOut(ctx context.Context, how *Relisting) error {
	r.mu.Lock()
	wasOpen, waited := r.current != nil, r.spreadFor == how
	r.spreadFor = how
	r.mu.Unlock()
	if !how.Expired || how.Rewrite || !wasOpen || waited {
		return nil
	}
	objects := r.store.Stored()
	longest := min(r.spread, time.Duration(objects)*spreadObject)
	if objects < spreadLeast || longest <= 0 {
		return nil
	}
	select {
	case <-time.After(rand.N(longest)):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

var (
	// errStore means that the list was good, but the store has failed.
	errStore = errors.New("store")
	// errOlder means that a list is older than was asked for.
	errOlder = errors.New("the server is behind")
	// errPageExpired means that the pages took longer than the server keeps
	// their snapshot.
	errPageExpired = errors.New("the list expired between two pages")
)

// anyVersion asks for a list of any version, as from the watch cache, however old.
const anyVersion = "0"

func (r *Resumer) relistAt(ctx context.Context, rv string, how Relisting) (string, error) {
	listed, err := r.relistByVersion(ctx, rv, how)
	if !errors.Is(err, errNotByVersion) {
		return listed, err
	}
	if how.Expired {
		r.log.V(2).Info("Listing all objects", "reason", err)
	}
	return r.relistByContent(ctx, rv, how)
}

// relistByContent compares the store with a list of all objects: item by item where requests are
// seen, else in pages, as the client decodes them.
func (r *Resumer) relistByContent(ctx context.Context, rv string, how Relisting) (string, error) {
	listed, err := r.relistByItem(ctx, rv, how)
	if !errors.Is(err, errNotByItem) {
		return listed, err
	}
	r.log.V(4).Info("Listing without reading item by item", "reason", err)
	list := func(o metav1.ListOptions) (string, error) {
		return r.withRelist(how, func(relist Relist) (string, error) { return r.pages(ctx, o, relist) })
	}
	listed, err = list(r.listOptions(rv))
	if errors.Is(err, errPageExpired) { // List all at once, as client-go's pager does.
		listed, err = list(metav1.ListOptions{})
	}
	return listed, err
}

// listOptions returns the options of client-go's Reflector (reflector.go, list), and sets
// ResourceVersionMatch, which client-go does not. After a list that was cut it asks for pages.
func (r *Resumer) listOptions(rv string) metav1.ListOptions {
	o := metav1.ListOptions{ResourceVersion: rv, Limit: r.pageSize}
	if r.cuts > 0 {
		o.Limit = max(r.pageSize/cutPageShare>>(r.cuts-1), 1)
		if rv == anyVersion { // The watch cache would ignore the limit.
			o.ResourceVersion = ""
		}
	}
	if rv == "" || rv == anyVersion {
		return o
	}
	if !r.paginated && r.cuts == 0 {
		o.Limit = 0 // The watch cache serves lists without a limit.
	}
	o.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
	return o
}

func (r *Resumer) withRelist(how Relisting, list func(Relist) (string, error)) (string, error) {
	relist, err := r.store.BeginRelist(how)
	if err != nil {
		return "", err
	}
	defer relist.Abort()
	return list(relist)
}

// pages lists in pages of o.Limit objects; 0 asks for all at once. The list has the
// version of its first page: if the pages are not of one snapshot, the watch brings
// what happened between them.
func (r *Resumer) pages(ctx context.Context, o metav1.ListOptions, relist Relist) (string, error) {
	var versions versionOrder
	asked, rv := o.ResourceVersion, ""
	limit := request.NewPageLimit(o.Limit, r.pageSize)
	for {
		list, err := r.page(ctx, &o, limit)
		if isExpired(err) && o.Continue != "" {
			return "", fmt.Errorf("%w: %w", errPageExpired, err)
		}
		if err != nil {
			return "", err
		}
		r.informer.Contact()
		m, err := meta.ListAccessor(list)
		if err != nil {
			return "", fmt.Errorf("understand list %T: %w", list, err)
		}
		if o.Continue == "" {
			rv = m.GetResourceVersion()
			if err := notOlder(rv, asked); err != nil {
				return "", err
			}
		}
		err = meta.EachListItemWithAlloc(list, func(obj runtime.Object) error {
			versions.seeObject(obj, m.GetResourceVersion())
			return relist.Item(obj)
		})
		if err != nil {
			return "", err
		}
		if o.Continue = m.GetContinue(); o.Continue == "" {
			return rv, r.finish(relist, versions, rv)
		}
		if asked == anyVersion { // A watch cache would ignore the limit (client-go, reflector.go, list).
			r.paginated = true
		}
		limit.Came()
		o.ResourceVersion, o.ResourceVersionMatch, o.Limit = "", "", limit.Objects()
	}
}

const (
	// cutPageShare: after a cut, pages are of fewer objects, and of half as many after each further
	// one. The smaller they are, the less is lost with the next cut; but the server does not compress
	// less than 128 KB.
	cutPageShare = 8
	// pageTries is how often a page is asked for that is cut,
	pageTries = 10
	// pageRetry after each other, as client-go's requests are.
	pageRetry = time.Second
)

// page asks for a page again if the connection ends: the server goes on where the last page has
// ended. It asks for less if the connection has not lasted for a page twice in a row. A list that
// is asked for at once is given up; the next one comes in pages.
func (r *Resumer) page(ctx context.Context, o *metav1.ListOptions, limit *request.PageLimit) (list runtime.Object, err error) {
	for try := range pageTries {
		list, err = r.lw.ListWithContext(ctx, *o)
		if !isCut(err) || ctx.Err() != nil || o.Limit == 0 || o.Continue == "" && r.cuts == 0 {
			return list, err
		}
		if try > 0 && isBrokenOff(err) {
			limit.Cut()
			o.Limit = limit.Objects()
		}
		r.log.V(2).Info("Asking for a page again", "limit", o.Limit, "err", err)
		select {
		case <-time.After(pageRetry):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return nil, err
}

// notOlder returns errOlder for a list that is older than was asked for. A ListerWatcher
// may ask for another version, and the store must not go back.
func notOlder(listed, asked string) error {
	if order, ok := checkpoint.CompareVersions(listed, asked); ok && order < 0 {
		return fmt.Errorf("%w: the list is of version %s, asked for was %s", errOlder, listed, asked)
	}
	return nil
}

// finish ends a relist whose list is complete. If the versions have no common order, no other
// watch than this Reflector's begins there.
func (r *Resumer) finish(relist Relist, versions versionOrder, rv string) (err error) {
	if versions.beyond {
		r.log.V(2).Info("The list has an object that is newer than the list, so no watch is resumed there", "resourceVersion", rv, "newest", versions.newest)
	}
	r.changed, err = relist.Finish(rv, !versions.beyond)
	return err
}
