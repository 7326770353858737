package indexer

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/warmwatch/warmwatch/internal/record"
	"github.com/warmwatch/warmwatch/persist"
)

// get returns the current object of a key, and about how long its record is. The object may share memory with base,
// which may be nil. fromDB, if not nil, is called with an object that was not in memory. Its r is valid during the
// call.
func (ix *Indexer) get(key string, base *record.Object, fromDB func(obj any, r record.Record)) (obj any, size int, exists bool, err error) {
	k := objectKey{ix.owner, key}
	if it, ok := ix.objects.get(k, newest); ok {
		return it.object, it.encoded, true, nil
	}
	asOf, seq := ix.Seq(), uint64(0)
	exists, err = ix.db.View(ix.objectsName, key, func(it *persist.Item) error {
		r, err := parse(it)
		if err != nil {
			return err
		}
		seq, size = r.Seq, r.SizeBytes()
		if obj, err = ix.decodeRecord(r, base); err == nil && fromDB != nil {
			fromDB(obj, r)
		}
		return err
	})
	if err != nil || !exists {
		return nil, 0, exists, err
	}
	if base == nil {
		ix.objects.add(k, obj, seq, size, asOf, false)
	}
	return obj, size, true, nil
}

func (ix *Indexer) decodeRecord(r record.Record, base *record.Object) (any, error) {
	obj, err := r.DecodeNear(ix.opts.NewObject, base)
	if err == nil && ix.opts.OnDecode != nil {
		ix.opts.OnDecode(obj)
	}
	return obj, err
}

// Get implements [cache.Store].
func (ix *Indexer) Get(obj any) (item any, exists bool, err error) {
	key, err := ix.Key(obj)
	if err != nil {
		return nil, false, err
	}
	return ix.GetByKey(key)
}

// GetByKey implements [cache.Store]. Unlike client-go's it fails for an object
// that cannot be read. A relist will bring that object back.
func (ix *Indexer) GetByKey(key string) (item any, exists bool, err error) {
	err = ix.patiently(readPatience, func() (err error) {
		if item, _, exists, err = ix.get(key, nil, nil); err != nil {
			ix.failed(err, key)
			item, exists = nil, false
		}
		return err
	})
	return item, exists, err
}

const (
	// readPatience is how long a read that can return an error waits for a repair or for index entries.
	readPatience = 10 * time.Second
	wholePoll    = 20 * time.Millisecond
)

// patiently calls read, unless the objects are hidden. It calls read again once the damage that read has met is
// repaired, and once the indices have all entries (A7). It returns the last error if nothing is being repaired, or
// after limit if that is not 0.
func (ix *Indexer) patiently(limit time.Duration, read func() error) error {
	if ix.Hidden() {
		return nil
	}
	for begin := time.Now(); ; {
		err := read()
		waited := time.Since(begin)
		switch {
		case errors.Is(err, errNotWhole) && waited < readPatience:
			time.Sleep(wholePoll)
		case !isDamage(err) || limit > 0 && waited >= limit || ix.opts.AwaitRepair == nil || !ix.opts.AwaitRepair(limit-waited):
			return err
		}
	}
}

// A lazyObject is a decoded object, or the record to decode it from.
type lazyObject struct {
	key    string
	seq    uint64
	object any
	record record.Record
	err    error
}

// fetch takes an object out of a snapshot that has the writes up to asOf. If the object is not in memory, fetch copies
// its record, to be decoded after the transaction.
func (ix *Indexer) fetch(it *persist.Item, asOf uint64) lazyObject {
	if kept, ok := ix.objects.get(objectKey{ix.owner, it.Key}, asOf); ok {
		return lazyObject{key: it.Key, seq: kept.seq, object: kept.object}
	}
	l := lazyObject{key: it.Key}
	payload, err := it.Payload()
	if err == nil {
		l.record, err = record.Parse(bytes.Clone(payload))
	}
	l.seq, l.err = l.record.Seq, err
	return l
}

// minParallel is how many objects are worth a goroutine.
const minParallel = 32

// decode decodes the objects, in parallel. It reports and leaves out objects that cannot be read, and returns one of
// the errors. Unless asOf is 0, ls was read with the writes up to asOf, and objects stay in memory if there is room.
func (ix *Indexer) decode(ls []lazyObject, asOf uint64) (objects []any, good []lazyObject, err error) {
	var wg sync.WaitGroup
	workers := max(1, min(runtime.GOMAXPROCS(0), 8, len(ls)/minParallel))
	for w := range workers - 1 {
		wg.Go(func() { ix.decodeInOrder(ls[w*len(ls)/workers:(w+1)*len(ls)/workers], asOf) })
	}
	ix.decodeInOrder(ls[(workers-1)*len(ls)/workers:], asOf)
	wg.Wait()
	objects, good = make([]any, 0, len(ls)), ls[:0]
	for _, l := range ls {
		if l.err != nil {
			err = l.err
			ix.failed(err, l.key)
			continue
		}
		objects, good = append(objects, l.object), append(good, l)
	}
	return objects, good, err
}

