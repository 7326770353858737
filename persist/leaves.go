package persist

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"
)

// A leafCheck checks leaves before bbolt frees them. bbolt frees as many pages as the
// header of a leaf says: a few flipped bits there cost memory without bound, or give away
// pages that are in use. And bbolt finds the leaf's entry in the branch above by the leaf's
// first key: if the branch has another key, the old entry stays beside the new one, and
// leads to a free page. And it copies what it keeps of a leaf, as much as the lengths of the keys
// and values there say. And where keys are out of order, in a leaf or in one
// that it has merged of two, it puts a key where later searches do not find it.
//
// A file may have hundreds of thousands of leaves, so a commit checks only those that it is
// about to free. Each of them is checked once with its keys, which the committer does for the others
// while it is idle; what replaces it is written by this process. After that a commit checks the lengths
// in it and its first key only, because somebody else, or the disk, may have changed them.
//
// A commit frees the leaves of the keys that it sets or deletes; where it deletes, perhaps
// a neighbour, which bbolt merges with what is left; and all leaves of a dropped bucket.
//
// A leaf's pages end before the next page that anything else refers to. So it is enough
// to know which pages were referred to when the process began to write.
type leafCheck struct {
	handle *handle
	in     *inspector // Has the pages that were in use at first, and the leaves still unchecked, if there are any.
	pages  uint64     // How many pages the file had at first. in.pages is how many it has now.
	count  int        // How many leaves are unchecked.
	next   uint64     // The next page for checkLeavesIdle.
}

// newLeafCheck is for a file whose leaves nobody has checked. It reads the branches, not the leaves
// with values.
func newLeafCheck(f *os.File) (*leafCheck, error) {
	in := &inspector{f: f, notesOrder: true}
	if err := guard(in.file); err != nil {
		return nil, err
	}
	c := &leafCheck{in: in, pages: in.pages}
	for _, first := range in.unchecked {
		if first != 0 {
			c.count++
		}
	}
	return c, nil
}

// inspectLeaves is inspectFile, and checks all leaves.
func inspectLeaves(f *os.File) error {
	c, err := newLeafCheck(f)
	for id := uint64(0); err == nil && id < c.pages; id++ {
		err = c.checkLeaf(id, nil)
	}
	return err
}

// checkLeaves checks the leaves that bbolt will free when it writes a layer. It is
// called before the transaction changes anything.
func (db *DB) checkLeaves(b *handle, tx *bolt.Tx, l *layer) error {
	if db.boltFile == nil {
		return nil
	}
	c := db.leaves
	if db.leavesChecked {
		c = &leafCheck{in: &inspector{f: b.file, pageSize: uint64(tx.DB().Info().PageSize)}} // Nothing is unchecked.
	} else if c == nil || c.handle != b {
		var err error
		if c, err = newLeafCheck(b.file); err != nil {
			return err
		}
		c.handle, db.leaves = b, c
	}
	err := c.layer(tx, l)
	if err != nil { // A check of the whole file decides.
		err = inspectLeaves(b.file)
	} else if c.count > 0 {
		return nil
	}
	if err == nil {
		db.leaves, db.leavesChecked = nil, true
	}
	return err
}

const (
	idleLeaves = 64               // How many leaves are checked between two pauses at most,
	idleTime   = time.Millisecond // and for how long.
)

