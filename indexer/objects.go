package indexer

import (
	"hash/maphash"
	"maps"
	"math"
	"runtime/metrics"
	"slices"
	"sync"
)

// DefaultMemoryBudget is the bytes of decoded objects kept in memory unless
// told otherwise.
const DefaultMemoryBudget = 64 << 20

// versionSlots is how many keys can change independently while others are
// read from disk. More only costs memory; a collision only costs a cache miss.
const versionSlots = 1024

// Objects keeps recently used decoded objects, for any number of Indexers
// together. It is safe for concurrent use.
type Objects struct {
	mu     sync.Mutex
	budget int64 // Negative: unlimited.
	used   int64
	// lru is the sentinel of a ring; lru.next was used last.
	lru objectItem
	// writes counts them, and written has the number of the last one to each
	// key's slot, so that an object read from disk is not kept if it was
	// overwritten meanwhile.
	writes  uint64
	written [versionSlots]uint64
	seed    maphash.Seed

	walks     int
	ballast   []byte // While there are walks.
	ballasted bool
}

// ballastBytes is the most that a walk takes of the budget.
const ballastBytes = 32 << 20

// owner has the objects of one Indexer.
type owner struct {
	items map[string]*objectItem
	// count is how many objects the Indexer has, in memory or not.
	count int
	// released: nobody writes any more, so nothing is known to be the last
	// version.
	released bool
}

type objectKey struct {
	owner *owner
	key   string
}

func (k objectKey) item() *objectItem { return k.owner.items[k.key] }

type objectItem struct {
	next, prev *objectItem
	key        objectKey
	object     any
	seq        uint64
	encoded    int // Bytes of its record, about.
	bytes      int64
}

// NewObjects returns an empty cache of budget bytes: about what the decoded
// objects take. 0 means [DefaultMemoryBudget], a negative budget no limit.
func NewObjects(budget int64) *Objects {
	if budget == 0 {
		budget = DefaultMemoryBudget
	}
	o := &Objects{budget: budget, writes: 1, seed: maphash.MakeSeed()}
	o.lru.next, o.lru.prev = &o.lru, &o.lru
	return o
}

// Ballast makes the garbage collector wait longer, until end is called: for a walk
// that decodes all objects and keeps none, and that else spends a fifth of its time
// in collections of a heap with little in it. It allocates half of what the budget
// has left, at most 32 MiB, and does not touch it: it takes no memory itself, but
// lets as much more garbage grow.
//
// Only the first walk has it, and those at the same time: later ones
// would get memory that was used before and has to be cleared. Where the process has
// a memory limit (GOMEMLIMIT), which would count it, there is none.
func (o *Objects) Ballast() (end func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.walks++; !o.ballasted && !memoryIsLimited() {
		room := int64(ballastBytes)
		if o.budget >= 0 {
			room = max(0, min(room, (o.budget-o.used)/2))
		}
		o.ballast, o.ballasted = make([]byte, room), true
	}
	return sync.OnceFunc(func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.walks--; o.walks == 0 {
			o.ballast = nil
		}
	})
}

// memoryIsLimited asks runtime/metrics: debug.SetMemoryLimit stops the world.
func memoryIsLimited() bool {
	limit := []metrics.Sample{{Name: "/gc/gomemlimit:bytes"}}
	metrics.Read(limit)
	return limit[0].Value.Kind() == metrics.KindUint64 && limit[0].Value.Uint64() != math.MaxInt64
}

// decodedBytes estimates what an object takes in memory from its encoded size:
// 50,000 Pods of 3.4 KB take 396 MB in client-go's informer.
func decodedBytes(encoded int) int64 { return int64(encoded)*5/2 + 256 }

func itemBytes(k objectKey, encoded int) int64 { return decodedBytes(encoded) + int64(len(k.key)) }

func newOwner(count int) *owner { return &owner{items: map[string]*objectItem{}, count: count} }

func (o *Objects) slot(k objectKey) int {
	return int(maphash.String(o.seed, k.key) % versionSlots)
}

// get returns the current object of a key, if it is in memory, and about how
// long its record is.
func (o *Objects) get(k objectKey) (object any, encodedBytes int, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	it := k.item()
	if it == nil {
		return nil, 0, false
	}
	o.touchLocked(it)
	return it.object, it.encoded, true
}

// getAsOf returns the object of a key as it was after the write with this
// number, if it is in memory: what is in memory is the last version of the key,
// so it was so then if it was written by then.
func (o *Objects) getAsOf(k objectKey, seq uint64) (object any, objectSeq uint64, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	it := k.item()
	if it == nil || it.seq > seq {
		return nil, 0, false
	}
	o.touchLocked(it)
	return it.object, it.seq, true
}

