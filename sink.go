package warmwatch

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/checkpoint"
	"github.com/warmwatch/warmwatch/indexer"
	"github.com/warmwatch/warmwatch/persist"
	"github.com/warmwatch/warmwatch/queue"
	"github.com/warmwatch/warmwatch/reflector"
)

// The checkpoint of an informer in its space.
const (
	checkpointBucket = "checkpoint"
	checkpointKey    = "resume"
)

// sink receives the events of client-go's Reflector, and the items of a relist. Each
// event becomes one batch of object, index entries, delta and checkpoint (P1).
//
// To the Reflector it is a cache.Queue, but nothing is ever popped from it: an
// event is stored, and published to the listeners, before Add returns.
type sink struct {
	s      *SharedIndexInformer
	bucket persist.Bucket
	closed chan struct{}

	mu sync.Mutex // Held while an event is applied. A stopped Reflector may still be relisting.
	// record is the checkpoint as of the last batch.
	record   checkpoint.Record
	shared   *checkpoint.Record // What the last checkpointValue shares with the next.
	deltas   [2]queue.Delta     // Of the event that is being applied.
	isClosed bool
	// trusted says that a watch can be resumed at the resourceVersions of events. It is
	// false after a list without a resourceVersion.
	trusted bool
	// filling says that the first list into an empty store is not complete yet.
	filling bool
	// complete says that the store has been equal to a list once.
	complete bool
	// want has the versions that the checkpoint gets when a relist is finished. Until
	// then record has the versions that the stored objects were made with.
	want   checkpoint.Want
	loaded bool
	// knownCluster says that the server was asked which cluster it is. clusterID is
	// empty if it did not tell.
	clusterID    string
	knownCluster bool
	// refused says that the transform has refused an object since the last list began,
	// so that the store may lack an object that the server has.
	refused bool
	// doubted says that an event was taken for one of another history before.
	doubted bool
	// resumption is the resumed watch whose events show whether the server's history
	// is the store's.
	resumption resumption
}

var (
	_ cache.Queue                  = (*sink)(nil)
	_ cache.ReflectorBookmarkStore = (*sink)(nil)
)

func newSink(s *SharedIndexInformer) *sink {
	return &sink{
		s:      s,
		bucket: persist.Bucket{Space: s.space, Name: checkpointBucket},
		closed: make(chan struct{}),
	}
}

// checkpointValue is the checkpoint of one event, as a persist.Value.
type checkpointValue struct {
	shared          *checkpoint.Record // All but the next two, which alone change often.
	resourceVersion string
	last            checkpoint.ObjectVersion
}

func (v *checkpointValue) record() checkpoint.Record {
	r := *v.shared
	r.ResourceVersion, r.Last = v.resourceVersion, v.last
	return r
}

func (v *checkpointValue) AppendTo(dst []byte) ([]byte, error) { return v.record().AppendTo(dst) }
func (v *checkpointValue) SizeBytes() int                      { return 512 }

// load reads the checkpoint and decides what it is good for.
func (k *sink) load(want checkpoint.Want) checkpoint.Decision {
	k.mu.Lock()
	defer k.mu.Unlock()
	var found *checkpoint.Record
	_, err := k.s.cache.db.View(k.bucket, checkpointKey, func(it *persist.Item) error {
		if v, inMemory := it.Value.(*checkpointValue); inMemory {
			r := v.record()
			found = &r
			return nil
		}
		payload, err := it.Payload()
		if err != nil {
			return err
		}
		r, err := checkpoint.Parse(payload)
		if err == nil {
			found = &r
		}
		return err
	})
	if err != nil { // Go on without a checkpoint.
		k.s.logger.Error(err, "Could not read the checkpoint")
	}
	k.want, k.loaded = want, true
	if found != nil {
		k.record = *found
	}
	k.record.Identity = want.Identity
	evidence := checkpoint.Evidence{
		Record: found, Stored: k.s.indexer.Seq() > 0, Salvaged: k.s.cache.db.Salvaged(k.s.space),
		Incomplete: !k.s.indexer.Counted() || !k.s.indexer.Complete(), IndexErr: k.s.indexer.IndexErr(),
	}
	decision := checkpoint.Decide(evidence, want)
	if decision.RebuildIndices && decision.Serve {
		if err := k.rebuildLocked(); err != nil {
			k.s.logger.Error(err, "Could not rebuild the indices, relisting")
			evidence.IndexErr = err
			decision = checkpoint.Decide(evidence, want)
		}
	}
	if err := k.s.clearStaged(); err != nil {
		k.s.logger.Error(err, "Could not remove what an interrupted relist has left")
	}
	k.trusted = decision.Action == checkpoint.ActionResume
	k.complete = decision.Serve
	return decision
}

