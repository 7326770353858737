package warmwatch

import (
	"context"
	"reflect"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/checkpoint"
	"github.com/warmwatch/warmwatch/indexer"
	"github.com/warmwatch/warmwatch/persist"
	"github.com/warmwatch/warmwatch/queue"
	"github.com/warmwatch/warmwatch/reflector"
)

// A relist writes chunks of so many items, or bytes.
const (
	relistItems = 500
	relistBytes = 2 << 20
)

// relist implements reflector.Relist: items are compared with the store by uid
// and resourceVersion, and only what differs is written, and told. The
// checkpoint says that it is under way, so that a crash means another one.
type relist struct {
	k   *sink
	how reflector.Relisting
	// silent: nothing was there, so nobody is told of single objects.
	silent bool
	seen   map[string]struct{}
	items  []item
	bytes  int
	done   bool
}

// An item of the list that has to be written.
type item struct {
	key   string
	value *persist.Object
	same  bool // The store has this version of it.
}

// BeginRelist implements [reflector.Store].
func (k *sink) BeginRelist(_ context.Context, how reflector.Relisting) (reflector.Relist, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.isClosed {
		return nil, errSinkClosed
	}
	k.trusted = false
	if k.record.State == "" && k.s.indexer.Seq() == 0 && k.s.indexer.Len() == 0 {
		k.record.IndexVersion = k.want.IndexVersion // All entries there will be are of these indexers.
	}
	k.record.State = checkpoint.StateRefreshing
	if !k.complete {
		k.record.State = checkpoint.StateSyncing
	}
	k.record.Rewrite = k.record.Rewrite || how.Rewrite
	k.record.Rewound = k.record.Rewound || how.Rewound
	how.Rewrite, how.Rewound = k.record.Rewrite, k.record.Rewound
	k.s.progress.relistBegun(how.Rewrite)
	r := &relist{k: k, how: how, seen: make(map[string]struct{}, k.s.indexer.Len())}
	r.silent = k.s.indexer.Len() == 0 && k.s.indexer.Hidden() && !k.s.log.HasKnown()
	w := k.s.indexer.Writer()
	defer w.Close()
	return r, k.commitLocked(w, k.s.indexer.LastStoreSyncResourceVersion(), nil)
}

// Item implements [reflector.Relist].
func (r *relist) Item(_ context.Context, obj runtime.Object) error {
	k := r.k
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.expected(obj) {
		return nil
	}
	transformed, key, err := k.prepareLocked(obj)
	if err != nil {
		return err
	}
	if _, again := r.seen[key]; again { // It may wait to be written.
		if err := r.flushLocked(); err != nil {
			return err
		}
	}
	r.seen[key] = struct{}{}
	same := r.sameLocked(key, transformed)
	if same && !r.how.Rewrite && !k.s.opts.NotifyUnchanged {
		return nil
	}
	it := item{key, k.s.indexer.NewValue(transformed), same}
	r.items = append(r.items, it)
	if r.bytes += it.value.SizeBytes(); len(r.items) < r.k.s.relistItems && r.bytes < relistBytes {
		return nil
	}
	return r.flushLocked()
}

// sameLocked reports whether the store has this version of an object.
func (r *relist) sameLocked(key string, obj any) bool {
	w := r.k.s.indexer.Writer()
	defer w.Close()
	uid, rv, exists := w.Head(key)
	m, err := meta.Accessor(obj)
	return exists && err == nil && rv != "" && uid == m.GetUID() && rv == m.GetResourceVersion()
}

// Gone implements [reflector.Relist].
func (r *relist) Gone(_ context.Context, obj runtime.Object) error {
	k := r.k
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.expected(obj) {
		return nil
	}
	transformed, key, err := k.prepareLocked(obj)
	if err != nil {
		return err
	}
	if err := r.flushLocked(); err != nil {
		return err
	}
	delete(r.seen, key)
	w := k.s.indexer.Writer()
	defer w.Close()
	return r.commitLocked(w, []queue.Delta{deleteDelta(w, key, transformed)})
}

// expected does for a relist what the Reflector does for a watch: objects of
// another type are left out, and logged.
func (k *sink) expected(obj runtime.Object) bool {
	if got, want := reflect.TypeOf(obj), reflect.TypeOf(k.s.example); got != want {
		k.s.logger.Error(nil, "Unexpected list object type", "expectedType", want, "actualType", got)
		return false
	}
	return true
}

