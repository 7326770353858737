package persist

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"

	bolt "go.etcd.io/bbolt"
)

// inspectFile checks a file before bbolt reads it, because bbolt trusts what it
// reads: a page that refers to itself makes it recurse until the process ends, and
// a freelist with a length of petabytes ends the process, too. It refuses a file
//
//   - without a valid meta page, or shorter than that says (a fault on access),
//   - without a synced freelist (never written by us, see boltOptions), or with
//     an impossible one,
//   - with a page that is used twice,
//   - with keys out of order,
//   - with a branch that names a page by another key than its first one: bbolt would
//     add a changed version of that page to the branch beside the old one,
//   - with a page whose last key is beyond the next page's first one: bbolt may make one
//     page of both.
//
// A file that is only to be read may have its keys in any order, and any
// freelist.
//
// It reads the branches and the leaves that hold buckets, not the leaves with
// values, because every value has a checksum. The lengths in the headers of those
// leaves, and their keys, matter only when bbolt writes, see leafCheck.
//
// The inspector that it returns knows the leaves that are still unchecked.
func inspectFile(f pagedFile, readOnly bool) (*inspector, error) {
	in := &inspector{f: f, readOnly: readOnly}
	return in, guard(in.file)
}

// begin reads the newer meta page, and how many pages the file has by it.
func (in *inspector) begin() (meta []byte, err error) {
	info, err := in.f.Stat()
	if err != nil {
		return nil, err
	}
	if meta, err = in.meta(info.Size()); err != nil {
		return nil, err
	}
	in.pages = binary.NativeEndian.Uint64(meta[metaHighAt:])
	if in.pages > uint64(info.Size())/in.pageSize { // bbolt would fault, or write new pages behind these.
		return nil, corruptFile("it has %d bytes, and %d pages of %d by its meta page", info.Size(), in.pages, in.pageSize)
	}
	return meta, nil
}

func (in *inspector) file() error {
	meta, err := in.begin()
	if err == nil {
		err = in.badMeta // bbolt would fault when it reads its mapping there.
	}
	if err != nil {
		return err
	}
	if tx := binary.NativeEndian.Uint64(meta[metaTxIDAt:]); tx > maxTxID {
		return corruptFile("the meta page is of transaction %d, expected at most %d", tx, uint64(maxTxID))
	}
	in.used = make([]uint64, in.pages/64+1)
	in.used[0] = 1<<0 | 1<<1 // The meta pages.
	in.unchecked = make([]uint32, in.pages)
	if in.notesOrder && in.pages <= maxNoted {
		in.beside = make([]beside, in.pages)
	}
	freelist := binary.NativeEndian.Uint64(meta[metaFreelistAt:])
	if freelist == noFreelist {
		return fmt.Errorf("%w: the file has no freelist", ErrUnknownFormat)
	}
	if !in.readOnly {
		if err := in.freelist(freelist); err != nil {
			return err
		}
	}
	if err := in.tree(binary.NativeEndian.Uint64(meta[metaRootAt:]), 0, 0, nil, nil); err != nil {
		return err
	}
	return in.checkSpaces()
}

// checkSpaces refuses a value where a space of ours has its buckets: the page is another one.
func (in *inspector) checkSpaces() error {
	if in.ours && in.valueInSpace {
		return corruptFile("there is a value among the buckets of a space")
	}
	return nil
}

// checkFreelist checks the freelist's page before a commit, in which bbolt frees as
// many pages as the header of that page says.
func checkFreelist(f *os.File) error {
	in := &inspector{f: f}
	meta, err := in.begin()
	if err != nil {
		return err
	}
	id := binary.NativeEndian.Uint64(meta[metaFreelistAt:])
	if id >= in.pages {
		return corruptFile("the meta page has the freelist at page %d of %d", id, in.pages)
	}
	h, err := in.header(id)
	if err != nil {
		return err
	}
	return in.checkFreelistHeader(id, h)
}

// checkFreelistHeader refuses a freelist with more pages than bbolt gives it
// (tx.commitFreelist in bbolt's tx.go): room for its entries, for the free pages that it
// has taken for itself, and the rest of a page.
func (in *inspector) checkFreelistHeader(id uint64, h pageHeader) error {
	if h.flags != freelistPage {
		return corruptFile("page %d has flags %#x, expected a freelist", id, h.flags)
	}
	count := uint64(h.count)
	if h.count == manyInFirst {
		var first [8]byte
		if _, err := in.readAt(first[:], int64(id*in.pageSize)+pageHeaderBytes); err != nil {
			return err
		}
		if count = binary.NativeEndian.Uint64(first[:]); count > in.pages {
			return corruptFile("the freelist has %d entries, in a file of %d pages", count, in.pages)
		}
	}
	pages := h.bytes / in.pageSize
	if most := (pageHeaderBytes+8*(count+pages+1))/in.pageSize + 1; pages > most {
		return corruptFile("the freelist has %d entries, and is %d pages long, expected at most %d", count, pages, most)
	}
	return nil
}

