package sink

import (
	"context"
	"errors"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/checkpoint"
	"github.com/warmwatch/warmwatch/internal/indexer"
	"github.com/warmwatch/warmwatch/internal/record"
	"github.com/warmwatch/warmwatch/internal/reflector"
	"github.com/warmwatch/warmwatch/persist"
	"github.com/warmwatch/warmwatch/queue"
)

// A relist writes chunks of at most so many items, or about so many bytes. It stages as
// much in memory before it uses the file.
const (
	defaultRelistItems = 500
	relistBytes        = 2 << 20
)

// relist implements [reflector.Relist]. Items are compared with the store by uid,
// resourceVersion and content: the same version may have other content, because a default
// was added, or because a server converts the object in another way.
//
// Items that differ are staged, and applied when the list is complete: deletions first,
// then updates and additions, as client-go tells them. A list that is cut leaves nothing
// behind. The list is applied in chunks, each of them a batch; between them the checkpoint
// says that a relist is incomplete, so that after a crash there is another one.
//
// Only the first list into an empty store, while no handler knows an object, is written
// as it comes.
type relist struct {
	k     *Sink
	how   reflector.Relisting
	seen  map[string]struct{} // Keys of the list.
	stage *stage
	// silent has items that are written without telling handlers.
	silent chunk
	// replaced has the keys of staged objects whose uid is not, or may not be, that of the
	// stored ones.
	replaced map[string]struct{}
	// leftOut has the objects that the list has and the store cannot take: the uid by the key,
	// before the transform.
	leftOut map[string]types.UID
	// untold has the keys of objects that could not be read when handlers were told of all.
	// They are told of them again, even if the store has them now.
	untold map[string]struct{}
	// refused is why an object of the list was left out last; nil if none was.
	refused    error
	refusedKey string
	done       bool
}

// chunk collects items until there are enough of them.
type chunk struct {
	items []stagedItem
	bytes int
}

func (c *chunk) add(key string, value *record.Object) {
	c.items = append(c.items, stagedItem{key, value})
	c.bytes += value.SizeBytes()
}

func (c *chunk) reset() {
	clear(c.items)
	c.items, c.bytes = c.items[:0], 0
}

// lockOpen locks Sink.mu, unless the Sink refuses everything. All methods of a relist that
// write begin with it, because a List may hang beyond the end of its informer.
func (k *Sink) lockOpen() error {
	k.mu.Lock()
	if k.isClosed {
		k.mu.Unlock()
		return errClosed
	}
	return nil
}

// BeginRelist implements [reflector.Store].
func (k *Sink) BeginRelist(_ context.Context, how reflector.Relisting) (reflector.Relist, error) {
	if err := k.lockOpen(); err != nil {
		return nil, err
	}
	defer k.mu.Unlock()
	before, empty := k.record, k.indexer.Len() == 0
	if k.record.State == "" && empty && k.indexer.Seq() == 0 {
		k.record.IndexVersion = k.want.IndexVersion // All entries will be made by these indexers.
	}
	k.record.Rewrite = k.record.Rewrite || how.Rewrite
	k.record.Rewound = k.record.Rewound || how.Rewound
	how.Rewrite, how.Rewound = k.record.Rewrite, k.record.Rewound
	if k.filling = k.filling || (empty && k.indexer.Hidden() && !k.log.HasKnown()); k.filling {
		k.trusted = false
		k.record.State = checkpoint.StateSyncing
	}
	k.informer.RelistBegun(how.Rewrite)
	if k.record != before { // After a crash the relist is still due.
		if err := k.storeLocked(); err != nil {
			return nil, err
		}
	}
	return &relist{
		k: k, how: how, stage: newStage(k), untold: k.indexer.TakeLeftOut(),
		seen: make(map[string]struct{}, k.indexer.Len()), replaced: map[string]struct{}{}, leftOut: map[string]types.UID{},
	}, nil
}

