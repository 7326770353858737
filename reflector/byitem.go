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

// byItem compares the store with a list of all objects, which it reads item by item from the server's answer. An object
// is not decoded if the store has the same bytes.
func (r *Resumer) byItem(ctx context.Context, rv string, how Relisting) (string, bool, error) {
	// To the client all pages are one request. The connection, or the time that the client allows, may be too short for
	// it. Each of the client's own pages is a request of its own.
	if !r.streams || r.cuts > 0 {
		return "", false, errNotThisWay
	}
	return r.withRelist(how, func(relist *relist) (listed string, _ error) {
		o := r.listOptions(rv)
		paged, err := request.Items(ctx, o, func(ctx context.Context) error {
			w, err := r.lw.WatchWithContext(ctx, streamOptions(rv))
			if err != nil {
				return err
			}
			defer w.Stop()
			if !request.IsTaken(ctx) {
				return request.ErrNotSeen
			}
			listed, err = r.readItems(ctx, w, relist)
			return err
		}, func(i request.Item, encoded []byte) (bool, error) {
			r.informer.Contact()
			return relist.same(i, encoded)
		})
		r.paginated = r.paginated || paged && o.ResourceVersion == anyVersion
		if err == nil {
			err = notOlder(listed, rv)
		}
		return listed, byItemError(err)
	})
}

// streamOptions are the options of a watch that begins with all objects (KEP-3157).
func streamOptions(rv string) metav1.ListOptions {
	if rv == anyVersion {
		rv = "" // client-go streams the newest state, too.
	}
	o := watchOptions(rv)
	o.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
	o.SendInitialEvents = new(true)
	return o
}

// readItems reads a list from w, which request.Items makes of it, and returns its version.
func (r *Resumer) readItems(ctx context.Context, w watch.Interface, relist *relist) (string, error) {
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
		switch {
		case err != nil: // It could be of any object. Pages have it, or fail as client-go's lists do.
			return "", fmt.Errorf("understand event %s with a %T: %w", e.Type, e.Object, err)
		case e.Type == watch.Bookmark:
			return m.GetResourceVersion(), nil
		}
		if err := relist.item(e.Object); err != nil {
			return "", err
		}
	}
}

// byItemError adds errNotThisWay to an error that another form of the list may not have.
func byItemError(err error) error {
	if err == nil || errors.Is(err, request.ErrNoAnswer) || isCut(err) || isExpired(err) || isTooLarge(err) || apierrors.IsTooManyRequests(err) {
		return err
	}
	return fmt.Errorf("%w: %w", errNotThisWay, err)
}
