package corrupt

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// damage is what is done to a file.
type damage struct {
	Class, Field string // Where, and what there.
	Detail       string
	patches      []patch
	truncateAt   int // If truncated.
	truncated    bool
}

type patch struct {
	at    int
	bytes []byte
}

func (d *damage) String() string { return d.Class + ", " + d.Field + ": " + d.Detail }

// ofOneObject reports whether all but the value of an object is as it was. A relist brings that, and nothing else is
// lost (S2).
func (d *damage) ofOneObject() bool { return d.Class == "leaf objects" && d.Field == "value" }

// applyTo damages the content of a file.
func (d *damage) applyTo(file []byte) []byte {
	file = slices.Clone(file)
	for _, p := range d.patches {
		copy(file[p.at:], p.bytes)
	}
	if d.truncated {
		file = file[:d.truncateAt]
	}
	return file
}

const wholeFile = "file"

// fieldsOf lists what can be damaged in a class.
func fieldsOf(class string) []string {
	header := []string{"header id", "header flags", "header count", "header overflow"}
	page := []string{"zeroed", "noise", "swapped", "a bit"}
	switch {
	case class == wholeFile:
		return []string{"truncated", "truncated in a page", "several bits"}
	case class == "free page":
		return []string{"noise"}
	case strings.HasPrefix(class, "meta"):
		return slices.Concat(page, []string{"meta field", "meta field, checksum"})
	case class == "freelist":
		return slices.Concat(header, page, []string{"freelist id"})
	case strings.HasPrefix(class, "branch"):
		return slices.Concat(header, page, []string{"element pos", "element ksize", "element pgid", "key"})
	default:
		return slices.Concat(header, page, []string{"element flags", "element pos", "element ksize", "element vsize", "key", "value", "value"})
	}
}

// damager makes damages of one file.
type damager struct {
	*layout
	rng *rand.Rand
}

// random makes some damage of a random class, so that rare classes are hit as
// often as others; or, three times in ten, it flips one bit of any page in use.
func (g *damager) random() *damage {
	if g.rng.IntN(10) < 3 {
		return g.liveBit()
	}
	for {
		classes := append(g.classes(), wholeFile)
		class := classes[g.rng.IntN(len(classes))]
		fields := fieldsOf(class)
		d := &damage{Class: class, Field: fields[g.rng.IntN(len(fields))]}
		if class == wholeFile {
			g.wholeFile(d)
			return d
		}
		regions := g.of(class)
		r := regions[g.rng.IntN(len(regions))]
		if g.region(d, r) {
			d.Detail = fmt.Sprintf("page %d%s, %s", r.page, map[bool]string{true: " (inline)"}[r.inline], d.Detail)
			return d
		}
	}
}

// liveBit flips one bit of a page in use that is no meta page. Every other time it is one of the first 80 bytes, which say where
// the page's elements are.
func (g *damager) liveBit() *damage {
	var pages []int
	for id := 2; id < g.high; id++ {
		if g.used[id] {
			pages = append(pages, id)
		}
	}
	id := pages[g.rng.IntN(len(pages))]
	d := &damage{Class: "live page", Field: "a bit"}
	g.flip(d, id*g.pageSize, []int{80, g.pageSize}[g.rng.IntN(2)])
	d.Detail = fmt.Sprintf("page %d, %s", id, d.Detail)
	return d
}

func (g *damager) wholeFile(d *damage) {
	used := g.high * g.pageSize
	switch d.Field {
	case "truncated":
		d.truncated, d.truncateAt = true, g.rng.IntN(g.high)*g.pageSize
		d.Detail = fmt.Sprintf("to %d of %d pages", d.truncateAt/g.pageSize, g.high)
	case "truncated in a page":
		d.truncated, d.truncateAt = true, g.rng.IntN(used)
		d.Detail = fmt.Sprintf("to %d of %d bytes", d.truncateAt, used)
	default:
		for range 2 + g.rng.IntN(30) {
			g.flip(d, g.rng.IntN(used), 1)
		}
		d.Detail = fmt.Sprintf("%d anywhere", len(d.patches))
	}
}

// flip changes one bit of some bytes.
func (g *damager) flip(d *damage, at, n int) {
	at += g.rng.IntN(n)
	bit := g.rng.IntN(8)
	d.patches = append(d.patches, patch{at, []byte{g.file[at] ^ 1<<bit}})
	d.Detail = fmt.Sprintf("bit %d of byte %d", bit, at)
}

// set changes a number of some bytes: to an edge, a bit, or anything.
func (g *damager) set(d *damage, at, n int) {
	if g.rng.IntN(2) == 0 {
		g.flip(d, at, n)
		return
	}
	b := make([]byte, 8)
	edges := []uint64{0, 1, 2, 3, 0xffff, 0x7fffffff, 0xffffffff, 1<<63 - 1, 1 << 63, 1<<64 - 1}
	v := edges[g.rng.IntN(len(edges))]
	if g.rng.IntN(4) == 0 {
		v = uint64(g.rng.IntN(g.high + 2))
	}
	binary.LittleEndian.PutUint64(b, v)
	d.patches = append(d.patches, patch{at, b[:n]})
	d.Detail = fmt.Sprintf("%d bytes at %d set to %#x", n, at, v)
}