// decodeInOrder decodes the objects, one after the other. If asOf is 0, each is decoded beside its predecessor:
// neighbours, such as the Pods of one Deployment, have much in common. Objects that stay in memory share nothing.
func (ix *Indexer) decodeInOrder(ls []lazyObject, asOf uint64) {
	var before *record.Object
	for i := range ls {
		l := &ls[i]
		if l.object != nil || l.err != nil {
			continue
		}
		l.object, l.err = ix.decodeRecord(l.record, before)
		switch {
		case l.err != nil:
		case asOf == 0:
			before = record.BaseObject(l.object, l.record)
		default:
			ix.objects.add(objectKey{ix.owner, l.key}, l.object, l.seq, l.record.SizeBytes(), asOf, true)
		}
		l.record = record.Record{}
	}
}

// List implements [cache.Store].
func (ix *Indexer) List() (list []any) {
	list = []any{}
	_ = ix.patiently(0, func() (err error) { // Errors are reported already.
		if all, ok := ix.objects.all(ix.owner); ok {
			list = all
			return nil
		}
		asOf := ix.Seq() // The snapshot has all writes up to asOf, and perhaps more.
		err = ix.db.Read(ix.space, func(s *persist.Snapshot) (err error) {
			list, err = ix.list(s, asOf)
			return err
		})
		if err != nil {
			ix.failed(err, "list")
		}
		return err
	})
	return list
}

// list reads all objects. The error says that one is missing.
func (ix *Indexer) list(s *persist.Snapshot, asOf uint64) (list []any, leftOut error) {
	list = []any{}
	found := tally{}
	for from, done := "", false; !done; {
		var ls []lazyObject
		var err error
		ls, from, done, err = ix.scanChunk(s, from, asOf)
		if err != nil {
			return list, err
		}
		for i := range ls {
			found.add(ls[i].key)
		}
		objects, _, err := ix.decode(ls, asOf)
		list, leftOut = append(list, objects...), cmp.Or(leftOut, err)
	}
	return list, cmp.Or(leftOut, ix.checkCount(s, asOf, found))
}

// checkCount compares the objects that were found in a snapshot with the number and the
// digest that every batch stores, because a scan skips a damaged page.
func (ix *Indexer) checkCount(s *persist.Snapshot, atLeast uint64, found tally) error {
	st, err := stateAt(s)
	switch {
	case err != nil:
		return err
	case st.Seq < atLeast:
		return &persist.CorruptError{Bucket: ix.storeName, Key: stateKey, Err: fmt.Errorf("write %d, expected %d", st.Seq, atLeast)}
	case st.Count != found.Count:
		return &persist.CorruptError{Bucket: ix.objectsName, Err: fmt.Errorf("%d objects, expected %d", found.Count, st.Count)}
	case st.Digest != found.Digest:
		return &persist.CorruptError{Bucket: ix.objectsName, Err: fmt.Errorf("%d objects, not all of them with the keys that they had", found.Count)}
	}
	return nil
}

// Complete counts the objects, without decoding them. It returns false, and
// reports damage to Options.OnCorrupt, if their number or their keys are not those
// that the last batch has stored.
func (ix *Indexer) Complete() bool {
	atLeast := ix.Seq()
	err := ix.db.Read(ix.space, func(s *persist.Snapshot) error {
		found := tally{}
		err := s.Scan(ObjectsBucket, "", func(it *persist.Item) (bool, error) {
			found.add(it.Key)
			return true, nil
		})
		if err != nil {
			return err
		}
		return ix.checkCount(s, atLeast, found)
	})
	if err != nil {
		ix.failed(err, "count")
	}
	return err == nil
}

// KeysInMemory returns the keys of the decoded objects in memory. Keys also returns them, unless the file has lost
// some.
func (ix *Indexer) KeysInMemory() []string { return ix.objects.keys(ix.owner) }

func stateAt(s *persist.Snapshot) (st state, err error) {
	_, err = s.View(storeBucket, stateKey, func(it *persist.Item) (err error) {
		st, err = persist.ReadJSON[state](it)
		return err
	})
	return st, err
}

// Index implements [cache.Indexer].
func (ix *Indexer) Index(indexName string, obj any) ([]any, error) {
	f := (*ix.indexers.Load())[indexName]
	if f == nil {
		return nil, errNoIndex(indexName)
	}
	values, err := f(obj)
	if err != nil {
		return nil, err
	}
	return ix.byIndex(indexName, values...)
}

