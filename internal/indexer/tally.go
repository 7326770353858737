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
	if ix.unread++; ix.unread == ix.counted+1 {
		time.AfterFunc(recheckDelay, ix.recheck)
	}
}

// recheck reports damage if a write that could not read has left something wrong, which a relist then makes anew,
// see RebuildIndices.
func (ix *Indexer) recheck() {
	ix.writer.Lock()
	unread, due := ix.unread, ix.unread > ix.counted
	ix.writer.Unlock()
	if !due {
		return
	}
	err := ix.count() // Writers do not wait for it.
	ix.writer.Lock()
	defer ix.writer.Unlock()
	switch {
	case ix.released || errors.Is(err, persist.ErrClosed):
	case isDamage(err):
		ix.failed(err, "count after a write that could not read")
	case err == nil && ix.unread == unread:
		ix.counted = unread
	default:
		time.AfterFunc(recheckDelay, ix.recheck) // If the file cannot be read, the write has logged that.
	}
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
