package queue

import (
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"sync/atomic"

	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/record"
	"github.com/warmwatch/warmwatch/persist"
)

const (
	// asideBucket has, for each object that is set aside for a durable name, the delta in
	// which its handler has panicked. That of a deletion has the object.
	asideBucket = "aside"
	// panicsBucket has, for each durable name, the key of the object in whose notification
	// its handler has panicked last, and how often in a row.
	panicsBucket = "panics"
)

// aside has the objects that are set aside: those in whose notifications a durable handler
// has panicked in several processes. The handler is told of their deletion, and of nothing
// else, until [Log.Redeliver]. Guarded by q.mu, but for some.
type aside struct {
	some    atomic.Bool // There is something in objects or panics.
	objects map[string]map[string]*asideObject
	panics  map[string]panics
	rewrite bool // The next commit writes all of it anew.
}

type asideObject struct {
	delta Delta // Without its objects, unless it is a deletion.
	// wanted says that the handler is to be told of the object now.
	wanted bool
}

// owed reports whether the handler has still to be told of a deletion, before anything else.
func (o *asideObject) owed() bool { return o.delta.Type == cache.Deleted }

// panics counts the panics in the notifications of one object.
type panics struct {
	Key   []byte `json:"key"` // Bytes, because keys need not be UTF-8.
	Count int    `json:"count"`
}

// SizeBytes implements [persist.Value].
func (p panics) SizeBytes() int { return 48 + len(p.Key) }

// AppendTo implements [persist.Value].
func (p panics) AppendTo(dst []byte) ([]byte, error) { return persist.AppendJSON(dst, p) }

// asideKey returns the key of an object that is set aside for a durable name.
func asideKey(name, key string) string {
	return string(appendBytes(nil, []byte(name))) + key
}

func parseAsideKey(key string) (name, object string, err error) {
	n, used := binary.Uvarint([]byte(key))
	if used <= 0 || n > uint64(len(key)-used) {
		return "", "", errMalformed
	}
	return key[used : used+int(n)], key[used+int(n):], nil
}

// NotePanic notes durably that the handler has panicked when it was told of an object, and
// returns how often in a row it has. All that it has acknowledged before is durable then, too.
func (c *Consumer) NotePanic(key string) (count int, err error) {
	q := c.q
	_, err = q.db.Update(func(b *persist.Batch) {
		q.mu.Lock()
		defer q.mu.Unlock()
		p := q.aside.panics[c.name]
		if string(p.Key) != key {
			p = panics{Key: []byte(key)}
		}
		p.Count++
		count = p.Count
		q.putPanicsLocked(b, c.name, p)
		b.Urgent()
	})
	if err != nil {
		return 0, err
	}
	return count, q.db.Flush()
}

func (q *Log) putPanicsLocked(b *persist.Batch, name string, p panics) {
	if q.aside.panics == nil {
		q.aside.panics = map[string]panics{}
	}
	q.aside.panics[name] = p
	q.aside.some.Store(true)
	b.Put(persist.Bucket{Space: q.deltas.Space, Name: panicsBucket}, name, p)
}

// Returned notes that the handler has returned from a notification of an object, so that
// panics that came before do not count any more.
func (c *Consumer) Returned(key string) {
	q := c.q
	if !q.aside.some.Load() || c.name == "" {
		return
	}
	q.mu.Lock()
	counted := string(q.aside.panics[c.name].Key) == key && q.aside.panics[c.name].Count > 0
	q.mu.Unlock()
	if !counted {
		return
	}
	_, _ = q.db.Update(func(b *persist.Batch) { // After ErrClosed they count a little longer.
		q.mu.Lock()
		defer q.mu.Unlock()
		q.forgetPanicsLocked(b, c.name)
	})
}

func (q *Log) forgetPanicsLocked(b *persist.Batch, name string) {
	if _, some := q.aside.panics[name]; some {
		delete(q.aside.panics, name)
		b.Delete(persist.Bucket{Space: q.deltas.Space, Name: panicsBucket}, name)
	}
}

