package persist

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sort"
	"time"

	bolt "go.etcd.io/bbolt"
)

// A leafCheck looks at leaves before bbolt frees them. It frees as many pages as the
// header of a leaf says that it has: a few bits flipped there cost memory without bound,
// or give away pages that are in use. And it finds what to replace in the branch above by
// the first key of the leaf: where the branch has another one, both are there afterwards,
// and one of them leads to a page that is free. A file may have hundreds of thousands of leaves, so
// a commit does not wait until all were looked at, but for those that it is about to
// free, once for each: afterwards it is this process that has written what is in their
// place. The committer looks at the others when it is idle.
//
// What a commit frees are the leaves of the keys that it sets or deletes; where it
// deletes, perhaps a neighbour, which bbolt merges with what is left; and all leaves of
// a bucket that is dropped.
//
// A leaf's pages end before the next page that anything else refers to. So it is enough
// to know which pages were referred to when the process began to write.
type leafCheck struct {
	handle *handle
	in     *inspector // With the pages that were in use, and the leaves still to be looked at.
	pages  uint64     // Of the file, then. The inspector has those that it has now.
	count  int        // Of the leaves still to be looked at.
	next   uint64     // Those below were looked at by idle.
}

// newLeafCheck reads the branches of a file, not its leaves.
func newLeafCheck(b *handle) (*leafCheck, error) {
	c := &leafCheck{handle: b, in: &inspector{f: b.file, unchecked: []uint32{}}}
	if err := c.in.file(); err != nil {
		return nil, err
	}
	c.pages = c.in.pages
	for _, first := range c.in.unchecked {
		if first != 0 {
			c.count++
		}
	}
	return c, nil
}

// checkLeaves looks at the leaves that bbolt will free when it writes a layer. It is
// called before the transaction changes anything.
func (db *DB) checkLeaves(b *handle, tx *bolt.Tx, l *layer) error {
	if db.boltFile == nil || db.leavesChecked {
		return nil
	}
	if db.leaves == nil || db.leaves.handle != b {
		c, err := newLeafCheck(b)
		if err != nil {
			return err
		}
		db.leaves = c
	}
	err := db.leaves.layer(tx, l)
	if err != nil { // The whole file has the last word.
		err = inspectLeaves(b.file)
	} else if db.leaves.count > 0 {
		return nil
	}
	if err == nil {
		db.leaves, db.leavesChecked = nil, true
	}
	return err
}

const (
	idleLeaves = 64 // Are looked at between two pauses, or fewer in idleTime.
	idleTime   = time.Millisecond
)

// checkLeavesIdle looks at some more leaves while nothing is to be written, so that there
// are none to be found for later commits. It returns when to go on, or zero. Reading
// takes a tenth of the time.
func (db *DB) checkLeavesIdle() (pause time.Duration) {
	if db.leavesChecked {
		db.leaves = nil
	}
	c := db.leaves
	if c == nil || c.next >= c.pages {
		return 0
	}
	begin := time.Now()
	for left := idleLeaves; left > 0 && c.next < c.pages && time.Since(begin) < idleTime; c.next++ {
		if !c.isUnchecked(c.next) {
			continue
		}
		left--
		if err := guard(func() error { return c.checkLeaf(c.next, nil) }); err != nil {
			c.next = c.pages
			if err = guard(func() error { return inspectLeaves(c.handle.file) }); err == nil { // It has the last word.
				db.leaves, db.leavesChecked = nil, true
			}
			_ = db.readError(c.handle, err)
			return 0
		}
	}
	if c.count == 0 {
		db.leaves, db.leavesChecked = nil, true
		return 0
	}
	return max(9*time.Since(begin), idleTime)
}

func (c *leafCheck) layer(tx *bolt.Tx, l *layer) error {
	c.in.pages = uint64(tx.Size()) / c.in.pageSize
	for name, bl := range l.buckets {
		bucket := fileBucket(tx, name).b
		if bucket == nil || bucket.Root() == 0 { // None, or one without pages of its own.
			continue
		}
		w := &leafWalk{check: c, root: uint64(bucket.Root())}
		if bl.dropped {
			if err := w.all(w.root, nil, 0); err != nil {
				return err
			}
			continue
		}
		var err error
		var key []byte
		bl.entries.Scan(func(k string, e entry) bool {
			if e.unencodable || len(k) > MaxKeyBytes {
				return true
			}
			key = append(append(key[:0], keyPrefix), k...)
			err = w.leafOf(key, e.value == nil)
			return err == nil && c.count > 0
		})
		if err != nil || c.count == 0 {
			return err
		}
	}
	return nil
}

func (c *leafCheck) isUnchecked(id uint64) bool {
	return id < c.pages && c.in.unchecked[id] != 0
}

