package indexer

import (
	"github.com/warmwatch/warmwatch/persist"
)

// A chunk is large enough to be worth a snapshot, and small enough to hold several.
const chunkBytes = 1 << 20

// ChunkObjects is how many objects a chunk has at most. Only tests change it, before they make an Indexer.
var ChunkObjects = 256

func (ix *Indexer) scanChunk(s *persist.Snapshot, from string, asOf uint64) (ls []lazyObject, next string, done bool, err error) {
	size := 0
	done = true
	ls = make([]lazyObject, 0, ChunkObjects)
	err = s.Scan(ObjectsBucket, from, func(it *persist.Item) (bool, error) {
		if len(ls) == ChunkObjects || size > chunkBytes {
			done = false
			return false, nil
		}
		l := ix.fetch(it, asOf)
		size += len(l.record.Body)
		ls, next = append(ls, l), it.Key+"\x00"
		return true, nil
	})
	return ls, next, done, err
}

// A Chunk is a part of the store in key order, as it was at one moment.
type Chunk struct {
	Keys    []string
	Objects []any
	Seqs    []uint64 // The last write to each object.
	// Seq is the number of the last write that the chunk has seen.
	Seq uint64
	// Next is where the next chunk begins, unless Done.
	Next string
	Done bool
	// LeftOut is why an object could not be read. It is nil if all were read.
	LeftOut error
}

// Chunk reads the next objects whose keys are not below from. If durable, it reads only the file, and no changes that
// are still in memory. No transaction is open when it returns.
func (ix *Indexer) Chunk(from string, durable bool) (Chunk, error) {
	c, ls, err := ix.readChunk(from, durable)
	if err != nil {
		return Chunk{}, err
	}
	c.Objects, ls, c.LeftOut = ix.decode(ls, 0)
	c.Keys, c.Seqs = make([]string, len(ls)), make([]uint64, len(ls))
	for i, l := range ls {
		c.Keys[i], c.Seqs[i] = l.key, l.seq
	}
	return c, nil
}

// readChunk reads a Chunk whose objects are not decoded yet.
func (ix *Indexer) readChunk(from string, durable bool) (c Chunk, ls []lazyObject, err error) {
	snapshot, atLeast := ix.db.Snapshot, ix.Seq()
	if durable {
		snapshot, atLeast = ix.db.DurableSnapshot, 0
	}
	s, err := snapshot(ix.space)
	if err != nil {
		return c, nil, err
	}
	defer s.Close()
	st, err := stateAt(s)
	if err != nil {
		ix.failed(err, stateKey)
		if durable {
			return c, nil, err
		}
	}
	c.Seq = max(st.Seq, atLeast) // The chunk has at least these writes, even if the state could not be read.
	ls, c.Next, c.Done, err = ix.scanChunk(s, from, c.Seq)
	return c, ls, err
}

// InFile reports whether the file has an object of a key, readable or not, see [persist.DB.DurableSnapshot].
func (ix *Indexer) InFile(key string) (found bool, err error) {
	s, err := ix.db.DurableSnapshot(ix.space)
	if err != nil {
		return false, err
	}
	defer s.Close()
	return s.View(ObjectsBucket, key, func(*persist.Item) error { return nil })
}

// Keys calls fn with all keys, in order and in batches of bounded size, while no
// transaction is open. A key that exists all the time is not missed.
func (ix *Indexer) Keys(fn func([]string) error) error {
	return ix.scanKeys(ObjectsBucket, anyItem, fn)
}

// scanKeys is Keys for one bucket. It calls check with each item, and ends with its first error.
func (ix *Indexer) scanKeys(bucket string, check func(*persist.Item) error, fn func([]string) error) error {
	for from, done := "", false; !done; {
		var keys []string
		err := ix.db.Read(ix.space, func(s *persist.Snapshot) error {
			keys, done = nil, true
			return s.Scan(bucket, from, func(it *persist.Item) (bool, error) {
				if len(keys) == 16*ChunkObjects {
					done = false
					return false, nil
				}
				keys = append(keys, it.Key)
				return true, check(it)
			})
		})
		if err == nil && len(keys) > 0 {
			from = keys[len(keys)-1] + "\x00"
			err = fn(keys)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// ListKeys implements [cache.Store].
func (ix *Indexer) ListKeys() []string {
	keys := []string{}
	_ = ix.patiently(0, func() error {
		err := ix.db.Read(ix.space, func(s *persist.Snapshot) error {
			keys = make([]string, 0, ix.Len())
			return s.Scan(ObjectsBucket, "", func(it *persist.Item) (bool, error) {
				keys = append(keys, it.Key)
				return true, nil
			})
		})
		if err != nil {
			ix.failed(err, "list keys")
		}
		return err
	})
	return keys
}