// checkBuckets checks the pages that hold the buckets of the spaces in l before bbolt reads
// them for a commit: small buckets lie within those pages, and bbolt makes pointers of what
// their elements say, which can end the process. It reads about two small pages for each
// commit.
func checkBuckets(f *os.File, tx *bolt.Tx, l *layer) error {
	pageSize := uint64(tx.DB().Info().PageSize)
	pages := uint64(tx.Size()) / pageSize
	in := &inspector{f: f, pageSize: pageSize, pages: pages, used: make([]uint64, pages/64+1), shallow: true}
	if err := in.tree(uint64(tx.Cursor().Bucket().Root()), 0, 0, nil, nil); err != nil {
		return err
	}
	spaces := map[string]bool{}
	for name := range l.buckets {
		if spaces[name.Space] {
			continue
		}
		spaces[name.Space] = true
		if space := tx.Bucket([]byte(name.Space)); space != nil && space.Root() != 0 {
			if err := in.tree(uint64(space.Root()), 0, 1, nil, nil); err != nil {
				return err
			}
		}
	}
	return in.checkSpaces()
}

func corruptFile(format string, args ...any) error {
	return &CorruptError{Err: fmt.Errorf(format, args...)}
}

type inspector struct {
	f          pagedFile
	pageSize   uint64
	pages      uint64
	used       []uint64 // A bit for each page.
	readOnly   bool
	shallow    bool     // Buckets that have pages of their own are not followed.
	unchecked  []uint32 // The keyHash that each leaf with values, by its id, has to have.
	notesOrder bool     // The neighbours of leaves are noted, for leafCheck.
	beside     []beside // The neighbours of each leaf with values, by its id.
	lastLeaf   uint64   // The leaf that was noted last, in the same bucket, or 0.
	elements   []byte   // Memory for checkValues.
	window     []byte   // Memory for the leafReader.
	badMeta    error    // Set if a meta page cannot be read.
	waited     bool     // readAt has paused.

	ours         bool // The root has the format's bucket.
	valueInSpace bool // A bucket of the root has a value, as none of ours has.
}

// use notes that something refers to a page. A second reference is an error.
func (in *inspector) use(id uint64) error {
	if id >= in.pages {
		return corruptFile("something refers to page %d of %d", id, in.pages)
	}
	if in.used[id/64]&(1<<(id%64)) != 0 {
		return corruptFile("two references lead to page %d", id)
	}
	in.used[id/64] |= 1 << (id % 64)
	return nil
}

// noteUnchecked notes a leaf with values, the next of its bucket, and the first key that it has to have.
// It ignores a page that is not in the file: use returns that error.
func (in *inspector) noteUnchecked(id uint64, first []byte) {
	if id < in.pages {
		in.unchecked[id] = keyHash(first)
		in.noteOrder(id)
	}
}

// keyHash is a hash of the key that a branch names a page by; for a root, of none. It is
// never zero.
func keyHash(first []byte) uint32 {
	return crc32.Checksum(first, castagnoli) | 1
}

func (in *inspector) freelist(id uint64) error {
	if err := in.use(id); err != nil {
		return err
	}
	h, b, err := in.page(id)
	if err == nil {
		err = in.checkFreelistHeader(id, h)
	}
	if err != nil {
		return err
	}
	b = b[pageHeaderBytes:]
	count := uint64(h.count)
	if count == manyInFirst {
		count, b = binary.NativeEndian.Uint64(b), b[8:]
	}
	if count > uint64(len(b))/8 {
		return corruptFile("the freelist has %d entries in %d bytes", count, len(b))
	}
	for i := range count {
		if err := in.use(binary.NativeEndian.Uint64(b[8*i:])); err != nil {
			return fmt.Errorf("freelist: %w", err)
		}
	}
	return nil
}

