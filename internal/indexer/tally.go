package indexer

import (
	"errors"
	"time"

	"github.com/warmwatch/warmwatch/persist"
)

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

// recheckDelay is how long after a write that could not read the objects are counted.
const recheckDelay = time.Second

// noteUnreadLocked notes that a write could not read whether its key was stored. Such a write is counted so that the
// tally is right if the key was not stored, and else too high: then index entries of the old object may be left
// over, and the difference is the evidence of that, for [Indexer.Complete] in this process and the next one. Too high
// a number also keeps List from taking the objects in memory for all. Once the file can be read, the objects are
// counted.
func (ix *Indexer) noteUnreadLocked() {
	if ix.unread++; ix.unread == 1 {
		time.AfterFunc(recheckDelay, ix.recheck)
	}
}

// recheck reports damage if a write that could not read has left something wrong, which a relist then makes anew,
// see RebuildIndices.
func (ix *Indexer) recheck() {
	ix.writer.Lock()
	released, unread := ix.released, ix.unread
	ix.writer.Unlock()
	if released || unread == 0 {
		return
	}
	err := ix.count() // Writers do not wait for it.
	switch {
	case errors.Is(err, persist.ErrClosed):
		return
	case isDamage(err):
		ix.failed(err, "count after a write that could not read")
		return
	}
	ix.writer.Lock()
	defer ix.writer.Unlock()
	if err == nil && ix.unread == unread {
		ix.unread = 0
		return
	}
	time.AfterFunc(recheckDelay, ix.recheck) // If the file cannot be read, the write has logged that.
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