// Withholds reports whether the handler must not be told of a delta, because the object of
// the delta is set aside. If the handler has panicked maxPanics times in a row when it was told
// of the object, the object is set aside now. It returns the error of the DB.
func (c *Consumer) Withholds(d *Delta, maxPanics int) (withheld, setAsideNow bool, err error) {
	q := c.q
	if !q.aside.some.Load() || c.name == "" {
		return false, false, nil
	}
	q.mu.Lock()
	o, p := q.aside.objects[c.name][d.Key], q.aside.panics[c.name]
	q.mu.Unlock()
	if o != nil && (o.owed() || d.Type != cache.Deleted && !o.wanted) {
		return true, false, nil
	}
	if maxPanics < 0 || p.Count < maxPanics || string(p.Key) != d.Key {
		return false, false, nil
	}
	_, err = q.db.Update(func(b *persist.Batch) {
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.aside.panics[c.name].Count < maxPanics { // See RedeliverToOther.
			return
		}
		setAsideNow = true
		kept := Delta{Seq: d.Seq, Type: cache.Updated, Key: d.Key}
		if d.Type == cache.Deleted {
			kept.Type, kept.New, kept.FinalStateUnknown, kept.SizeBytes = d.Type, d.New, d.FinalStateUnknown, d.SizeBytes
		}
		q.putAsideLocked(b, c.name, &asideObject{delta: kept})
		q.forgetPanicsLocked(b, c.name)
	})
	return setAsideNow, setAsideNow, err
}

func (q *Log) putAsideLocked(b *persist.Batch, name string, o *asideObject) {
	if q.aside.objects == nil {
		q.aside.objects = map[string]map[string]*asideObject{}
	}
	if q.aside.objects[name] == nil {
		q.aside.objects[name] = map[string]*asideObject{}
	}
	q.aside.objects[name][o.delta.Key] = o
	q.aside.some.Store(true)
	stored := o.delta
	b.Put(persist.Bucket{Space: q.deltas.Space, Name: asideBucket}, asideKey(name, o.delta.Key), deltaValue{&stored})
}

// EndAside ends that an object is set aside, if the handler was told of a delta that ends it:
// of its deletion, or of any other after Redeliver. It acknowledges the delta in the same
// batch, unless its Seq is 0, and reports whether it has done so.
func (c *Consumer) EndAside(d *Delta) bool {
	q := c.q
	if !q.aside.some.Load() || c.name == "" {
		return false
	}
	q.mu.Lock()
	o := q.aside.objects[c.name][d.Key]
	ends := o != nil && !o.owed() && (o.wanted || d.Type == cache.Deleted)
	q.mu.Unlock()
	if !ends {
		return false
	}
	_, err := q.db.Update(func(b *persist.Batch) {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.removeAsideLocked(b, c.name, d.Key)
		if d.Seq > c.cursor.Load() {
			c.cursor.Store(d.Seq)
		}
		if c.removed.Load() {
			c.passOnLocked()
		}
	})
	return err == nil
}

func (q *Log) removeAsideLocked(b *persist.Batch, name, key string) {
	if delete(q.aside.objects[name], key); len(q.aside.objects[name]) == 0 {
		delete(q.aside.objects, name)
	}
	b.Delete(persist.Bucket{Space: q.deltas.Space, Name: asideBucket}, asideKey(name, key))
}

// Unseen reports whether the handler is told of an object after Redeliver: it has not seen
// what the object was before.
func (c *Consumer) Unseen(key string) bool {
	if !c.q.aside.some.Load() {
		return false
	}
	c.q.mu.Lock()
	defer c.q.mu.Unlock()
	o := c.q.aside.objects[c.name][key]
	return o != nil && o.wanted
}

