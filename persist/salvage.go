package persist

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"

	bolt "go.etcd.io/bbolt"
)

// salvage copies what is whole from a damaged file into a new one, and marks the
// spaces that it finds. It reads the file itself, page by page: bbolt believes what it
// reads.
func (db *DB) salvage(bad *os.File, o *opened) error {
	if err := checkFormat(bad); err != nil {
		db.log.Error(err, "Could not salvage anything of the damaged cache file", "path", db.path)
		return nil // It is replaced all the same.
	}
	w := &DB{}
	l, keys, marked := newLayer(), 0, map[string]bool{}
	flush := func() error {
		txID, _, err := w.write(o.bolt, l)
		if err == nil {
			o.txID, l = txID, newLayer()
		}
		return err
	}
	lost, err := survivors(bad, nil, func(name Bucket, key, value []byte) error {
		if !marked[name.Space] {
			marked[name.Space] = true
			l.set(Bucket{name.Space, salvagedBucket}, salvagedKey, entry{value: Bytes(nil)})
		}
		if len(key) == 0 || len(key) > bolt.MaxKeySize || key[0] != keyPrefix {
			return nil
		}
		k := string(key[1:])
		payload, err := unseal(name, k, value)
		if err != nil {
			return nil //nolint:nilerr // Left out: that is what salvaging means.
		}
		l.set(name, k, entry{value: Bytes(payload)}) // The page is ours.
		if keys++; keys%salvageKeys == 0 || l.bytes >= salvageBytes {
			return flush()
		}
		return nil
	})
	if err == nil {
		err = flush()
	}
	db.log.Info("Salvaged what could be read of the damaged cache file", "path", db.path, "keys", keys, "err", lost)
	return err
}

// So much is copied in one transaction.
const (
	salvageKeys  = 1000
	salvageBytes = 4 << 20
)

