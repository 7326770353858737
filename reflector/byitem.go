package reflector

import (
	"context"
	"errors"
	"fmt"
	"io"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/warmwatch/warmwatch/internal/request"
)

// errNotByItem means that a list cannot be read item by item, so another way is tried.
var errNotByItem = errors.New("a list cannot be read item by item")

// relistByItem compares the store with a list of all objects, which is read item by item from the
// answer of the server. Objects of which the store has just these bytes are not decoded. The error
// is errNotByItem if that is not possible.
func (r *Resumer) relistByItem(ctx context.Context, rv string, how Relisting) (string, error) {
	if r.schema == nil || !r.byItem {
		return "", errNotByItem
	}
	if r.cuts > 1 { // The client may allow less time for its request than all pages take.
		return "", fmt.Errorf("%w: it was cut twice", errNotByItem)
	}
	return r.withRelist(how, func(relist Relist) (listed string, _ error) {
		known := knownObjects{r: r, relist: relist}
		paged, err := request.Items(ctx, r.listOptions(rv), func(ctx context.Context) error {
			w, err := r.lw.WatchWithContext(ctx, streamOptions(rv))
			if err != nil {
				return err
			}
			defer w.Stop()
			if r.byItem = request.IsTaken(ctx); !r.byItem { // Nor will the next be. Without a watch there may have been no credentials.
				return errNotByItem
			}
			listed, err = r.readItems(ctx, w, rv, relist, &known.versions)
			return err
		}, known.has)
		r.paginated = r.paginated || paged && rv == anyVersion
		return listed, byItemError(err)
	})
}

// streamOptions are those of a watch that begins with all objects (KEP-3157).
func streamOptions(rv string) metav1.ListOptions {
	if rv == anyVersion {
		rv = "" // client-go streams the newest state, too.
	}
	o := watchOptions(rv)
	o.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
	o.SendInitialEvents = new(true)
	return o
}

// readItems reads a list from w, which request.Items makes of it. versions has seen the objects that w leaves out
// when the list is complete.
func (r *Resumer) readItems(ctx context.Context, w watch.Interface, asked string, relist Relist, versions *versionOrder) (string, error) {
	var sent versionOrder
	for {
		var e watch.Event
		var ok bool
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case e, ok = <-w.ResultChan():
		}
		if !ok {
			return "", fmt.Errorf("the list is not complete: %w", io.ErrUnexpectedEOF)
		}
		r.informer.Contact()
		if e.Type == watch.Error {
			return "", apierrors.FromObject(e.Object)
		}
		m, err := meta.Accessor(e.Object)
		if err != nil { // It could be of any object. Pages have it, or fail as client-go's lists do.
			return "", fmt.Errorf("understand event %s with a %T: %w", e.Type, e.Object, err)
		}
		if e.Type != watch.Bookmark {
			sent.seeObject(e.Object, "")
			if err := relist.Item(e.Object); err != nil {
				return "", fmt.Errorf("%w: %w", errStore, err)
			}
			continue
		}
		listed := m.GetResourceVersion()
		if err := notOlder(listed, asked); err != nil {
			return "", err
		}
		sent.see(versions.newest, "")
		sent.check(listed)
		if err := r.finish(relist, sent, listed); err != nil {
			return "", fmt.Errorf("%w: %w", errStore, err)
		}
		return listed, nil
	}
}

// byItemError decides which errors another form of the list would have, too.
func byItemError(err error) error {
	switch {
	case err == nil, errors.Is(err, errStore), errors.Is(err, request.ErrNoAnswer), isCut(err),
		isExpired(err), isTooLarge(err), apierrors.IsTooManyRequests(err):
		return err
	}
	return fmt.Errorf("%w: %w", errNotByItem, err)
}

// knownObjects are the objects of a list of which the store has the same bytes. The watch's
// goroutine uses them, until the list is complete.
type knownObjects struct {
	r        *Resumer
	relist   Relist
	versions versionOrder
}

func (k *knownObjects) has(i request.Item, encoded []byte) (bool, error) {
	k.r.informer.Contact()
	v := versionOfItem(i)
	same, err := k.relist.Same(v, encoded)
	if err != nil {
		return false, fmt.Errorf("%w: %w", errStore, err)
	}
	if same {
		k.versions.see(v.ResourceVersion, "")
	}
	return same, nil
}
