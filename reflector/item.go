package reflector

import (
	"cmp"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/warmwatch/warmwatch/checkpoint"
	"github.com/warmwatch/warmwatch/indexer"
	"github.com/warmwatch/warmwatch/internal/record"
	"github.com/warmwatch/warmwatch/persist"
)

// A relist writes chunks of at most so many items, or about so many bytes. It stages as
// much in memory before it uses the file.
const (
	defaultRelistItems = 500
	relistBytes        = 2 << 20
	// silentBytes is how much a relist that writes items as they come holds at most. Each of many
	// informers may hold as much at the same time.
	silentBytes = 512 << 10
)

// relist implements [Relist]. Items are compared with the store by uid,
// resourceVersion and content: the same version may have other content, because a default
// was added, or because a server converts the object in another way.
//
// Items that differ are staged, and applied when the list is complete: deletions first,
// then updates and additions, as client-go tells them. The list is applied in chunks, each of
// them a batch; between them the checkpoint says that a relist is incomplete, so that after a
// crash there is another one. Handlers are told nothing of a list that is cut.
//
// Two kinds of items are written as they come: those that have not changed, if all records are to
// be written anew, and all of the first list into an empty store, while no handler knows an object.
type relist struct {
	k    *Sink
	how  Relisting
	seen map[string]struct{} // Keys of the list.
	// begun is the last write before.
	begun uint64
	// onlyOurs: the store has nothing but what this relist has written. written is its last write.
	onlyOurs bool
	written  uint64
	stage    *stage
	// silent has items that are written without telling handlers.
	silent chunk
	// leftOut has the objects that the list has and the store cannot take: the uid by the key,
	// before the transform.
	leftOut map[string]types.UID
	// refused is why an object of the list was left out last; nil if none was.
	refused    error
	refusedKey string
	// byVersion: Known has found an object, whose content was not compared.
	byVersion bool
	done      bool
}

// chunk collects items until there are enough of them.
type chunk struct {
	items []stagedItem
	bytes int
}

func (c *chunk) add(it stagedItem) {
	c.items = append(c.items, it)
	c.bytes += it.value.SizeBytes()
}

func (c *chunk) reset() {
	clear(c.items)
	c.items, c.bytes = c.items[:0], 0
}

// BeginRelist implements [Store].
func (k *Sink) BeginRelist(how Relisting) (Relist, error) {
	if err := k.lockOpen(); err != nil {
		return nil, err
	}
	defer k.mu.Unlock()
	k.refused = false
	before, empty := k.record, k.indexer.Len() == 0
	first := empty && k.indexer.Seq() == 0
	if k.record.State == "" && first {
		k.record.IndexVersion = k.want.IndexVersion // All entries will be made by these indexers.
	}
	k.record.Rewrite = k.record.Rewrite || how.Rewrite
	how.Rewrite = k.record.Rewrite
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
		k: k, how: how, begun: k.indexer.Seq(), onlyOurs: first && k.filling, stage: newStage(k),
		seen: make(map[string]struct{}, k.indexer.Len()), leftOut: map[string]types.UID{},
	}, nil
}

// Item implements [Relist].
func (r *relist) Item(obj runtime.Object) error {
	k := r.k
	if err := k.lockOpen(); err != nil {
		return err
	}
	defer k.mu.Unlock()
	sent := versionOf(obj)
	if err := k.unexpected(obj); err != nil {
		return r.leaveOut(obj, sent, err)
	}
	value, key, refused := k.encodeLocked(obj)
	if refused != nil {
		return r.leaveOut(obj, sent, refused)
	}
	_, repeated := r.seen[key]
	r.seen[key] = struct{}{}
	if len(r.leftOut) > 0 {
		delete(r.leftOut, sent.Key())
	}
	if r.onlyOurs && !repeated {
		return r.addSilentLocked(stagedItem{key: key, value: value, isNew: true})
	}
	if repeated { // What came before may not be in the store yet.
		if err := r.writeSilentLocked(); err != nil {
			return err
		}
	}
	same := r.holdsLocked(key, value)
	if !same && !k.filling {
		return r.stage.put(key, value)
	}
	if err := r.stage.remove(key); err != nil || (same && !r.how.Rewrite) {
		return err
	}
	return r.addSilentLocked(stagedItem{key: key, value: value})
}

// addSilentLocked takes an item that handlers are not told of, and writes those that it has if they are many.
func (r *relist) addSilentLocked(it stagedItem) error {
	if r.silent.add(it); len(r.silent.items) < r.k.relistItems && r.silent.bytes < silentBytes {
		return nil
	}
	return r.writeSilentLocked()
}

// Known implements [Relist].
func (r *relist) Known(v checkpoint.ObjectVersion) (bool, error) {
	k := r.k
	if err := k.lockOpen(); err != nil {
		return false, err
	}
	defer k.mu.Unlock()
	key := v.Key()
	w := k.indexer.Writer()
	defer w.Close()
	uid, rv, exists := w.Head(key)
	if !exists || uid == "" || rv == "" || uid != v.UID || rv != v.ResourceVersion {
		return false, nil
	}
	r.seen[key], r.byVersion = struct{}{}, true
	return true, nil
}

