package reflector

import (
	"fmt"
	"reflect"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/checkpoint"
	"github.com/warmwatch/warmwatch/indexer"
	"github.com/warmwatch/warmwatch/internal/record"
	"github.com/warmwatch/warmwatch/internal/request"
	"github.com/warmwatch/warmwatch/persist"
	"github.com/warmwatch/warmwatch/queue"
)

// Add implements [cache.ReflectorStore].
func (k *Sink) Add(obj any) error { return k.apply(obj, false) }

// Update implements [cache.ReflectorStore].
func (k *Sink) Update(obj any) error { return k.apply(obj, false) }

// Delete implements [cache.ReflectorStore].
func (k *Sink) Delete(obj any) error { return k.apply(obj, true) }

// apply applies an event as one batch. One goroutine for each informer calls it.
func (k *Sink) apply(obj any, deleted bool) error {
	if err := k.lockOpen(); err != nil {
		return err
	}
	defer k.mu.Unlock()
	sent := request.ItemOf(obj) // A transform may change it.
	obj, key, refused := k.transformLocked(obj)
	var value *record.Object
	if !deleted && refused == nil {
		value, refused = encode(key, obj)
	}
	w := k.writer() // The writer reads the old object, and stages the new one with its index entries.
	defer w.Close()
	var d queue.Delta
	switch {
	case !deleted && refused != nil:
		return k.notAppliedLocked(refused)
	case !deleted:
		d = k.setDelta(w.Set(key, value, true))
		k.detector.AddObject(obj)
	default:
		if refused != nil { // The store may have an older version, under its own name.
			key = keyOf(sent)
		}
		uid, _, exists := w.Head(key)
		other := exists && isOther(uid, sent.UID)
		switch {
		case refused != nil && (other || !exists):
			return k.notAppliedLocked(refused)
		case refused != nil || other: // Handlers know the stored object. If it is another one, its deletion was missed.
			d = k.lostDelta(w.Delete(key, true))
		default:
			d = deleteDelta(w, key, obj)
		}
	}
	k.events.count(d.Type)
	return k.writeAtLocked(w, sent.ResourceVersion, []queue.Delta{d})
}

// Events counts the applied events of the watch. It is read without a lock.
type Events struct{ added, updated, deleted, bookmarks atomic.Int64 }

func (e *Events) count(t cache.DeltaType) {
	switch t {
	case cache.Added:
		e.added.Add(1)
	case cache.Deleted:
		e.deleted.Add(1)
	case cache.Bookmark:
		e.bookmarks.Add(1)
	default:
		e.updated.Add(1)
	}
}

// ByType returns the numbers: added, updated, deleted, bookmark.
func (e *Events) ByType() map[string]int64 {
	return map[string]int64{"added": e.added.Load(), "updated": e.updated.Load(), "deleted": e.deleted.Load(), "bookmark": e.bookmarks.Load()}
}

// Events returns the counted events.
func (k *Sink) Events() *Events { return &k.events }

// notAppliedLocked notes that an event could not be applied. This process goes on with
// the next event, as client-go does; the next process relists.
func (k *Sink) notAppliedLocked(refused error) error {
	k.informer.Refused(refused)
	k.doubtLocked()
	return refused
}

// doubtLocked makes the next process list.
func (k *Sink) doubtLocked() {
	if k.record.State == checkpoint.StateComplete {
		k.record.State = checkpoint.StateRefreshing
	}
}

// checkType is called with the object that an event adds, changes or deletes, before the Reflector gets the event. The
// Reflector skips an object of another type. The store then lacks it. The next event still moves the version past it.
func (k *Sink) checkType(obj runtime.Object) {
	if refused := k.unexpected(obj); refused != nil && k.lockOpen() == nil {
		defer k.mu.Unlock()
		_ = k.notAppliedLocked(refused)
	}
}