func errNoIndex(name string) error { return fmt.Errorf("Index with name %s does not exist", name) } // client-go's words.

// ByIndex implements [cache.Indexer].
func (ix *Indexer) ByIndex(indexName, indexedValue string) ([]any, error) {
	if (*ix.indexers.Load())[indexName] == nil {
		return nil, errNoIndex(indexName)
	}
	return ix.byIndex(indexName, indexedValue)
}

func (ix *Indexer) byIndex(name string, values ...string) (objects []any, err error) {
	objects = []any{}
	err = ix.patiently(readPatience, func() (err error) {
		objects, err = ix.readByIndex(name, values...)
		return err
	})
	if err != nil {
		return nil, err
	}
	return objects, nil
}

func (ix *Indexer) readByIndex(name string, values ...string) ([]any, error) {
	asOf := ix.Seq()
	var ls []lazyObject
	err := ix.readIndex(name, func(s *persist.Snapshot) error {
		keys, err := ix.indexKeys(s, name, values...)
		if err != nil {
			return err
		}
		ls = make([]lazyObject, 0, len(keys))
		for _, key := range keys {
			if kept, ok := ix.objects.get(objectKey{ix.owner, key}, asOf); ok {
				ls = append(ls, lazyObject{key: key, seq: kept.seq, object: kept.object})
				continue
			}
			found, err := s.View(ObjectsBucket, key, func(it *persist.Item) error {
				ls = append(ls, ix.fetch(it, asOf))
				return nil
			})
			if err == nil && !found {
				err = &persist.CorruptError{Bucket: ix.indexName, Key: key, Err: fmt.Errorf("index %q has an object that does not exist", name)}
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	objects, _, err := ix.decode(ls, asOf)
	return objects, err
}

// errNotWhole is returned instead of an incomplete result.
var errNotWhole = errors.New("the indices lack entries, and are being made anew")

// readIndex reads by an index, unless entries are missing.
func (ix *Indexer) readIndex(name string, fn func(*persist.Snapshot) error) error {
	before := ix.drops.Load()
	err := ix.db.Read(ix.space, func(s *persist.Snapshot) error {
		if before%2 == 1 || ix.drops.Load() != before {
			return errNotWhole
		}
		return fn(s)
	})
	if err != nil && !errors.Is(err, errNotWhole) {
		ix.failed(err, name)
	}
	return err
}

// indexKeys returns the sorted keys of the objects that have any of the values.
func (ix *Indexer) indexKeys(s *persist.Snapshot, name string, values ...string) ([]string, error) {
	namePrefix := indexPrefix(name)
	keys := []string{}
	for _, v := range values {
		prefix := valuePrefix(name, v)
		err := scanPrefix(s, prefix, prefix, func(it *persist.Item) (bool, error) {
			_, _, key, err := parseEntry(it, namePrefix)
			keys = append(keys, key)
			return true, err
		})
		if err != nil {
			return nil, err
		}
	}
	if len(values) > 1 { // An object may have several of the values.
		slices.Sort(keys)
		keys = slices.Compact(keys)
	}
	return keys, nil
}

// IndexKeys implements [cache.Indexer].
func (ix *Indexer) IndexKeys(indexName, indexedValue string) ([]string, error) {
	if (*ix.indexers.Load())[indexName] == nil {
		return nil, errNoIndex(indexName)
	}
	keys := []string{}
	err := ix.patiently(readPatience, func() error {
		return ix.readIndex(indexName, func(s *persist.Snapshot) (err error) {
			keys, err = ix.indexKeys(s, indexName, indexedValue)
			return err
		})
	})
	return keys, err
}

// ListIndexFuncValues implements [cache.Indexer]. It costs one seek for each
// value, however many objects have the value.
func (ix *Indexer) ListIndexFuncValues(indexName string) []string {
	values := []string{}
	if (*ix.indexers.Load())[indexName] == nil { // The file may have entries of an earlier program.
		return values
	}
	namePrefix := indexPrefix(indexName)
	read := func(s *persist.Snapshot) error {
		values = []string{}
		for from := namePrefix; ; {
			next := ""
			err := scanPrefix(s, namePrefix, from, func(it *persist.Item) (bool, error) {
				value, prefix, _, err := parseEntry(it, namePrefix)
				values, next = append(values, value), after(prefix)
				return false, err
			})
			if err != nil || next == "" {
				return err
			}
			from = next
		}
	}
	_ = ix.patiently(0, func() error { return ix.readIndex(indexName, read) })
	return values
}
