package indexer

import (
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/warmwatch/warmwatch/internal/record"
	"github.com/warmwatch/warmwatch/persist"
)

// The buckets of an Indexer in its space.
const (
	ObjectsBucket = "objects"
	IndexBucket   = "index"
	storeBucket   = "store"

	stateKey = "state"
)

// Buckets returns the names of the buckets that an Indexer has in its space.
func Buckets() []string { return []string{ObjectsBucket, IndexBucket, storeBucket} }

// Options configures [New].
type Options struct {
	DB *persist.DB
	// Space names the buckets. One space belongs to one Indexer at a time.
	Space string
	// NewObject returns an empty object of the type that is stored. It is not
	// needed for unstructured objects.
	NewObject func() any
	Indexers  cache.Indexers
	// Objects keeps decoded objects in memory. Default: NewObjects(0), not shared.
	Objects *Objects
	// OnCorrupt, if set, is called for everything that could not be read, by
	// readers and writers. It must not call the Indexer.
	OnCorrupt func(error)
	// AwaitRepair, if set, is called by readers of cache.Indexer after they have met damage. It waits until the damage
	// is repaired, and reports whether to read again. A positive limit bounds the wait. Before the repair readers would
	// return too few objects (A7).
	AwaitRepair func(limit time.Duration) (again bool)
	// OnDecode, if set, is called with each object that was read from disk, before
	// any reader gets it.
	OnDecode func(obj any)
	// KeepVersion makes the methods of cache.Store leave LastStoreSyncResourceVersion alone: a watch is resumed there, so
	// only its owner moves it, see [Writer.SetResourceVersion].
	KeepVersion bool
	// Logger defaults to klog's.
	Logger *klog.Logger
}

// Indexer implements [cache.Indexer] on a persist.DB. All methods are safe for
// concurrent use. A write is visible when the method returns, and durable with
// the DB's next commit.
//
// Methods of cache.Indexer that return no error log the failure (a corrupt
// record, a closed DB) and leave out the objects that they could not read.
type Indexer struct {
	opts    Options
	db      *persist.DB
	space   string
	objects *Objects
	owner   *owner
	logger  klog.Logger

	objectsName, indexName, storeName persist.Bucket

	// writer serialises writers: each reads the old object and its index
	// entries before it writes. Readers never take this lock.
	writer   sync.Mutex
	state    state // Guarded by writer, as is released.
	released bool
	indexers atomic.Pointer[cache.Indexers]
	hidden   atomic.Bool
	// drops is odd while state.Dropped. It changes before entries are removed, and after all are back.
	drops atomic.Uint64
	// visible is the state after the last batch, for readers.
	visible atomic.Pointer[state]
}

var _ cache.Indexer = (*Indexer)(nil)

// state changes with every batch and is stored in it.
type state struct {
	ResourceVersion string `json:"resourceVersion,omitempty"`
	// Seq numbers the writes of this space. It never goes back.
	Seq   uint64 `json:"seq"`
	tally        // The objects.
	Index tally  `json:"index"` // The index entries.
	// Uncounted says that the tally of the objects may be wrong: the space is new, or a write could not read whether its
	// key was stored. It stays true, in later processes too, until SetComplete.
	Uncounted bool `json:"uncounted,omitempty"`
	// IndexErr is why index entries may be missing or left over until RebuildIndices succeeds, in
	// this process or a later one. Empty: they are right.
	IndexErr string `json:"indexErr,omitempty"`
	// Dropped says that entries are missing: the file has lost some, or they were removed and not all made anew yet.
	Dropped bool `json:"indexDropped,omitempty"`
}

// doubt says that index entries may be wrong.
func (s *state) doubt(err error) { s.IndexErr = fmt.Sprintf("%.200s", err) }