// tree walks the pages of a bucket, from the page id on. first is the key that the branch
// above names that page by, nil for the root, and next the one by which a branch names what comes
// behind it, nil at the end. At nesting 0 and 1 (the root bucket and the
// spaces) it reads leaves as well, for the buckets in them.
func (in *inspector) tree(id uint64, depth, nesting int, first, next []byte) error {
	if depth > maxTreeDepth {
		return corruptFile("a bucket has more than %d levels of pages", maxTreeDepth)
	}
	if err := in.use(id); err != nil {
		return err
	}
	h, err := in.header(id)
	if err != nil {
		return err
	}
	switch {
	case h.flags == branchPage:
	case h.flags != leafPage:
		return wrongFlags(id, h.flags)
	case nesting == maxBucketNesting && first != nil && !in.readOnly: // Leaves have one depth, see branch.
		return corruptFile("page %d is a leaf beside branches", id)
	case nesting == maxBucketNesting:
		in.noteUnchecked(id, first)
		if first == nil && !in.readOnly {
			_, err = in.checkValues(id, h, keyHash(nil))
		}
		return err
	}
	h, b, err := in.page(id)
	if err != nil {
		return err
	}
	elements, err := in.elementsOf(h, b, leafBucketFlag)
	if err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	if got := h.key(b, 0); first != nil && !in.readOnly && !bytes.Equal(got, first) {
		return wrongFirstKey(id, got, first)
	}
	if got := h.key(b, int(h.count)-1); next != nil && !in.readOnly && bytes.Compare(got, next) >= 0 {
		return wrongLastKey(id, got, next)
	}
	if h.flags == leafPage {
		return in.leaf(h, b, elements, nesting)
	}
	return in.branch(h, b, elements, depth, nesting, next)
}

// wrongFirstKey is the error for a page whose branch names it by another key.
func wrongFirstKey(id uint64, got, want []byte) error {
	return corruptFile("page %d begins with key %.100q, expected %.100q", id, got, want)
}

// branch walks what a branch leads to. next is that of tree.
func (in *inspector) branch(h pageHeader, page, elements []byte, depth, nesting int, next []byte) error {
	leaves := false
	for i := range int(h.count) {
		child := binary.NativeEndian.Uint64(elements[i*elementBytes+branchPageIDAt:])
		key := h.key(page, i)
		if i == 0 && nesting == maxBucketNesting && child < in.pages {
			// All children are of one kind, so the first tells whether they are leaves.
			h, err := in.header(child)
			if err != nil {
				return err
			}
			leaves = h.flags == leafPage
		}
		behind := next
		if i+1 < int(h.count) {
			behind = h.key(page, i+1)
		}
		visit := func() error { return in.tree(child, depth+1, nesting, key, behind) }
		if leaves {
			in.noteUnchecked(child, key)
			visit = func() error { return in.use(child) }
		}
		if err := visit(); err != nil {
			return err
		}
	}
	return nil
}

// leaf checks the buckets in a leaf, and their pages.
func (in *inspector) leaf(h pageHeader, page, elements []byte, nesting int) error {
	for at := 0; at < len(elements); at += elementBytes {
		e := h.element(elements[at:])
		if e.flags&leafBucketFlag == 0 {
			if nesting == 0 {
				return corruptFile("there is a value among the spaces")
			}
			in.valueInSpace = true
			continue
		}
		content := page[pageHeaderBytes+uint64(at)+e.pos:]
		key, value := content[:e.ksize], content[e.ksize:][:e.vsize]
		in.ours = in.ours || nesting == 0 && string(key) == formatBucket
		if len(value) < bucketHeaderBytes {
			return corruptFile("a bucket has %d bytes, expected at least %d", len(value), bucketHeaderBytes)
		}
		if root := binary.NativeEndian.Uint64(value); root != 0 {
			if in.shallow {
				continue
			}
			in.lastLeaf = 0
			if err := in.tree(root, 0, nesting+1, nil, nil); err != nil {
				return err
			}
			continue
		}
		// A small bucket is inline: a leaf within the leaf.
		inline := value[bucketHeaderBytes:]
		if len(inline) < pageHeaderBytes {
			return corruptFile("an inline bucket has %d bytes, expected at least %d", len(inline), pageHeaderBytes)
		}
		h := pageHeader{
			flags: binary.NativeEndian.Uint16(inline[pageFlagsAt:]),
			count: binary.NativeEndian.Uint16(inline[pageCountAt:]),
			bytes: uint64(len(inline)),
		}
		if h.flags != leafPage {
			return corruptFile("an inline bucket has flags %#x, expected a leaf", h.flags)
		}
		if _, err := in.elementsOf(h, inline, 0); err != nil { // bbolt has no inline buckets with buckets.
			return fmt.Errorf("inline bucket: %w", err)
		}
	}
	return nil
}
