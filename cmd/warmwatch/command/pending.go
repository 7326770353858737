package command

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/warmwatch/warmwatch/internal/deletions"
	"github.com/warmwatch/warmwatch/internal/keyfield"
	"github.com/warmwatch/warmwatch/persist"
	"github.com/warmwatch/warmwatch/queue"
	"github.com/warmwatch/warmwatch/workqueue"
)

// A backlog is what is pending for a handler, a reconciler, or a workqueue of Cache.Workqueues.
type backlog struct {
	Informer string `json:"informer"`
	Handler  string `json:"handler"` // Its kind and name.
	// StartsOver: the handler first gets all objects.
	StartsOver bool  `json:"startsOver,omitempty"`
	Deltas     int   `json:"deltas"`
	Bytes      int64 `json:"bytes"` // Of the deltas and the deleted objects.
	Keys       int   `json:"keys"`
	Deleted    int   `json:"deleted"` // Deleted objects that are not reconciled yet.
	// Oldest is the key of the object of the oldest delta, or else the first key.
	Oldest string `json:"oldest,omitempty"`

	cursor uint64
	known  bool // The cursor was read.
}

// isPending reports whether a handler is still to get a delta.
func (b *backlog) isPending(number uint64, deletes bool) bool {
	return number > b.cursor && (deletes || !b.StartsOver)
}

// pending returns what is pending in the space of an informer, sorted by handler. After an error it is incomplete.
func (f *file) pending(i *informer) ([]*backlog, error) {
	all := map[string]*backlog{}
	of := func(handler string) *backlog {
		if all[handler] == nil {
			all[handler] = &backlog{Informer: i.name, Handler: handler}
		}
		return all[handler]
	}
	err := errors.Join(
		f.scan(i.bucket(queue.HandlersBucket), func(it *persist.Item) error {
			b := of(it.Key)
			handled, err := persist.ReadJSON[queue.Handled](it)
			b.cursor, b.StartsOver, b.known = handled.Cursor, handled.StartsOver || err != nil, err == nil
			return nil
		}),
		f.pendingDeltas(i, all),
		f.pendingWork(i, of),
	)
	return slices.SortedFunc(maps.Values(all), func(a, b *backlog) int { return cmp.Compare(a.Handler, b.Handler) }), err
}

func (f *file) pendingDeltas(i *informer, handlers map[string]*backlog) error {
	return f.scan(i.bucket(queue.DeltasBucket), func(it *persist.Item) error {
		number, deletes, err := queue.ParseDeltaKey(it.Key)
		if err != nil {
			return nil // The next start removes this delta.
		}
		for _, b := range handlers {
			if !b.isPending(number, deletes) {
				continue
			}
			b.Deltas++
			b.Bytes += int64(it.SizeBytes())
			if b.Oldest == "" {
				b.Oldest = deltaObject(it)
			}
		}
		return nil
	})
}

// deltaObject returns the key of a delta's object.
func deltaObject(it *persist.Item) string {
	payload, err := it.Payload()
	if err != nil {
		return "damaged"
	}
	d, err := queue.ParseDelta(payload)
	if err != nil {
		return "damaged"
	}
	return d.Key
}

// pendingWork counts the keys and the deleted objects of reconcilers, or of workqueues.
func (f *file) pendingWork(i *informer, of func(handler string) *backlog) error {
	kind := queue.Reconcilers
	if i.space == workqueuesSpace {
		kind = "workqueue"
	}
	return errors.Join(
		f.scan(i.bucket(workqueue.NamesBucket), func(it *persist.Item) error {
			of(kind.Key(it.Key))
			return nil
		}),
		f.scan(i.bucket(workqueue.KeysBucket), func(it *persist.Item) error {
			name, key, _ := keyfield.Cut(it.Key)
			b := of(kind.Key(name))
			b.Keys++
			b.Oldest = cmp.Or(b.Oldest, key)
			return nil
		}),
		f.scan(i.bucket(deletions.BucketName), func(it *persist.Item) error {
			name, rest, _ := keyfield.Cut(it.Key)
			key, _, _ := keyfield.Cut(rest)
			b := of(kind.Key(name))
			b.Deleted++
			b.Bytes += int64(it.SizeBytes())
			b.Oldest = cmp.Or(b.Oldest, key)
			return nil
		}),
	)
}

func newPending() *cobra.Command {
	cmd, _ := newReader("pending FILE", "Show the pending deltas and keys of each handler, reconciler and workqueue", cobra.ExactArgs(1), func(_ context.Context, f *file, _ []string) (*output, error) {
		out, all := &output{}, []*backlog{}
		t := table{header: []string{"HANDLER", "DELTAS", "SIZE", "KEYS", "DELETED", "OLDEST KEY", "INFORMER"}}
		var errs error
		for _, i := range f.informers {
			backlogs, err := f.pending(i)
			errs = errors.Join(errs, err)
			for _, b := range backlogs {
				all, out.names = append(all, b), append(out.names, b.Handler)
				t.add(b.title(), strconv.Itoa(b.Deltas), sizeOf(b.Bytes), strconv.Itoa(b.Keys), strconv.Itoa(b.Deleted), cmp.Or(b.Oldest, "-"), b.Informer)
			}
		}
		out.value, out.tables = all, []table{t}
		return out, errs
	})
	return cmd
}

func (b *backlog) title() string {
	if b.StartsOver {
		return b.Handler + " (starts over)"
	}
	return b.Handler
}