// rebuildLocked rebuilds the indices. Until that is done, the checkpoint has no
// IndexVersion.
func (k *sink) rebuildLocked() error {
	k.record.IndexVersion = ""
	if err := k.storeLocked(); err != nil {
		return err
	}
	if err := k.s.indexer.RebuildIndices(); err != nil {
		return err
	}
	k.record.IndexVersion = k.want.IndexVersion
	return k.storeLocked()
}

// storeLocked stores the checkpoint alone.
func (k *sink) storeLocked() error {
	value := k.value()
	_, err := k.s.cache.db.Update(func(b *persist.Batch) { b.Put(k.bucket, checkpointKey, value) })
	return err
}

// lastVersion returns the highest resourceVersion that the store has seen, whether or not
// a watch can be resumed there. It is empty if no server would understand it.
func (k *sink) lastVersion() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	rv := k.record.ResourceVersion
	if order, err := resourceversion.CompareResourceVersion(k.record.HighestVersion, rv); err == nil && order > 0 || rv == "" {
		rv = k.record.HighestVersion
	}
	if _, err := resourceversion.CompareResourceVersion(rv, rv); err != nil {
		return ""
	}
	return rv
}

func (k *sink) clusterKnown() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.knownCluster
}

// setCluster compares the identity of the cluster with the checkpoint's. If the
// checkpoint has none yet, it is stored at once, because the next process needs it and
// the next event may be long in coming.
func (k *sink) setCluster(want checkpoint.Want) (checkpoint.Decision, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.isClosed {
		return checkpoint.Decision{}, errSinkClosed
	}
	decision := checkpoint.Decide(checkpoint.Evidence{Record: &k.record}, want)
	if decision.Action != checkpoint.ActionDiscard && k.record.ClusterID != want.ClusterID {
		k.record.ClusterID = want.ClusterID // After ActionDiscard, Finish sets it.
		if k.record.State != "" {
			if err := k.storeLocked(); err != nil {
				k.record.ClusterID = ""
				return decision, err
			}
		}
	}
	k.clusterID, k.knownCluster = want.ClusterID, true
	return decision, nil
}

// setUnknownCluster notes that the server does not tell which cluster it is. If
// the stored objects are of a known cluster, it returns how to relist; after that
// relist they are of an unknown one.
func (k *sink) setUnknownCluster(refusal error) *reflector.Relisting {
	k.mu.Lock()
	defer k.mu.Unlock()
	known := k.record.ClusterID
	if known == "" {
		return nil
	}
	k.clusterID, k.knownCluster = "", true
	return &reflector.Relisting{
		Reason:  fmt.Sprintf("objects of cluster %q are stored, and the server does not tell which one it is: %v", known, refusal),
		Rewrite: true, Rewound: true,
	}
}

func (k *sink) setIndexVersion(version string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.loaded { // load will find the difference.
		return nil
	}
	valid := k.record.IndexVersion == k.want.IndexVersion
	k.want.IndexVersion = version
	if !valid || k.record.State == "" { // A relist will store the version.
		return nil
	}
	k.record.IndexVersion = version
	return k.storeLocked()
}

func (k *sink) value() *checkpointValue {
	r := k.record
	r.ResourceVersion, r.Last = "", checkpoint.ObjectVersion{}
	if k.shared == nil || *k.shared != r {
		shared := r
		k.shared = &shared
	}
	return &checkpointValue{k.shared, k.record.ResourceVersion, k.record.Last}
}

func (k *sink) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.isClosed = true
}

var errSinkClosed = errors.New("warmwatch: the informer has stopped")

// Add implements [cache.ReflectorStore].
func (k *sink) Add(obj any) error { return k.set(cache.Added, obj) }

