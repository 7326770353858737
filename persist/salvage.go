package persist

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"

	bolt "go.etcd.io/bbolt"
)

// salvage copies the sound values of a file that is replaced because of cause into a new
// one, and marks the spaces that it finds. It reads the pages of the file itself, because
// bbolt trusts what it reads.
func (db *DB) salvage(bad *os.File, cause error, o *opened) error {
	if err := checkFormat(db.noting(bad), bad.Name()); isBad(err) {
		db.log.Error(err, "Nothing can be copied of the file that is replaced", "path", db.path)
		return nil // It is replaced all the same.
	} else if err != nil {
		return err
	}
	w := &DB{}
	l, keys, marked := newLayer(), 0, map[string]bool{}
	flush := func() error {
		txID, _, err := w.write(o.bolt, l)
		if err != nil {
			return err
		}
		o.txID, l = txID, newLayer()
		db.answered()
		return nil
	}
	lost, err := forEachReadable(db.noting(bad), nil, func(name Bucket, key, value []byte) error {
		if mark := (Bucket{name.Space, salvagedBucket}); !marked[name.Space] && mark.check() == nil {
			marked[name.Space] = true
			l.set(mark, salvagedKey, entry{value: Bytes(nil)})
		}
		if len(key) == 0 || len(key) > bolt.MaxKeySize || key[0] != keyPrefix {
			return nil
		}
		k := string(key[1:])
		payload, err := unseal(name, k, value)
		if err != nil {
			return nil //nolint:nilerr // Left out: that is what salvaging means.
		}
		l.set(name, k, entry{value: Bytes(payload)}) // Not copied, see readableFunc.
		if keys++; keys%salvageKeys == 0 || l.bytes >= salvageBytes {
			return flush()
		}
		return nil
	})
	if err == nil {
		err = flush()
	}
	log := db.log
	if lost != nil {
		log = log.WithValues("firstUnreadable", lost)
	}
	log.Info("Salvaged what could be read of the cache file", "path", db.path, "keys", keys, "reason", cause)
	return err
}

// How much is copied in one transaction at most.
const (
	salvageKeys  = 1000
	salvageBytes = 4 << 20
)

