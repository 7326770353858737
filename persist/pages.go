package persist

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"

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
	metaPage     = 0x04
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
	if got := binary.NativeEndian.Uint64(b); got != id || id >= in.pages || overflow >= in.pages-id {
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
	if err != nil {
		return h, nil, err
	}
	b, err := h.buffer(id, nil)
	if err != nil {
		return h, nil, err
	}
	return h, b, in.read(b, id)
}

// buffer returns memory for a whole page, in room if that is enough.
func (h pageHeader) buffer(id uint64, room []byte) ([]byte, error) {
	if h.bytes > maxInspectedBytes {
		return nil, corruptFile("page %d is %d bytes long, expected at most %d", id, h.bytes, maxInspectedBytes)
	}
	if uint64(cap(room)) < h.bytes {
		room = make([]byte, h.bytes)
	}
	return room[:h.bytes], nil
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

// key returns the key of an element of a page that is sound, or nil if the page has no elements.
func (h pageHeader) key(page []byte, i int) []byte {
	if h.count == 0 {
		return nil
	}
	at := pageHeaderBytes + uint64(i)*elementBytes
	e := h.element(page[at:])
	return page[at+e.pos:][:e.ksize]
}

// An element says where its key is, from its own first byte on, and how long key and value are.
type element struct {
	flags             uint32
	pos, ksize, vsize uint64
}

// element reads an element of a page that is a branch or leaf.
func (h pageHeader) element(b []byte) (e element) {
	if h.flags == leafPage { // flags, pos, ksize, vsize; else pos, ksize.
		e.flags, b = binary.NativeEndian.Uint32(b), b[4:]
		e.vsize = uint64(binary.NativeEndian.Uint32(b[8:]))
	}
	e.pos, e.ksize = uint64(binary.NativeEndian.Uint32(b)), uint64(binary.NativeEndian.Uint32(b[4:]))
	return e
}

// checkElements checks the elements of a branch or leaf, and returns how far behind the header
// their contents go. All must lie in the page, and as bbolt writes them one behind the other, from
// where the elements end: else the header has the wrong number of elements, or calls a branch a
// leaf, or bbolt copies as much as the length of a key or a value says. Of flags no others may be
// set: bbolt would copy, or drop, a value as a bucket.
func (in *inspector) checkElements(h pageHeader, elements []byte, flags uint32) (end uint64, err error) {
	room := h.bytes - pageHeaderBytes
	end = uint64(len(elements))
	for at := uint64(0); at < uint64(len(elements)); at += elementBytes {
		e := h.element(elements[at:])
		begin := at + e.pos
		isApart := begin != end || e.ksize == 0 || e.ksize > bolt.MaxKeySize || e.flags&^flags != 0
		if end = begin + e.ksize + e.vsize; end > room || isApart && !in.readOnly {
			return 0, corruptFile("element %d of %d, of %d and %d bytes, with flags %#x, is at byte %d of %d", at/elementBytes, h.count, e.ksize, e.vsize, e.flags, begin, room)
		}
	}
	return end, nil
}

// elementsOf returns the elements of a branch or leaf. Beside what checkElements checks, it checks
// that they are in the order of their keys, and that zeros follow their contents, as in each page
// that bbolt writes: a page whose header has lost its number of elements is not an empty one.
func (in *inspector) elementsOf(h pageHeader, page []byte, flags uint32) ([]byte, error) {
	n := int(h.count) * elementBytes
	if n > len(page)-pageHeaderBytes || (n == 0 && h.flags == branchPage) {
		return nil, corruptFile("it has %d elements in %d bytes", h.count, len(page))
	}
	elements := page[pageHeaderBytes : pageHeaderBytes+n]
	end, err := in.checkElements(h, elements, flags)
	if err != nil || in.readOnly {
		return elements, err
	}
	var last []byte
	for at := 0; at < n; at += elementBytes {
		e := h.element(elements[at:])
		from := uint64(pageHeaderBytes+at) + e.pos
		key := page[from : from+e.ksize]
		if bytes.Compare(last, key) >= 0 {
			return nil, corruptFile("key %.100q follows key %.100q", key, last)
		}
		last = key
	}
	if !isZero(page[pageHeaderBytes+end:]) {
		return nil, corruptFile("something follows the contents of its %d elements", h.count)
	}
	return elements, nil
}