// region damages a region, and reports whether that was possible.
func (g *damager) region(d *damage, r region) bool {
	switch field, rest, _ := strings.Cut(d.Field, " "); field {
	case "header":
		at := map[string]int{"id": 0, "flags": pageFlagsAt, "count": pageCountAt, "overflow": pageOverflowAt}[rest]
		g.set(d, r.at+at, map[string]int{"id": 8, "flags": 2, "count": 2, "overflow": 4}[rest])
	case "element", "key", "value":
		return len(r.elements) > 0 && g.element(d, r, r.elements[g.rng.IntN(len(r.elements))])
	case "freelist":
		n := int(binary.LittleEndian.Uint16(g.file[r.at+pageCountAt:]))
		if n == 0 {
			return false
		}
		g.set(d, r.at+pageHeaderBytes+8*g.rng.IntN(n), 8)
	case "meta":
		return g.meta(d, r)
	case "a": // a bit
		g.flip(d, r.at, r.bytes)
	default:
		return g.page(d, r)
	}
	return g.changes(d)
}

// changes reports whether the file differs afterwards.
func (g *damager) changes(d *damage) bool {
	return slices.ContainsFunc(d.patches, func(p patch) bool { return string(g.file[p.at:][:len(p.bytes)]) != string(p.bytes) })
}

func (g *damager) element(d *damage, r region, e element) bool {
	branch := strings.HasPrefix(r.class, "branch")
	switch d.Field {
	case "key":
		if len(e.key) == 0 {
			return false
		}
		g.flip(d, e.keyAt, len(e.key))
	case "value":
		if len(e.value) == 0 {
			return false
		}
		g.value(d, e)
	case "element pgid":
		g.set(d, e.at+8, 8)
	default:
		at := map[string]int{"element flags": 0, "element pos": 4, "element ksize": 8, "element vsize": 12}
		if branch {
			at = map[string]int{"element pos": 0, "element ksize": 4}
		}
		g.set(d, e.at+at[d.Field], 4)
	}
	return g.changes(d)
}

// value damages the bytes of a value: a bit, mostly.
func (g *damager) value(d *damage, e element) {
	if g.rng.IntN(3) > 0 {
		g.flip(d, e.valueAt, len(e.value))
		return
	}
	from := g.rng.IntN(len(e.value))
	b := make([]byte, 1+g.rng.IntN(len(e.value)-from))
	g.fill(b)
	d.patches = append(d.patches, patch{e.valueAt + from, b})
	d.Detail = fmt.Sprintf("%d bytes of noise at %d", len(b), e.valueAt+from)
}

func (g *damager) fill(b []byte) {
	for i := range b {
		b[i] = byte(g.rng.Uint32())
	}
}

// meta changes a field, and the checksum with it if asked to.
func (g *damager) meta(d *damage, r region) bool {
	at := []int{metaPageSizeAt, metaRootAt, metaFreelistAt, metaHighAt, metaTxIDAt}[g.rng.IntN(5)]
	g.set(d, r.at+pageHeaderBytes+at, 4)
	if strings.HasSuffix(d.Field, "checksum") {
		m := slices.Clone(g.file[r.at+pageHeaderBytes:][:metaBytes])
		p := d.patches[0]
		copy(m[p.at-r.at-pageHeaderBytes:], p.bytes)
		binary.LittleEndian.PutUint64(m[metaChecksumAt:], metaChecksum(m))
		d.patches = []patch{{r.at + pageHeaderBytes, m}}
	}
	return g.changes(d)
}

// page damages a region as a whole.
func (g *damager) page(d *damage, r region) bool {
	b := make([]byte, r.bytes)
	switch d.Field {
	case "noise":
		from := g.rng.IntN(r.bytes)
		b = b[from:]
		g.fill(b)
		d.patches = append(d.patches, patch{r.at + from, b})
		d.Detail = fmt.Sprintf("from byte %d on", from)
	case "zeroed":
		d.patches = append(d.patches, patch{r.at, b})
	case "swapped":
		var others []region
		for _, o := range g.regions {
			if !o.inline && o.bytes == r.bytes && o.at != r.at && (g.rng.IntN(4) == 0 || o.class == r.class) {
				others = append(others, o)
			}
		}
		if r.inline || len(others) == 0 {
			return false
		}
		o := others[g.rng.IntN(len(others))]
		d.patches = append(d.patches, patch{r.at, g.file[o.at:][:o.bytes]}, patch{o.at, g.file[r.at:][:r.bytes]})
		d.Detail = fmt.Sprintf("with page %d, %s", o.page, o.class)
	}
	return g.changes(d)
}
