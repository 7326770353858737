package warmwatch

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/warmwatch/warmwatch/internal/checkpoint"
	"github.com/warmwatch/warmwatch/internal/keyfield"
	"github.com/warmwatch/warmwatch/internal/record"
	"github.com/warmwatch/warmwatch/persist"
)

// deletedBucket has the last known objects of deletions that are not reconciled yet: records, by
// the reconciler's name, the object's key and its uid.
const deletedBucket = "deleted"

// maxDeletionsInMemory is how many objects wait in memory to be put into the DB.
const maxDeletionsInMemory = 256

// deletions are those of one reconciler. As the keys of its queue, they are put into the DB by a hook
// that is called after that of the deltas' log, so that no commit has the acknowledgement of a
// deletion without the object (D4).
type deletions struct {
	db         *persist.DB
	bucket     persist.Bucket
	prefix     string
	newObject  func() any
	removeHook func()

	mu    sync.Mutex
	known map[cache.ObjectName][]deletedState // What the DB has, or puts, by the objects' names.
	last  uint64                              // The greatest number of any state.
	puts  map[string]*record.Object           // To be put with the next commit.
	gone  map[string]struct{}                 // To be deleted with it.
}

// deletedState is a state of a deleted object. The object may exist again and be deleted again while a reconcile of an
// earlier state goes on: then that one is reconciled, and the later one is not.
type deletedState struct {
	key     string // In the DB.
	number  uint64 // No other state has it.
	version string // Its resourceVersion, empty if that is not known.
}

func newDeletions(db *persist.DB, space, name string, newObject func() any) *deletions {
	return &deletions{
		db: db, bucket: persist.Bucket{Space: space, Name: deletedBucket}, prefix: keyfield.Of(name), newObject: newObject,
		known: map[cache.ObjectName][]deletedState{}, puts: map[string]*record.Object{}, gone: map[string]struct{}{},
	}
}

func openDeletions(db *persist.DB, space, name string, newObject func() any) (*deletions, error) {
	d := newDeletions(db, space, name, newObject)
	found, err := scanDeletions(db, d.bucket, d.prefix)
	if err != nil {
		return nil, err
	}
	for _, s := range found {
		_, name, err := cutDeletedKey(s.key)
		if err != nil { // Damage: nobody would ever look for it.
			d.gone[s.key] = struct{}{}
			continue
		}
		d.noteLocked(name, s)
	}
	d.removeHook = db.AddHook(&persist.Hook{Last: true, BeforeCommit: d.beforeCommit})
	return d, nil
}

// close ends the hook, after it has put what there is.
func (d *deletions) close() { d.removeHook() }

// scanDeletions returns what is stored under keys with a prefix, in the order of the keys.
func scanDeletions(db *persist.DB, bucket persist.Bucket, prefix string) (found []deletedState, err error) {
	err = db.Read(bucket.Space, func(s *persist.Snapshot) error {
		found = nil
		return s.Scan(bucket.Name, prefix, func(it *persist.Item) (bool, error) {
			ours := strings.HasPrefix(it.Key, prefix)
			if ours {
				found = append(found, deletedState{key: it.Key, version: versionOfDeleted(it)})
			}
			return ours, nil
		})
	})
	return found, err
}

// forgetDeletions removes those of a reconciler.
func forgetDeletions(db *persist.DB, space, name string) error {
	bucket := persist.Bucket{Space: space, Name: deletedBucket}
	found, err := scanDeletions(db, bucket, keyfield.Of(name))
	if err != nil || len(found) == 0 {
		return err
	}
	_, err = db.Update(func(b *persist.Batch) {
		for _, s := range found {
			b.Delete(bucket, s.key)
		}
	})
	return err
}

// key is that of a deleted object in the file: its name and its uid.
func (d *deletions) key(name cache.ObjectName, uid string) string {
	return d.prefix + keyfield.Of(name.String()) + uid
}

// cutDeletedKey returns the reconciler's name of such a key, and the object's.
func cutDeletedKey(key string) (reconciler string, name cache.ObjectName, err error) {
	reconciler, rest, _ := keyfield.Cut(key)
	text, _, ok := keyfield.Cut(rest)
	if !ok {
		return "", cache.ObjectName{}, fmt.Errorf("warmwatch: %q is no key of a deleted object", key)
	}
	name, err = cache.ParseObjectName(text)
	return reconciler, name, err
}

// noteLocked notes that there is another state under its key.
func (d *deletions) noteLocked(name cache.ObjectName, state deletedState) {
	d.last++
	state.number = d.last
	others := slices.DeleteFunc(d.known[name], func(s deletedState) bool { return s.key == state.key })
	d.known[name] = append(others, state)
}

