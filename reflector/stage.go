package reflector

import (
	"fmt"
	"maps"
	"slices"

	"github.com/warmwatch/warmwatch/internal/record"
	"github.com/warmwatch/warmwatch/persist"
)

// stagedBucket has the objects that a relist has staged, beyond those that it keeps in
// memory. What a crash leaves in it is dropped by the next relist: before it puts something there, and when it is done.
const stagedBucket = "staged"

// stage holds the objects of a list that differ from the store, until the list is
// complete: up to maxItems or maxBytes of them in memory, the others in the file. One
// goroutine uses it.
type stage struct {
	db        *persist.DB
	bucket    persist.Bucket
	newObject func() any
	maxItems  int
	maxBytes  int

	memory  map[string]*record.Object
	bytes   int
	spilled map[string]struct{} // Keys in the bucket.
}

func newStage(k *Sink) *stage {
	return &stage{
		db: k.db, bucket: persist.Bucket{Space: k.space, Name: stagedBucket}, newObject: k.newObject,
		maxItems: k.relistItems, maxBytes: relistBytes,
		memory: map[string]*record.Object{}, spilled: map[string]struct{}{},
	}
}

// put stages an object, in place of one that is staged for the key.
func (st *stage) put(key string, value *record.Object) error {
	if err := st.remove(key); err != nil {
		return err
	}
	st.memory[key] = value
	if st.bytes += value.SizeBytes(); len(st.memory) < st.maxItems && st.bytes < st.maxBytes {
		return nil
	}
	_, err := st.db.Update(func(b *persist.Batch) {
		if len(st.spilled) == 0 {
			st.drop(b)
		}
		for _, key := range slices.Sorted(maps.Keys(st.memory)) {
			b.Put(st.bucket, key, st.memory[key].Record())
			st.spilled[key] = struct{}{}
		}
	})
	clear(st.memory)
	st.bytes = 0
	return err
}

// remove unstages the object of a key.
func (st *stage) remove(key string) error {
	if value, staged := st.memory[key]; staged {
		st.bytes -= value.SizeBytes()
		delete(st.memory, key)
		return nil
	}
	if _, staged := st.spilled[key]; !staged {
		return nil
	}
	delete(st.spilled, key)
	_, err := st.db.Update(func(b *persist.Batch) { b.Delete(st.bucket, key) })
	return err
}

// A stagedItem is a staged object and its key.
type stagedItem struct {
	key   string
	value *record.Object
	isNew bool // No object of the key was ever stored, or written by the same chunk.
}

// each calls fn with all staged objects, some at a time: those in the file and then those
// in memory, each in the order of keys. fn may put the values into the DB.
func (st *stage) each(fn func([]stagedItem) error) error {
	read := 0
	for from := ""; len(st.spilled) > 0; {
		items, err := st.read(from)
		if err != nil {
			return err
		}
		if len(items) == 0 {
			break
		}
		read += len(items)
		from = items[len(items)-1].key + "\x00"
		if err := fn(items); err != nil {
			return err
		}
	}
	if read != len(st.spilled) { // A scan finds nothing of a damaged page.
		return &persist.CorruptError{Bucket: st.bucket, Err: fmt.Errorf("%d objects are staged, expected %d", read, len(st.spilled))}
	}
	if len(st.memory) == 0 {
		return nil
	}
	items := make([]stagedItem, 0, len(st.memory))
	for _, key := range slices.Sorted(maps.Keys(st.memory)) {
		items = append(items, stagedItem{key: key, value: st.memory[key]})
	}
	return fn(items)
}

// read decodes the next objects of the bucket, with records of their own: those that were put belong to the DB.
func (st *stage) read(from string) (items []stagedItem, err error) {
	s, err := st.db.Snapshot(st.bucket.Space)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	bytes := 0
	err = s.Scan(st.bucket.Name, from, func(it *persist.Item) (bool, error) {
		value, err := st.value(it)
		if err != nil {
			return false, err
		}
		items = append(items, stagedItem{key: it.Key, value: value})
		bytes += value.SizeBytes()
		return len(items) < st.maxItems && bytes < st.maxBytes, nil
	})
	return items, err
}

func (st *stage) value(it *persist.Item) (*record.Object, error) {
	payload, err := it.Payload()
	if err != nil {
		return nil, err
	}
	r, err := record.Parse(payload)
	if err != nil {
		return nil, err
	}
	obj, err := r.Decode(st.newObject)
	if err != nil {
		return nil, err
	}
	return record.StoredObject(obj, r), nil
}

// drop removes with the batch what is staged in the file.
func (st *stage) drop(b *persist.Batch) { b.Drop(st.bucket) }

// discard removes all staged objects. It is not called after drop was committed.
func (st *stage) discard() error {
	if len(st.spilled) == 0 {
		clear(st.memory)
		return nil
	}
	_, err := st.db.Update(st.drop)
	clear(st.memory)
	clear(st.spilled)
	return err
}
