package reflector

import (
	"cmp"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/warmwatch/warmwatch/checkpoint"
	"github.com/warmwatch/warmwatch/indexer"
	"github.com/warmwatch/warmwatch/internal/record"
	"github.com/warmwatch/warmwatch/internal/request"
	"github.com/warmwatch/warmwatch/persist"
)

const (
	// relistItems and relistBytes bound a chunk of a relist: the items, and about the bytes if MaxPendingBytes is the
	// default. A relist stages as much in memory before it uses the file.
	relistItems = 500
	relistBytes = 2 << 20
	// silentBytes bounds the items that a relist holds if it writes them as they come. Each of many informers may hold
	// as much at the same time.
	silentBytes = 512 << 10
)

// relist receives the items of a list, and compares them with the store by uid,
// resourceVersion and content: the same version may have other content, because a default
// was added, or because a server converts the object in another way. One goroutine calls its methods. Another goroutine
// may call same. An error of a method ends the relist. One relist is under way at a time.
//
// Items that differ are staged, and applied when the list is complete: deletions first,
// then updates and additions, in client-go's order. The list is applied in chunks. Each chunk is a batch. Between them
// the checkpoint says that a relist is incomplete, so that after a crash there is another one. Of a list that is cut
// nothing is delivered.
//
// Two kinds of items are written as they come: unchanged ones if all records are written anew, and the first list into
// an empty store while no handler knows an object.
type relist struct {
	k     *Sink
	how   Relisting
	seen  map[string]struct{} // Keys of the list.
	begun uint64              // The last write before the relist.
	stage *stage
	// newest is the latest resourceVersion of the objects.
	newest string
	// onlyOurs: the store has nothing but what this relist has written, each key once. written is its last write.
	onlyOurs bool
	written  uint64
	// silent has items that are written without a delta.
	silent      []item
	silentBytes int
	// leftOut is how many objects were left out, and refused why the last of them was.
	leftOut int
	refused error
	// byVersion: known has found an object. Its content was not compared.
	byVersion bool
	done      bool
	found     Relisted
	began     time.Time
}

// beginRelist begins to compare the store with a list.
func (k *Sink) beginRelist(how Relisting) (*relist, error) {
	if err := k.lockOpen(); err != nil {
		return nil, err
	}
	defer k.mu.Unlock()
	before, empty := k.record, k.indexer.Len() == 0
	first := empty && k.indexer.Seq() == 0
	if first {
		k.record.IndexVersion = k.want.IndexVersion // All entries will be made by these indexers.
	}
	k.record.Rewrite = k.record.Rewrite || how.Rewrite
	how.Rewrite = k.record.Rewrite
	k.filling = k.filling || empty && k.indexer.Hidden() && !k.queue.HasKnown()
	k.informer.RelistBegun(how.Rewrite)
	if k.record != before { // Then the relist is still due after a crash.
		if err := k.storeLocked(); err != nil {
			return nil, err
		}
	}
	return &relist{
		k: k, how: how, begun: k.indexer.Seq(), began: time.Now(), onlyOurs: first && k.filling, stage: newStage(k),
		seen: make(map[string]struct{}, k.indexer.Len()),
	}, nil
}

// item receives an object that exists.
func (r *relist) item(obj runtime.Object) error {
	k := r.k
	if err := k.lockOpen(); err != nil {
		return err
	}
	defer k.mu.Unlock()
	value, key, err := r.encodeLocked(obj)
	if value == nil {
		return err
	}
	_, repeated := r.seen[key]
	r.seen[key] = struct{}{}
	if repeated { // The earlier item may not be in the store yet.
		if err := r.writeSilentLocked(); err != nil {
			return err
		}
		r.onlyOurs = false
	}
	same := !r.onlyOurs && r.holdsLocked(key, value)
	switch {
	case !k.filling && (!same || repeated && r.stage.has(key)): // The last item of a key counts.
		return r.stage.put(key, value)
	case same && !r.how.Rewrite:
		return nil
	}
	r.silent = append(r.silent, item{key, value})
	if r.silentBytes += value.SizeBytes(); len(r.silent) < relistItems && r.silentBytes < min(silentBytes, k.batchBytes) {
		return nil
	}
	return r.writeSilentLocked()
}