// stateLocked returns the state that is known under a key, a zero one if none is.
func (d *deletions) stateLocked(name cache.ObjectName, key string) deletedState {
	for _, s := range d.known[name] {
		if s.key == key {
			return s
		}
	}
	return deletedState{}
}

// add keeps a deleted object until remove, instead of an earlier state of it. One that is told later is later, whatever
// the versions are: a server that was put back uses lower ones. But the versions decide about one that is not sure to be
// the last: a list has found that the object is gone.
func (d *deletions) add(name cache.ObjectName, obj any, sure bool) {
	uid, version := "", ""
	if m, err := meta.Accessor(obj); err == nil {
		uid, version = string(m.GetUID()), m.GetResourceVersion()
	}
	key := d.key(name, uid)
	d.mu.Lock()
	known := d.stateLocked(name, key)
	order, ordered := checkpoint.CompareVersions(version, known.version)
	earlier := !ordered || order < 0
	if known.number > 0 && earlier && !sure {
		d.noteLocked(name, known) // A reconcile that has begun has found it before this deletion.
		d.mu.Unlock()
		return
	}
	d.noteLocked(name, deletedState{key: key, version: version})
	d.puts[key] = record.NewObject(obj, false)
	full := len(d.puts) >= maxDeletionsInMemory
	d.mu.Unlock()
	if full { // After Close the last commit has them.
		_, _ = d.db.Update(d.beforeCommit)
		return
	}
	d.db.Kick()
}

// versionOfDeleted returns the resourceVersion of a deleted object, empty if it is not known.
func versionOfDeleted(it *persist.Item) string {
	if v, inMemory := it.Value.(*record.Object); inMemory {
		_, version := v.Head()
		return version
	}
	payload, err := it.Payload()
	if err != nil {
		return ""
	}
	r, err := record.Parse(payload)
	if err != nil {
		return ""
	}
	return r.ResourceVersion
}

// keys returns the names of all objects.
func (d *deletions) keys() []cache.ObjectName {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Keys(d.known))
}

// deleted are the objects of one name as they were read.
type deleted struct {
	states  []deletedState
	objects []any // Fewer than states, if some cannot be read.
}

// read returns those of a name.
func (d *deletions) read(name cache.ObjectName, logger klog.Logger) (found deleted) {
	d.mu.Lock()
	found.states = slices.Clone(d.known[name])
	waiting := make([]*record.Object, len(found.states))
	for i, s := range found.states {
		waiting[i] = d.puts[s.key]
	}
	d.mu.Unlock()
	for i, s := range found.states {
		obj, err := d.object(s.key, waiting[i])
		if err != nil {
			logger.Error(err, "Could not read a deleted object, reconciling without it", "object", name)
			continue
		}
		found.objects = append(found.objects, obj)
	}
	return found
}

var errNoDeletion = errors.New("warmwatch: the deleted object is lost")

func (d *deletions) object(key string, waiting *record.Object) (obj any, err error) {
	if waiting != nil {
		return deletedObject(&persist.Item{Value: waiting}, d.newObject)
	}
	found, err := d.db.View(d.bucket, key, func(it *persist.Item) error {
		obj, err = deletedObject(it, d.newObject)
		return err
	})
	if err == nil && !found {
		err = errNoDeletion
	}
	return obj, err
}

func deletedObject(it *persist.Item, newObject func() any) (any, error) {
	if v, inMemory := it.Value.(*record.Object); inMemory {
		return v.Object, record.CheckType(v.Object, newObject)
	}
	payload, err := it.Payload()
	if err != nil {
		return nil, err
	}
	r, err := record.Parse(payload)
	if err != nil {
		return nil, err
	}
	return r.Decode(newObject)
}

// remove removes the states that were read: they are reconciled.
func (d *deletions) remove(name cache.ObjectName, done deleted) {
	if len(done.states) == 0 {
		return
	}
	defer d.db.Kick() // Without the lock.
	d.mu.Lock()
	defer d.mu.Unlock()
	reconciled := make(map[deletedState]struct{}, len(done.states))
	for _, s := range done.states {
		reconciled[s] = struct{}{}
	}
	left := slices.DeleteFunc(d.known[name], func(s deletedState) bool {
		_, isDone := reconciled[s]
		if isDone {
			delete(d.puts, s.key)
			d.gone[s.key] = struct{}{}
		}
		return isDone
	})
	if d.known[name] = left; len(left) == 0 {
		delete(d.known, name)
	}
}

// beforeCommit puts what has changed. It runs under the DB's lock.
func (d *deletions) beforeCommit(b *persist.Batch) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for key := range d.gone {
		b.Delete(d.bucket, key)
	}
	for key, v := range d.puts {
		b.Put(d.bucket, key, v)
	}
	clear(d.gone)
	clear(d.puts)
}
