package persist

import (
	"bytes"
	"fmt"
	"slices"

	bolt "go.etcd.io/bbolt"
)

// beside has the page ids of a leaf's neighbours in its bucket, 0 for none: 8 bytes for each page of the
// file.
type beside struct{ before, behind uint32 }

// maxNoted is how many pages a file may have for the neighbours of its leaves to be noted: as many as have an
// id of 32 bits, which are 4 TiB or more.
const maxNoted = 1 << 32

// leafEnds are the first and the last key of a leaf, nil if it is empty.
type leafEnds struct{ first, last []byte }

// noteOrder notes the leaf that comes next in its bucket.
func (in *inspector) noteOrder(id uint64) {
	if in.beside != nil {
		in.beside[id].before = uint32(in.lastLeaf)
		in.beside[in.lastLeaf].behind = uint32(id) // Of page 0, nobody reads that.
		in.lastLeaf = id
	}
}

// checkBeside checks that the last key of a leaf is less than the first one of the next, before and behind
// a leaf that was found sound but for that, and that the one behind begins with the key that its branch
// names it by. Each two leaves are compared when the first of them is
// checked: until then both pages are as they were when their order was noted.
func (c *leafCheck) checkBeside(id uint64, ends leafEnds) error {
	if c.in.beside == nil {
		return nil
	}
	if before := uint64(c.in.beside[id].before); c.isUnchecked(before) {
		last, err := c.in.keyAtEnd(before, true)
		if err != nil {
			return err
		}
		if bytes.Compare(last, ends.first) >= 0 {
			return wrongLastKey(before, last, ends.first)
		}
	}
	if behind := uint64(c.in.beside[id].behind); c.isUnchecked(behind) {
		first, err := c.in.keyAtEnd(behind, false)
		if err != nil {
			return err
		}
		if bytes.Compare(ends.last, first) >= 0 {
			return wrongLastKey(id, ends.last, first)
		}
		if keyHash(first) != c.in.unchecked[behind] { // A key between the two names would be put into this leaf.
			return wrongName(behind, first)
		}
	}
	return nil
}

// wrongName is the error for a leaf whose branch names it by another key than its first one.
func wrongName(id uint64, first []byte) error {
	return corruptFile("leaf %d begins with key %.100q, expected another one", id, first)
}

// wrongLastKey is the error for a page whose last key is not below the next page's first one.
func wrongLastKey(id uint64, got, next []byte) error {
	return corruptFile("page %d ends with key %.100q, and the next one begins with key %.100q", id, got, next)
}

// keyAtEnd reads the first or the last key of a leaf with values that is still unchecked.
func (in *inspector) keyAtEnd(id uint64, last bool) ([]byte, error) {
	h, err := in.leafHeader(id)
	if err != nil {
		return nil, err
	}
	at, room := uint64(0), h.bytes-pageHeaderBytes
	if last && h.count > 0 {
		at = uint64(h.count-1) * elementBytes
	}
	if h.count == 0 || at+elementBytes > room {
		return nil, corruptFile("leaf %d has %d elements in %d bytes", id, h.count, h.bytes)
	}
	var b [elementBytes]byte
	begin := id*in.pageSize + pageHeaderBytes + at
	if _, err := in.readAt(b[:], int64(begin)); err != nil {
		return nil, err
	}
	e := h.element(b[:])
	if e.ksize > bolt.MaxKeySize || at+e.pos+e.ksize > room {
		return nil, corruptFile("leaf %d has a key of %d bytes at byte %d of %d", id, e.ksize, at+e.pos, room)
	}
	key := make([]byte, e.ksize)
	_, err = in.readAt(key, int64(begin+e.pos))
	return key, err
}

// leafHeader reads the head of a page that ought to be a leaf. A branch may lead back to itself.
func (in *inspector) leafHeader(id uint64) (pageHeader, error) {
	h, err := in.header(id)
	if err == nil && h.flags != leafPage {
		err = corruptFile("page %d has flags %#x, expected a leaf", id, h.flags)
	}
	return h, err
}