// Item implements [reflector.Relist].
func (r *relist) Item(_ context.Context, obj runtime.Object) error {
	k := r.k
	if err := k.lockOpen(); err != nil {
		return err
	}
	defer k.mu.Unlock()
	sent := sentAs(obj)
	if err := k.unexpected(obj, r.how.Streamed); err != nil {
		return r.leaveOut(obj, sent, err)
	}
	transformed, key, err := k.prepareLocked(obj)
	if refused, ok := errors.AsType[*refusedError](err); ok {
		return r.leaveOut(obj, sent, refused)
	}
	if err != nil {
		return err
	}
	r.seen[key] = struct{}{}
	if len(r.leftOut) > 0 {
		delete(r.leftOut, sent.Key())
	}
	value := k.indexer.NewValue(transformed)
	same, replaces := r.compareLocked(key, value)
	if delete(r.replaced, key); replaces { // The list may have the key twice.
		r.replaced[key] = struct{}{}
	}
	if !same && !k.filling {
		return r.stage.put(key, value)
	}
	if err := r.stage.remove(key); err != nil || (same && !r.how.Rewrite) {
		return err
	}
	if r.silent.add(key, value); len(r.silent.items) < k.relistItems && r.silent.bytes < relistBytes {
		return nil
	}
	return r.writeSilentLocked()
}

// compareLocked reports whether the store has the same object, or one with another uid. A record
// that cannot be read may be of another object: a durable handler is told of its deletion, because
// to tell it of one that exists again is better than not to tell it of one that does not.
func (r *relist) compareLocked(key string, value *record.Object) (same, replaces bool) {
	w := r.k.indexer.Writer()
	defer w.Close()
	if w.Holds(key, value) {
		_, untold := r.untold[key]
		return !untold, false
	}
	stored, _, exists := w.Head(key)
	uid, _ := value.Head()
	if exists && stored == "" && uid != "" { // Else a transform has taken the uid.
		old, _ := w.Stored(key)
		return false, old == nil || isOther(uidOf(old), uid)
	}
	return false, exists && isOther(stored, uid)
}

// isOther reports whether two objects of one name have different uids. An object without
// a uid, which a transform may have stripped, is not another one.
func isOther(a, b types.UID) bool { return a != b && a != "" && b != "" }

// Gone implements [reflector.Relist].
func (r *relist) Gone(_ context.Context, obj runtime.Object) error {
	k := r.k
	if err := k.lockOpen(); err != nil {
		return err
	}
	defer k.mu.Unlock()
	sent := sentAs(obj)
	if err := k.unexpected(obj, r.how.Streamed); err != nil {
		return r.leaveOut(obj, sent, err)
	}
	_, key, err := k.prepareLocked(obj)
	if refused, ok := errors.AsType[*refusedError](err); ok {
		key, r.refused, r.refusedKey = sent.Key(), refused, sent.Key() // If it was stored under another name, the next process finds out.
	} else if err != nil {
		return err
	}
	if err := r.writeSilentLocked(); err != nil { // The object may be among them.
		return err
	}
	delete(r.leftOut, sent.Key())
	delete(r.seen, key)
	delete(r.replaced, key)
	return r.stage.remove(key)
}

// writeSilentLocked writes what handlers are not told of: unchanged objects, if the relist
// rewrites all records, and the first list into an empty store.
func (r *relist) writeSilentLocked() error {
	if len(r.silent.items) == 0 {
		return nil
	}
	w := r.k.indexer.Writer()
	defer w.Close()
	for _, it := range r.silent.items {
		c := w.SetValue(it.key, it.value, false)
		r.k.detector.AddObject(c.New)
	}
	r.silent.reset()
	return r.k.writeLocked(w, nil)
}

// Finish implements [reflector.Relist].
func (r *relist) Finish(_ context.Context, rv string, ordered bool) error {
	k := r.k
	if !ordered {
		rv = "" // It says nothing of the objects.
	}
	if err := k.lockOpen(); err != nil {
		return err
	}
	defer k.mu.Unlock()
	if err := r.writeSilentLocked(); err != nil {
		return err
	}
	if err := r.applyLocked(rv); err != nil {
		return err
	}
	// Index entries may be left of objects that could not be read.
	if r.how.Rewrite || k.record.IndexVersion != k.want.IndexVersion || k.indexer.IndexErr() != nil {
		if err := k.indexer.RebuildIndices(); err != nil {
			if failed, ok := errors.AsType[*indexer.IndexFuncError](err); ok {
				panic(failed) // The server has the object. client-go panics, too.
			}
			return err
		}
	}
	whole := k.informer.RelistEnded(true, r.refused)
	k.trusted, k.complete, k.filling = rv != "" && rv != "0", true, false
	k.unordered = !ordered
	k.record.State, k.record.LastFullList, k.record.HighestVersion = checkpoint.StateComplete, time.Now(), ""
	if r.refused != nil {
		k.record.State = checkpoint.StateRefreshing
	}
	k.record.Rewrite, k.record.Rewound = !whole, false
	k.record.SchemaVersion, k.record.TransformVersion, k.record.IndexVersion = k.want.SchemaVersion, k.want.TransformVersion, k.want.IndexVersion
	if k.knownCluster {
		k.record.ClusterID = k.clusterID
	}
	if !k.trusted {
		k.record.ResourceVersion = "" // So nothing is resumed (C1).
	}
	w := k.indexer.Writer()
	defer w.Close()
	w.SetComplete()
	if err := k.commitLocked(w, rv, nil, r.stage.drop); err != nil {
		return err
	}
	r.done = true
	r.logLeftOut()
	k.informer.Relisted()
	if r.how.Rewrite && whole && k.db.Salvaged(k.space) {
		if err := k.log.RemoveUnknown(); err != nil {
			return err
		}
		return k.db.ForgetSalvage(k.space)
	}
	return nil
}

