package reflector

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/warmwatch/warmwatch/internal/request"
)

// errNotByItem means that a list cannot be read item by item, so another way is tried.
var errNotByItem = errors.New("a list cannot be read item by item")

// relistByItem compares the store with a list of all objects, which is read item by item from the
// answer of the server. Objects of which the store has just these bytes are not decoded. The error
// is errNotByItem if that is not possible.
func (r *Resumer) relistByItem(ctx context.Context, rv string, how Relisting) (string, error) {
	if r.schema == nil || r.watchesUnseen || !r.useWatchList {
		return "", errNotByItem
	}
	if r.cuts > 1 { // The client may allow less time for its request than all pages take.
		return "", fmt.Errorf("%w: it was cut twice", errNotByItem)
	}
	how.Streamed = true
	return r.withRelist(ctx, how, func(relist Relist) (listed string, _ error) {
		known, opened, complete := knownObjects{r: r, relist: relist}, false, false
		paged, err := request.Items(ctx, r.listOptions(rv), func(ctx context.Context) error {
			w, err := r.lw.WatchWithContext(ctx, streamOptions(rv))
			if err != nil {
				return err
			}
			defer w.Stop()
			opened = true
			listed, err = r.readStream(ctx, w, rv, relist, &known.versions)
			complete = err == nil
			return err
		}, func(i request.Item, encoded []byte) (bool, error) { return known.has(ctx, i, encoded) })
		if errors.Is(err, request.ErrNotSeen) && opened { // Nor will the next be. Else there may be no credentials now.
			r.watchesUnseen = true
			if complete { // A watch that drops its context was not stopped, and has brought the list.
				return listed, nil
			}
		}
		r.paginated = r.paginated || paged && rv == anyVersion
		return listed, byItemError(err)
	})
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

func (k *knownObjects) has(ctx context.Context, i request.Item, encoded []byte) (bool, error) {
	k.r.obs.Contact()
	v := versionOf(i)
	same, err := k.relist.Same(ctx, v, encoded)
	if err != nil {
		return false, fmt.Errorf("%w: %w", errStore, err)
	}
	if same {
		k.versions.see(v.ResourceVersion, "")
	}
	return same, nil
}