// checkFormat reports whether the file is of the format that is written now.
func checkFormat(f *os.File) error {
	version, found := "", false
	isFormat := func(space string) bool { return space == formatBucket }
	lost, err := survivors(f, isFormat, func(name Bucket, key, value []byte) error {
		if name.Name == "" && string(key) == formatKey {
			version, found = string(value), true
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case !found && errors.Is(lost, ErrCorrupt):
		return lost
	case !found:
		return fmt.Errorf("%w: %s is not a warmwatch cache", ErrUnknownFormat, f.Name())
	case version != formatVersion:
		return fmt.Errorf("%w: %s has version %q, expected %q", ErrUnknownFormat, f.Name(), version, formatVersion)
	}
	return nil
}

// A survivor is told each key that can still be reached in a damaged file. The slices
// are its own. Keys of a space itself have a bucket without a name. With an error the
// walk ends.
type survivor func(name Bucket, key, value []byte) error

// survivors walks the pages of a file, and goes around those that are damaged: lost
// is the first of them. Without space, all but the format is walked; else the spaces
// that it names. Whatever the file has, each page is read once and no more.
func survivors(f *os.File, space func(string) bool, fn survivor) (lost, err error) {
	if space == nil {
		space = func(name string) bool { return name != formatBucket }
	}
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	w := &survivorWalk{in: &inspector{f: f, readOnly: true}, space: space, fn: fn}
	meta, err := w.in.meta(info.Size(), make([]byte, 2*maxPageBytes))
	if err != nil {
		return err, nil //nolint:nilerr // Nothing is to be found.
	}
	w.in.pages = min(binary.NativeEndian.Uint64(meta[metaHighAt:]), uint64(info.Size())/w.in.pageSize)
	w.in.used = make([]uint64, w.in.pages/64+1)
	w.in.used[0] = 1<<0 | 1<<1 // The meta pages.
	err = w.tree(binary.NativeEndian.Uint64(meta[metaRootAt:]), 0, nil)
	return w.lost, err
}

type survivorWalk struct {
	in    *inspector
	space func(string) bool
	fn    survivor
	lost  error
}

// maxSalvagedPageBytes bounds what is read at once, because a page says itself how
// long it is.
const maxSalvagedPageBytes = 256 << 20

// tree walks the pages of a bucket; path has the names of the buckets it is in.
func (w *survivorWalk) tree(id uint64, depth int, path []string) error {
	h, page, err := w.page(id, depth)
	if err != nil {
		w.lose(err)
		return nil
	}
	elements, err := w.in.elementsOf(h, page)
	if err != nil {
		w.lose(fmt.Errorf("page %d: %w", id, err))
		return nil
	}
	if h.flags == leafPage {
		return w.leaf(page, elements, path)
	}
	for at := 0; at < len(elements); at += elementBytes {
		if err := w.tree(binary.NativeEndian.Uint64(elements[at+branchPageIDAt:]), depth+1, path); err != nil {
			return err
		}
	}
	return nil
}

func (w *survivorWalk) lose(err error) {
	if w.lost == nil {
		w.lost = err
	}
}

func (w *survivorWalk) page(id uint64, depth int) (h pageHeader, page []byte, err error) {
	if depth > maxTreeDepth {
		return h, nil, corruptFile("a tree of more than %d levels", maxTreeDepth)
	}
	if err := w.in.use(id); err != nil {
		return h, nil, err
	}
	if h, err = w.in.header(id); err != nil {
		return h, nil, err
	}
	if (h.flags != branchPage && h.flags != leafPage) || h.bytes > maxSalvagedPageBytes {
		return h, nil, corruptFile("page %d has flags %#x and %d bytes", id, h.flags, h.bytes)
	}
	return w.in.page(id)
}

func (w *survivorWalk) leaf(page, elements []byte, path []string) error {
	for at := 0; at < len(elements); at += elementBytes {
		e := elements[at:]
		pos, ksize, vsize := binary.NativeEndian.Uint32(e[4:]), binary.NativeEndian.Uint32(e[8:]), binary.NativeEndian.Uint32(e[12:])
		rest := page[pageHeaderBytes+at+int(pos):]
		key, value := rest[:ksize:ksize], rest[ksize:][:vsize:vsize]
		var err error
		if binary.NativeEndian.Uint32(e)&leafBucketFlag == 0 {
			if len(path) > 0 {
				name := Bucket{Space: path[0], Name: strings.Join(path[1:], "/")}
				err = w.fn(name, key, value)
			}
		} else if len(path) < maxBucketNesting && (len(path) > 0 || w.space(string(key))) {
			err = w.bucket(value, append(path[:len(path):len(path)], string(key)))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// bucket walks a bucket, which is a tree of its own, or a leaf within the leaf.
func (w *survivorWalk) bucket(value []byte, path []string) error {
	if len(value) < bucketHeaderBytes {
		w.lose(corruptFile("a bucket of %d bytes", len(value)))
		return nil
	}
	if root := binary.NativeEndian.Uint64(value); root != 0 {
		return w.tree(root, 0, path)
	}
	inline := value[bucketHeaderBytes:]
	if len(inline) < pageHeaderBytes {
		w.lose(corruptFile("an inline bucket of %d bytes", len(inline)))
		return nil
	}
	h := pageHeader{flags: binary.NativeEndian.Uint16(inline[pageFlagsAt:]), count: binary.NativeEndian.Uint16(inline[pageCountAt:])}
	elements, err := w.in.elementsOf(h, inline)
	if err != nil || h.flags != leafPage {
		w.lose(errors.Join(corruptFile("an inline bucket has flags %#x", h.flags), err))
		return nil
	}
	return w.leaf(inline, elements, path)
}

// salvagedBucket has the mark of a space that was in a damaged file: something
// may be missing, whatever the rest of the space says.
const (
	salvagedBucket = "salvaged"
	salvagedKey    = "mark"
)

// Salvaged reports whether the space was in a file that was found corrupt, and has
// not been forgiven since: something may be missing.
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

// ForgetSalvage removes the mark, once the owner of the space has put in
// everything that there is.
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
			continue // Dropped since: nothing shines through.
		}
		p.dropped = bl.dropped
		bl.entries.Scan(func(key string, e entry) bool {
			if _, newer := db.pending.buckets[name].entries.Get(key); !newer {
				e.fresh = e.fresh && db.memoryOnly() // May be in the file, if only the last step failed.
				db.pending.set(name, key, e)
			}
			return true
		})
	}
}