// applyLocked makes the store equal to the list, whose resourceVersion is rv.
func (r *relist) applyLocked(rv string) error {
	k := r.k
	a := &applier{relist: r, rv: rv, leftOutUIDs: map[types.UID]struct{}{}, kept: map[string]struct{}{}}
	for _, uid := range r.leftOut {
		if uid != "" {
			a.leftOutUIDs[uid] = struct{}{}
		}
	}
	if err := k.indexer.Keys(a.deleteUnseen); err != nil {
		return err
	}
	// Objects that a damaged file has lost may still be served from memory.
	if err := a.deleteUnseen(k.indexer.KeysInMemory()); err != nil {
		return err
	}
	// Before anything is added, so that no handler applies what refers to an old object to a new one.
	if len(r.replaced) > 0 {
		if err := r.stage.each(a.replace); err != nil {
			return err
		}
	}
	if err := r.stage.each(a.set); err != nil {
		return err
	}
	if !k.notifyUnchanged || k.filling {
		return nil
	}
	return a.tellUnchanged()
}

// Abort implements [reflector.Relist].
func (r *relist) Abort() {
	if r.done {
		return
	}
	r.k.indexer.ReturnLeftOut(r.untold)
	r.k.informer.RelistEnded(false, nil)
	if r.k.lockOpen() != nil {
		return // The next informer of the space removes what is staged.
	}
	defer r.k.mu.Unlock()
	r.silent.reset()
	if err := r.stage.discard(); err != nil && !errors.Is(err, persist.ErrClosed) {
		r.k.logger.Error(err, "Could not forget what a relist has staged")
	}
}

// applier applies a complete list in chunks. Callers of its methods hold Sink.mu.
type applier struct {
	*relist
	rv          string // The list's resourceVersion.
	leftOutUIDs map[types.UID]struct{}
	kept        map[string]struct{} // Keys of stored objects that the list has left out.
}

// batch collects the deltas of changes that are staged in w, and commits when there are
// enough of them.
type batch struct {
	a     *applier
	w     *indexer.Writer
	ds    []queue.Delta
	bytes int
}

// inBatches calls fn with a batch, and commits what fn leaves in it.
func (a *applier) inBatches(fn func(*batch) error) error {
	b := &batch{a: a, w: a.k.writer()}
	defer b.w.Close()
	if err := fn(b); err != nil {
		return err
	}
	return b.commit()
}

func (b *batch) append(d queue.Delta) {
	b.ds = append(b.ds, d)
	b.bytes += d.SizeBytes
}

func (b *batch) add(d queue.Delta) error {
	b.append(d)
	return b.commitIfFull()
}

func (b *batch) commitIfFull() error {
	if max(len(b.ds), len(b.w.Changes())) < b.a.k.relistItems && b.bytes < relistBytes {
		return nil
	}
	return b.commit()
}

// set stages an object, and returns what handlers are told.
func (b *batch) set(it stagedItem) queue.Delta {
	c := b.w.SetValue(it.key, it.value, true)
	b.a.k.detector.AddObject(c.New)
	d := setDelta(c)
	if d.Type == cache.Sync {
		d.Type = cache.Updated // The version is the same, the content is not.
	}
	if _, untold := b.a.untold[it.key]; untold { // As one that cannot be read.
		d.Type, d.Old, d.OldValue = cache.Added, nil, nil
	}
	d.Replaced = b.a.replaces(it.key)
	return d
}

// keep leaves an object as it is: an old version is better than a deletion that has not happened.
func (b *batch) keep(key string, obj any) error {
	b.a.kept[key] = struct{}{}
	_, untold := b.a.untold[key]
	if !untold && !b.a.how.Rewrite {
		return nil
	}
	it := stagedItem{key, b.a.k.indexer.NewValue(obj)}
	if untold {
		return b.add(b.set(it))
	}
	b.bytes += b.w.SetValue(it.key, it.value, false).SizeBytes()
	return b.commitIfFull()
}