// New returns the Indexer of a space, with the objects that are in the DB. The error wraps [persist.ErrCorrupt] if the
// DB has lost the number of objects and of the last write. The caller rebuilds the indices if other index functions may
// have made them.
func New(o Options) (*Indexer, error) {
	if o.DB == nil || o.Space == "" {
		return nil, errors.New("indexer: DB and Space are required")
	}
	if o.Objects == nil {
		o.Objects = NewObjects(0)
	}
	if o.Logger == nil {
		l := klog.Background()
		o.Logger = &l
	}
	ix := &Indexer{
		opts: o, db: o.DB, space: o.Space, objects: o.Objects, logger: *o.Logger,
		objectsName: persist.Bucket{Space: o.Space, Name: ObjectsBucket},
		indexName:   persist.Bucket{Space: o.Space, Name: IndexBucket},
		storeName:   persist.Bucket{Space: o.Space, Name: storeBucket},
	}
	indexers := cache.Indexers{}
	maps.Copy(indexers, o.Indexers)
	ix.indexers.Store(&indexers)
	if err := ix.load(); err != nil {
		return nil, err
	}
	return ix, nil
}

func (ix *Indexer) load() error {
	var s state
	found, err := ix.db.View(ix.storeName, stateKey, func(it *persist.Item) (err error) {
		s, err = persist.ReadJSON[state](it)
		return err
	})
	if err == nil && !found { // A new space, which has no objects.
		s.Uncounted = true
		err = ix.Keys(func([]string) error {
			return &persist.CorruptError{Bucket: ix.storeName, Key: stateKey, Err: errors.New("it is missing")}
		})
	}
	if err != nil {
		return err
	}
	if entries, err := ix.tallyOf(IndexBucket, anyItem); err != nil && !isDamage(err) {
		return err
	} else if err != nil || entries != s.Index {
		s.doubt(fmt.Errorf("the index has %d entries, expected %d, or other ones", entries.Count, s.Index.Count))
		s.Dropped = true
	}
	ix.state = s
	ix.visible.Store(&s)
	if s.Dropped {
		ix.drops.Store(1)
	}
	ix.owner = newOwner(s.Count)
	return nil
}

// Key returns the key that the object is stored under.
func (ix *Indexer) Key(obj any) (string, error) {
	key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj)
	if err != nil {
		return "", cache.KeyError{Obj: obj, Err: err}
	}
	return key, nil
}

// Len returns the number of objects. It may be wrong until a relist if the file has lost something.
func (ix *Indexer) Len() int { return max(0, ix.visible.Load().Count) }

// Counted reports whether the DB knows how many objects there are. If not, some may be
// missing, until [Writer.SetComplete].
func (ix *Indexer) Counted() bool { return !ix.visible.Load().Uncounted }

// Seq returns the number of the last write.
func (ix *Indexer) Seq() uint64 { return ix.visible.Load().Seq }

// Hide makes the methods of cache.Indexer find nothing, and Hide(false) ends that.
// A relist can still compare with the hidden objects, which must not be served yet.
func (ix *Indexer) Hide(hidden bool) { ix.hidden.Store(hidden) }

// Hidden reports whether the objects are hidden, see [Indexer.Hide].
func (ix *Indexer) Hidden() bool { return ix.hidden.Load() }

// failed logs an error of a read. If the error means that the file is damaged, it reports it to OnCorrupt instead,
// which logs it once: thousands of objects may be damaged, and each is read again and again.
func (ix *Indexer) failed(err error, what string) {
	if !isDamage(err) {
		ix.logger.Error(err, "Could not read from the cache", "what", what, "space", ix.space)
		return
	}
	ix.logger.V(4).Info("Could not read from the cache", "err", err, "what", what, "space", ix.space)
	if ix.opts.OnCorrupt != nil {
		ix.opts.OnCorrupt(err)
	}
}

func isDamage(err error) bool {
	return errors.Is(err, persist.ErrCorrupt) || errors.Is(err, record.ErrBadRecord) || errors.Is(err, record.ErrTypeMismatch)
}

// Add implements [cache.Store].
func (ix *Indexer) Add(obj any) error { return ix.Update(obj) }