// flushLocked writes the items that wait.
func (r *relist) flushLocked() error {
	if len(r.items) == 0 {
		return nil
	}
	w := r.k.writer()
	defer w.Close()
	var ds []queue.Delta
	for _, it := range r.items {
		if d := r.stage(w, it); d != nil {
			ds = append(ds, *d)
		}
	}
	clear(r.items)
	r.items, r.bytes = r.items[:0], 0
	return r.commitLocked(w, ds)
}

// stage stages what an item changes and returns what to tell of it.
func (r *relist) stage(w *indexer.Writer, it item) *queue.Delta {
	same, notify := it.same, r.k.s.opts.NotifyUnchanged
	c := w.SetValue(it.key, it.value, !r.silent)
	r.k.s.detector.AddObject(c.New)
	if r.silent {
		return nil
	}
	if c.Existed && c.Old == nil {
		same = false // It could not be read, so handlers may not know it.
	}
	if same && r.how.Rewound && !notify {
		// The version says nothing about the content.
		notify = !apiequality.Semantic.DeepEqual(c.Old, c.New)
	}
	if same && !notify {
		return nil
	}
	d := setDelta(c)
	if same && r.how.Rewound {
		d.Type = cache.Updated
	}
	return &d
}

// commitLocked applies a chunk. The checkpoint stays where it was, and says
// that a relist is under way.
func (r *relist) commitLocked(w *indexer.Writer, ds []queue.Delta) error {
	if r.silent {
		ds = nil
	}
	return r.k.commitLocked(w, r.k.s.indexer.LastStoreSyncResourceVersion(), ds)
}

// Finish implements [reflector.Relist].
func (r *relist) Finish(_ context.Context, rv string) error {
	k := r.k
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.isClosed {
		return errSinkClosed
	}
	if err := r.flushLocked(); err != nil {
		return err
	}
	if err := k.s.indexer.Keys(r.deleteUnseenLocked); err != nil {
		return err
	}
	// What a damaged file has lost may still be served from memory.
	if err := r.deleteUnseenLocked(k.s.indexer.KeysInMemory()); err != nil {
		return err
	}
	// Entries of objects that could not be read may be left.
	if r.how.Rewrite || k.record.IndexVersion != k.want.IndexVersion {
		if err := k.s.indexer.RebuildIndices(); err != nil {
			return err
		}
	}
	k.trusted, k.complete, k.frozen = rv != "" && rv != "0", true, false
	k.record.State, k.record.LastFullList = checkpoint.StateComplete, time.Now()
	whole := k.s.progress.relistEnded(true)
	k.record.Rewrite, k.record.Rewound = !whole, false
	k.record.SchemaVersion, k.record.TransformVersion, k.record.IndexVersion = k.want.SchemaVersion, k.want.TransformVersion, k.want.IndexVersion
	if k.knownCluster {
		k.record.ClusterID = k.clusterID
	}
	if !k.trusted {
		k.record.ResourceVersion = "" // Not to be resumed (C1).
	}
	w := k.s.indexer.Writer()
	defer w.Close()
	if err := k.commitLocked(w, rv, nil); err != nil {
		return err
	}
	r.done = true
	k.s.relisted()
	if r.how.Rewrite && whole {
		return k.s.cache.db.ForgetSalvage(k.s.space)
	}
	return nil
}

func (r *relist) deleteUnseenLocked(keys []string) error {
	w := r.k.s.indexer.Writer()
	defer w.Close()
	var ds []queue.Delta
	bytes := 0
	for _, key := range keys {
		if _, stays := r.seen[key]; stays {
			continue
		}
		c := w.Delete(key, true)
		if c == nil {
			continue
		}
		d := queue.Delta{Seq: c.Seq, Type: cache.Deleted, Key: key, New: c.Old, FinalStateUnknown: true, SizeBytes: persist.EstimateSize(c.Old)}
		ds = append(ds, d)
		if bytes += d.SizeBytes; len(ds) < r.k.s.relistItems && bytes < relistBytes {
			continue
		}
		if err := r.commitLocked(w, ds); err != nil {
			return err
		}
		ds, bytes = nil, 0
	}
	if len(ds) == 0 {
		return nil
	}
	return r.commitLocked(w, ds)
}

// Abort implements [reflector.Relist]. What was written stays: each object was
// true, and the checkpoint says that there is more.
func (r *relist) Abort() {
	if r.done {
		return
	}
	r.k.s.progress.relistEnded(false)
	r.k.mu.Lock()
	defer r.k.mu.Unlock()
	clear(r.items)
	r.items = nil
}

// relisted is called when the store equals a list.
func (s *SharedIndexInformer) relisted() {
	s.progress.mu.Lock()
	s.progress.relists++
	s.progress.mu.Unlock()
	s.serve()
	s.syncGate.pass()
}