// encodeLocked transforms and encodes an object of the list. If the store cannot take it, it is left out, and an old
// version of it stays: that is better than a deletion that has not happened. The next process relists. An item without
// metadata fails the list, as in client-go: it could be any object.
func (r *relist) encodeLocked(obj runtime.Object) (value *record.Object, key string, err error) {
	k, sent := r.k, request.ItemOf(obj)
	r.newest = checkpoint.Later(r.newest, sent.ResourceVersion)
	value, key, refused := k.encodeLocked(obj)
	if refused == nil {
		return value, key, nil
	}
	if _, err := meta.Accessor(obj); err != nil {
		return nil, "", refused
	}
	r.leftOut++
	r.refused, key = refused, keyOf(sent)
	w := k.indexer.Writer()
	defer w.Close()
	// A uid of another cluster identifies nothing here.
	otherCluster := k.want.ClusterID != "" && k.want.ClusterID != k.record.ClusterID
	if uid, _, exists := w.Head(key); !exists || isOther(uid, sent.UID) || otherCluster {
		return nil, "", nil
	}
	if old := k.ofStoredType(w.Sound(key)); old != nil {
		value, _ = encode(key, old)
	}
	return value, key, nil
}

// known receives the version of an object that exists, and reports whether the store has
// it. If not, the object must come as an item. Otherwise finish deletes it from the store.
func (r *relist) known(v request.Item) (bool, error) {
	return r.see(v, func(w *indexer.Writer, key string) bool {
		uid, rv, exists := w.Head(key)
		known := exists && uid != "" && rv != "" && string(uid) == v.UID && rv == v.ResourceVersion
		r.byVersion = r.byVersion || known
		return known
	})
}

// same receives an object that exists, in protobuf, and reports whether the store has the same. If not, the object is
// received as an item later. same does not keep encoded. Another goroutine may call it before finish is called.
func (r *relist) same(v request.Item, encoded []byte) (bool, error) {
	return r.see(v, func(w *indexer.Writer, key string) bool {
		_, repeated := r.seen[key]
		// A transform may return something else for the same object.
		return !r.k.filling && !r.how.Rewrite && r.k.transform == nil && !repeated && w.HoldsEncoded(key, encoded)
	})
}

