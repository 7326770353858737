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
	"k8s.io/client-go/tools/pager"

	"github.com/warmwatch/warmwatch/checkpoint"
)

// relist compares the store with a list. It asks for a list that is not older than the store, so that time does not go
// back. The newest list is right whatever its version. It is asked for in two cases: the server cannot return the first
// one; or the watch after such a list expired without an event. The first list into an empty store may have any
// version, as client-go's, so the watch cache serves it.
func (r *Resumer) relist(ctx context.Context, rv string, asked *Relisting) (string, error) {
	cluster := r.askCluster(ctx)
	schema := r.askSchema(ctx)
	select {
	case how := <-cluster:
		if how != nil {
			asked = r.demand(*how)
		}
	case <-ctx.Done():
		return "", ctx.Err()
	}
	how := *asked
	how.Schema = schema
	switch {
	case how.Newest:
		rv = ""
	case rv == "" && r.sink.empty():
		rv = anyVersion
	}
	listed, changed, err := r.relistAt(ctx, rv, how)
	if rv != "" && (isExpired(err) || isTooLarge(err) || isNotUnderstood(err)) {
		how.Newest = true
		how.Expired = how.Expired && !isTooLarge(err) // Such a server would not return single objects at that version either.
		asked = r.demand(how)                         // If this list fails, the next one compares as closely.
		how = *asked
		listed, changed, err = r.relistAt(ctx, "", how)
	}
	if isBrokenOff(err) {
		r.cuts++
	}
	if err != nil {
		return "", fmt.Errorf("reflector: relist (%v): %w", how, err)
	}
	r.cuts = 0
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next == asked { // Otherwise another relist was demanded meanwhile.
		r.next = nil
	}
	r.caughtUp, r.listed = true, listed
	contradicted := how.Cause == checkpoint.CauseServerBehind || how.Cause == checkpoint.CauseContradiction
	switch {
	case contradicted && !changed: // The versions of this server's lists cannot be compared with the store's.
		r.questioning = questionUseless
	case r.questioning != questionUseless:
		r.questioning = questionAnswered
	}
	return listed, nil
}

const (
	// spreadObject is how much longer a relist may wait for each object that it lists. The API server needs less for an
	// object.
	spreadObject = 100 * time.Microsecond
	// spreadLeast: smaller lists do not wait.
	spreadLeast = 1000
)

// spreadOut waits for a random share of Options.Spread before a relist of many objects, if the
// server has lost the history under an open watch. The store is served meanwhile.
func (r *Resumer) spreadOut(ctx context.Context, how *Relisting) error {
	r.mu.Lock()
	wasOpen := r.current != nil
	r.mu.Unlock()
	objects := r.sink.indexer.Len()
	longest := min(r.opts.Spread, time.Duration(objects)*spreadObject)
	if !how.Expired || how.Rewrite || !wasOpen || objects < spreadLeast || longest <= 0 {
		return nil
	}
	select {
	case <-time.After(rand.N(longest)):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// errOlder means that a list is older than the version that was asked for.
var errOlder = errors.New("the server is behind")

// anyVersion asks for a list of any version, however old. The watch cache serves it.
const anyVersion = "0"

// relistAt relists, and reports whether the store has changed. It takes the first way to list that is possible: the
// metadata of all objects, and then the changed objects; all objects, item by item; all objects, in the client's pages.
func (r *Resumer) relistAt(ctx context.Context, rv string, how Relisting) (listed string, changed bool, err error) {
	for _, way := range []func(context.Context, string, Relisting) (string, bool, error){r.byVersion, r.byItem, r.byPages} {
		listed, changed, err = way(ctx, rv, how)
		if !errors.Is(err, errNotThisWay) {
			break
		}
		r.log.V(2).Info("Listing in another way", "reason", err)
	}
	return listed, changed, err
}

// errNotThisWay means that relistAt must try the next way to list.
var errNotThisWay = errors.New("a list is not possible in this way")

// withRelist compares the store with the objects that list receives. list returns their resourceVersion.
func (r *Resumer) withRelist(how Relisting, list func(*relist) (string, error)) (listed string, changed bool, err error) {
	relist, err := r.sink.beginRelist(how)
	if err != nil {
		return "", false, err
	}
	defer relist.abort()
	if listed, err = list(relist); err == nil {
		changed, err = relist.finish(listed)
	}
	return listed, changed, err
}

// listOptions returns the options of client-go's Reflector (reflector.go, list), and also sets ResourceVersionMatch.
// After a list that was cut it asks for pages: the smaller they are, the less is lost with the next cut.
func (r *Resumer) listOptions(rv string) metav1.ListOptions {
	o := metav1.ListOptions{ResourceVersion: rv, Limit: pageSize}
	if r.cuts > 0 {
		o.Limit = max(int64(pageSize/cutPageShare)>>(r.cuts-1), 1)
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

const (
	// pageSize is client-go's.
	pageSize = 500
	// cutPageShare: after a cut a page has pageSize/cutPageShare objects, and half as many after each further cut. The
	// server does not compress less than 128 KB.
	cutPageShare = 8
)

// byPages lists as client-go does, and compares the store with the decoded objects. The list has the version of its
// first page: if the pages are not of one snapshot, the watch brings the changes between them.
func (r *Resumer) byPages(ctx context.Context, rv string, how Relisting) (string, bool, error) {
	return r.withRelist(how, func(relist *relist) (string, error) {
		o := r.listOptions(rv)
		pages := pager.New(r.pageFunc(o.Limit))
		pages.PageSize = o.Limit
		list, paged, err := pages.ListWithAlloc(ctx, o)
		if err != nil {
			return "", err
		}
		r.paginated = r.paginated || paged && o.ResourceVersion == anyVersion // Else the watch cache would have ignored the limit.
		m, err := meta.ListAccessor(list)
		if err != nil {
			return "", fmt.Errorf("understand list %T: %w", list, err)
		}
		if err := notOlder(m.GetResourceVersion(), rv); err != nil {
			return "", err
		}
		return m.GetResourceVersion(), meta.EachListItemWithAlloc(list, relist.item)
	})
}

const (
	// pageTries is how often a page is asked for again.
	pageTries = 5
	// pagePause is how long the first repetition waits. The wait doubles with each one.
	pagePause = 500 * time.Millisecond
)

// pageFunc returns a function that gets a page of a list. The first page has limit objects. A page that is cut is asked
// for again, with half as many objects. So the list is completed although no connection lasts for all of it. After each
// complete page the next one has half as many objects more. The first page is not asked for again: that would be
// another list.
func (r *Resumer) pageFunc(limit int64) pager.ListPageFunc {
	return func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		for tries := 0; ; tries++ {
			if o.Continue != "" {
				o.Limit = limit
			}
			page, err := r.lw.ListWithContext(ctx, o)
			if err == nil {
				r.informer.Contact()
				limit = min(limit+(limit+1)/2, pageSize)
				return page, nil
			}
			if o.Continue == "" || tries == pageTries || !isCut(err) {
				return nil, err
			}
			limit = max(limit/2, 1)
			select {
			case <-time.After(pagePause << tries):
			case <-ctx.Done():
				return nil, err
			}
		}
	}
}

// notOlder returns errOlder for a list that is older than asked. A ListerWatcher may ask for another version, and the
// store must not go back.
func notOlder(listed, asked string) error {
	if order, ok := checkpoint.CompareVersions(listed, asked); ok && order < 0 {
		return fmt.Errorf("%w: the list is of version %s, asked for was %s", errOlder, listed, asked)
	}
	return nil
}
