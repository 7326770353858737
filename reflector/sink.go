package reflector

import (
	"cmp"
	"errors"
	"reflect"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/warmwatch/warmwatch/checkpoint"
	"github.com/warmwatch/warmwatch/indexer"
	"github.com/warmwatch/warmwatch/persist"
	"github.com/warmwatch/warmwatch/queue"
)

// The checkpoint of an informer in its space.
const (
	CheckpointBucket = "checkpoint"
	CheckpointKey    = "resume"
)

// SinkOptions configures [NewSink]. A field is required unless its comment says what zero means.
type SinkOptions struct {
	DB       *persist.DB
	Space    string
	Indexer  *indexer.Indexer
	Log      *queue.Log
	Informer Informer
	Detector cache.MutationDetector
	Logger   klog.Logger
	// Example has the Go type of the objects that come. NewObject returns an empty object of the type that is stored:
	// the transform may return another one.
	Example   runtime.Object
	NewObject func() any
	// MaxPendingBytes is the DB's limit. 0 means the default. A relist applies an eighth of it at once.
	MaxPendingBytes int64
}

// Sink receives the events of client-go's Reflector, and the items of a relist. Each
// event becomes one batch of object, index entries, delta and checkpoint (A1).
//
// To the Reflector it is a cache.Queue, but nothing is ever popped from it: an event is stored, and its delta is in the
// queue.Log, before Add returns.
type Sink struct {
	db         *persist.DB
	space      string
	bucket     persist.Bucket
	indexer    *indexer.Indexer
	queue      *queue.Log
	informer   Informer
	detector   cache.MutationDetector
	logger     klog.Logger
	example    runtime.Object
	newObject  func() any
	storedType reflect.Type // The type that newObject returns.
	batchBytes int          // About how much a relist applies at once.
	closed     chan struct{}
	events     Events

	mu sync.Mutex // Held while an event is applied. A stopped Reflector may still be relisting.
	// record is what the next batch stores; it may be ahead of the file. Load reads it. Then its fields change here:
	//
	//   - ResourceVersion, VouchedAt: with each event and bookmark. Empty from the first batch of a relist to its end;
	//     after a list that has no resourceVersion to watch from, or an object newer than itself, until the next list. A
	//     watch without a version begins with the present objects. It does not report earlier deletions.
	//   - HighestVersion: when ResourceVersion becomes empty.
	//   - State: Load makes it syncing if the objects are not served, SetCluster if they are of another cluster. The
	//     first batch of a relist, and an object that is refused, make complete refreshing. The end of a relist makes it
	//     complete, or refreshing if it left an object out.
	//   - Rewrite: when a relist begins or ends, and by SetCluster.
	//   - ClusterID: by SetCluster if there was none, and at the end of a relist.
	//   - IndexVersion: around a rebuild, by SetIndexVersion, and by the first list.
	//   - Identity: by Load, and by Distrust, which makes it empty.
	//   - The rest: at the end of a relist.
	record checkpoint.Record
	// written is the checkpoint in its bucket, without the resourceVersion. passLocked does not change it.
	written checkpoint.Record
	stopped bool
	stores  bool // The queue stores the deltas of the changes that are staged.
	// transform is nil until Load, and if there is none.
	transform cache.TransformFunc
	// filling says that the first list into an empty store is not complete yet.
	filling bool
	// want has the versions that the checkpoint gets when a relist is finished. Until then record has the versions that
	// the stored objects were made with. want.ClusterID is the server's.
	want checkpoint.Want
}

var (
	_ cache.Queue                  = (*Sink)(nil)
	_ cache.ReflectorBookmarkStore = (*Sink)(nil)
)

// NewSink returns a Sink that knows nothing of the checkpoint yet, see [Sink.Load].
func NewSink(o SinkOptions) *Sink {
	return &Sink{
		db: o.DB, space: o.Space, bucket: persist.Bucket{Space: o.Space, Name: CheckpointBucket},
		indexer: o.Indexer, queue: o.Log, informer: o.Informer, detector: o.Detector, logger: o.Logger,
		example: o.Example, newObject: o.NewObject, storedType: reflect.TypeOf(o.NewObject()), closed: make(chan struct{}),
		batchBytes: int(cmp.Or(o.MaxPendingBytes, 8*relistBytes) / 8),
	}
}

