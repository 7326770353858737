package indexer

import "github.com/warmwatch/warmwatch/persist"

// A tally has the number of some keys, and a digest of them: the XOR of their hashes.
type tally struct {
	Count  int    `json:"count"`
	Digest uint64 `json:"digest,omitempty"`
}

func (t *tally) add(key string) {
	t.Count++
	t.Digest ^= hashOf(key)
}

func (t *tally) remove(key string) {
	t.Count--
	t.Digest ^= hashOf(key)
}

// hashOf is FNV-1a. It is part of the file format.
func hashOf(key string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(key) {
		h = (h ^ uint64(key[i])) * 1099511628211
	}
	return h
}

// tallyOf counts the keys of a bucket. It calls check with each item, and ends with its first error.
func (ix *Indexer) tallyOf(bucket string, check func(*persist.Item) error) (t tally, err error) {
	err = ix.scanKeys(bucket, check, func(keys []string) error {
		for _, key := range keys {
			t.add(key)
		}
		return nil
	})
	return t, err
}

// anyItem and soundItem are for tallyOf.
func anyItem(*persist.Item) error { return nil }

func soundItem(it *persist.Item) error {
	_, err := it.Payload()
	return err
}