// Update implements [cache.Store].
func (ix *Indexer) Update(obj any) error {
	key, err := ix.Key(obj)
	if err != nil {
		return err
	}
	value, err := Encode(key, obj)
	if err != nil {
		return err
	}
	w := ix.Writer()
	defer w.Close()
	w.Set(key, value, false)
	if rv, ok := resourceVersion(obj); ok {
		ix.setVersion(w, rv)
	}
	return ix.commitByHand(w)
}

// commitByHand commits the changes of a caller of cache.Store. It ends Hide if the store was empty: tests fill the
// store of an informer before they start it, or instead.
func (ix *Indexer) commitByHand(w *Writer) error {
	empty := ix.state.Count == 0
	err := w.Commit(nil)
	if err == nil && empty {
		ix.Hide(false)
	}
	return err
}

// Delete implements [cache.Store]. A cache.DeletedFinalStateUnknown leaves the
// store's resourceVersion alone.
func (ix *Indexer) Delete(obj any) error {
	key, err := ix.Key(obj)
	if err != nil {
		return err
	}
	w := ix.Writer()
	defer w.Close()
	w.Delete(key, false)
	if rv, ok := resourceVersion(obj); ok {
		ix.setVersion(w, rv)
	}
	return w.Commit(nil)
}

// setVersion is [Writer.SetResourceVersion] for the methods of cache.Store.
func (ix *Indexer) setVersion(w *Writer, rv string) {
	if !ix.opts.KeepVersion {
		w.SetResourceVersion(rv)
	}
}

func resourceVersion(obj any) (string, bool) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return "", false
	}
	return m.GetResourceVersion(), true
}

// Replace implements [cache.Store]. After its one batch the store has these objects and no others.
func (ix *Indexer) Replace(list []any, resourceVersion string) error {
	items := make(map[string]*record.Object, len(list))
	for _, obj := range list {
		key, err := ix.Key(obj)
		if err != nil {
			return err
		}
		if items[key], err = Encode(key, obj); err != nil {
			return err
		}
	}
	w := ix.Writer()
	defer w.Close()
	err := ix.Keys(func(old []string) error {
		for _, key := range old {
			if _, stays := items[key]; !stays {
				w.Delete(key, false)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for key, value := range items {
		w.Set(key, value, false)
	}
	ix.setVersion(w, resourceVersion)
	w.SetComplete()
	return ix.commitByHand(w)
}

// Resync implements [cache.Store]. As in client-go's Indexer, it does nothing.
func (ix *Indexer) Resync() error { return nil }

// Bookmark implements [cache.Store].
func (ix *Indexer) Bookmark(rv string) {
	w := ix.Writer()
	defer w.Close()
	ix.setVersion(w, rv)
	if err := w.Commit(nil); err != nil {
		ix.failed(err, "bookmark")
	}
}

// Pass sets the result of LastStoreSyncResourceVersion. Until the next write it does so only in memory.
func (ix *Indexer) Pass(rv string) {
	ix.writer.Lock()
	defer ix.writer.Unlock()
	ix.state.ResourceVersion = rv
	visible := ix.state
	ix.visible.Store(&visible)
}

// LastStoreSyncResourceVersion implements [cache.Store].
func (ix *Indexer) LastStoreSyncResourceVersion() string { return ix.visible.Load().ResourceVersion }

// GetIndexers implements [cache.Indexer].
func (ix *Indexer) GetIndexers() cache.Indexers { return *ix.indexers.Load() }

// Ballast is [Objects.Ballast] of the Indexer's Objects.
func (ix *Indexer) Ballast() (end func()) { return ix.objects.Ballast(ix.owner) }

// Release forgets the decoded objects in memory. The Indexer can still be read. It cannot be written to, because its
// space may have a new owner.
func (ix *Indexer) Release() {
	ix.writer.Lock()
	defer ix.writer.Unlock()
	ix.released = true
	ix.objects.release(ix.owner)
}

// errReleased is returned by every write after Release.
var errReleased = errors.New("the informer of this store has ended")

// update is DB.UpdateWithRoom. After Release it returns an error. The caller holds writer.
func (ix *Indexer) update(fn func(*persist.Batch)) error {
	if ix.released {
		return errReleased
	}
	return ix.db.UpdateWithRoom(fn)
}