// Buckets returns the names of the buckets that a Sink has in its space.
func Buckets() []string { return []string{CheckpointBucket, StagedBucket} }

// Load reads the checkpoint and decides how to start. Objects are transformed from now on. After an error it can be
// called again.
func (k *Sink) Load(want checkpoint.Want, transform cache.TransformFunc) (checkpoint.Decision, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.transform, k.want = transform, want
	found, err := k.stored()
	if errors.Is(err, persist.ErrCorrupt) || errors.Is(err, checkpoint.ErrBadRecord) { // Go on without a checkpoint.
		k.logger.Error(err, "Could not read the checkpoint")
	} else if err != nil {
		return checkpoint.Decision{}, err
	}
	if found != nil {
		k.written = *found
		k.written.ResourceVersion = ""
		k.passLastBookmark(found)
		k.record = *found
	}
	k.record.Identity = want.Identity
	evidence := checkpoint.Evidence{
		Record: found, Stored: k.indexer.Seq() > 0,
		Incomplete: !k.indexer.Counted() || !k.indexer.Complete(), IndexErr: k.indexer.IndexErr(),
	}
	decision := checkpoint.Decide(evidence, want)
	if decision.StartOverPending {
		if err := k.queue.StartOver(queue.CauseTransformVersion, func(_ string, waiting int) bool { return waiting > 0 }); err != nil {
			k.logger.Error(err, "Could not have handlers start over")
		}
	}
	if decision.RebuildIndices && decision.Serve {
		if err := k.rebuildLocked(); err != nil {
			k.logger.Error(err, "Could not rebuild the indices, relisting")
			evidence.Incomplete = true
			decision = checkpoint.Decide(evidence, want)
		}
	}
	if decision.Cause == checkpoint.CauseResumed {
		k.indexer.Pass(k.record.ResourceVersion)
	} else {
		k.leaveVersionLocked("")
	}
	if !decision.Serve {
		k.record.State = checkpoint.StateSyncing
	}
	return decision, nil
}

// leaveVersionLocked notes that no watch can be resumed before a relist is done. Some objects may be as new as the
// version seen.
func (k *Sink) leaveVersionLocked(seen string) {
	before := checkpoint.Later(k.record.ResourceVersion, k.record.HighestVersion)
	k.record.ResourceVersion, k.record.HighestVersion = "", cmp.Or(checkpoint.Later(before, seen), checkpoint.NoVersion)
}

// stored returns the checkpoint that is stored, nil if there is none.
func (k *Sink) stored() (found *checkpoint.Record, err error) {
	return StoredCheckpoint(k.db, k.space, k.indexer.LastStoreSyncResourceVersion())
}

// StoredCheckpoint returns the checkpoint in a space, whose store is at a resourceVersion. It is nil if there is none.
func StoredCheckpoint(db *persist.DB, space, resourceVersion string) (found *checkpoint.Record, err error) {
	_, err = db.View(persist.Bucket{Space: space, Name: CheckpointBucket}, CheckpointKey, func(it *persist.Item) error {
		payload, err := it.Payload()
		if err != nil {
			return err
		}
		r, err := checkpoint.Parse(payload, resourceVersion)
		if err == nil {
			found = &r
		}
		return err
	})
	return found, err
}

// rebuildLocked rebuilds the indices. Until that is done, the checkpoint has no IndexVersion.
func (k *Sink) rebuildLocked() error {
	k.record.IndexVersion = ""
	if err := k.storeLocked(); err != nil {
		return err
	}
	if err := k.indexer.RebuildIndices(); err != nil {
		return err
	}
	k.record.IndexVersion = k.want.IndexVersion
	return k.storeLocked()
}