// writer returns a Writer that keeps the old objects for handlers.
func (k *Sink) writer() *indexer.Writer {
	w := k.indexer.Writer()
	if k.stores = k.queue.Stores(); k.stores { // The old objects are stored with the deltas.
		w.KeepOldRecords(queue.RecordRoom)
	}
	return w
}

// deleteDelta stages the deletion of an object. As in client-go, the deletion is delivered even if the store does not
// have the object, or cannot encode it.
func deleteDelta(w *indexer.Writer, key string, obj any) queue.Delta {
	d := queue.Delta{Type: cache.Deleted, Key: key, New: obj, SizeBytes: keyBytes}
	if value, err := record.Encode(obj); err == nil {
		d.NewRecord, d.SizeBytes = value.Record(), value.SizeBytes()
	}
	if c := w.Delete(key, false); c != nil {
		d.Seq = c.Seq
	} else {
		d.Seq = w.NextSeq()
	}
	return d
}

// keyBytes is about how long a delta without objects is.
const keyBytes = 128

// lostDelta is the delta of a missed deletion. It has the last known object, if that can be read.
func (k *Sink) lostDelta(c *indexer.Change) queue.Delta {
	d := queue.Delta{Seq: c.Seq, Type: cache.Deleted, Key: c.Key, FinalStateUnknown: true, SizeBytes: keyBytes}
	if d.New = k.ofStoredType(c.Old); d.New != nil {
		d.NewRecord = c.OldRecord
		d.SizeBytes += c.OldSizeBytes
	}
	return d
}

// transformLocked transforms an object, and returns its key.
func (k *Sink) transformLocked(obj any) (transformed any, key string, refused error) {
	var err error
	if f := k.transform; f != nil {
		sent := request.ItemOf(obj)
		if obj, err = f(obj); err == nil && reflect.TypeOf(obj) != k.storedType {
			err = fmt.Errorf("the transform returned a %T, expected a %v; see InformerOptions.Transformed", obj, k.storedType)
		}
		if err != nil {
			return nil, "", refusal(keyOf(sent), err)
		}
	}
	if key, err = k.indexer.Key(obj); err != nil {
		return nil, "", refusal(keyOf(request.ItemOf(obj)), err)
	}
	return obj, key, nil
}

// encodeLocked transforms and encodes an object of a list.
func (k *Sink) encodeLocked(obj runtime.Object) (value *record.Object, key string, refused error) {
	if refused = k.unexpected(obj); refused != nil {
		return nil, "", refused
	}
	transformed, key, refused := k.transformLocked(obj)
	if refused == nil {
		value, refused = encode(key, transformed)
	}
	return value, key, refused
}

// encode encodes an object that is to be stored.
func encode(key string, obj any) (*record.Object, error) {
	value, err := indexer.Encode(key, obj)
	if err != nil {
		return nil, refusal(key, err)
	}
	return value, nil
}

// ofStoredType returns the old object of a change. It returns nil if another transform has stored another Go type.
func (k *Sink) ofStoredType(old any) any {
	if reflect.TypeOf(old) != k.storedType {
		return nil
	}
	return old
}

// setDelta returns the delta of a change that stored an object. An old object that cannot be read may be another one.
func (k *Sink) setDelta(c *indexer.Change) queue.Delta {
	d := queue.Delta{Seq: c.Seq, Type: cache.Added, Key: c.Key, New: c.New, NewRecord: c.Record(), SizeBytes: c.SizeBytes()}
	before, now := request.ItemOf(c.Old), request.ItemOf(c.New)
	d.Replaced = c.Existed && (c.Old == nil || isOther(before.UID, now.UID))
	if d.Old = k.ofStoredType(c.Old); d.Old != nil {
		d.Type, d.OldRecord = cache.Updated, c.OldRecord
		d.SizeBytes += c.OldSizeBytes
		if !d.Replaced && before.ResourceVersion == now.ResourceVersion {
			d.Type = cache.Sync // Delivered only to handlers that resync (client-go, shared_informer.go, OnUpdate).
		}
	}
	return d
}

