package indexer

import "github.com/warmwatch/warmwatch/persist"

// A tally has the number of objects, and a digest of their keys.
type tally struct {
	Count int `json:"count"`
	// Digest is the XOR of a hash of each key, because a damaged key does not change the
	// number of objects. 0: not known, in files of earlier programs.
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

// recountLocked makes the state's tally anew from the objects.
func (ix *Indexer) recountLocked() (err error) {
	next := ix.state
	if next.tally, err = ix.tallyKeys(); err != nil {
		return err
	}
	if _, err := ix.update(func(b *persist.Batch) {
		b.Put(ix.storeName, stateKey, &next)
		ix.objects.setCount(ix.owner, next.Count)
	}); err != nil {
		return err
	}
	ix.state = next
	ix.visible.Store(&next)
	return nil
}

// tallyKeys counts the objects.
func (ix *Indexer) tallyKeys() (t tally, err error) {
	err = ix.Keys(func(keys []string) error {
		for _, key := range keys {
			t.add(key)
		}
		return nil
	})
	return t, err
}
