package indexer

import (
	"maps"
	"math"
	"runtime/metrics"
	"slices"
	"sync"
)

// DefaultMemoryBudget is how many bytes of decoded objects are kept in memory by
// default.
const DefaultMemoryBudget = 32 << 20

// Objects keeps recently used decoded objects, for any number of Indexers
// together. It is safe for concurrent use.
type Objects struct {
	mu     sync.Mutex
	budget int64 // Negative: unlimited.
	used   int64
	// lru is the sentinel of a ring; lru.next was used last.
	lru objectItem

	ballastUsers int // Calls of Ballast that have not ended.
	ballast      []byte
	ballasted    bool // The ballast was allocated once.
}

// ballastBytes is the most that the ballast takes of the budget.
const ballastBytes = 32 << 20

// owner is one Indexer, with its objects that are in memory.
type owner struct {
	items map[string]*objectItem
	// count is how many objects the Indexer has, in memory or not.
	count int
	// gone is the greatest number among the writes that deleted an object, and those whose object has left memory.
	gone uint64
	// released says that the Indexer is not written to any more. No object is known to be the newest version then.
	released bool
}

func (own *owner) isInMemory() bool { return len(own.items) == own.count }

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
	encoded    int // About the length of its record.
	bytes      int64
}

// NewObjects returns an empty cache for decoded objects of about budget bytes.
// 0 means [DefaultMemoryBudget], a negative budget no limit.
func NewObjects(budget int64) *Objects {
	if budget == 0 {
		budget = DefaultMemoryBudget
	}
	o := &Objects{budget: budget}
	o.lru.next, o.lru.prev = &o.lru, &o.lru
	return o
}

// Ballast makes the garbage collector run less often, until end is called. It is for
// an initial list, which decodes all objects and keeps none, and would spend a fifth of
// its time in collections of a small heap. Ballast allocates the unused part of half the budget,
// at most 32 MiB, and never touches it: that takes no memory, but lets garbage grow.
//
// Only the first call allocates, and calls at the same time share its ballast: a later
// call would get memory that was used before and has to be cleared. There is no ballast if
// all objects of the owner are in memory, or if the process has a memory limit
// (GOMEMLIMIT), which would count it.
func (o *Objects) Ballast(own *owner) (end func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ballastUsers++; !o.ballasted && !own.isInMemory() && !memoryIsLimited() {
		room := int64(ballastBytes)
		if o.budget >= 0 {
			room = max(0, min(room, o.budget/2-o.used))
		}
		o.ballast, o.ballasted = make([]byte, room), true
	}
	return sync.OnceFunc(func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.ballastUsers--; o.ballastUsers == 0 {
			o.ballast = nil
		}
	})
}

// memoryIsLimited asks runtime/metrics, because debug.SetMemoryLimit stops the world.
func memoryIsLimited() bool {
	limit := []metrics.Sample{{Name: "/gc/gomemlimit:bytes"}}
	metrics.Read(limit)
	return limit[0].Value.Kind() == metrics.KindUint64 && limit[0].Value.Uint64() != math.MaxInt64
}

// decodedBytes estimates the memory of an object from its encoded size:
// 50,000 Pods of 3.4 KB take 396 MB in client-go's informer.
func decodedBytes(encoded int) int64 { return int64(encoded)*5/2 + 256 }

func itemBytes(k objectKey, encoded int) int64 { return decodedBytes(encoded) + int64(len(k.key)) }

func newOwner(count int) *owner { return &owner{items: map[string]*objectItem{}, count: count} }

// newest is a number for get that is greater than every write's.
const newest = math.MaxUint64

// get returns the object of a key as it was after the write with the number seq, if it is in memory. A decoded object
// in memory is always the newest version of its key. If it was written by then, it was current then.
func (o *Objects) get(k objectKey, seq uint64) (it objectItem, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	found := k.item()
	if found == nil || found.seq > seq {
		return it, false
	}
	unlink(found)
	o.frontLocked(found)
	return *found, true
}

// all returns all objects of an owner, in no order, if all are in memory.
func (o *Objects) all(own *owner) (objects []any, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !own.isInMemory() || own.released {
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

// add keeps an object that was read from a snapshot with the writes up to asOf. It does not keep the object if the key
// may have been written since. With onlyIfRoom it evicts nothing: a reader of all objects must not evict what others
// use.
func (o *Objects) add(k objectKey, object any, seq uint64, encodedBytes int, asOf uint64, onlyIfRoom bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	it := k.item()
	if k.owner.gone > asOf || it != nil && (it.seq > seq || onlyIfRoom) || onlyIfRoom && !o.hasRoomLocked(k, encodedBytes, o.budget) {
		return
	}
	o.setLocked(k, object, seq, encodedBytes)
}

// apply keeps the new objects of changes, and forgets deleted ones. Then the owner has count objects. The writer calls
// it within the batch that makes the changes visible in the DB. All changes are visible at once, so [Objects.all]
// returns the objects of one moment. An object of the first list is kept only while less than half of the budget is
// used.
func (o *Objects) apply(own *owner, changes []Change, count int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	own.count = count
	for i := range changes {
		c := &changes[i]
		k := objectKey{own, c.Key}
		if c.New == nil || c.isFirst && !o.hasRoomLocked(k, c.SizeBytes(), o.budget/2) {
			o.removeLocked(k.item())
			own.gone = c.Seq
		} else {
			o.setLocked(k, c.New, c.Seq, c.SizeBytes())
		}
	}
}

func (o *Objects) hasRoomLocked(k objectKey, encodedBytes int, budget int64) bool {
	return o.budget < 0 || o.used+itemBytes(k, encodedBytes) <= budget
}

func (o *Objects) setLocked(k objectKey, object any, seq uint64, encodedBytes int) {
	if k.owner.released {
		return
	}
	o.removeLocked(k.item())
	it := &objectItem{key: k, object: object, seq: seq, encoded: encodedBytes, bytes: itemBytes(k, encodedBytes)}
	k.owner.items[k.key] = it
	o.used += it.bytes
	o.frontLocked(it)
	for o.budget >= 0 && o.used > o.budget {
		o.removeLocked(o.lru.prev)
	}
}

func (o *Objects) removeLocked(it *objectItem) {
	if it == nil {
		return
	}
	own := it.key.owner
	own.gone = max(own.gone, it.seq)
	delete(own.items, it.key.key)
	o.used -= it.bytes
	unlink(it)
}

func unlink(it *objectItem) { it.next.prev, it.prev.next = it.prev, it.next }

func (o *Objects) frontLocked(it *objectItem) {
	it.prev, it.next = &o.lru, o.lru.next
	it.next.prev, o.lru.next = it, it
}

// release forgets all objects of an Indexer that is not written to any more.
func (o *Objects) release(own *owner) {
	o.mu.Lock()
	defer o.mu.Unlock()
	own.released = true
	for _, it := range own.items {
		o.removeLocked(it)
	}
}
