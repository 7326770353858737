package persist

import (
	"github.com/tidwall/btree"
	bolt "go.etcd.io/bbolt"
)

// mergeCursor merges up to three sorted sources: pending, flushing and the file. If
// several have a key, the first of them counts.
type mergeCursor []source

// A source is a layer, or the bucket in the file if file is set. It is at item until it has ended.
type source struct {
	layer btree.MapIter[string, entry]
	file  *bolt.Cursor
	item  Item
	ended bool
	taken bool // The item was returned, or the returned item has hidden it.
}

func newMergeCursor(s *Snapshot, bucket Bucket, from string) (c mergeCursor) {
	for _, l := range []*layer{s.pending, s.flushing} {
		if l == nil || l.buckets[bucket] == nil {
			continue
		}
		bl := l.buckets[bucket]
		src := source{layer: bl.entries.Iter()}
		src.atEntry(src.layer.Seek(from))
		c = append(c, src)
		if bl.dropped {
			return c
		}
	}
	if s.tx == nil {
		return c
	}
	if b := s.fileBucket(bucket); b != nil {
		src := source{file: b.Cursor()}
		src.atKey(src.file.Seek(append([]byte{keyPrefix}, from...)))
		c = append(c, src)
	}
	return c
}

func (s *source) next() {
	if s.file != nil {
		s.atKey(s.file.Next())
	} else {
		s.atEntry(s.layer.Next())
	}
}

func (s *source) atKey(key, sealed []byte) {
	if s.ended = key == nil; !s.ended {
		if sealed == nil { // Damage has made a bucket of the key.
			sealed = []byte{}
		}
		s.item = Item{Key: string(key[1:]), sealed: sealed}
	}
}

func (s *source) atEntry(found bool) {
	if s.ended = !found; found {
		s.item = Item{Key: s.layer.Key(), sealed: s.layer.Value().sealed, inMemory: true}
	}
}

func (c mergeCursor) next(item *Item) bool {
	for {
		var first *source
		for i := range c {
			s := &c[i]
			if s.taken {
				s.next()
			}
			if !s.ended && (first == nil || s.item.Key < first.item.Key) {
				first = s
			}
		}
		if first == nil {
			return false
		}
		item.Key, item.sealed, item.inMemory = first.item.Key, first.item.sealed, first.item.inMemory
		for i := range c {
			c[i].taken = !c[i].ended && c[i].item.Key == item.Key
		}
		if item.sealed != nil { // Otherwise the key was deleted.
			return true
		}
	}
}