// delete stages the deletion of an object. If it cannot be read, handlers are told its key.
func (b *batch) delete(key string) error {
	c := b.w.Delete(key, true)
	if c == nil {
		return nil
	}
	return b.add(lostDelta(c.Seq, key, c.Old))
}

// commit applies a chunk. The checkpoint keeps its resourceVersion, says that a relist is
// being applied, and names the version of the list.
func (b *batch) commit() error {
	if len(b.ds) == 0 && len(b.w.Changes()) == 0 {
		return nil
	}
	k := b.a.k
	ds := b.ds
	if k.filling {
		ds = nil // No handler was told of these objects.
	} else {
		k.trusted = false
		k.record.State, k.record.HighestVersion = checkpoint.StateRefreshing, b.a.rv
		if !k.complete {
			k.record.State = checkpoint.StateSyncing
		}
	}
	b.ds, b.bytes = nil, 0
	return k.writeLocked(b.w, ds)
}

// deleteUnseen deletes those of the objects that the list does not have.
func (a *applier) deleteUnseen(keys []string) error {
	return a.inBatches(func(b *batch) error {
		for _, key := range keys {
			_, seen := a.seen[key]
			if _, kept := a.kept[key]; seen || kept {
				continue
			}
			var err error
			if obj := a.leftOutObject(b.w, key); obj != nil {
				err = b.keep(key, obj)
			} else {
				err = b.delete(key)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// leftOutObject returns a stored object that the list has left out, nil if it did not. It has to
// be the same object, which the uid shows: a transform may have stored it under another name, and
// its own may be that of a new object by now. In another history nobody knows what a uid is of.
func (a *applier) leftOutObject(w *indexer.Writer, key string) any {
	if len(a.leftOut) == 0 || a.how.Rewound {
		return nil
	}
	stored, _, _ := w.Head(key)
	_, same := a.leftOutUIDs[stored]
	if sent, named := a.leftOut[key]; !same && (!named || isOther(stored, sent)) {
		return nil
	}
	return w.Sound(key)
}

// lostDelta is the delta of a missed deletion. old is the last known object, or nil.
func lostDelta(seq uint64, key string, old any) queue.Delta {
	return queue.Delta{Seq: seq, Type: cache.Deleted, Key: key, New: old, FinalStateUnknown: true, SizeBytes: record.EstimateSize(old)}
}

// replace applies those of the staged objects whose name the store has with another uid. Durable
// handlers are told of the deletion of the old ones, in the batch that stores the new ones: the
// list may never be applied to its end, and then what handlers believe and what the store has
// must be the same.
func (a *applier) replace(items []stagedItem) error {
	items = slices.DeleteFunc(items, func(it stagedItem) bool { return !a.replaces(it.key) })
	for len(items) > 0 {
		err := a.inBatches(func(b *batch) error {
			n := 0
			for ; n < len(items) && b.bytes < relistBytes; n++ {
				old, _ := b.w.Stored(items[n].key)
				d := lostDelta(b.w.NextSeq(), items[n].key, old)
				d.Replaced = true
				b.append(d)
			}
			for _, it := range items[:n] {
				b.append(b.set(it))
			}
			items = items[n:]
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (a *applier) replaces(key string) bool {
	_, replaces := a.replaced[key]
	return replaces
}

// set applies the other staged objects.
func (a *applier) set(items []stagedItem) error {
	return a.inBatches(func(b *batch) error {
		for _, it := range items {
			if a.replaces(it.key) {
				continue
			}
			if err := b.add(b.set(it)); err != nil {
				return err
			}
		}
		return nil
	})
}

// tellUnchanged tells of the objects that the list did not change, as client-go does.
func (a *applier) tellUnchanged() error {
	return a.inBatches(func(b *batch) error {
		for _, key := range sortedKeys(a.seen) {
			if a.stage.has(key) {
				continue
			}
			obj, exists := b.w.Stored(key)
			if !exists || obj == nil {
				continue
			}
			d := queue.Delta{Seq: b.w.NextSeq(), Type: cache.Sync, Key: key, Old: obj, New: obj, SizeBytes: 2 * record.EstimateSize(obj)}
			if err := b.add(d); err != nil {
				return err
			}
		}
		return nil
	})
}