// storeLocked stores the checkpoint alone. The first batch of the first list begins a new checkpoint.
func (k *Sink) storeLocked() error {
	if k.written.State == "" {
		return nil
	}
	return k.db.Update(k.putCheckpoint())
}

// Checkpoint returns the checkpoint that the next batch stores.
func (k *Sink) Checkpoint() checkpoint.Record {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.record
}

// ClusterKnown reports whether SetCluster was called.
func (k *Sink) ClusterKnown() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.want.ClusterID != ""
}

// SetCluster compares the cluster's id, which is not empty, with the checkpoint's. If the checkpoint has no id yet,
// this one is stored at once, because the next process needs it and the next event may be long in coming.
func (k *Sink) SetCluster(id string) (checkpoint.Decision, error) {
	if err := k.lockOpen(); err != nil {
		return checkpoint.Decision{}, err
	}
	defer k.mu.Unlock()
	k.want.ClusterID = id
	decision := checkpoint.Decide(checkpoint.Evidence{Record: &k.record}, k.want)
	switch {
	case decision.Cause == checkpoint.CauseOtherCluster: // The relist stores the other one.
		k.record.Rewrite, k.record.State = true, checkpoint.StateSyncing
	case k.record.ClusterID == id:
		return decision, nil
	default:
		k.record.ClusterID = id
	}
	return decision, k.storeLocked()
}

// SetIndexVersion records the index version after AddIndexers has built the entries. Of several calls the last one
// calls versionOf last.
func (k *Sink) SetIndexVersion(versionOf func() string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.stopped { // The next Load finds the difference.
		return nil
	}
	valid := k.record.IndexVersion == k.want.IndexVersion
	k.want.IndexVersion = versionOf()
	if !valid { // A relist will store the version.
		return nil
	}
	k.record.IndexVersion = k.want.IndexVersion
	return k.storeLocked()
}

// Distrust makes the next process list, and serve no stored object before: nobody knows what the ListerWatcher asks
// for, so the objects have no identity. It reports whether that is news.
func (k *Sink) Distrust() (news bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.stopped || k.record.Identity != k.want.Identity {
		return false
	}
	k.record.Identity = checkpoint.Identity{}
	if err := k.storeLocked(); err != nil { // Close says so, too.
		k.logger.Error(err, "Could not store that the objects are not to be served")
	}
	return true
}

// putCheckpoint encodes the checkpoint, and returns a function that puts it into a batch if it differs from written.
// The Indexer stores the resourceVersion. A batch fails only after Close.
func (k *Sink) putCheckpoint() func(*persist.Batch) {
	r := k.record
	r.ResourceVersion = ""
	if r == k.written {
		return func(*persist.Batch) {}
	}
	k.written = r
	encoded := r.Encode()
	return func(b *persist.Batch) { b.Put(k.bucket, CheckpointKey, encoded) }
}

// Stop makes the Sink refuse everything that still comes: nothing is written any more.
func (k *Sink) Stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stopped = true
}

var errStopped = errors.New("warmwatch: the informer has stopped")

// lockOpen locks Sink.mu, or returns an error if the Sink has stopped. Every method that receives something from the
// server begins with it, because a List may hang beyond the end of its informer.
func (k *Sink) lockOpen() error {
	k.mu.Lock()
	if k.stopped {
		k.mu.Unlock()
		return errStopped
	}
	return nil
}

// Pop implements [cache.Queue]. There is nothing to pop, so it waits for Close.
func (k *Sink) Pop(cache.PopProcessFunc) (any, error) {
	<-k.closed
	return nil, cache.ErrFIFOClosed
}

// HasSynced implements [cache.Queue].
func (k *Sink) HasSynced() bool { return cache.IsDone(k.informer.HasSyncedChecker()) }

// HasSyncedChecker implements [cache.Queue].
func (k *Sink) HasSyncedChecker() cache.DoneChecker { return k.informer.HasSyncedChecker() }

// Close implements [cache.Queue]. The controller calls it once.
func (k *Sink) Close() { close(k.closed) }