// checkLeavesIdle checks some more leaves while nothing is to be written, so that later
// commits have none to check. It returns after which pause to go on, or zero if it is done.
// The pauses are nine tenths of the time.
func (db *DB) checkLeavesIdle(committer int) (pause time.Duration) {
	if db.leavesChecked {
		db.leaves = nil
	}
	c := db.leaves
	if c == nil || c.next >= c.pages {
		return 0
	}
	defer db.work(committer)()
	begin := time.Now()
	for left := idleLeaves; left > 0 && c.next < c.pages && time.Since(begin) < idleTime; c.next++ {
		if !c.isUnchecked(c.next) {
			continue
		}
		left--
		if err := guard(func() error { return c.checkLeaf(c.next, nil) }); err != nil {
			c.next = c.pages
			if err = guard(func() error { return inspectLeaves(c.handle.file) }); err == nil { // As in checkLeaves.
				db.leaves, db.leavesChecked = nil, true
			} else {
				_ = db.readError(c.handle, err) // It has the file replaced.
			}
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
			return err == nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *leafCheck) isUnchecked(id uint64) bool {
	return id < c.pages && c.in.unchecked[id] != 0
}

// checkLeaf checks the header and the elements of a leaf, and its order with those beside it, unless
// that was done. first is the key that its branch names it by, or nil.
func (c *leafCheck) checkLeaf(id uint64, first []byte) error {
	if !c.isUnchecked(id) {
		return nil
	}
	h, err := c.in.leafHeader(id)
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
	ends, err := c.in.checkValues(id, h, want)
	if err == nil {
		err = c.checkBeside(id, ends)
	}
	if err != nil {
		return err
	}
	c.in.unchecked[id] = 0
	c.count--
	return nil
}

// A leafWalk finds the leaves of keys below the root of one bucket. The keys come in
// ascending order.
type leafWalk struct {
	check *leafCheck
	root  uint64
	path  []branch // From the root to the leaf of the last key.

	leaf   uint64 // The leaf of the last key, which is checked.
	first  []byte // The key that its branch names it by.
	beside bool   // Those beside it are checked, too.
	begin  [beginBytes]byte
}

// beginBytes is how much of a page is read at first: more than most leaves have in their header and
// elements, and not more than the smallest page.
const beginBytes = 512

// A branch is a branch page, and the index of the child that was chosen.
type branch struct {
	id       uint64
	header   pageHeader
	page     []byte
	elements []byte
	at       int
}

func (b *branch) children() int { return int(b.header.count) }

func (b *branch) child(i int) uint64 {
	return binary.NativeEndian.Uint64(b.elements[i*elementBytes+branchPageIDAt:])
}

// is reports whether the branch is a page that the branch above, unless this is a root, names by a key.
func (b *branch) is(id uint64, first []byte) bool {
	return b.id == id && (first == nil || bytes.Equal(b.key(0), first))
}

func (b *branch) key(i int) []byte { return b.header.key(b.page, i) }

// choose returns the child that bbolt will look for a key in.
func (b *branch) choose(key []byte) int {
	i := sort.Search(b.children(), func(i int) bool { return bytes.Compare(b.key(i), key) > 0 })
	return max(i-1, 0)
}

// open reads a page if it is a branch, which ok reports. A leaf it checks as checkKnownLeaf does, unless
// checkLeaf will. first is the key that the branch above names it by. room is memory that
// open may use for it.
func (w *leafWalk) open(id uint64, first []byte, depth int, room []byte) (b branch, ok bool, err error) {
	if depth > maxTreeDepth {
		return b, false, corruptFile("a bucket has more than %d levels of pages", maxTreeDepth)
	}
	in := w.check.in
	if w.check.isUnchecked(id) {
		return b, false, nil // It is a leaf, which checkLeaf will read.
	}
	if err := in.read(w.begin[:], id); err != nil {
		return b, false, err
	}
	h, err := in.parseHeader(w.begin[:], id)
	switch {
	case err != nil:
		return b, false, err
	case h.flags == leafPage:
		return b, false, in.checkKnownLeaf(id, h, w.begin[:], first)
	case h.flags != branchPage: // bbolt does not look at it where it merges two pages (node.rebalance).
		return b, false, wrongFlags(id, h.flags)
	}
	b = branch{id: id, header: h}
	if b.page, err = h.buffer(id, room); err != nil {
		return b, false, err
	}
	if err := in.read(b.page, id); err != nil {
		return b, false, err
	}
	if b.elements, err = in.elementsOf(h, b.page, 0); err != nil {
		return b, false, fmt.Errorf("page %d: %w", id, err)
	}
	if first != nil && !bytes.Equal(b.key(0), first) {
		return b, false, wrongFirstKey(id, b.key(0), first)
	}
	return b, true, nil
}

// isLeaf reports whether a page, which its branch names by a key, is the leaf of the last key.
func (w *leafWalk) isLeaf(id uint64, first []byte) bool {
	return w.leaf == id && bytes.Equal(w.first, first)
}

// room returns the memory of the page that the path last had at a depth.
func (w *leafWalk) room(depth int) []byte {
	if depth < cap(w.path) {
		return w.path[:depth+1][depth].page
	}
	return nil
}

// leafOf checks the leaf of a key, and if the key is to be deleted the leaves beside it.
func (w *leafWalk) leafOf(key []byte, deleted bool) error {
	var first []byte
	id, depth := w.root, 0
	for ; ; depth++ {
		if w.isLeaf(id, first) {
			break
		}
		if depth == len(w.path) || !w.path[depth].is(id, first) {
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
	if !w.isLeaf(id, first) {
		if err := w.check.checkLeaf(id, first); err != nil {
			return err
		}
		w.leaf, w.first, w.beside = id, append(w.first[:0], first...), false
	}
	if !deleted || w.beside {
		return nil
	}
	w.beside = true
	for _, step := range []int{-1, 1} {
		if err := w.checkNeighbour(step); err != nil {
			return err
		}
	}
	return nil
}

// checkNeighbour checks the leaf before (step -1) or behind (1) the one that the path leads to.
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

// all checks all leaves below a page.
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

// checkLeaves returns an error if a page where a leaf with values ought to be is none, or if
// something else refers to a page that the leaf goes on in. A write that the disk has lost may
// leave a branch there, which may lead a reader in a circle; and the freelist may name a page
// of a leaf, which bbolt then gives away. It looks at the pages in the map, which whoever
// counts the objects reads anyway.
func (in *inspector) checkLeaves(b *handle) error {
	if in.readOnly { // bbolt has no freelist then, and tells of no page.
		return guard(func() error {
			return in.checkEachLeaf(0, in.pages, func(id uint64) (pages uint64, err error) {
				var head [pageHeaderBytes]byte
				if err := in.read(head[:], id); err != nil || binary.NativeEndian.Uint16(head[pageFlagsAt:]) != leafPage {
					return 0, err
				}
				return 1, nil
			})
		})
	}
	return view(b, func(tx *bolt.Tx) error {
		// The first touch of each page costs most, and processors share that.
		workers := min(runtime.GOMAXPROCS(0), maxLeafWorkers)
		errs := make([]error, workers)
		var wg sync.WaitGroup
		for w := range uint64(workers) {
			wg.Go(func() {
				from, to := w*in.pages/uint64(workers), (w+1)*in.pages/uint64(workers)
				in.readAheadLeaves(b.file, from, to)
				errs[w] = guard(func() error {
					return in.checkEachLeaf(from, to, func(id uint64) (pages uint64, err error) {
						p, err := tx.Page(int(id))
						if err != nil || p == nil || p.Type != "leaf" {
							return 0, err
						}
						return 1 + uint64(p.OverflowCount), nil
					})
				})
			})
		}
		wg.Wait()
		return cmp.Or(errs...)
	})
}

const maxLeafWorkers = 8

// readAheadBytes is how much Linux reads ahead for one call, with its default settings
// (force_page_cache_ra in mm/readahead.c; read_ahead_kb is 128).
const readAheadBytes = 128 << 10

// checkEachLeaf calls pagesOf for each leaf, which returns how many pages it has, 0 if it is
// none. It may run for several parts at once.
func (in *inspector) checkEachLeaf(from, to uint64, pagesOf func(id uint64) (uint64, error)) error {
	for id := from; id < to; id++ {
		if in.unchecked[id] == 0 {
			continue
		}
		pages, err := pagesOf(id)
		switch {
		case err != nil:
			return err
		case pages == 0:
			return corruptFile("page %d is something else, expected a leaf", id)
		case pages > in.pages-id:
			return corruptFile("leaf %d is %d pages long, in a file of %d", id, pages, in.pages)
		}
		for more := id + 1; more < id+pages; more++ {
			bit := uint64(1) << (more % 64)
			if atomic.OrUint64(&in.used[more/64], bit)&bit != 0 {
				return corruptFile("leaf %d is %d pages long, which includes page %d, and that is in use", id, pages, more)
			}
		}
	}
	return nil
}

// readAheadLeaves reads ahead where there are leaves: much of a file may be free.
func (in *inspector) readAheadLeaves(f *os.File, from, to uint64) {
	window := max(readAheadBytes/in.pageSize, 1)
	for ; from < to; from += window {
		if slices.ContainsFunc(in.unchecked[from:min(from+window, to)], func(hash uint32) bool { return hash != 0 }) {
			readAhead(f, from*in.pageSize, window*in.pageSize)
		}
	}
}