// see receives the version of an object that exists. has reports whether the store has the object.
func (r *relist) see(v request.Item, has func(w *indexer.Writer, key string) bool) (bool, error) {
	k := r.k
	if err := k.lockOpen(); err != nil {
		return false, err
	}
	defer k.mu.Unlock()
	r.newest = checkpoint.Later(r.newest, v.ResourceVersion)
	key := keyOf(v)
	w := k.indexer.Writer()
	defer w.Close()
	if !has(w, key) {
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
func isOther[A, B ~string](a A, b B) bool { return string(a) != string(b) && a != "" && b != "" }

// writeSilentLocked writes the items that no delta is needed for: unchanged objects if the relist rewrites all records,
// and the first list into an empty store.
func (r *relist) writeSilentLocked() error {
	if len(r.silent) == 0 {
		return nil
	}
	r.k.db.WaitForMuchRoom() // Nobody waits for an object of the list before all of it is there.
	w := r.k.indexer.Writer()
	defer w.Close()
	r.onlyOurs = r.onlyOurs && r.k.indexer.Seq() == r.written // Otherwise somebody else has put an object into the store.
	for _, it := range r.silent {
		if r.onlyOurs {
			w.SetNew(it.key, it.value)
			r.found.Added++
		} else if c := w.Set(it.key, it.value, false); !c.Existed {
			r.found.Added++
		}
		r.k.detector.AddObject(it.value.Object)
	}
	clear(r.silent)
	r.silent, r.silentBytes = r.silent[:0], 0
	if err := r.k.writeLocked(w, nil); err != nil {
		return err
	}
	r.written = r.k.indexer.Seq()
	return nil
}

// finish is called after the last item, with the version of the list. rv is empty if the list has no version; the next
// bookmark then gives it. If err is nil, the store equals the list. The exception: damage was found during a first
// list. Then another relist follows ([Resumer.ForceRelist]), and nothing is served before it. finish reports whether
// the relist has written anything.
func (r *relist) finish(rv string) (changed bool, err error) {
	k := r.k
	if err := k.lockOpen(); err != nil {
		return false, err
	}
	defer k.mu.Unlock()
	if order, ok := checkpoint.CompareVersions(r.newest, rv); ok && order > 0 {
		// kube-apiserver has no such list. The versions have no common order, so only this Reflector's watch begins there.
		k.logger.V(2).Info("The list has an object that is newer than the list, so no watch is resumed there", "resourceVersion", rv, "newest", r.newest)
		rv = ""
	}
	if err := r.writeSilentLocked(); err != nil {
		return false, err
	}
	before := k.indexer.Len()
	if err := r.applyLocked(rv); err != nil {
		return false, err
	}
	changed = k.indexer.Seq() != r.begun
	if before > 0 && k.indexer.Len() == 0 {
		k.logger.Info("The server has no objects any more, all objects in the cache are deleted", "objects", before)
	}
	// Objects that could not be read may have left index entries.
	if r.how.Rewrite || k.record.IndexVersion != k.want.IndexVersion || k.indexer.IndexErr() != nil {
		if err := k.rebuildLocked(); err != nil {
			if failed, ok := errors.AsType[*indexer.IndexFuncError](err); ok {
				panic(failed) // The server has the object. client-go panics, too.
			}
			return false, err
		}
	}
	if r.refused != nil { // One line for all: there may be many objects.
		k.logger.Error(r.refused, "Left objects out of the cache", "objects", r.leftOut)
	}
	whole := k.informer.RelistEnded(true, r.refused)
	r.done = true
	if !whole && k.filling { // The file may have lost written items. Nobody has seen the store yet.
		return changed, nil
	}
	r.recordLocked(rv, whole)
	w := k.indexer.Writer()
	defer w.Close()
	w.SetComplete()
	if err := k.writeAtLocked(w, rv, nil, r.stage.drop, k.forgetBookmark); err != nil {
		return false, err
	}
	r.found.Full, r.found.Objects, r.found.Took = !r.byVersion, k.indexer.Len(), time.Since(r.began)
	k.informer.Relisted(r.found)
	return changed, nil
}

// recordLocked makes the checkpoint say that the store equals the list.
func (r *relist) recordLocked(rv string, whole bool) {
	k := r.k
	k.filling = false
	k.record.State, k.record.HighestVersion = checkpoint.StateComplete, ""
	if k.record.ResourceVersion = rv; rv == "" || rv == anyVersion { // Then nothing is resumed (A3).
		k.record.ResourceVersion, k.record.HighestVersion = "", checkpoint.NoVersion
	}
	if !r.byVersion {
		k.record.LastFullList, k.record.ServerSchema = time.Now(), r.how.Schema
	}
	if r.refused != nil {
		k.doubtLocked()
	}
	k.record.Rewrite = !whole
	k.record.SchemaVersion, k.record.TransformVersion = k.want.SchemaVersion, k.want.TransformVersion
	k.record.IndexVersion = k.want.IndexVersion
	k.record.ClusterID = cmp.Or(k.want.ClusterID, k.record.ClusterID)
}

// abort ends a relist that cannot be finished. The items are not applied, except
// those that a relist writes as they come. It does nothing once the list was applied.
func (r *relist) abort() {
	if r.done {
		return
	}
	r.k.informer.RelistEnded(false, nil)
	if len(r.stage.spilled) == 0 || r.k.lockOpen() != nil {
		return // The next informer of the space removes what is staged.
	}
	defer r.k.mu.Unlock()
	if _, err := r.k.db.Update(r.stage.drop); err != nil && !errors.Is(err, persist.ErrClosed) {
		r.k.logger.Error(err, "Could not remove the staged objects of a relist")
	}
}
