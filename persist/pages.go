package persist

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

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

	manyInFirst = 0xffff // A freelist with this count has the count in its first entry.

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
	minPageBytes      = 1 << 10
	maxPageBytes      = 64 << 10
	maxTreeDepth      = 64
	maxBucketNesting  = 2 // Spaces and their buckets.
)

func corruptFile(format string, args ...any) error {
	return &CorruptError{Err: fmt.Errorf(format, args...)}
}

// newestMeta returns the newer valid meta of a file, which bbolt will use.
func newestMeta(f *os.File) ([]byte, error) {
	first, err := metaAt(f, 0)
	if err != nil {
		return nil, err
	}
	second, at := []byte(nil), int64(minPageBytes)
	if first != nil { // It says where the second one is.
		at = int64(pageSizeOf(first))
	}
	for ; ; at *= 2 {
		if second, err = metaAt(f, at); err != nil {
			return nil, err
		}
		if first != nil || second != nil || at == maxPageBytes {
			break
		}
	}
	newest := first
	if newest == nil || second != nil && txIDOf(second) > txIDOf(first) {
		newest = second
	}
	if newest == nil {
		return nil, corruptFile("it has no valid bbolt meta page")
	}
	if pageSizeOf(newest) != uint64(at) || first != nil && pageSizeOf(first) != uint64(at) {
		return nil, corruptFile("meta pages disagree on the page size")
	}
	return newest, nil
}

// metaAt returns the meta of a page, or nil if it is not valid.
func metaAt(f *os.File, at int64) ([]byte, error) {
	page := make([]byte, metaOffset+metaBytes)
	if err := readAt(f, page, at); errors.Is(err, io.EOF) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	m := page[metaOffset:]
	if size := pageSizeOf(m); !soundMeta(m) || size < minPageBytes || size > maxPageBytes || size&(size-1) != 0 {
		return nil, nil
	}
	return m, nil
}

// readAt reads for Open, and once more after an error, because a card or a cable may fail only once. A file counts as
// damaged if the device cannot read it or if it is too short.
func readAt(f *os.File, b []byte, at int64) error {
	_, err := f.ReadAt(b, at)
	if err != nil {
		_, err = f.ReadAt(b, at)
	}
	if err != nil {
		return &CorruptError{Err: err}
	}
	return nil
}

// word and half read a number of 8 and of 4 bytes.
func word(b []byte, at int) uint64 { return binary.NativeEndian.Uint64(b[at:]) }

func half(b []byte, at int) uint64 { return uint64(binary.NativeEndian.Uint32(b[at:])) }

func pageSizeOf(meta []byte) uint64 { return half(meta, metaPageSizeAt) }

func txIDOf(meta []byte) uint64 { return word(meta, metaTxIDAt) }

// soundMeta reports whether bbolt would accept a meta.
func soundMeta(m []byte) bool {
	return half(m, 0) == metaMagic && half(m, metaVersionAt) == metaVersion && metaSum(m) == word(m, metaChecksumAt)
}

// metaSum is the FNV-1a hash that a meta should have as its checksum. It is computed
// for each transaction, so it allocates nothing.
func metaSum(m []byte) uint64 {
	h := uint64(14695981039346656037)
	for _, b := range m[:metaChecksumAt] {
		h = (h ^ uint64(b)) * 1099511628211
	}
	return h
}

type pageHeader struct {
	flags, count uint16
	bytes        uint64 // With overflow pages. Not set for an inline page.
}

func headerOf(page []byte) pageHeader {
	return pageHeader{flags: binary.NativeEndian.Uint16(page[pageFlagsAt:]), count: binary.NativeEndian.Uint16(page[pageCountAt:])}
}

// entries returns how many entries a freelist has, and where they begin.
func (h pageHeader) entries(page []byte) (count, from uint64) {
	if h.count == manyInFirst {
		return word(page, pageHeaderBytes), pageHeaderBytes + 8
	}
	return uint64(h.count), pageHeaderBytes
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

// child returns the page that an element of a branch leads to.
func child(page []byte, i int) uint64 {
	return word(page, pageHeaderBytes+i*elementBytes+branchPageIDAt)
}

// An element says where its key is, from its own first byte on, and how long key and value are.
type element struct {
	flags             uint32
	pos, ksize, vsize uint64
}

// element reads an element of a page that is branch or leaf.
func (h pageHeader) element(b []byte) (e element) {
	if h.flags == leafPage { // flags, pos, ksize, vsize; else pos, ksize.
		e.flags, b = binary.NativeEndian.Uint32(b), b[4:]
		e.vsize = half(b, 8)
	}
	e.pos, e.ksize = half(b, 0), half(b, 4)
	return e
}

// checkElements checks the elements of a branch or a leaf, and returns where their contents end. The contents must lie
// in the page, as bbolt writes them: one behind the other, from the end of the elements on. Otherwise the header has
// the wrong number of elements, or calls a branch a leaf, or bbolt would copy as many bytes as a wrong length says. The
// keys must ascend. Only the given flags may be set.
func (h pageHeader) checkElements(page []byte, flags uint32) (end uint64, err error) {
	room := uint64(len(page))
	if end = pageHeaderBytes + uint64(h.count)*elementBytes; end > room || h.count == 0 && h.flags == branchPage {
		return 0, corruptFile("it has %d elements in %d bytes", h.count, room)
	}
	var last []byte
	for i := range uint64(h.count) {
		at := pageHeaderBytes + i*elementBytes
		e := h.element(page[at:])
		begin := at + e.pos
		if begin != end || e.ksize == 0 || e.ksize > bolt.MaxKeySize || e.flags&^flags != 0 || begin+e.ksize+e.vsize > room {
			return 0, corruptFile("element %d of %d, of %d and %d bytes, with flags %#x, is at byte %d of %d", i, h.count, e.ksize, e.vsize, e.flags, begin, room)
		}
		key := page[begin:][:e.ksize]
		if bytes.Compare(last, key) >= 0 {
			return 0, corruptFile("key %.100q follows key %.100q", key, last)
		}
		last, end = key, begin+e.ksize+e.vsize
	}
	return end, nil
}
