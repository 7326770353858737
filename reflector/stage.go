package reflector

import (
	"fmt"
	"maps"
	"slices"

	"github.com/warmwatch/warmwatch/internal/record"
	"github.com/warmwatch/warmwatch/persist"
)

// StagedBucket has the staged objects of a relist that it does not keep in memory. The next relist drops what a crash
// has left there: before it puts something there, and when it is done.
const StagedBucket = "staged"

// stage holds the objects of a list that differ from the store, until the list is
// complete: up to relistItems or maxBytes of them in memory, the others in the file. One
// goroutine uses it.
type stage struct {
	db        *persist.DB
	bucket    persist.Bucket
	newObject func() any
	maxBytes  int

	memory  map[string]*record.Object
	bytes   int
	spilled map[string]struct{} // Keys in the bucket.
}

func newStage(k *Sink) *stage {
	return &stage{
		db: k.db, bucket: persist.Bucket{Space: k.space, Name: StagedBucket}, newObject: k.newObject, maxBytes: k.batchBytes,
		memory: map[string]*record.Object{}, spilled: map[string]struct{}{},
	}
}

// put stages an object. The last one of a key counts.
func (st *stage) put(key string, value *record.Object) error {
	st.memory[key] = value
	if st.bytes += value.SizeBytes(); len(st.memory) < relistItems && st.bytes < st.maxBytes {
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

// has reports whether an object of a key is staged.
func (st *stage) has(key string) bool {
	_, inFile := st.spilled[key]
	return inFile || st.memory[key] != nil
}

// An item is an object of a list, and its key.
type item struct {
	key   string
	value *record.Object
}

// each calls fn with all staged objects, some at a time: those in the file and then those
// in memory, each in the order of keys. fn may put the values into the DB.
func (st *stage) each(fn func([]item) error) error {
	read := 0
	for from := ""; read < len(st.spilled); {
		items, err := st.read(from)
		if err != nil {
			return err
		}
		if len(items) == 0 { // A scan skips a damaged page.
			return &persist.CorruptError{Bucket: st.bucket, Err: fmt.Errorf("%d objects are staged, expected %d", read, len(st.spilled))}
		}
		read += len(items)
		from = items[len(items)-1].key + "\x00"
		if err := fn(items); err != nil {
			return err
		}
	}
	items := make([]item, 0, len(st.memory))
	for _, key := range slices.Sorted(maps.Keys(st.memory)) {
		items = append(items, item{key, st.memory[key]})
	}
	return fn(items)
}

// read decodes the next objects of the bucket. They get new records: the records that were put belong to the DB.
func (st *stage) read(from string) (items []item, err error) {
	s, err := st.db.Snapshot(st.bucket.Space)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	bytes := 0
	err = s.Scan(st.bucket.Name, from, func(it *persist.Item) (bool, error) {
		payload, err := it.Payload()
		if err != nil {
			return false, err
		}
		r, err := record.Parse(payload)
		if err != nil {
			return false, err
		}
		obj, err := r.Decode(st.newObject)
		if err != nil {
			return false, err
		}
		items = append(items, item{it.Key, record.StoredObject(obj, r)})
		bytes += items[len(items)-1].value.SizeBytes()
		return len(items) < relistItems && bytes < st.maxBytes, nil
	})
	return items, err
}

// drop removes, with the batch, everything that is staged in the file.
func (st *stage) drop(b *persist.Batch) { b.Drop(st.bucket) }