// Update implements [cache.ReflectorStore].
func (k *sink) Update(obj any) error { return k.set(cache.Updated, obj) }

func (k *sink) set(typ cache.DeltaType, obj any) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.changedLocked(obj)
	obj, key, err := k.prepareLocked(obj)
	if err != nil {
		return k.notAppliedLocked(err)
	}
	w := k.writer()
	defer w.Close()
	c := w.Set(key, obj, true)
	defer clear(k.deltas[:])
	ds := append(k.deltas[:0], setDelta(c))
	if c.Old != nil && isOther(uidOf(c.Old), uidOf(obj)) { // The deletion of the old object was missed.
		gone := lostDelta(c.Seq, key, c.Old)
		w.Renumber(c)
		ds[0].Seq, ds[0].Type = c.Seq, cache.Updated
		gone.Replaced, ds[0].Replaced = true, true
		ds = append(k.deltas[:0], gone, ds[0])
	}
	k.s.detector.AddObject(obj)
	k.checkHistoryLocked(typ, obj, c)
	return k.commitLocked(w, resourceVersionOf(obj), ds)
}

// notAppliedLocked notes that an event could not be applied. This process goes on with
// the next event, as client-go does; the next process relists.
func (k *sink) notAppliedLocked(err error) error {
	if errors.Is(err, errSinkClosed) {
		return err
	}
	k.s.progress.refused(err)
	if k.record.State == checkpoint.StateComplete {
		k.record.State = checkpoint.StateRefreshing
	}
	return err
}

// writer returns a Writer for changes whose old objects are told.
func (k *sink) writer() *indexer.Writer {
	w := k.s.indexer.Writer()
	if k.s.queue.HasDurable() { // The old objects are stored with the deltas.
		w.KeepOldValues()
	}
	return w
}

// Delete implements [cache.ReflectorStore].
func (k *sink) Delete(obj any) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	obj, key, err := k.prepareLocked(obj)
	if err != nil {
		return k.notAppliedLocked(err)
	}
	w := k.s.indexer.Writer()
	defer w.Close()
	var old any // If it has another uid, handlers know it, and its deletion was missed.
	if uid, _, exists := w.Head(key); exists && isOther(uid, uidOf(obj)) {
		old, _ = w.Stored(key)
	}
	d := deleteDelta(w, key, obj)
	var c *indexer.Change // Nil if there is nothing to delete.
	if changes := w.Changes(); len(changes) > 0 {
		c = &changes[0]
	}
	if old != nil {
		c.Old, d = old, lostDelta(d.Seq, key, old)
	}
	k.checkHistoryLocked(cache.Deleted, obj, c)
	return k.commitLocked(w, resourceVersionOf(obj), []queue.Delta{d})
}

// deleteDelta stages the deletion of an object. As in client-go, handlers are also told
// of the deletion of an object that is not in the store.
func deleteDelta(w *indexer.Writer, key string, obj any) queue.Delta {
	d := queue.Delta{Type: cache.Deleted, Key: key, New: obj, SizeBytes: persist.EstimateSize(obj)}
	if c := w.Delete(key, false); c != nil {
		d.Seq = c.Seq
	} else {
		d.Seq = w.NextSeq()
	}
	return d
}

// A refusedError says that an object cannot be stored, because the transform has failed
// on it or it has no key. The object is left out, as by client-go.
type refusedError struct{ err error }

func (e *refusedError) Error() string { return "warmwatch: object cannot be stored: " + e.err.Error() }
func (e *refusedError) Unwrap() error { return e.err }

// prepareLocked transforms an object of an event or list, and returns its key. The error
// is a [refusedError] if it is about this object alone.
func (k *sink) prepareLocked(obj any) (transformed any, key string, err error) {
	if k.isClosed {
		return nil, "", errSinkClosed
	}
	if f := k.s.transform; f != nil {
		if obj, err = f(obj); err != nil {
			k.refused = true
			return nil, "", &refusedError{err}
		}
		if got, want := reflect.TypeOf(obj), reflect.TypeOf(k.s.storedType()); got != want {
			return nil, "", fmt.Errorf("warmwatch: the transform returned a %v, expected a %v; set InformerOptions.Transformed", got, want)
		}
	}
	if key, err = k.s.indexer.Key(obj); err != nil {
		return nil, "", &refusedError{err}
	}
	return obj, key, nil
}