// checkValues checks a leaf with values as elementsOf does, but not what follows its contents; and
// its first key by keyHash. Of the values it reads only what is in a page's length behind a key.
func (in *inspector) checkValues(id uint64, h pageHeader, want uint32) (ends leafEnds, err error) {
	isRoot := want == keyHash(nil)
	leaf := in.leafReader(id, h, nil)
	elements, err := leaf.elements(isRoot)
	if err != nil {
		return ends, err
	}
	in.elements = append(in.elements[:0], elements...) // To read keys may overwrite them.
	for at := uint64(0); at < uint64(len(in.elements)); at += elementBytes {
		e := h.element(in.elements[at:])
		key, err := leaf.read(at+e.pos, e.ksize)
		switch {
		case err != nil:
			return ends, err
		case at == 0 && (key[0] != keyPrefix || !isRoot && keyHash(key) != want):
			return ends, wrongName(id, key)
		case bytes.Compare(ends.last, key) >= 0:
			return ends, corruptFile("leaf %d: key %.100q follows key %.100q", id, key, ends.last)
		}
		if at == 0 {
			ends.first = bytes.Clone(key)
		}
		ends.last = append(ends.last[:0], key...)
	}
	return ends, nil
}

// checkKnownLeaf checks the header, the elements and the first key of a leaf with values whose keys were in order. begin
// has its first bytes, first is the key that its branch names it by, nil for the root of a bucket.
func (in *inspector) checkKnownLeaf(id uint64, h pageHeader, begin, first []byte) error {
	leaf := in.leafReader(id, h, begin[pageHeaderBytes:])
	elements, err := leaf.elements(first == nil)
	if err != nil || first == nil {
		return err
	}
	e := h.element(elements)
	key, err := leaf.read(e.pos, e.ksize)
	if err == nil && !bytes.Equal(key, first) {
		err = wrongFirstKey(id, key, first)
	}
	return err
}

// A leafReader reads parts of a leaf with values, from behind its header on.
type leafReader struct {
	in     *inspector
	id     uint64
	header pageHeader
	at     uint64 // Where in.window begins.
}

// leafReader returns one that has read the beginning already.
func (in *inspector) leafReader(id uint64, h pageHeader, beginning []byte) *leafReader {
	in.window = append(in.window[:0], beginning...)
	return &leafReader{in: in, id: id, header: h}
}

func (r *leafReader) size() uint64 { return r.header.bytes - pageHeaderBytes }

// elements returns the elements of the leaf, checked, and checks that the leaf has no more pages than they need:
// bbolt gives it no others (node.spill in its node.go). It has none only if it is the root of its bucket, and
// then zeros where it would have one.
func (r *leafReader) elements(isRoot bool) ([]byte, error) {
	h := r.header
	n := uint64(h.count) * elementBytes
	if n > r.size() {
		return nil, corruptFile("leaf %d has %d elements in %d bytes", r.id, h.count, h.bytes)
	}
	elements, err := r.read(0, max(n, elementBytes))
	if err != nil {
		return nil, err
	}
	if n == 0 && (!isRoot || !isZero(elements)) {
		return nil, corruptFile("leaf %d is empty", r.id)
	}
	end, err := r.in.checkElements(h, elements[:n], 0)
	if err != nil {
		return nil, fmt.Errorf("leaf %d: %w", r.id, err)
	}
	if r.size()-end >= r.in.pageSize && !r.in.readOnly {
		return nil, corruptFile("leaf %d is %d bytes long, and needs %d", r.id, h.bytes, pageHeaderBytes+end)
	}
	return elements[:n], nil
}

// read returns n bytes of the leaf, which the next call may overwrite. It reads a page's length at a time.
func (r *leafReader) read(from, n uint64) ([]byte, error) {
	in := r.in
	if from < r.at || from+n > r.at+uint64(len(in.window)) {
		size := min(max(n, in.pageSize), r.size()-from)
		in.window, r.at = slices.Grow(in.window[:0], int(size))[:size], from
		if _, err := in.readAt(in.window, int64(r.id*in.pageSize+pageHeaderBytes+from)); err != nil {
			return nil, err
		}
	}
	return in.window[from-r.at:][:n], nil
}