// checkFormat reports whether the file is of the format that is written now.
func checkFormat(f pagedFile, path string) error {
	version, found := "", false
	isFormat := func(space string) bool { return space == formatBucket }
	lost, err := forEachReadable(f, isFormat, func(name Bucket, key, value []byte) error {
		if name.Name == "" && string(key) == formatKey {
			version, found = string(value), true
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case !found && lost != nil:
		return lost
	case !found:
		return fmt.Errorf("%w: %s is not a warmwatch cache", ErrUnknownFormat, path)
	case version != formatVersion:
		return fmt.Errorf("%w: %s has version %q, expected %q", ErrUnknownFormat, path, version, formatVersion)
	}
	return nil
}

// A readableFunc is called for each key that can still be reached in a damaged file. It may
// keep the slices. The format's keys come with a bucket without a name, as does each space itself, with
// no key. An error ends the walk.
type readableFunc func(name Bucket, key, value []byte) error

// forEachReadable walks the pages of a file, and goes around those that are damaged: lost
// says what is wrong with the first of them. err is fn's, or why the file could not be
// read otherwise. It visits the spaces that space accepts; if space is nil, all but the
// format. It ends whatever the pages refer to, see salvagedPagesFactor.
func forEachReadable(f pagedFile, space func(string) bool, fn readableFunc) (lost, err error) {
	if space == nil {
		space = func(name string) bool { return name != formatBucket }
	}
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	w := &salvager{in: &inspector{f: f, readOnly: true}, space: space, fn: fn}
	meta, err := w.in.meta(info.Size())
	if errors.Is(err, ErrCorrupt) {
		return err, nil // Nothing is to be found.
	} else if err != nil {
		return nil, err
	}
	w.lost = w.in.badMeta
	w.in.pages = min(binary.NativeEndian.Uint64(meta[metaHighAt:]), uint64(info.Size())/w.in.pageSize)
	w.left = salvagedPagesFactor*w.in.pages + 1
	w.elements = w.left * w.in.pageSize / elementBytes
	err = w.tree(binary.NativeEndian.Uint64(meta[metaRootAt:]), 0, nil)
	return w.lost, err
}

type salvager struct {
	in    *inspector
	space func(string) bool
	fn    readableFunc
	lost  error
	// left bounds how many more pages are read: damaged branches may lead to the same
	// pages again and again.
	left uint64
	// elements bounds how many more elements are read, for the same reason: damaged
	// inline buckets of a page may overlap.
	elements uint64
	// above are the branches that lead to the page that is being read.
	above []uint64
}

// salvagedPagesFactor bounds how many pages are read: this many times as many as the file
// has. A page is read for each page that refers to it, so that a damaged page which does so
// cannot take it from its owner.
const salvagedPagesFactor = 4

// maxSalvagedPageBytes bounds what is read at once, because the length of a page follows
// from its content, which may be damaged.
const maxSalvagedPageBytes = 256 << 20

// tree walks the pages of a bucket; path has the names of the buckets that lead to it.
func (w *salvager) tree(id uint64, depth int, path []string) error {
	page, err := w.page(id, depth)
	if errors.Is(err, ErrCorrupt) {
		w.lose(err)
		return nil
	} else if err != nil {
		return err
	}
	if page.flags == leafPage {
		return w.leaf(page, path)
	}
	w.above = append(w.above, id)
	defer func() { w.above = w.above[:len(w.above)-1] }()
	for i := range page.count {
		at := pageHeaderBytes + i*elementBytes
		if at+elementBytes > len(page.bytes) {
			w.lose(corruptFile("page %d: element %d of %d is not in it", id, i, page.count))
			break
		}
		// Its key is not needed, and may be damaged.
		if err := w.tree(binary.NativeEndian.Uint64(page.bytes[at+branchPageIDAt:]), depth+1, path); err != nil {
			return err
		}
	}
	return nil
}

func (w *salvager) lose(err error) {
	if w.lost == nil {
		w.lost = err
	}
}

// A salvagePage is a page that may be damaged. Each element is checked by itself.
type salvagePage struct {
	flags uint16
	count int
	bytes []byte
}

// page reads a page. It takes the flags from the header, or else guessFlags, the number of
// elements from setCount, and the length from where the elements say that their content ends.
func (w *salvager) page(id uint64, depth int) (p salvagePage, err error) {
	if depth > maxTreeDepth {
		return p, corruptFile("a bucket has more than %d levels of pages", maxTreeDepth)
	}
	if id < 2 || id >= w.in.pages {
		return p, corruptFile("something refers to page %d of %d", id, w.in.pages)
	}
	if slices.Contains(w.above, id) {
		return p, corruptFile("page %d leads to itself", id)
	}
	if w.left == 0 {
		return p, corruptFile("references lead to the same pages again and again")
	}
	w.left--
	at := int64(id * w.in.pageSize)
	head := make([]byte, pageHeaderBytes+2*elementBytes)
	if err := w.in.read(head, id); err != nil {
		return p, err
	}
	switch p.flags = binary.NativeEndian.Uint16(head[pageFlagsAt:]); p.flags {
	case branchPage, leafPage:
	case metaPage, freelistPage: // A freelist names pages of older versions of the file.
		return p, wrongFlags(id, p.flags)
	default:
		w.lose(wrongFlags(id, p.flags))
		p.guessFlags(head)
	}
	p.setCount(head)
	table := make([]byte, pageHeaderBytes+p.count*elementBytes)
	n, err := w.readSome(table, at)
	if err != nil {
		return p, err
	}
	p.bytes = table[:n]
	p.count = min(p.count, max(0, n-pageHeaderBytes)/elementBytes)
	whole := uint64(n)
	for i := range p.count {
		if _, _, end := p.span(i); end <= maxSalvagedPageBytes {
			whole = max(whole, end)
		}
	}
	p.bytes = make([]byte, min(whole, (w.in.pages-id)*w.in.pageSize))
	n, err = w.readSome(p.bytes, at)
	p.bytes = p.bytes[:n]
	return p, err
}

// readSome reads up to the end of the file, or up to where the device cannot read.
func (w *salvager) readSome(b []byte, at int64) (int, error) {
	n, err := w.in.readAt(b, at)
	if errors.Is(err, ErrCorrupt) {
		w.lose(err)
		err = nil
	} else if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

func wrongFlags(id uint64, flags uint16) error {
	return corruptFile("page %d has flags %#x, expected a branch or a leaf", id, flags)
}

// guessFlags finds out whether a page is a leaf, if its header says neither that nor that it is a
// branch: an element of a leaf begins with its flags, one of a branch with where its key is, which
// is behind it.
func (p *salvagePage) guessFlags(page []byte) {
	p.flags = branchPage
	if binary.NativeEndian.Uint32(page[pageHeaderBytes:]) < elementBytes {
		p.flags = leafPage
	}
}

// setCount finds out how many elements a page has. Three places say it: the header; the
// content of the first element, which begins right behind the last element; and that of
// the second, which begins where that of the first ends. Two that agree decide, else the
// lower of the first two numbers: one that is too large would take elements from the pages
// behind this one, which may be of an older version of the file. A page that has a first
// element is not empty, whatever its header says.
func (p *salvagePage) setCount(page []byte) {
	p.count = int(binary.NativeEndian.Uint16(page[pageCountAt:]))
	elements := salvagePage{flags: p.flags, bytes: page}
	if len(page) < pageHeaderBytes+elementBytes {
		return
	}
	first, _, end := elements.span(0)
	fromFirst, ok := countBefore(first)
	if !ok || fromFirst == p.count {
		return
	}
	fromSecond, ok := 0, false
	if len(page) >= pageHeaderBytes+2*elementBytes {
		second, _, _ := elements.span(1)
		fromSecond, ok = countBefore(second - (end - first))
	}
	switch {
	case p.count == 0 || ok && fromSecond == fromFirst:
		p.count = fromFirst
	case !ok || fromSecond != p.count:
		p.count = min(p.count, fromFirst)
	}
}

// countBefore returns how many elements precede the content that begins at byte at of a page.
func countBefore(at uint64) (count int, ok bool) {
	n := at - pageHeaderBytes
	return int(n / elementBytes), at > pageHeaderBytes && n%elementBytes == 0 && n/elementBytes <= math.MaxUint16
}

// span returns where the key and the value of an element begin in the page, and end.
func (p *salvagePage) span(i int) (key, value, end uint64) {
	at := pageHeaderBytes + i*elementBytes
	e := pageHeader{flags: p.flags}.element(p.bytes[at:])
	key = uint64(at) + e.pos
	return key, key + e.ksize, key + e.ksize + e.vsize
}

// element returns the key and the value of an element, if they are in the page.
func (p *salvagePage) element(i int) (key, value []byte, ok bool) {
	if pageHeaderBytes+(i+1)*elementBytes > len(p.bytes) {
		return nil, nil, false
	}
	from, to, end := p.span(i)
	if end > uint64(len(p.bytes)) {
		return nil, nil, false
	}
	return p.bytes[from:to:to], p.bytes[to:end:end], true
}

func (w *salvager) leaf(page salvagePage, path []string) error {
	for i := range page.count {
		key, value, ok := page.element(i)
		if w.elements == 0 {
			w.lose(corruptFile("pages have the same elements again and again"))
			return nil
		}
		w.elements--
		if !ok {
			w.lose(corruptFile("element %d of %d is not in its page", i, page.count))
			continue
		}
		var err error
		switch { // The depth tells buckets and values apart, not a flag that may be damaged.
		case len(path) == maxBucketNesting:
			err = w.fn(Bucket{path[0], path[1]}, key, value)
		case len(path) == 1 && path[0] == formatBucket:
			err = w.fn(Bucket{Space: formatBucket}, key, value)
		case len(path) == 1:
			err = w.bucket(value, append(slices.Clip(path), string(key)))
		case w.space(string(key)):
			if err = w.fn(Bucket{Space: string(key)}, nil, nil); err == nil {
				err = w.bucket(value, []string{string(key)})
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// bucket walks a bucket, which is a tree of its own, or inline: a leaf within the leaf.
func (w *salvager) bucket(value []byte, path []string) error {
	if len(value) < bucketHeaderBytes {
		w.lose(corruptFile("a bucket has %d bytes, expected at least %d", len(value), bucketHeaderBytes))
		return nil
	}
	if root := binary.NativeEndian.Uint64(value); root != 0 {
		return w.tree(root, 0, path)
	}
	inline := value[bucketHeaderBytes:]
	if len(inline) < pageHeaderBytes {
		w.lose(corruptFile("an inline bucket has %d bytes, expected at least %d", len(inline), pageHeaderBytes))
		return nil
	}
	page := salvagePage{flags: leafPage, bytes: inline}
	page.setCount(inline)
	return w.leaf(page, path)
}

// salvagedBucket has the mark of a space in which something may be missing, whatever
// the rest of the space says, because it was in a damaged file.
const (
	salvagedBucket = "salvaged"
	salvagedKey    = "mark"
)

// Salvaged reports whether something may be missing in the space: the file was found
// corrupt, or a key was too long for it, and [DB.ForgetSalvage] was not called since.
func (db *DB) Salvaged(space string) bool {
	db.mu.RLock()
	broken := db.broken != nil && db.bolt != nil
	db.mu.RUnlock()
	if broken {
		return true
	}
	found, err := db.View(Bucket{space, salvagedBucket}, salvagedKey, func(*Item) error { return nil })
	return found || errors.Is(err, ErrCorrupt)
}

// Salvaged is [DB.Salvaged] of a file that is taken over.
func (s *Snapshot) Salvaged() bool {
	found, err := s.View(salvagedBucket, salvagedKey, func(*Item) error { return nil })
	return found || errors.Is(err, ErrCorrupt)
}

// MarkSalvaged makes [DB.Salvaged] true for a space.
func (db *DB) MarkSalvaged(space string) error {
	_, err := db.Update(func(b *Batch) { b.Put(Bucket{space, salvagedBucket}, salvagedKey, Bytes(nil)) })
	return err
}

// ForgetSalvage removes the mark. The owner of the space calls it after it has put
// in everything that there is.
func (db *DB) ForgetSalvage(space string) error {
	_, err := db.Update(func(b *Batch) { b.Delete(Bucket{space, salvagedBucket}, salvagedKey) })
	return err
}

// markSalvagedLocked marks all spaces in use.
func (db *DB) markSalvagedLocked() {
	spaces := map[string]struct{}{}
	for b := range db.pending.buckets {
		spaces[b.Space] = struct{}{}
	}
	for h := range db.hooks {
		spaces[h.Space] = struct{}{}
	}
	delete(spaces, "")
	for space := range spaces {
		db.pending.set(Bucket{space, salvagedBucket}, salvagedKey, entry{value: Bytes(nil)})
	}
}

// mergeBackLocked puts a layer that could not be committed under pending.
func (db *DB) mergeBackLocked(l *layer) {
	for name, bl := range l.buckets {
		p := db.pending.bucket(name)
		if p.dropped {
			continue // Dropped since, with what l has.
		}
		p.dropped = bl.dropped
		bl.entries.Scan(func(key string, e entry) bool {
			if _, newer := db.pending.buckets[name].entries.Get(key); !newer {
				db.pending.set(name, key, e)
			}
			return true
		})
	}
}
