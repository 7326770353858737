package corrupt

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"slices"
)

// The layout of a bbolt file, from its internal/common.
const (
	pageHeaderBytes = 16 // id, flags, count, overflow
	pageFlagsAt     = 8
	pageCountAt     = 10
	pageOverflowAt  = 12

	branchFlag   = 0x01
	leafFlag     = 0x02
	metaFlag     = 0x04
	freelistFlag = 0x10

	elementBytes      = 16
	bucketHeaderBytes = 16 // root, sequence
	metaBytes         = 64
	metaMagic         = 0xED0CDAED
	metaPageSizeAt    = 8
	metaRootAt        = 16
	metaFreelistAt    = 32
	metaHighAt        = 40
	metaTxIDAt        = 48
	metaChecksumAt    = 56
)

// region is a page with its overflow pages, or a bucket within a leaf.
type region struct {
	class    string // For example "leaf deltas".
	bucket   string // Whose page it is, if it is a branch or a leaf.
	at       int    // Of its header, in the file.
	bytes    int
	page     int // Number; of the page that it is in, if inline.
	inline   bool
	elements []element
}

// element is an entry of a branch or leaf; all positions are in the file.
type element struct {
	at         int
	key, value []byte // Of the parsed file, nil if there is none.
	keyAt      int
	valueAt    int
}

// layout is what a file consists of.
type layout struct {
	file     []byte
	pageSize int
	high     int // Pages from here on are not used.
	regions  []region
	used     map[int]bool
}

// parse takes a sound file to pieces.
func parse(file []byte) (*layout, error) {
	l := &layout{file: file, used: map[int]bool{0: true, 1: true}}
	first, second := metaOf(file, 0), []byte(nil)
	if first != nil {
		l.pageSize = int(binary.LittleEndian.Uint32(first[metaPageSizeAt:]))
		second = metaOf(file, l.pageSize)
	}
	if first == nil || second == nil {
		return nil, fmt.Errorf("not a sound file: %d bytes", len(file))
	}
	newest, other := 0, 1
	meta := first
	if binary.LittleEndian.Uint64(second[metaTxIDAt:]) > binary.LittleEndian.Uint64(first[metaTxIDAt:]) {
		newest, other, meta = 1, 0, second
	}
	for class, id := range map[string]int{"meta newest": newest, "meta before": other} {
		l.regions = append(l.regions, region{class: class, at: id * l.pageSize, bytes: l.pageSize, page: id})
	}
	l.high = int(binary.LittleEndian.Uint64(meta[metaHighAt:]))
	if l.high*l.pageSize > len(file) {
		return nil, fmt.Errorf("%d pages in %d bytes", l.high, len(file))
	}
	l.add("freelist", "", int(binary.LittleEndian.Uint64(meta[metaFreelistAt:])))
	if err := l.tree("root", int(binary.LittleEndian.Uint64(meta[metaRootAt:])), 0); err != nil {
		return nil, err
	}
	for id := range l.high {
		if !l.used[id] {
			l.regions = append(l.regions, region{class: "free page", at: id * l.pageSize, bytes: l.pageSize, page: id})
		}
	}
	slices.SortFunc(l.regions, func(a, b region) int { return a.at - b.at })
	return l, nil
}

// metaOf returns the meta page at a position, nil if it is none.
func metaOf(file []byte, at int) []byte {
	if len(file) < at+pageHeaderBytes+metaBytes {
		return nil
	}
	m := file[at+pageHeaderBytes:][:metaBytes]
	if binary.LittleEndian.Uint32(m) != metaMagic || binary.LittleEndian.Uint64(m[metaChecksumAt:]) != metaChecksum(m) {
		return nil
	}
	return m
}

func metaChecksum(m []byte) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(m[:metaChecksumAt]) // A hash's Write never fails.
	return h.Sum64()
}

// add notes a page and its overflow pages.
func (l *layout) add(class, bucket string, id int) *region {
	at := id * l.pageSize
	pages := 1 + int(binary.LittleEndian.Uint32(l.file[at+pageOverflowAt:]))
	for i := range pages {
		l.used[id+i] = true
	}
	l.regions = append(l.regions, region{class: class, bucket: bucket, at: at, bytes: pages * l.pageSize, page: id})
	return &l.regions[len(l.regions)-1]
}

// tree notes the pages of a bucket. Nesting is 0 for the root, 1 for a space.
func (l *layout) tree(bucket string, id, nesting int) error {
	flags := binary.LittleEndian.Uint16(l.file[id*l.pageSize+pageFlagsAt:])
	switch flags {
	case branchFlag:
		r := l.add("branch "+bucket, bucket, id)
		l.elements(r, flags)
		for _, e := range slices.Clone(r.elements) {
			if err := l.tree(bucket, int(binary.LittleEndian.Uint64(l.file[e.at+8:])), nesting); err != nil {
				return err
			}
		}
	case leafFlag:
		r := l.add("leaf "+bucket, bucket, id)
		l.elements(r, flags)
		return l.buckets(*r, nesting)
	default:
		return fmt.Errorf("page %d has flags %#x", id, flags)
	}
	return nil
}

// elements reads those of a branch or leaf.
func (l *layout) elements(r *region, flags uint16) {
	for i := range int(binary.LittleEndian.Uint16(l.file[r.at+pageCountAt:])) {
		e := element{at: r.at + pageHeaderBytes + i*elementBytes}
		pos, ksize, vsize := e.at, e.at+4, 0
		if flags == leafFlag {
			pos, ksize = e.at+4, e.at+8
			vsize = int(binary.LittleEndian.Uint32(l.file[e.at+12:]))
		}
		e.keyAt = e.at + int(binary.LittleEndian.Uint32(l.file[pos:]))
		e.valueAt = e.keyAt + int(binary.LittleEndian.Uint32(l.file[ksize:]))
		e.key, e.value = l.file[e.keyAt:e.valueAt], l.file[e.valueAt:e.valueAt+vsize]
		r.elements = append(r.elements, e)
	}
}

// buckets follows the buckets in a leaf.
func (l *layout) buckets(r region, nesting int) error {
	for _, e := range r.elements {
		if binary.LittleEndian.Uint32(l.file[e.at:])&1 == 0 {
			continue
		}
		name := string(e.key)
		if nesting == 0 { // Spaces are named after identities; the format has a bucket of its own.
			name = "space"
		}
		if root := int(binary.LittleEndian.Uint64(e.value)); root != 0 {
			if err := l.tree(name, root, nesting+1); err != nil {
				return err
			}
			continue
		}
		in := region{
			class: "leaf " + name, bucket: name, at: e.valueAt + bucketHeaderBytes, bytes: len(e.value) - bucketHeaderBytes,
			page: r.page, inline: true,
		}
		l.elements(&in, leafFlag)
		l.regions = append(l.regions, in)
	}
	return nil
}

// of returns the regions of a class.
func (l *layout) of(class string) (found []region) {
	for _, r := range l.regions {
		if r.class == class {
			found = append(found, r)
		}
	}
	return found
}

// classes are those that the file has, sorted.
func (l *layout) classes() []string {
	seen := map[string]bool{}
	for _, r := range l.regions {
		seen[r.class] = true
	}
	names := make([]string, 0, len(seen))
	for name := range seen {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