// Wanted returns the keys of the objects of which the handler is to be told now, sorted.
func (c *Consumer) Wanted() (keys []string) {
	if !c.q.aside.some.Load() {
		return nil
	}
	c.q.mu.Lock()
	defer c.q.mu.Unlock()
	for key, o := range c.q.aside.objects[c.name] {
		if o.wanted {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// Owed returns the deletion of an object that is set aside, if the handler has still to be told
// of it. PayOwed notes that it was.
func (c *Consumer) Owed(key string) (Delta, bool) {
	c.q.mu.Lock()
	defer c.q.mu.Unlock()
	o := c.q.aside.objects[c.name][key]
	if o == nil || !o.owed() {
		return Delta{}, false
	}
	return o.delta, true
}

// PayOwed notes that the handler was told of the deletion that Owed has returned.
func (c *Consumer) PayOwed(key string) error {
	q := c.q
	_, err := q.db.Update(func(b *persist.Batch) {
		q.mu.Lock()
		defer q.mu.Unlock()
		if o := q.aside.objects[c.name][key]; o != nil {
			q.putAsideLocked(b, c.name, &asideObject{delta: Delta{Seq: o.delta.Seq, Type: cache.Updated, Key: key}, wanted: o.wanted})
		}
	})
	return err
}

// SetAside returns the keys of the objects that are set aside for a durable name, sorted.
func (q *Log) SetAside(name string) []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Sorted(maps.Keys(q.aside.objects[name]))
}

// Redeliver has the consumer of a durable name told of objects that are set aside: of those with
// these keys, or of all if there are none. It is not durable.
func (q *Log) Redeliver(name string, keys ...string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for key, o := range q.aside.objects[name] {
		o.wanted = o.wanted || len(keys) == 0 || slices.Contains(keys, key)
	}
	if c := q.consumerLocked(name); c != nil {
		c.interrupted = true
	}
	q.cond.Broadcast()
}

// RedeliverToOther is Redeliver of all for a name whose handler is of another kind now, one that
// does not panic: the panics of the one before do not count any more.
func (q *Log) RedeliverToOther(name string) {
	if !q.aside.some.Load() {
		return
	}
	_, _ = q.db.Update(func(b *persist.Batch) { // After ErrClosed nobody is told anything.
		q.mu.Lock()
		defer q.mu.Unlock()
		q.forgetPanicsLocked(b, name)
	})
	q.Redeliver(name)
}

// forgetAsideLocked forgets what is set aside for a durable name.
func (q *Log) forgetAsideLocked(b *persist.Batch, name string) {
	for _, key := range slices.Collect(maps.Keys(q.aside.objects[name])) {
		q.removeAsideLocked(b, name, key)
	}
	q.forgetPanicsLocked(b, name)
}

// rewriteAsideLocked writes all anew, because the file may have lost some, or may have again
// what was removed.
func (q *Log) rewriteAsideLocked(b *persist.Batch) {
	if !q.aside.rewrite {
		return
	}
	q.aside.rewrite = false
	for _, name := range []string{asideBucket, panicsBucket} {
		b.Drop(persist.Bucket{Space: q.deltas.Space, Name: name})
	}
	for name, objects := range q.aside.objects {
		for _, o := range objects {
			q.putAsideLocked(b, name, o)
		}
	}
	for name, p := range q.aside.panics {
		q.putPanicsLocked(b, name, p)
	}
}

// loadAside reads what is set aside. What cannot be read is written anew.
func (q *Log) loadAside(s *persist.Snapshot) (err error) {
	q.aside.objects, q.aside.panics, err = q.readAside(s, func() { q.aside.rewrite = true })
	q.aside.some.Store(len(q.aside.objects) > 0 || len(q.aside.panics) > 0)
	return err
}

// readAside reads what is set aside. Of an entry that cannot be read the key is known: it counts
// as a deletion, so that none is lost, and found is called, also where its object is of a former Go type.
func (q *Log) readAside(s *persist.Snapshot, found func()) (objects map[string]map[string]*asideObject, counts map[string]panics, err error) {
	objects, counts = map[string]map[string]*asideObject{}, map[string]panics{}
	damaged := func(err error, bucket, key string) {
		found()
		if _, named := errors.AsType[*persist.CorruptError](err); !named {
			err = &persist.CorruptError{Bucket: persist.Bucket{Space: q.deltas.Space, Name: bucket}, Key: key, Err: err}
		}
		q.reportDamage(err, "Could not read what is set aside for a handler", "key", key)
	}
	err = s.Scan(asideBucket, "", func(it *persist.Item) (bool, error) {
		name, key, err := parseAsideKey(it.Key)
		if err != nil {
			damaged(err, asideBucket, it.Key)
			return true, nil
		}
		d, err := q.readDelta(0, it)
		if err != nil {
			if errors.Is(err, record.ErrTypeMismatch) { // No damage: all objects are listed when the type changes.
				found()
			} else {
				damaged(err, asideBucket, it.Key)
			}
			d = Delta{Type: cache.Deleted, FinalStateUnknown: true}
		}
		d.Key = key
		if objects[name] == nil {
			objects[name] = map[string]*asideObject{}
		}
		objects[name][key] = &asideObject{delta: d}
		return true, nil
	})
	if err != nil {
		return nil, nil, err
	}
	err = s.Scan(panicsBucket, "", func(it *persist.Item) (bool, error) {
		p, err := persist.ReadJSON[panics](it)
		if err != nil {
			damaged(err, panicsBucket, it.Key)
			return true, nil
		}
		counts[it.Key] = *p
		return true, nil
	})
	return objects, counts, err
}
