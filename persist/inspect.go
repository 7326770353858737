package persist

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	bolt "go.etcd.io/bbolt"
)

// An inspector checks a file at Open (S3), because bbolt trusts what it reads. [inspect] refuses, before bbolt
// reads the file, one
//
//   - without a valid meta page, or shorter than that says,
//   - without a freelist (never written by us, see boltOptions), or with an impossible one,
//   - in which two references lead to a page, or one to a free page, or out of the file,
//   - with a branch, or a leaf or inline page that holds buckets, that bbolt could not have written,
//   - of another format.
//
// [inspector.checkLeaves] then checks the leaves with values, in bbolt's mapping and before anything is written:
// keys ascend from leaf to leaf, and each branch names a page by its first key. So bbolt's cursor comes to an end,
// and finds every key that is there. The values are not read: each has a checksum.
type inspector struct {
	f        *os.File
	pageSize uint64
	pages    uint64
	used     []uint64 // A bit for each page.
	leaves   []leaves
	ahead    []bool // For each readAheadBytes of the file: there are leaves with values.
	format   string // What the format's bucket says.
}

// leaves are the leaves with values below one branch, or, if that page is a leaf, the whole bucket.
type leaves struct {
	page uint64
	next []byte // The key by which a branch names what comes behind them, nil at the end of the bucket.
}

func inspect(f *os.File) (*inspector, error) {
	in := &inspector{f: f}
	return in, guard(in.file)
}

func (in *inspector) file() error {
	info, err := in.f.Stat()
	if err != nil {
		return err
	}
	meta, err := newestMeta(in.f)
	if err != nil {
		return err
	}
	in.pageSize, in.pages = pageSizeOf(meta), binary.NativeEndian.Uint64(meta[metaHighAt:])
	if in.pages > uint64(info.Size())/in.pageSize { // bbolt would fault, or write new pages behind these.
		return corruptFile("it has %d bytes, and %d pages of %d by its meta page", info.Size(), in.pages, in.pageSize)
	}
	if tx := txIDOf(meta); tx > maxTxID {
		return corruptFile("the meta page is of transaction %d, expected at most %d", tx, uint64(maxTxID))
	}
	in.used = make([]uint64, in.pages/64+1)
	in.used[0] = 1<<0 | 1<<1 // The meta pages.
	in.ahead = make([]bool, in.pages*in.pageSize/readAheadBytes+1)
	freelist := binary.NativeEndian.Uint64(meta[metaFreelistAt:])
	if freelist == noFreelist {
		return fmt.Errorf("%w: the file has no freelist", ErrUnknownFormat)
	}
	if err := in.freelist(freelist); err != nil {
		return err
	}
	if err := in.tree(binary.NativeEndian.Uint64(meta[metaRootAt:]), 0, 0, nil, nil); err != nil {
		return err
	}
	if in.format != formatVersion {
		return fmt.Errorf("%w: version %q, expected %q", ErrUnknownFormat, in.format, formatVersion)
	}
	return nil
}

// use notes that something refers to a page. A second reference is an error.
func (in *inspector) use(id uint64) error {
	if id >= in.pages {
		return corruptFile("something refers to page %d of %d", id, in.pages)
	}
	bit := uint64(1) << (id % 64)
	if atomic.OrUint64(&in.used[id/64], bit)&bit != 0 {
		return corruptFile("two references lead to page %d", id)
	}
	return nil
}

// useRest notes the overflow pages of a page.
func (in *inspector) useRest(id uint64, h pageHeader) error {
	for more := id + 1; more < id+h.bytes/in.pageSize; more++ {
		if err := in.use(more); err != nil {
			return err
		}
	}
	return nil
}

// header reads the header of a page.
func (in *inspector) header(id uint64) (h pageHeader, err error) {
	var b [pageHeaderBytes]byte
	if err := readAt(in.f, b[:], int64(id*in.pageSize)); err != nil {
		return h, err
	}
	return in.parseHeader(b[:], id)
}

// maxInspectedBytes is more than a page has that is read whole: a branch, a leaf with buckets,
// or the freelist, which has eight bytes for each free page.
const maxInspectedBytes = 64 << 20

// page reads a whole page that use has noted, and notes its overflow pages.
func (in *inspector) page(id uint64) (pageHeader, []byte, error) {
	h, err := in.header(id)
	if err == nil {
		err = in.useRest(id, h)
	}
	if err == nil && h.bytes > maxInspectedBytes {
		err = corruptFile("page %d is %d bytes long, expected at most %d", id, h.bytes, maxInspectedBytes)
	}
	if err != nil {
		return h, nil, err
	}
	b := make([]byte, h.bytes)
	return h, b, readAt(in.f, b, int64(id*in.pageSize))
}

