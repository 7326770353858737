package reflector

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/warmwatch/warmwatch/checkpoint"
	"github.com/warmwatch/warmwatch/internal/request"
)

const (
	// minByVersion: for fewer objects, metadata and the server's schema are not much smaller than the objects.
	minByVersion = 100
	// maxChangedShare: one get by name costs the server as much as it saves by sending 16 objects as metadata
	// (docs/design/decisions.md).
	maxChangedShare = 16
	// objectsAtOnce is how many objects are got with one call of List.
	objectsAtOnce = 64
)

// schemaPatience is how long the server may take to send its schema.
const schemaPatience = 5 * time.Second

// askSchema returns Relisting.Schema. It does not ask if there are too few objects.
func (r *Resumer) askSchema(ctx context.Context) string {
	if r.opts.Schema == nil || r.opts.NeverResume || !r.sink.empty() && r.sink.indexer.Len() < minByVersion {
		return ""
	}
	patient, cancel := context.WithTimeout(ctx, schemaPatience)
	defer cancel()
	schema, err := r.opts.Schema(patient)
	if err != nil {
		r.log.V(2).Info("The server does not send its schema", "err", err)
		return ""
	}
	return schema
}

// byVersion compares the store with a list of metadata, and gets the objects that the store has at another version or
// not at all. The error is errNotThisWay if that is not possible, is not worth it, or would not prove that the store
// equals the list. A relist that is cut or put off is tried once more in the same way. Then all objects are listed,
// because something between here and the server may cut or put off these requests only.
func (r *Resumer) byVersion(ctx context.Context, rv string, how Relisting) (string, bool, error) {
	at, stored := r.sink.resourceVersion(), r.sink.indexer.Len()
	if !how.Expired || how.Rewrite || r.cuts > 1 || at == "" || stored < minByVersion || !r.sink.comparable(how.Schema) {
		return "", false, errNotThisWay
	}
	return r.withRelist(how, func(relist *relist) (string, error) {
		b := versionRelist{r: r, relist: relist, at: at, maxChanged: stored / maxChangedShare}
		listed, err := b.list(ctx, r.listOptions(rv))
		if err == nil {
			err = notOlder(listed, cmp.Or(rv, at))
		}
		if err != nil && rv != "" && (isExpired(err) || isTooLarge(err)) {
			return "", err // A list of all objects would fail in the same way.
		}
		if err == nil {
			err = b.get(ctx, listed)
		}
		// Another server of the group may answer for a single object, and find its version expired or too new.
		again := apierrors.IsTooManyRequests(err) || isCut(err)
		r.wasCut = again && !r.wasCut
		if err != nil && !r.wasCut {
			err = fmt.Errorf("%w: %w", errNotThisWay, err)
		}
		return listed, err
	})
}

// isCut reports whether the connection or its context has ended.
func isCut(err error) bool {
	if _, ok := errors.AsType[*net.OpError](err); ok {
		return true
	}
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) ||
		utilnet.IsProbableEOF(err) || utilnet.IsConnectionReset(err) || utilnet.IsHTTP2ConnectionLost(err)
}

// isBrokenOff reports whether a connection has ended. A connection that was never opened does not count.
func isBrokenOff(err error) bool {
	if failed, ok := errors.AsType[*net.OpError](err); ok && failed.Op == "dial" {
		return false
	}
	return isNetwork(err) || isCut(err)
}

// versionRelist is a relist by version.
type versionRelist struct {
	r          *Resumer
	relist     *relist
	at         string // The store's resourceVersion.
	maxChanged int
	known      *request.Item // The first object that is the same in the store and the list.
	changed    []request.Item
}

// list reads the metadata of all objects. It returns the version of the list.
func (b *versionRelist) list(ctx context.Context, o metav1.ListOptions) (string, error) {
	listed, err := request.Metadata(ctx, func(ctx context.Context) error {
		_, err := b.r.lw.ListWithContext(ctx, o)
		return err
	}, func(i request.Item) error { return b.see(i) })
	if err == nil && !checkpoint.HasOrder(listed) {
		err = fmt.Errorf("the list has version %q", listed)
	}
	return listed, err
}

// see is called for each object of the list.
func (b *versionRelist) see(v request.Item) error {
	b.r.informer.Contact()
	known, err := b.relist.known(v)
	if known && b.known == nil {
		b.known = &v
	}
	if known || err != nil {
		return err
	}
	// The store should have every object that is not newer than the store. Otherwise its history may be another one, or
	// it lacks an object that it could not take.
	if order, ok := checkpoint.CompareVersions(v.ResourceVersion, b.at); !ok || order <= 0 {
		return fmt.Errorf("the store, at version %s, does not have %s at version %s", b.at, keyOf(v), v.ResourceVersion)
	}
	if b.changed = append(b.changed, v); len(b.changed) > b.maxChanged {
		return fmt.Errorf("more than %d objects have changed", b.maxChanged)
	}
	return nil
}

// get gets the changed objects, at the versions that the list has. The watch cache of the server has them, except those
// that have changed again since the list: etcd has those. An unchanged object is got first. It shows whether the server
// knows the selectors, and whether the ListerWatcher returns exactly the requested objects. If not, the metadata may be
// of other objects.
func (b *versionRelist) get(ctx context.Context, listed string) error {
	if b.known == nil {
		return errors.New("the store has no object of the list")
	}
	one := metav1.ListOptions{ResourceVersion: listed, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan}
	if _, err := b.getSome(ctx, one, []request.Item{*b.known}); err != nil {
		return err
	}
	for _, match := range []metav1.ResourceVersionMatch{metav1.ResourceVersionMatchNotOlderThan, metav1.ResourceVersionMatchExact} {
		var left []request.Item
		for some := range slices.Chunk(b.changed, objectsAtOnce) {
			missing, err := b.getSome(ctx, metav1.ListOptions{ResourceVersion: listed, ResourceVersionMatch: match}, some)
			if err != nil {
				return err
			}
			left = append(left, missing...)
		}
		b.changed = left
	}
	if len(b.changed) > 0 {
		return fmt.Errorf("the server has listed %s at version %s, and does not return it", keyOf(b.changed[0]), b.changed[0].ResourceVersion)
	}
	return nil
}

// getSome gets some objects, and returns those that the server did not return at these versions.
func (b *versionRelist) getSome(ctx context.Context, o metav1.ListOptions, some []request.Item) (missing []request.Item, err error) {
	items, wanted := make([]request.Item, 0, len(some)), make(map[request.Item]bool, len(some))
	asked := make(map[string]bool, len(some))
	for _, v := range some {
		items = append(items, request.Item{Namespace: v.Namespace, Name: v.Name})
		wanted[v], asked[keyOf(v)] = true, true
	}
	var list runtime.Object
	err = request.Objects(ctx, o, items, func(ctx context.Context) (err error) {
		list, err = b.r.lw.ListWithContext(ctx, o)
		return err
	})
	if err != nil {
		return nil, err
	}
	b.r.informer.Contact()
	err = meta.EachListItemWithAlloc(list, func(obj runtime.Object) error {
		v := request.ItemOf(obj)
		if !asked[keyOf(v)] {
			return fmt.Errorf("%s was not asked for", keyOf(v))
		}
		if !wanted[v] {
			return nil
		}
		delete(wanted, v) // Before a transform may change it.
		return b.relist.item(obj)
	})
	return slices.DeleteFunc(slices.Clone(some), func(v request.Item) bool { return !wanted[v] }), err
}
