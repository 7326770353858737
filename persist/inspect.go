package persist

import (
	"bytes"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	bolt "go.etcd.io/bbolt"
)

// An inspector checks a file at Open (S3), because bbolt trusts its file. Before bbolt reads the file, [inspect]
// refuses a file
//
//   - without a valid meta page, or shorter than its meta page says,
//   - without a freelist (never written by us, see boltOptions), or with an impossible one.
//
// [inspector.walk] then goes through bbolt's mapping, before anything is written, and refuses a file
//
//   - in which two references lead to a page, or one to a free page, or out of the file,
//   - with a page that bbolt could not have written,
//   - in which keys do not ascend from leaf to leaf, or a branch does not name a page by its first key,
//   - of another format.
//
// So bbolt's cursor comes to an end, and finds every key that is there. The values are not read: each has a checksum.
type inspector struct {
	f        *os.File
	txID     int // The file's newest transaction.
	root     uint64
	pageSize uint64
	pages    uint64
	used     []uint64 // A bit for each page.

	mapped []byte // The pages.
	format string // The format version in the file.
	wg     sync.WaitGroup
	err    atomic.Pointer[error] // The first one of the goroutines.
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
	in.txID = int(txIDOf(meta))
	in.root = word(meta, metaRootAt)
	in.pageSize, in.pages = pageSizeOf(meta), word(meta, metaHighAt)
	if in.pages > uint64(info.Size())/in.pageSize { // bbolt would fault, or write new pages behind these.
		return corruptFile("it has %d bytes, and %d pages of %d by its meta page", info.Size(), in.pages, in.pageSize)
	}
	in.used = make([]uint64, in.pages/64+1)
	in.used[0] = 1<<0 | 1<<1 // The meta pages.
	return in.freelist(word(meta, metaFreelistAt))
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

// useAll reads the header of a page. Its id is in range. useAll notes that something refers to this page and to its
// overflow pages.
func (in *inspector) useAll(id uint64, page []byte) (pageHeader, error) {
	h, overflow := headerOf(page), half(page, pageOverflowAt)
	if got := word(page, 0); got != id || overflow >= in.pages-id {
		return h, corruptFile("page %d says that it is page %d, and has %d more", id, got, overflow)
	}
	h.bytes = (overflow + 1) * in.pageSize
	for more := id; more <= id+overflow; more++ {
		if err := in.use(more); err != nil {
			return h, err
		}
	}
	return h, nil
}

// freelist notes the free pages.
func (in *inspector) freelist(id uint64) error {
	if id >= in.pages {
		return corruptFile("the freelist is page %d of %d", id, in.pages)
	}
	b := make([]byte, pageHeaderBytes+8)
	if err := readAt(in.f, b, int64(id*in.pageSize)); err != nil {
		return err
	}
	h, err := in.useAll(id, b)
	if err != nil {
		return err
	}
	if h.flags != freelistPage {
		return corruptFile("page %d has flags %#x, expected a freelist", id, h.flags)
	}
	count, from := h.entries(b)
	if count > in.pages || from+8*count > h.bytes {
		return corruptFile("the freelist has %d entries in %d bytes", count, h.bytes)
	}
	b = make([]byte, 8*count)
	if err := readAt(in.f, b, int64(id*in.pageSize+from)); err != nil {
		return err
	}
	for ; len(b) > 0; b = b[8:] {
		if err := in.use(word(b, 0)); err != nil {
			return fmt.Errorf("freelist: %w", err)
		}
	}
	return nil
}

// walk checks all pages that the root leads to. The first touch of each page of the mapping costs most. Processors
// share that cost, and to count the objects touches the pages anyway.
func (in *inspector) walk(b *bolt.DB) error {
	for at := uint64(0); at < in.pages*in.pageSize; at += readAheadBytes {
		readAhead(in.f, int64(at), readAheadBytes)
	}
	info := b.Info()
	in.mapped = unsafe.Slice(*(**byte)(unsafe.Pointer(&info.Data)), in.pages*in.pageSize)
	err := guard(func() error { return in.tree(in.root, 0, 0, nil, nil) })
	in.wg.Wait()
	if other := in.err.Load(); err == nil && other != nil {
		err = *other
	}
	if err == nil && in.format != FormatVersion {
		err = fmt.Errorf("%w: version %q, expected %q", ErrUnknownFormat, in.format, FormatVersion)
	}
	return err
}

// readAheadBytes is how much Linux reads ahead for one call, with its default settings
// (force_page_cache_ra in mm/readahead.c; read_ahead_kb is 128).
const readAheadBytes = 128 << 10

// tree walks the pages of a bucket, from the page id on. first is the key of that page in the branch above, nil for the
// root. next is the key of the page behind it in a branch, nil at the end. nesting is 0 for the root bucket, 1 for the
// spaces, and 2 for their buckets, which have values.
func (in *inspector) tree(id uint64, depth, nesting int, first, next []byte) error {
	if depth > maxTreeDepth {
		return corruptFile("a bucket has more than %d levels of pages", maxTreeDepth)
	}
	if id >= in.pages {
		return corruptFile("something refers to page %d of %d", id, in.pages)
	}
	page := in.mapped[id*in.pageSize:]
	h, err := in.useAll(id, page)
	if err != nil {
		return err
	}
	page = page[:h.bytes]
	flags := uint32(0)
	if h.flags == leafPage && nesting < maxBucketNesting {
		flags = leafBucketFlag
	}
	end, err := h.checkElements(page, flags)
	switch {
	case h.flags != branchPage && h.flags != leafPage:
		return corruptFile("page %d has flags %#x", id, h.flags)
	case err != nil:
		return fmt.Errorf("page %d: %w", id, err)
	case h.count == 0 && (first != nil || !isZero(page[end:][:elementBytes])):
		return corruptFile("page %d is empty", id)
	}
	if err := h.checkEnds(id, page, first, next); err != nil {
		return err
	}
	switch {
	case h.flags == branchPage && nesting == maxBucketNesting:
		in.wg.Go(func() {
			if err := guard(func() error { return in.branch(h, page, depth, nesting, next) }); err != nil {
				in.err.CompareAndSwap(nil, &err)
			}
		})
		return nil
	case h.flags == branchPage:
		return in.branch(h, page, depth, nesting, next)
	case nesting < maxBucketNesting:
		return in.buckets(h, page, nesting)
	}
	return h.checkPrefix(page)
}

// branch walks the pages that a branch leads to.
func (in *inspector) branch(h pageHeader, page []byte, depth, nesting int, next []byte) error {
	for i := range int(h.count) {
		behind := next
		if i+1 < int(h.count) {
			behind = h.key(page, i+1)
		}
		if err := in.tree(child(page, i), depth+1, nesting, h.key(page, i), behind); err != nil {
			return err
		}
	}
	return nil
}

func isZero(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }

// checkEnds checks the first key of a page, and that its last key is below the next page's. For first and next see
// tree.
func (h pageHeader) checkEnds(id uint64, page, first, next []byte) error {
	if got := h.key(page, 0); first != nil && !bytes.Equal(got, first) {
		return corruptFile("page %d begins with key %.100q, expected %.100q", id, got, first)
	}
	if got := h.key(page, int(h.count)-1); next != nil && bytes.Compare(got, next) >= 0 {
		return corruptFile("page %d ends with key %.100q, and the next one begins with key %.100q", id, got, next)
	}
	return nil
}

// buckets checks the buckets in a leaf, and walks their pages.
func (in *inspector) buckets(h pageHeader, page []byte, nesting int) error {
	if nesting == 0 && h.count == 0 { // The process that began the file has ended before its first commit.
		in.format = FormatVersion
	}
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
		if root := word(value, 0); root != 0 {
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
	h := headerOf(page)
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

// checkPrefix checks the first byte of the keys of values. Keys ascend, so the first and the last one suffice.
func (h pageHeader) checkPrefix(page []byte) error {
	if h.count > 0 && (h.key(page, 0)[0] != keyPrefix || h.key(page, int(h.count)-1)[0] != keyPrefix) {
		return corruptFile("it has values from key %.100q on, to key %.100q", h.key(page, 0), h.key(page, int(h.count)-1))
	}
	return nil
}