// freelist notes the free pages. It refuses a freelist with more pages than bbolt gives it (tx.commitFreelist in
// bbolt's tx.go): room for its entries, for the free pages that it has taken for itself, and the rest of a page.
func (in *inspector) freelist(id uint64) error {
	if err := in.use(id); err != nil {
		return err
	}
	h, b, err := in.page(id)
	if err != nil {
		return err
	}
	if h.flags != freelistPage {
		return corruptFile("page %d has flags %#x, expected a freelist", id, h.flags)
	}
	b = b[pageHeaderBytes:]
	count := uint64(h.count)
	if count == manyInFirst {
		count, b = binary.NativeEndian.Uint64(b), b[8:]
	}
	pages := h.bytes / in.pageSize
	if count > uint64(len(b))/8 || pages > (pageHeaderBytes+8*(count+pages+1))/in.pageSize+1 {
		return corruptFile("the freelist has %d entries, and is %d pages long", count, pages)
	}
	for i := range count {
		if err := in.use(binary.NativeEndian.Uint64(b[8*i:])); err != nil {
			return fmt.Errorf("freelist: %w", err)
		}
	}
	return nil
}

// tree walks the pages of a bucket, from the page id on. first is the key that the branch above names that page by,
// nil for the root, and next the one by which a branch names what comes behind it, nil at the end. At nesting 0 and
// 1 (the root bucket and the spaces) it reads leaves as well, for the buckets in them.
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
	if nesting == maxBucketNesting && h.flags == leafPage && depth == 0 {
		in.noteLeaves(id, nil)
		in.noteLeaf(id)
		return nil
	}
	h, b, err := in.page(id)
	if err != nil {
		return err
	}
	flags := uint32(0)
	if h.flags == leafPage {
		flags = leafBucketFlag
	}
	end, err := h.checkElements(b, flags)
	switch {
	case h.flags != branchPage && (h.flags != leafPage || nesting == maxBucketNesting):
		return corruptFile("page %d has flags %#x", id, h.flags)
	case err != nil:
		return fmt.Errorf("page %d: %w", id, err)
	case !isZero(b[end:]): // As in each such page that bbolt writes. Else the header has lost its number of elements.
		return corruptFile("page %d: something follows the contents of its %d elements", id, h.count)
	}
	if err := h.checkEnds(id, b, first, next); err != nil {
		return err
	}
	if h.flags == leafPage {
		return in.leaf(h, b, nesting)
	}
	return in.branch(id, h, b, depth, nesting, next)
}

func isZero(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }

// checkEnds checks the first key of a page, and that its last one is below what comes behind it. first and next are
// those of tree.
func (h pageHeader) checkEnds(id uint64, page, first, next []byte) error {
	if got := h.key(page, 0); first != nil && !bytes.Equal(got, first) {
		return corruptFile("page %d begins with key %.100q, expected %.100q", id, got, first)
	}
	if got := h.key(page, int(h.count)-1); next != nil && bytes.Compare(got, next) >= 0 {
		return corruptFile("page %d ends with key %.100q, and the next one begins with key %.100q", id, got, next)
	}
	return nil
}

// behind returns the key by which a branch names what comes behind a child. next is that of tree.
func (h pageHeader) behind(page []byte, i int, next []byte) []byte {
	if i+1 < int(h.count) {
		return h.key(page, i+1)
	}
	return next
}