// Same implements [Relist].
func (r *relist) Same(v checkpoint.ObjectVersion, encoded []byte) (bool, error) {
	k := r.k
	if err := k.lockOpen(); err != nil {
		return false, err
	}
	defer k.mu.Unlock()
	key := v.Key()
	_, repeated := r.seen[key]
	// A transform may say something else of the same object.
	if k.filling || r.how.Rewrite || k.transform != nil || repeated || len(r.leftOut) > 0 {
		return false, nil
	}
	w := k.indexer.Writer()
	defer w.Close()
	if !w.HoldsEncoded(key, encoded) {
		return false, nil
	}
	r.seen[key] = struct{}{}
	return true, nil
}

// holdsLocked reports whether the store has the same object.
func (r *relist) holdsLocked(key string, value *record.Object) bool {
	w := r.k.indexer.Writer()
	defer w.Close()
	return w.Holds(key, value)
}

// isOther reports whether two objects of one name have different uids. An object without
// a uid, which a transform may have stripped, is not another one.
func isOther(a, b types.UID) bool { return a != b && a != "" && b != "" }

// writeSilentLocked writes what handlers are not told of: unchanged objects, if the relist
// rewrites all records, and the first list into an empty store.
func (r *relist) writeSilentLocked() error {
	if len(r.silent.items) == 0 {
		return nil
	}
	r.k.db.WaitForMuchRoom() // Nobody waits for an object of the list before all of it is there.
	w := r.k.indexer.Writer()
	defer w.Close()
	r.onlyOurs = r.onlyOurs && r.k.indexer.Seq() == r.written // Else somebody has put an object into the store.
	for _, it := range r.silent.items {
		if it.isNew && r.onlyOurs {
			w.SetNew(it.key, it.value)
		} else {
			w.Set(it.key, it.value, false)
		}
		r.k.detector.AddObject(it.value.Object)
	}
	r.silent.reset()
	if err := r.k.writeLocked(w, nil); err != nil {
		return err
	}
	r.written = r.k.indexer.Seq()
	return nil
}

// Finish implements [Relist].
func (r *relist) Finish(rv string, ordered bool) (changed bool, err error) {
	if !ordered {
		rv = "" // It says nothing of the objects.
	}
	err = r.finish(rv)
	return r.k.indexer.Seq() != r.begun, err
}

func (r *relist) finish(rv string) error {
	k := r.k
	if err := k.lockOpen(); err != nil {
		return err
	}
	defer k.mu.Unlock()
	if err := r.writeSilentLocked(); err != nil {
		return err
	}
	before := k.indexer.Len()
	if err := r.applyLocked(rv); err != nil {
		return err
	}
	if before > 0 && k.indexer.Len() == 0 {
		k.logger.Info("The server has no objects any more, all that the cache had are deleted", "objects", before)
	}
	// Index entries may be left of objects that could not be read.
	if r.how.Rewrite || k.record.IndexVersion != k.want.IndexVersion || k.indexer.IndexErr() != nil {
		if err := k.rebuildLocked(); err != nil {
			if failed, ok := errors.AsType[*indexer.IndexFuncError](err); ok {
				panic(failed) // The server has the object. client-go panics, too.
			}
			return err
		}
	}
	whole := k.informer.RelistEnded(true, r.refused)
	if !whole && k.filling { // It may have lost what it has written. Nobody has seen the store yet.
		r.done = true
		return nil
	}
	r.recordLocked(rv, whole)
	w := k.indexer.Writer()
	defer w.Close()
	w.SetComplete()
	if err := k.commitLocked(w, rv, nil, r.stage.drop, k.forgetBookmark); err != nil {
		return err
	}
	r.done = true
	r.logLeftOut()
	k.informer.Relisted(!r.byVersion)
	return nil
}

// recordLocked makes the checkpoint that of a store which is equal to the list.
func (r *relist) recordLocked(rv string, whole bool) {
	k := r.k
	k.trusted, k.complete, k.filling = rv != "" && rv != "0", true, false
	k.record.State, k.record.HighestVersion = checkpoint.StateComplete, ""
	if !r.byVersion {
		k.record.LastFullList, k.record.ServerSchema = time.Now(), r.how.Schema
	}
	if r.refused != nil {
		k.record.State = checkpoint.StateRefreshing
	}
	k.record.Rewrite, k.record.Rewound = !whole, false
	k.record.SchemaVersion, k.record.TransformVersion = k.want.SchemaVersion, k.want.TransformVersion
	k.record.IndexVersion = k.want.IndexVersion
	k.record.ClusterID = cmp.Or(k.clusterID, k.record.ClusterID)
	if !k.trusted {
		k.record.ResourceVersion = "" // So nothing is resumed (A3).
	}
}

// Abort implements [Relist].
func (r *relist) Abort() {
	if r.done {
		return
	}
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