// all returns all objects of an owner, in no order, if all are in memory.
func (o *Objects) all(own *owner) (objects []any, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(own.items) != own.count || own.released {
		return nil, false
	}
	objects = make([]any, 0, own.count)
	for _, it := range own.items {
		objects = append(objects, it.object)
	}
	return objects, true
}

// keys returns the keys of the owner's objects that are in memory.
func (o *Objects) keys(own *owner) []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Collect(maps.Keys(own.items))
}

// beingWritten is the count of an owner while a batch is applied.
const beingWritten = -1

// setCount sets how many objects the owner has. It is called by the writer with
// beingWritten before set and remove, and with the number after them.
func (o *Objects) setCount(own *owner, count int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	own.count = count
}

// A mark is a moment between two writes.
type mark uint64

// noMark is before all writes: what is read then is not kept.
const noMark mark = 0

// mark is to be taken before objects are read from disk, and given to add or
// offer.
func (o *Objects) mark() mark {
	o.mu.Lock()
	defer o.mu.Unlock()
	return mark(o.writes)
}

func (o *Objects) unwrittenLocked(slot int, m mark) bool {
	return m != noMark && o.written[slot] <= uint64(m)
}

// add keeps an object that was read from disk, unless its key may have been
// written since m.
func (o *Objects) add(k objectKey, object any, seq uint64, encodedBytes int, m mark) {
	slot := o.slot(k)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.unwrittenLocked(slot, m) {
		o.setLocked(k, object, seq, encodedBytes)
	}
}

// offer keeps an object that was read from disk as add does, but only if there
// is room: a reader of everything does not drive out what others use.
func (o *Objects) offer(k objectKey, object any, seq uint64, encodedBytes int, m mark) {
	slot := o.slot(k)
	o.mu.Lock()
	defer o.mu.Unlock()
	room := o.budget < 0 || o.used+itemBytes(k, encodedBytes) <= o.budget
	if room && o.unwrittenLocked(slot, m) && k.item() == nil {
		o.setLocked(k, object, seq, encodedBytes)
	}
}

// set keeps the new object of a key. Called by the writer of the key, with the
// batch that makes the object visible in the DB.
func (o *Objects) set(k objectKey, object any, seq uint64, encodedBytes int) {
	slot := o.slot(k)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.writes++
	o.written[slot] = o.writes
	o.setLocked(k, object, seq, encodedBytes)
}

// remove forgets a key. Called by the writer, with the DB.
func (o *Objects) remove(k objectKey) {
	slot := o.slot(k)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.writes++
	o.written[slot] = o.writes
	o.removeLocked(k.item())
}

func (o *Objects) setLocked(k objectKey, object any, seq uint64, encodedBytes int) {
	if k.owner.released {
		return
	}
	it := k.item()
	if it == nil {
		it = &objectItem{key: k}
		k.owner.items[k.key] = it
	} else {
		o.used -= it.bytes
		it.next.prev, it.prev.next = it.prev, it.next
	}
	it.object, it.seq, it.encoded = object, seq, encodedBytes
	it.bytes = itemBytes(k, encodedBytes)
	o.used += it.bytes
	o.frontLocked(it)
	for o.budget >= 0 && o.used > o.budget && o.lru.prev != &o.lru {
		o.removeLocked(o.lru.prev)
	}
}

func (o *Objects) removeLocked(it *objectItem) {
	if it == nil {
		return
	}
	o.used -= it.bytes
	it.next.prev, it.prev.next = it.prev, it.next
	delete(it.key.owner.items, it.key.key)
}

func (o *Objects) touchLocked(it *objectItem) {
	if o.lru.next == it {
		return
	}
	it.next.prev, it.prev.next = it.prev, it.next
	o.frontLocked(it)
}

func (o *Objects) frontLocked(it *objectItem) {
	it.prev, it.next = &o.lru, o.lru.next
	it.next.prev, o.lru.next = it, it
}

// removeOwner forgets all objects of an Indexer.
func (o *Objects) removeOwner(own *owner) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.writes++
	for i := range o.written {
		o.written[i] = o.writes
	}
	for _, it := range own.items {
		o.removeLocked(it)
	}
}

// release is removeOwner for an Indexer that is not written to any more.
func (o *Objects) release(own *owner) {
	o.mu.Lock()
	own.released = true
	o.mu.Unlock()
	o.removeOwner(own)
}
