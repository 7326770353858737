package persist

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"os"
	"time"

	bolt "go.etcd.io/bbolt"
)

// The layout of bbolt's pages, from its internal/common.
const (
	pageHeaderBytes = 16 // id, flags, count, overflow
	pageFlagsAt     = 8
	pageCountAt     = 10
	pageOverflowAt  = 12

	branchPage   = 0x01
	leafPage     = 0x02
	freelistPage = 0x10

	manyInFirst = 0xffff // As count of a freelist: the first entry is the count.

	elementBytes      = 16 // Of a branch (pos, ksize, pgid) and of a leaf (flags, pos, ksize, vsize).
	branchPageIDAt    = 8
	leafBucketFlag    = 0x01
	bucketHeaderBytes = 16 // root, sequence
	metaOffset        = pageHeaderBytes
	metaBytes         = 64
	metaMagic         = 0xED0CDAED
	metaVersion       = 2
	metaVersionAt     = 4
	metaPageSizeAt    = 8
	metaRootAt        = 16
	metaFreelistAt    = 32
	metaHighAt        = 40
	metaTxIDAt        = 48
	metaChecksumAt    = 56
	noFreelist        = math.MaxUint64
	minPageBytes      = 1 << 10
	maxPageBytes      = 64 << 10
	maxTxID           = math.MaxInt64 / 2 // Far below where bbolt's comparisons overflow.
	maxTreeDepth      = 64
	maxBucketNesting  = 2 // Spaces and their buckets.
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
//     add a changed version of that page to the branch beside the old one.
//
// A file that is only to be read may have its keys in any order, and any
// freelist.
//
// It reads the branches and the leaves that hold buckets, not the leaves with
// values, because every value has a checksum. The lengths in the headers of those
// leaves, and their first keys, matter only when bbolt writes, see leafCheck.
func inspectFile(f *os.File, readOnly bool) error {
	return (&inspector{f: f, readOnly: readOnly}).file()
}

// inspectLeaves is inspectFile, and checks the headers of all leaves, which bbolt
// trusts when it frees a page that has changed.
func inspectLeaves(f *os.File) error { return (&inspector{f: f, leaves: true}).file() }

func (in *inspector) file() error {
	info, err := in.f.Stat()
	if err != nil {
		return err
	}
	meta, err := in.meta(info.Size())
	if err == nil {
		err = in.badMeta // bbolt would fault when it reads its mapping there.
	}
	if err != nil {
		return err
	}
	in.pages = binary.NativeEndian.Uint64(meta[metaHighAt:])
	if in.pages > uint64(info.Size())/in.pageSize {
		return corruptFile("it has %d bytes, and %d pages of %d by its meta page", info.Size(), in.pages, in.pageSize)
	}
	if tx := binary.NativeEndian.Uint64(meta[metaTxIDAt:]); tx > maxTxID {
		return corruptFile("the meta page is of transaction %d, expected at most %d", tx, uint64(maxTxID))
	}
	in.used = make([]uint64, in.pages/64+1)
	in.used[0] = 1<<0 | 1<<1 // The meta pages.
	if in.unchecked != nil {
		in.unchecked = make([]uint32, in.pages)
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
	return in.tree(binary.NativeEndian.Uint64(meta[metaRootAt:]), 0, 0, nil)
}

// checkLeaves returns an error if a page where a leaf with values ought to be is none. A
// write that the disk has lost may leave a branch there, which may lead a reader in a
// circle. It looks at the pages in the map, which whoever counts the objects reads anyway.
func (in *inspector) checkLeaves(b *handle) error {
	return view(b, func(tx *bolt.Tx) error {
		for id, first := range in.unchecked {
			if first == 0 {
				continue
			}
			isLeaf, err := in.isLeaf(tx, id)
			if err != nil {
				return err
			}
			if !isLeaf {
				return corruptFile("page %d is something else, expected a leaf", id)
			}
		}
		return nil
	})
}

func (in *inspector) isLeaf(tx *bolt.Tx, id int) (bool, error) {
	if in.readOnly { // bbolt has no freelist then, and tells of no page.
		var head [pageHeaderBytes]byte
		err := in.read(head[:], uint64(id))
		return binary.NativeEndian.Uint16(head[pageFlagsAt:]) == leafPage, err
	}
	p, err := tx.Page(id)
	return err == nil && p != nil && p.Type == "leaf", err
}

// checkFreelist checks the freelist's page before a commit, in which bbolt frees as
// many pages as the header of that page says.
func checkFreelist(f *os.File, tx *bolt.Tx) error {
	in := &inspector{f: f}
	meta, err := in.meta(tx.Size())
	if err != nil {
		return err
	}
	in.pages = binary.NativeEndian.Uint64(meta[metaHighAt:])
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if in.pages > uint64(info.Size())/in.pageSize { // bbolt would write new pages behind these.
		return corruptFile("it has %d bytes, and %d pages of %d by its meta page", info.Size(), in.pages, in.pageSize)
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
	pages := h.bytes / in.pageSize
	if most := (pageHeaderBytes+8*(uint64(h.count)+pages+1))/in.pageSize + 1; h.count != manyInFirst && pages > most {
		return corruptFile("the freelist has %d entries, and is %d pages long, expected at most %d", h.count, pages, most)
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
	if err := in.tree(uint64(tx.Cursor().Bucket().Root()), 0, 0, nil); err != nil {
		return err
	}
	spaces := map[string]bool{}
	for name := range l.buckets {
		if spaces[name.Space] {
			continue
		}
		spaces[name.Space] = true
		if space := tx.Bucket([]byte(name.Space)); space != nil && space.Root() != 0 {
			if err := in.tree(uint64(space.Root()), 0, 1, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

func corruptFile(format string, args ...any) error {
	return &CorruptError{Err: fmt.Errorf(format, args...)}
}

// A pagedFile is what an inspector reads: an [os.File], except in tests.
type pagedFile interface {
	io.ReaderAt
	Stat() (os.FileInfo, error)
}

// readAt reads once more where the first read fails, because a card or a cable may fail
// only once. What the device cannot read then is damaged: the error is a [CorruptError].
func readAt(f io.ReaderAt, b []byte, at int64) (int, error) {
	n, err := readFile(f, b, at)
	if hasFailed(err) {
		n, err = readFile(f, b, at)
	}
	if isUnreadable(err) {
		err = &CorruptError{Err: err}
	}
	return n, err
}

// hasFailed reports whether err is worth another read.
func hasFailed(err error) bool {
	return err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrClosed)
}

// readFile is replaced in tests.
var readFile = io.ReaderAt.ReadAt

// readAgainDelay is the pause before the one late retry where a device could not open or
// read the file. What it cannot read then is lost.
const readAgainDelay = time.Second

// readAt is the function readAt, but tries once more after a pause. It pauses once only.
func (in *inspector) readAt(b []byte, at int64) (int, error) {
	n, err := readAt(in.f, b, at)
	if hasFailed(err) && !in.waited {
		in.waited = true
		time.Sleep(readAgainDelay)
		n, err = readAt(in.f, b, at)
	}
	return n, err
}

type inspector struct {
	f         pagedFile
	pageSize  uint64
	pages     uint64
	used      []uint64 // A bit for each page.
	readOnly  bool
	leaves    bool
	shallow   bool     // Buckets that have pages of their own are not followed.
	unchecked []uint32 // If set, the keyHash that each leaf with values, by its id, has to have.
	badMeta   error    // Set if a meta page cannot be read.
	waited    bool     // readAt has paused.
}

// meta returns the newer valid meta, which bbolt will use. Each is read by itself, because
// the device may not be able to read what lies between them.
func (in *inspector) meta(size int64) ([]byte, error) {
	first, err := in.metaAt(0)
	if err != nil {
		return nil, err
	}
	second, at := []byte(nil), int64(minPageBytes)
	if first != nil { // It tells where the second one is.
		at = int64(pageSizeOf(first))
	}
	for ; ; at *= 2 {
		if second, err = in.metaAt(at); err != nil {
			return nil, err
		}
		if first != nil || second != nil || at == maxPageBytes {
			break
		}
	}
	newest := first
	if newest == nil || (second != nil && txIDOf(second) > txIDOf(first)) {
		newest = second
	}
	switch {
	case newest == nil:
		return nil, corruptFile("no valid bbolt meta page in %d bytes", size)
	case first != nil && second != nil && pageSizeOf(first) != pageSizeOf(second), pageSizeOf(newest) != uint64(at):
		return nil, corruptFile("meta pages disagree on the page size")
	}
	in.pageSize = uint64(at)
	return newest, nil
}

// metaAt returns the meta of a page, or nil if it is not valid. If the device cannot read
// it, metaAt returns nil and sets badMeta.
func (in *inspector) metaAt(at int64) ([]byte, error) {
	page := make([]byte, metaOffset+metaBytes)
	switch _, err := in.readAt(page, at); {
	case err == nil:
		return validMeta(page), nil
	case errors.Is(err, ErrCorrupt):
		in.badMeta = err
	case !errors.Is(err, io.EOF):
		return nil, err
	}
	return nil, nil
}

func pageSizeOf(meta []byte) uint64 {
	return uint64(binary.NativeEndian.Uint32(meta[metaPageSizeAt:]))
}

func txIDOf(meta []byte) uint64 { return binary.NativeEndian.Uint64(meta[metaTxIDAt:]) }

// validMeta returns the meta at the start of a page, or nil.
func validMeta(page []byte) []byte {
	if len(page) < metaOffset+metaBytes {
		return nil
	}
	m := page[metaOffset : metaOffset+metaBytes]
	if size := pageSizeOf(m); !soundMeta(m) || size < minPageBytes || size > maxPageBytes || size&(size-1) != 0 {
		return nil
	}
	return m
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

// noteUnchecked notes a leaf with values, and the first key that it has to have. It ignores
// a page that is not in the file: use returns that error.
func (in *inspector) noteUnchecked(id uint64, first []byte) {
	if in.unchecked != nil && id < in.pages {
		in.unchecked[id] = keyHash(first)
	}
}

// keyHash is a hash of the key that a branch names a page by; for a root, of none. It is
// never zero.
func keyHash(first []byte) uint32 {
	return crc32.Checksum(first, castagnoli) | 1
}

// header reads the head of a page.
func (in *inspector) header(id uint64) (h pageHeader, err error) {
	var b [pageHeaderBytes]byte
	if err := in.read(b[:], id); err != nil {
		return h, err
	}
	return in.parseHeader(b[:], id)
}

type pageHeader struct {
	flags, count uint16
	bytes        uint64 // With overflow pages.
}

func (in *inspector) parseHeader(b []byte, id uint64) (pageHeader, error) {
	overflow := uint64(binary.NativeEndian.Uint32(b[pageOverflowAt:]))
	if got := binary.NativeEndian.Uint64(b); got != id || overflow >= in.pages-id {
		return pageHeader{}, corruptFile("page %d says that it is page %d, and has %d more", id, got, overflow)
	}
	return pageHeader{
		flags: binary.NativeEndian.Uint16(b[pageFlagsAt:]),
		count: binary.NativeEndian.Uint16(b[pageCountAt:]),
		bytes: (overflow + 1) * in.pageSize,
	}, nil
}

// span reads the header of a page that use has noted, and notes its overflow pages.
func (in *inspector) span(id uint64) (pageHeader, error) {
	h, err := in.header(id)
	if err != nil {
		return h, err
	}
	for more := id + 1; more < id+h.bytes/in.pageSize; more++ {
		if err := in.use(more); err != nil {
			return h, err
		}
	}
	return h, nil
}

// page reads a whole page that use has noted.
func (in *inspector) page(id uint64) (pageHeader, []byte, error) {
	h, err := in.span(id)
	if err == nil && h.bytes > maxInspectedBytes {
		err = corruptFile("page %d is %d bytes long, expected at most %d", id, h.bytes, maxInspectedBytes)
	}
	if err != nil {
		return h, nil, err
	}
	b := make([]byte, h.bytes)
	return h, b, in.read(b, id)
}

// maxInspectedBytes is more than a page has that is read whole: a branch, a leaf with buckets,
// or the freelist, which has eight bytes for each free page.
const maxInspectedBytes = 64 << 20

// read reads a page, or the head of one.
func (in *inspector) read(b []byte, id uint64) error {
	_, err := in.readAt(b, int64(id*in.pageSize))
	if errors.Is(err, io.EOF) {
		return corruptFile("the file ends before the end of page %d", id)
	}
	return err
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
// above names that page by, nil for the root. At nesting 0 and 1 (the root bucket and the
// spaces) it reads leaves as well, for the buckets in them.
func (in *inspector) tree(id uint64, depth, nesting int, first []byte) error {
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
		return corruptFile("page %d has flags %#x, expected a branch or a leaf", id, h.flags)
	case nesting == maxBucketNesting:
		if in.leaves {
			h, err = in.span(id)
		}
		if err == nil && (in.leaves || first == nil && !in.readOnly) {
			err = in.checkFirstKey(id, h, keyHash(first))
		}
		in.noteUnchecked(id, first)
		return err
	}
	h, b, err := in.page(id)
	if err != nil {
		return err
	}
	elements, err := in.elementsOf(h, b)
	if err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	if got := firstKey(h, b); first != nil && !in.readOnly && !bytes.Equal(got, first) {
		return wrongFirstKey(id, got, first)
	}
	if h.flags == leafPage {
		return in.leaf(b, elements, nesting)
	}
	return in.branch(b, elements, depth, nesting)
}

// wrongFirstKey is the error for a page whose branch names it by another key.
func wrongFirstKey(id uint64, got, want []byte) error {
	return corruptFile("page %d begins with key %.100q, expected %.100q", id, got, want)
}

// firstKey returns the first key of a page that elementsOf has found sound, or nil.
func firstKey(h pageHeader, page []byte) []byte {
	if h.count == 0 {
		return nil
	}
	words := page[pageHeaderBytes:]
	if h.flags == leafPage {
		words = words[4:]
	}
	from := pageHeaderBytes + int(binary.NativeEndian.Uint32(words))
	return page[from : from+int(binary.NativeEndian.Uint32(words[4:]))]
}

// checkFirstKey checks the first key of a leaf with values, by keyHash and by its place: it has
// to begin where the elements end. Else the header has the wrong number of elements, or
// calls a branch a leaf.
func (in *inspector) checkFirstKey(id uint64, h pageHeader, want uint32) error {
	isRoot := want == keyHash(nil)
	if h.count == 0 {
		if !isRoot {
			return corruptFile("leaf %d is empty", id)
		}
		return nil
	}
	var e [elementBytes]byte
	at := int64(id*in.pageSize) + pageHeaderBytes
	if _, err := in.readAt(e[:], at); err != nil {
		return err
	}
	pos, size := uint64(binary.NativeEndian.Uint32(e[4:])), uint64(binary.NativeEndian.Uint32(e[8:]))
	if pos != uint64(h.count)*elementBytes || size == 0 || size > bolt.MaxKeySize || pageHeaderBytes+pos+size > h.bytes {
		return corruptFile("leaf %d has %d elements, and its first key, of %d bytes, at %d", id, h.count, size, pos)
	}
	key := make([]byte, size)
	if _, err := in.readAt(key, at+int64(pos)); err != nil {
		return err
	}
	if key[0] != keyPrefix || !isRoot && keyHash(key) != want {
		return corruptFile("leaf %d begins with key %.100q, expected another one", id, key)
	}
	return nil
}

// elementsOf returns the elements of a branch or leaf. It checks that all of them lie in
// the page, in the order of their keys.
func (in *inspector) elementsOf(h pageHeader, page []byte) ([]byte, error) {
	n := int(h.count) * elementBytes
	if n > len(page)-pageHeaderBytes || (n == 0 && h.flags == branchPage) {
		return nil, corruptFile("it has %d elements in %d bytes", h.count, len(page))
	}
	elements := page[pageHeaderBytes : pageHeaderBytes+n]
	var last []byte
	for at := 0; at < n; at += elementBytes {
		// Of a branch: pos, ksize. Of a leaf: flags, pos, ksize, vsize.
		words := elements[at : at+elementBytes]
		vsize := uint64(0)
		if h.flags == leafPage {
			words = words[4:]
			vsize = uint64(binary.NativeEndian.Uint32(words[8:]))
		}
		// The content of the first element begins right behind the last element.
		if pos := binary.NativeEndian.Uint32(words); at == 0 && !in.readOnly && pos != uint32(n) {
			return nil, corruptFile("it has %d elements, and content from %d on, expected from %d on", h.count, pos, n)
		}
		key := uint64(pageHeaderBytes+at) + uint64(binary.NativeEndian.Uint32(words))
		end := key + uint64(binary.NativeEndian.Uint32(words[4:]))
		if end+vsize > uint64(len(page)) {
			return nil, corruptFile("an element ends at byte %d of %d", end+vsize, len(page))
		}
		if at > 0 && !in.readOnly && bytes.Compare(last, page[key:end]) >= 0 {
			return nil, corruptFile("key %.100q follows key %.100q", page[key:end], last)
		}
		last = page[key:end]
	}
	return elements, nil
}

func (in *inspector) branch(page, elements []byte, depth, nesting int) error {
	leaves := false
	for at := 0; at < len(elements); at += elementBytes {
		child := binary.NativeEndian.Uint64(elements[at+branchPageIDAt:])
		key := elementKey(page, at)
		if at == 0 && nesting == maxBucketNesting && child < in.pages {
			// All children are of one kind, so the first tells whether they are leaves.
			h, err := in.header(child)
			if err != nil {
				return err
			}
			leaves = h.flags == leafPage
		}
		visit := func() error { return in.tree(child, depth+1, nesting, key) }
		if leaves && !in.leaves {
			in.noteUnchecked(child, key)
			visit = func() error { return in.use(child) }
		}
		if err := visit(); err != nil {
			return err
		}
	}
	return nil
}

// elementKey returns the key of the branch element that begins at bytes behind the page's
// header.
func elementKey(page []byte, at int) []byte {
	e := page[pageHeaderBytes+at:]
	from := int(binary.NativeEndian.Uint32(e))
	return e[from:][:binary.NativeEndian.Uint32(e[4:])]
}

// leaf checks the buckets in a leaf, and their pages.
func (in *inspector) leaf(page, elements []byte, nesting int) error {
	for at := 0; at < len(elements); at += elementBytes {
		e := elements[at:]
		if binary.NativeEndian.Uint32(e)&leafBucketFlag == 0 {
			continue
		}
		pos, ksize, vsize := binary.NativeEndian.Uint32(e[4:]), binary.NativeEndian.Uint32(e[8:]), binary.NativeEndian.Uint32(e[12:])
		value := page[pageHeaderBytes+at+int(pos)+int(ksize):][:vsize]
		if len(value) < bucketHeaderBytes {
			return corruptFile("a bucket has %d bytes, expected at least %d", vsize, bucketHeaderBytes)
		}
		if root := binary.NativeEndian.Uint64(value); root != 0 {
			if in.shallow {
				continue
			}
			if err := in.tree(root, 0, nesting+1, nil); err != nil {
				return err
			}
			continue
		}
		// A small bucket is inline: a leaf within the leaf.
		inline := value[bucketHeaderBytes:]
		if len(inline) < pageHeaderBytes {
			return corruptFile("an inline bucket has %d bytes, expected at least %d", len(inline), pageHeaderBytes)
		}
		h := pageHeader{flags: binary.NativeEndian.Uint16(inline[pageFlagsAt:]), count: binary.NativeEndian.Uint16(inline[pageCountAt:])}
		if h.flags != leafPage {
			return corruptFile("an inline bucket has flags %#x, expected a leaf", h.flags)
		}
		if _, err := in.elementsOf(h, inline); err != nil {
			return fmt.Errorf("inline bucket: %w", err)
		}
	}
	return nil
}