// branch walks what a branch leads to. Leaves with values are only noted: all children are of one kind, so the
// first one tells.
func (in *inspector) branch(id uint64, h pageHeader, page []byte, depth, nesting int, next []byte) error {
	leaves := false
	if first := child(page, 0); nesting == maxBucketNesting && first < in.pages {
		h, err := in.header(first)
		if err != nil {
			return err
		}
		leaves = h.flags == leafPage
	}
	if leaves {
		in.noteLeaves(id, next)
	}
	for i := range int(h.count) {
		var err error
		if id := child(page, i); !leaves {
			err = in.tree(id, depth+1, nesting, h.key(page, i), h.behind(page, i, next))
		} else if err = in.use(id); err == nil {
			in.noteLeaf(id)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (in *inspector) noteLeaves(page uint64, next []byte) {
	in.leaves = append(in.leaves, leaves{page, bytes.Clone(next)})
}

func (in *inspector) noteLeaf(id uint64) { in.ahead[id*in.pageSize/readAheadBytes] = true }

// leaf checks the buckets in a leaf, and walks their pages.
func (in *inspector) leaf(h pageHeader, page []byte, nesting int) error {
	for i := range int(h.count) {
		at := pageHeaderBytes + i*elementBytes
		e := h.element(page[at:])
		content := page[uint64(at)+e.pos:]
		key, value := content[:e.ksize], content[e.ksize:][:e.vsize]
		if e.flags&leafBucketFlag == 0 {
			return corruptFile("there is a value among buckets, %.100q", key)
		}
		if len(value) < bucketHeaderBytes {
			return corruptFile("a bucket has %d bytes, expected at least %d", len(value), bucketHeaderBytes)
		}
		if root := binary.NativeEndian.Uint64(value); root != 0 {
			if err := in.tree(root, 0, nesting+1, nil, nil); err != nil {
				return err
			}
			continue
		}
		// A small bucket is inline: a leaf within the leaf.
		if err := in.inline(value[bucketHeaderBytes:], nesting, string(key)); err != nil {
			return fmt.Errorf("inline bucket %.100q: %w", key, err)
		}
	}
	return nil
}

func (in *inspector) inline(page []byte, nesting int, name string) error {
	if len(page) < pageHeaderBytes {
		return corruptFile("it has %d bytes, expected at least %d", len(page), pageHeaderBytes)
	}
	h := pageHeader{
		flags: binary.NativeEndian.Uint16(page[pageFlagsAt:]),
		count: binary.NativeEndian.Uint16(page[pageCountAt:]),
	}
	if h.flags != leafPage {
		return corruptFile("it has flags %#x, expected a leaf", h.flags)
	}
	end, err := h.checkElements(page, 0) // bbolt has no inline buckets with buckets.
	switch {
	case err != nil:
		return err
	case end != uint64(len(page)):
		return corruptFile("something follows the contents of its %d elements", h.count)
	case nesting > 0:
		return h.checkPrefix(page)
	case name != formatBucket && h.count > 0:
		return corruptFile("there is a value among buckets")
	}
	for i := range int(h.count) {
		if key := h.key(page, i); name == formatBucket && string(key) == formatKey {
			e := h.element(page[pageHeaderBytes+i*elementBytes:])
			in.format = string(page[pageHeaderBytes+uint64(i)*elementBytes+e.pos+e.ksize:][:e.vsize])
		}
	}
	return nil
}

const maxLeafWorkers = 8

// readAheadBytes is how much Linux reads ahead for one call, with its default settings
// (force_page_cache_ra in mm/readahead.c; read_ahead_kb is 128).
const readAheadBytes = 128 << 10

// checkLeaves checks the leaves with values in the mapping of b. The first touch of each page costs most, and
// processors share that; whoever counts the objects touches them anyway.
func (in *inspector) checkLeaves(b *bolt.DB) error {
	info := b.Info()
	data := unsafe.Slice(*(**byte)(unsafe.Pointer(&info.Data)), in.pages*in.pageSize)
	workers := min(runtime.GOMAXPROCS(0), maxLeafWorkers)
	errs := make([]error, workers)
	var wg sync.WaitGroup
	var next atomic.Int64
	for w := range workers {
		wg.Go(func() {
			for i := w * len(in.ahead) / workers; i < (w+1)*len(in.ahead)/workers; i++ {
				if in.ahead[i] {
					readAhead(in.f, int64(i)*readAheadBytes, readAheadBytes)
				}
			}
			errs[w] = guard(func() error {
				for i := next.Add(1) - 1; i < int64(len(in.leaves)); i = next.Add(1) - 1 {
					if err := in.checkLeavesOf(data, in.leaves[i]); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
	wg.Wait()
	return cmp.Or(errs...)
}

func (in *inspector) checkLeavesOf(data []byte, l leaves) error {
	page := data[l.page*in.pageSize:]
	h, err := in.parseHeader(page, l.page)
	if err != nil {
		return err
	}
	if h.flags == leafPage {
		return in.checkValues(data, l.page, nil, nil)
	}
	page = page[:h.bytes]
	for i := range int(h.count) { // Its elements are checked, and lead to pages of the file.
		if err := in.checkValues(data, child(page, i), h.key(page, i), h.behind(page, i, l.next)); err != nil {
			return err
		}
	}
	return nil
}

// checkValues checks a leaf with values. first and next are those of tree.
func (in *inspector) checkValues(data []byte, id uint64, first, next []byte) error {
	page := data[id*in.pageSize:]
	h, err := in.parseHeader(page, id)
	if err != nil {
		return err
	}
	if h.flags != leafPage {
		return corruptFile("page %d has flags %#x, expected a leaf", id, h.flags)
	}
	if err := in.useRest(id, h); err != nil {
		return err
	}
	page = page[:h.bytes]
	end, err := h.checkElements(page, 0)
	switch {
	case err != nil:
		return fmt.Errorf("leaf %d: %w", id, err)
	case h.bytes-end >= in.pageSize: // bbolt gives a leaf no more pages than it needs (node.spill in its node.go).
		return corruptFile("leaf %d is %d bytes long, and needs %d", id, h.bytes, end)
	case h.count == 0 && (first != nil || !isZero(page[end:][:elementBytes])):
		return corruptFile("leaf %d is empty", id)
	}
	return cmp.Or(h.checkPrefix(page), h.checkEnds(id, page, first, next))
}

// checkPrefix checks how the keys of values begin. They ascend, so the first and the last one tell.
func (h pageHeader) checkPrefix(page []byte) error {
	if h.count > 0 && (h.key(page, 0)[0] != keyPrefix || h.key(page, int(h.count)-1)[0] != keyPrefix) {
		return corruptFile("it has values from key %.100q on, to key %.100q", h.key(page, 0), h.key(page, int(h.count)-1))
	}
	return nil
}