// checkLeaf looks at the head of a leaf, if that has to be. first is the key that its branch
// names it by, where that is at hand.
func (c *leafCheck) checkLeaf(id uint64, first []byte) error {
	if !c.isUnchecked(id) {
		return nil
	}
	h, err := c.in.header(id)
	if err == nil && h.flags != leafPage { // A branch may lead back to itself.
		err = corruptFile("page %d has flags %#x, expected a leaf", id, h.flags)
	}
	if err != nil {
		return err
	}
	end := id + h.bytes/c.in.pageSize
	if end > c.pages {
		return corruptFile("leaf %d is %d bytes long, in a file of %d pages", id, h.bytes, c.pages)
	}
	for more := id + 1; more < end; more++ {
		if c.in.used[more/64]&(1<<(more%64)) != 0 {
			return corruptFile("leaf %d is %d bytes long, which includes page %d, and that is in use", id, h.bytes, more)
		}
	}
	want := c.in.unchecked[id]
	if first != nil && keyHash(first) != want {
		return corruptFile("leaf %d is known by another key than before, %.100q", id, first)
	}
	if err := c.in.checkFirstKey(id, h, want); err != nil {
		return err
	}
	c.in.unchecked[id] = 0
	c.count--
	return nil
}

// A leafWalk finds the leaves of keys, which come in ascending order, below the root of
// one bucket.
type leafWalk struct {
	check *leafCheck
	root  uint64
	path  []branch // From the root to the leaf of the last key.
}

// A branch is a branch page, and which of its children was chosen.
type branch struct {
	id       uint64
	page     []byte
	elements []byte
	at       int
}

func (b *branch) children() int { return len(b.elements) / elementBytes }

func (b *branch) child(i int) uint64 {
	return binary.NativeEndian.Uint64(b.elements[i*elementBytes+branchPageIDAt:])
}

func (b *branch) key(i int) []byte { return elementKey(b.page, i*elementBytes) }

// choose returns the child that bbolt will look for a key in.
func (b *branch) choose(key []byte) int {
	i := sort.Search(b.children(), func(i int) bool { return bytes.Compare(b.key(i), key) > 0 })
	return max(i-1, 0)
}

// open reads a page, if it is a branch; ok says so. first is the key that the branch above
// names it by. room may be used for it.
func (w *leafWalk) open(id uint64, first []byte, depth int, room []byte) (b branch, ok bool, err error) {
	if depth > maxTreeDepth {
		return b, false, corruptFile("a bucket has more than %d levels of pages", maxTreeDepth)
	}
	in := w.check.in
	if w.check.isUnchecked(id) {
		return b, false, nil // Known to be a leaf, and not to be read twice.
	}
	h, err := in.header(id)
	if err != nil || h.flags != branchPage {
		return b, false, err // What is not a leaf either bbolt will refuse.
	}
	if h.bytes > maxInspectedBytes {
		return b, false, corruptFile("page %d is %d bytes long, expected at most %d", id, h.bytes, maxInspectedBytes)
	}
	if uint64(cap(room)) < h.bytes {
		room = make([]byte, h.bytes)
	}
	b = branch{id: id, page: room[:h.bytes]}
	if _, err := in.readAt(b.page, int64(id*in.pageSize)); err != nil {
		return b, false, err
	}
	if b.elements, err = in.elementsOf(h, b.page); err != nil {
		return b, false, fmt.Errorf("page %d: %w", id, err)
	}
	if first != nil && !bytes.Equal(b.key(0), first) {
		return b, false, wrongFirstKey(id, b.key(0), first)
	}
	return b, true, nil
}

// room is the memory of the page that the path has had at a depth.
func (w *leafWalk) room(depth int) []byte {
	if depth < cap(w.path) {
		return w.path[:depth+1][depth].page
	}
	return nil
}

// leafOf looks at the leaf of a key, and if that is to be deleted at the leaves beside it.
func (w *leafWalk) leafOf(key []byte, deleted bool) error {
	var first []byte
	id, depth := w.root, 0
	for ; ; depth++ {
		if depth == len(w.path) || w.path[depth].id != id {
			b, ok, err := w.open(id, first, depth, w.room(depth))
			if err != nil {
				return err
			}
			if !ok {
				break
			}
			w.path = append(w.path[:depth], b)
		}
		b := &w.path[depth]
		b.at = b.choose(key)
		id, first = b.child(b.at), b.key(b.at)
	}
	w.path = w.path[:depth]
	if err := w.check.checkLeaf(id, first); err != nil || !deleted {
		return err
	}
	for _, step := range []int{-1, 1} {
		if err := w.checkNeighbour(step); err != nil {
			return err
		}
	}
	return nil
}

// checkNeighbour looks at the leaf before, or behind, the one that the path leads to.
func (w *leafWalk) checkNeighbour(step int) error {
	for level := len(w.path) - 1; level >= 0; level-- {
		b := &w.path[level]
		at := b.at + step
		if at < 0 || at >= b.children() {
			continue
		}
		id, first := b.child(at), b.key(at)
		for depth := level + 1; ; depth++ {
			b, ok, err := w.open(id, first, depth, nil)
			if err != nil {
				return err
			}
			if !ok {
				return w.check.checkLeaf(id, first)
			}
			at := 0
			if step < 0 {
				at = b.children() - 1
			}
			id, first = b.child(at), b.key(at)
		}
	}
	return nil
}

// all looks at all leaves below a page.
func (w *leafWalk) all(id uint64, first []byte, depth int) error {
	b, ok, err := w.open(id, first, depth, nil)
	switch {
	case err != nil:
		return err
	case !ok:
		return w.check.checkLeaf(id, first)
	}
	for i := range b.children() {
		if err := w.all(b.child(i), b.key(i), depth+1); err != nil {
			return err
		}
	}
	return nil
}