// writeAtLocked applies one batch, and moves the store to the resourceVersion rv.
func (k *Sink) writeAtLocked(w *indexer.Writer, rv string, ds []queue.Delta, more ...func(*persist.Batch)) error {
	w.SetResourceVersion(rv)
	if k.record.ResourceVersion != "" {
		k.vouchLocked(rv)
	}
	return k.writeLocked(w, ds, more...)
}

// vouchLocked notes that the server has sent everything up to the resourceVersion rv.
func (k *Sink) vouchLocked(rv string) {
	k.record.ResourceVersion = rv
	k.record.VouchedAt = time.Now().UTC().Truncate(time.Second) // Within a second the checkpoint changes only its version.
}

// writeLocked applies one batch with its deltas. The functions in more put into the same batch. The
// resourceVersion does not change.
func (k *Sink) writeLocked(w *indexer.Writer, ds []queue.Delta, more ...func(*persist.Batch)) error {
	put := k.putCheckpoint()
	if k.stores {
		k.queue.Encode(ds)
	}
	return w.Commit(func(b *persist.Batch) {
		k.queue.Append(b, ds)
		put(b)
		for _, put := range more {
			put(b)
		}
	})
}

// Bookmark implements [cache.ReflectorBookmarkStore].
func (k *Sink) Bookmark(rv string) error {
	if err := k.lockOpen(); err != nil {
		return err
	}
	defer k.mu.Unlock()
	k.events.count(cache.Bookmark)
	if k.record.ResourceVersion == "" || k.record.State != k.written.State { // The states differ if an earlier event was refused.
		w := k.indexer.Writer()
		defer w.Close()
		return k.writeAtLocked(w, rv, nil)
	}
	return k.passLocked(rv)
}

// BookmarksBucket has the last bookmark of each informer of the file, by space. All are in one bucket, so that a commit
// with the bookmarks of many informers writes as few pages as one with a single bookmark.
var BookmarksBucket = persist.Bucket{Space: "bookmarks", Name: "last"}

// A LastBookmark says that nothing has happened between the version of the store and a later ResourceVersion.
type LastBookmark struct {
	ResourceVersion string    `json:"resourceVersion"`
	VouchedAt       time.Time `json:"vouchedAt"`
}

// passLocked notes that nothing has changed up to the resourceVersion rv.
func (k *Sink) passLocked(rv string) error {
	k.vouchLocked(rv)
	value := persist.JSON(LastBookmark{rv, k.record.VouchedAt})
	err := k.db.Update(func(b *persist.Batch) {
		b.Put(BookmarksBucket, k.space, value)
		b.Idle() // If a crash loses the bookmark, the next process resumes a little earlier.
	})
	if err == nil {
		k.indexer.Pass(rv)
	}
	return err
}

// passLastBookmark moves r to its last bookmark, if that is later.
func (k *Sink) passLastBookmark(r *checkpoint.Record) {
	_, err := k.db.View(BookmarksBucket, k.space, func(it *persist.Item) error {
		last, err := persist.ReadJSON[LastBookmark](it)
		if order, ok := checkpoint.CompareVersions(last.ResourceVersion, r.ResourceVersion); ok && order > 0 {
			r.ResourceVersion, r.VouchedAt = last.ResourceVersion, last.VouchedAt
		}
		return err
	})
	if err != nil {
		k.logger.Error(err, "Could not read the last bookmark, going on from the checkpoint before it")
	}
}

func (k *Sink) forgetBookmark(b *persist.Batch) { DropBookmark(b, k.space) }

// DropBookmark removes the last bookmark of a space whose buckets are dropped.
func DropBookmark(b *persist.Batch, space string) { b.Delete(BookmarksBucket, space) }

// Replace implements [cache.ReflectorStore]. It does nothing: the Resumer has brought the store up to date, or another
// list follows.
func (k *Sink) Replace([]any, string) error { return nil }

// Resync implements [cache.ReflectorStore].
func (k *Sink) Resync() error {
	k.informer.Resync()
	return nil
}