// setDelta returns the delta of a change that stored an object.
func setDelta(c *indexer.Change) queue.Delta {
	d := queue.Delta{Seq: c.Seq, Type: cache.Added, Key: c.Key, New: c.New, NewValue: c.Value(), SizeBytes: c.SizeBytes()}
	if c.Old != nil {
		d.Type, d.Old, d.OldValue, d.OldSizeBytes = cache.Updated, c.Old, c.OldValue, c.OldSizeBytes
		d.SizeBytes += c.OldSizeBytes
		if resourceVersionOf(c.Old) == resourceVersionOf(c.New) {
			d.Type = cache.Sync // Told only to handlers that resync (client-go, shared_informer.go, OnUpdate).
		}
	}
	return d
}

func resourceVersionOf(obj any) string {
	m, err := meta.Accessor(obj)
	if err != nil {
		return ""
	}
	return m.GetResourceVersion()
}

func uidOf(obj any) types.UID {
	m, err := meta.Accessor(obj)
	if err != nil {
		return ""
	}
	return m.GetUID()
}

// commitLocked applies a batch, after which the store is at the resourceVersion rv.
func (k *sink) commitLocked(w *indexer.Writer, rv string, ds []queue.Delta, more ...func(*persist.Batch)) error {
	w.SetResourceVersion(rv)
	if k.trusted {
		k.record.ResourceVersion = rv
		k.record.VouchedAt = time.Now().UTC().Truncate(time.Second) // So that the checkpoints of one second share the rest.
	}
	if err := k.writeLocked(w, ds, more...); err != nil {
		return err
	}
	k.s.syncGate.reached(rv)
	return nil
}

// writeLocked applies one batch, with what more puts, and publishes its deltas. It does
// not change the resourceVersion.
func (k *sink) writeLocked(w *indexer.Writer, ds []queue.Delta, more ...func(*persist.Batch)) error {
	value := k.value()
	urgent := k.s.queue.HasDurable()
	batch, err := w.Commit(func(b *persist.Batch) {
		k.s.queue.Append(b, ds)
		b.Put(k.bucket, checkpointKey, value)
		for _, put := range more {
			put(b)
		}
		if urgent {
			b.Urgent()
		}
	})
	if err != nil {
		return err
	}
	k.s.queue.Publish(batch, ds)
	k.s.queue.Advance(batch, k.s.indexer.Seq())
	return nil
}

// Bookmark implements [cache.ReflectorBookmarkStore].
func (k *sink) Bookmark(rv string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.isClosed {
		return errSinkClosed
	}
	k.trusted = k.complete
	w := k.s.indexer.Writer()
	defer w.Close()
	return k.commitLocked(w, rv, nil)
}

// Replace implements [cache.ReflectorStore]. The Resumer has brought the store up to
// date already. The Reflector calls Replace before the watch begins.
func (k *sink) Replace([]any, string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.isClosed {
		return errSinkClosed
	}
	if !k.s.syncGate.waits() {
		k.s.setSynced()
	}
	return nil
}

// Resync implements [cache.ReflectorStore].
func (k *sink) Resync() error {
	k.s.resync()
	return nil
}

// Pop implements [cache.Queue]. There is nothing to pop, so it waits for Close.
func (k *sink) Pop(cache.PopProcessFunc) (any, error) {
	<-k.closed
	return nil, cache.ErrFIFOClosed
}

// HasSynced implements [cache.Queue].
func (k *sink) HasSynced() bool { return k.s.HasSynced() }

// HasSyncedChecker implements [cache.Queue].
func (k *sink) HasSyncedChecker() cache.DoneChecker { return k.s.HasSyncedChecker() }

// Close implements [cache.Queue]. The controller calls it once.
func (k *sink) Close() { close(k.closed) }

// ResourceVersion implements [reflector.Store].
func (k *sink) ResourceVersion() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.trusted {
		return ""
	}
	return k.record.ResourceVersion
}

// isAnswer reports whether err is a server's refusal.
func isAnswer(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || apierrors.IsUnauthorized(err) || apierrors.IsMethodNotSupported(err)
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
