package persist

import (
	"bytes"

	"github.com/tidwall/btree"
	bolt "go.etcd.io/bbolt"
)

// mergeCursor merges up to three sorted sources: pending, flushing and the file. If
// several have a key, the first of them counts.
type mergeCursor struct {
	layers [2]*layerCursor
	file   *bolt.Cursor
	k, v   []byte
}

type layerCursor struct {
	iter btree.MapIter[string, entry]
	ok   bool
}

func newMergeCursor(s *Snapshot, bucket Bucket, from string) *mergeCursor {
	c := &mergeCursor{}
	for i, l := range []*layer{s.pending, s.flushing} {
		if l == nil || l.buckets[bucket] == nil {
			continue
		}
		bl := l.buckets[bucket]
		lc := &layerCursor{iter: bl.entries.Iter()}
		lc.ok = lc.iter.Seek(from)
		c.layers[i] = lc
		if bl.dropped {
			return c
		}
	}
	if s.tx == nil {
		return c
	}
	if b := s.fileBucket(bucket).b; b != nil {
		c.file = b.Cursor()
		c.k, c.v = c.file.Seek(append([]byte{keyPrefix}, from...))
	}
	return c
}

func (c *mergeCursor) next(item *Item) bool {
	for {
		key, inMemory := "", false
		for _, lc := range c.layers {
			if lc != nil && lc.ok && (!inMemory || lc.iter.Key() < key) {
				key, inMemory = lc.iter.Key(), true
			}
		}
		fromFile := c.k != nil && (!inMemory || string(c.k[1:]) < key)
		if fromFile {
			item.Key, item.sealed, item.inMemory = string(c.k[1:]), c.v, false
			c.k, c.v = c.file.Next()
			return true
		}
		if !inMemory {
			return false
		}
		var e entry
		for i := len(c.layers) - 1; i >= 0; i-- { // The upper layer comes last, and counts.
			if lc := c.layers[i]; lc != nil && lc.ok && lc.iter.Key() == key {
				e = lc.iter.Value()
				lc.ok = lc.iter.Next()
			}
		}
		if c.k != nil && bytes.Equal(c.k[1:], []byte(key)) {
			c.k, c.v = c.file.Next()
		}
		if e.sealed != nil {
			item.Key, item.sealed, item.inMemory = key, e.sealed, true
			return true
		}
	}
}
