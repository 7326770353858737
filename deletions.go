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
// deletion without the object (Q6).
type deletions struct {
	db         *persist.DB
	bucket     persist.Bucket
	prefix     string
	newObject  func() any
	removeHook func()

	mu    sync.Mutex
	known map[cache.ObjectName][]string // The keys in the DB, or in puts, of each object name.
	puts  map[string]*record.Object     // To be put with the next commit.
	gone  []string                      // To be deleted with it.
}

func newDeletions(db *persist.DB, space, name string, newObject func() any) *deletions {
	return &deletions{
		db: db, bucket: persist.Bucket{Space: space, Name: deletedBucket}, prefix: keyfield.Of(name), newObject: newObject,
		known: map[cache.ObjectName][]string{}, puts: map[string]*record.Object{},
	}
}

func openDeletions(db *persist.DB, space, name string, newObject func() any) (*deletions, error) {
	d := newDeletions(db, space, name, newObject)
	keys, err := scanDeletions(db, d.bucket, d.prefix)
	if err != nil {
		return nil, err
	}
	for _, key := range keys {
		name, err := d.objectName(key)
		if err != nil { // Damage: nobody would ever look for it.
			d.gone = append(d.gone, key)
			continue
		}
		d.known[name] = append(d.known[name], key)
	}
	d.removeHook = db.AddHook(&persist.Hook{Space: space, Last: true, BeforeCommit: d.beforeCommit})
	return d, nil
}

// close ends the hook, after it has put what there is.
func (d *deletions) close() { d.removeHook() }

// scanDeletions returns the keys with a prefix.
func scanDeletions(db *persist.DB, bucket persist.Bucket, prefix string) (keys []string, err error) {
	err = db.Read(bucket.Space, func(s *persist.Snapshot) error {
		keys = nil
		return s.Scan(bucket.Name, prefix, func(it *persist.Item) (bool, error) {
			ours := strings.HasPrefix(it.Key, prefix)
			if ours {
				keys = append(keys, it.Key)
			}
			return ours, nil
		})
	})
	return keys, err
}

// forgetDeletions removes those of a reconciler.
func forgetDeletions(db *persist.DB, space, name string) error {
	bucket := persist.Bucket{Space: space, Name: deletedBucket}
	keys, err := scanDeletions(db, bucket, keyfield.Of(name))
	if err != nil || len(keys) == 0 {
		return err
	}
	_, err = db.Update(func(b *persist.Batch) {
		for _, key := range keys {
			b.Delete(bucket, key)
		}
	})
	return err
}

// key is that of a deleted object in the file: its name and its uid.
func (d *deletions) key(name cache.ObjectName, uid string) string {
	return d.prefix + keyfield.Of(name.String()) + uid
}

func (d *deletions) objectName(key string) (cache.ObjectName, error) {
	text, _, ok := keyfield.Cut(key[len(d.prefix):])
	if !ok {
		return cache.ObjectName{}, fmt.Errorf("warmwatch: %q is no key of a deleted object", key)
	}
	return cache.ParseObjectName(text)
}

// add keeps a deleted object until remove. If it is not sure that it is the last state, one that is
// there already stays.
func (d *deletions) add(name cache.ObjectName, obj any, sure bool) {
	uid := ""
	if m, err := meta.Accessor(obj); err == nil {
		uid = string(m.GetUID())
	}
	key := d.key(name, uid)
	d.mu.Lock()
	if slices.Contains(d.known[name], key) {
		if !sure {
			d.mu.Unlock()
			return
		}
	} else {
		d.known[name] = append(d.known[name], key)
	}
	d.puts[key] = record.NewObject(obj, false)
	full := len(d.puts) >= maxDeletionsInMemory
	d.mu.Unlock()
	if full { // After Close the last commit has them.
		_, _ = d.db.Update(d.beforeCommit)
		return
	}
	d.db.Kick()
}

// takeOver adds what a file that is taken over has under a key, unless the same or a later state of the object is
// known: one of the two processes may have seen less of it than the other.
func (d *deletions) takeOver(name cache.ObjectName, key string, stored persist.Bytes) error {
	d.mu.Lock()
	waiting := d.puts[key]
	d.mu.Unlock()
	var known string
	has, err := d.db.View(d.bucket, key, func(it *persist.Item) error { known = versionOfDeleted(it); return nil })
	if err != nil {
		return err
	}
	if waiting != nil { // It is later than what the DB has.
		has, known = true, versionOfDeleted(&persist.Item{Value: waiting})
	}
	order, ordered := checkpoint.CompareVersions(known, versionOfDeleted(&persist.Item{Value: stored}))
	_, err = d.db.Update(func(b *persist.Batch) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.gone = slices.DeleteFunc(d.gone, func(gone string) bool { return gone == key })
		if !slices.Contains(d.known[name], key) {
			d.known[name] = append(d.known[name], key)
		}
		if d.puts[key] == waiting && (!has || ordered && order < 0) { // Else the handler was told meanwhile.
			delete(d.puts, key)
			b.Put(d.bucket, key, stored)
		}
	})
	return err
}

// versionOfDeleted returns the resourceVersion of a deleted object, empty if it is not known.
func versionOfDeleted(it *persist.Item) string {
	if v, inMemory := it.Value.(*record.Object); inMemory {
		_, version := v.Head()
		return version
	}
	payload, err := payloadOfDeleted(it)
	if err != nil {
		return ""
	}
	r, err := record.Parse(payload)
	if err != nil {
		return ""
	}
	return r.ResourceVersion
}

// payloadOfDeleted returns an encoded deleted object.
func payloadOfDeleted(it *persist.Item) ([]byte, error) {
	if v, inMemory := it.Value.(persist.Bytes); inMemory { // Of a file that was taken over.
		return v, nil
	}
	return it.Payload()
}

// keys returns the names of all objects.
func (d *deletions) keys() []cache.ObjectName {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Keys(d.known))
}

// deleted are the objects of one name as they were read.
type deleted struct {
	keys    []string
	objects []any // Fewer than keys, if some cannot be read.
}

// read returns those of a name.
func (d *deletions) read(name cache.ObjectName, logger klog.Logger) (found deleted) {
	d.mu.Lock()
	found.keys = slices.Clone(d.known[name])
	waiting := make([]*record.Object, len(found.keys))
	for i, key := range found.keys {
		waiting[i] = d.puts[key]
	}
	d.mu.Unlock()
	for i, key := range found.keys {
		obj, err := d.object(key, waiting[i])
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
		return waiting.Object, record.CheckType(waiting.Object, d.newObject)
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
	payload, err := payloadOfDeleted(it)
	if err != nil {
		return nil, err
	}
	r, err := record.Parse(payload)
	if err != nil {
		return nil, err
	}
	return r.Decode(newObject)
}

// remove removes what was read: it is reconciled.
func (d *deletions) remove(name cache.ObjectName, done deleted) {
	if len(done.keys) == 0 {
		return
	}
	defer d.db.Kick() // Without the lock.
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, key := range done.keys {
		delete(d.puts, key)
	}
	d.gone = append(d.gone, done.keys...)
	left := slices.DeleteFunc(d.known[name], func(key string) bool { return slices.Contains(done.keys, key) })
	if d.known[name] = left; len(left) == 0 {
		delete(d.known, name)
	}
}

// beforeCommit puts what has changed. It runs under the DB's lock.
func (d *deletions) beforeCommit(b *persist.Batch) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, key := range d.gone {
		b.Delete(d.bucket, key)
	}
	for key, v := range d.puts {
		b.Put(d.bucket, key, v)
	}
	d.gone = d.gone[:0]
	clear(d.puts)
}
