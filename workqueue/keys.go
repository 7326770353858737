package workqueue

import (
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/warmwatch/warmwatch/internal/keyfield"
	"github.com/warmwatch/warmwatch/persist"
)

// keys are those of one name that are to be in the file. Adding and removing one changes memory
// only. The next commit writes what has changed.
//
// That is what keeps D5: a handler adds a key, returns, and so acknowledges a delta. The hook of
// the keys is called after that of the deltas' log (persist.Hook.Last), so each commit with the
// acknowledgement has the key too.
type keys struct {
	store      *Store
	name       string
	prefix     string
	owner      owner // Guarded by store.mu. Nil: the name has no workqueue.
	removeHook func()

	known bool // The file knew the name when it was opened.

	kicked atomic.Bool // The DB was asked for a commit because something has changed.

	mu      sync.Mutex
	wanted  map[string]struct{}
	changed map[string]bool // Whether the DB has it, for keys that may differ between the DB and wanted.
	lost    bool            // Keys may be lost, until they are added again.
	state   keysState       // Of what the DB has.
	rewrite bool            // The file was replaced, and may lack some.
	written *keysState      // What the DB has, nil if that is not known.
	// damaged are keys whose checksum was wrong: perhaps nobody has added them. They are not written
	// anew before a Codec has decoded them.
	damaged map[string]struct{}
}

// An owner is a [Queue]. Its methods are called under store.mu.
type owner interface {
	own(k *keys)
	drained() bool
}

// inUseLocked reports whether the name has a workqueue. The caller holds store.mu.
func (k *keys) inUseLocked() bool { return k.owner != nil && !k.owner.drained() }

// keysState is the persist.Value by which load notices lost keys.
type keysState struct {
	Count  uint64 `json:"keys"`
	Digest uint64 `json:"digest"` // XOR of the hash of each key.
	// Lost says that keys may be lost, and were not added again before the process ended.
	Lost bool `json:"lost,omitempty"`
}

func (s keysState) SizeBytes() int { return 60 }

func (s keysState) AppendTo(dst []byte) ([]byte, error) { return persist.AppendJSON(dst, s) }

func (s *keysState) add(key string)    { s.Count++; s.Digest ^= hash(key) }
func (s *keysState) remove(key string) { s.Count--; s.Digest ^= hash(key) }

func hash(key string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(key)) // A hash's Write never fails.
	return h.Sum64()
}

// load reads what an earlier process has left. A key that is damaged is believed, unless the Codec does
// not know it: to work on an object once more, or on one that never was, does no harm.
func (k *keys) load(lostIfUnknown bool) error {
	var found foundKeys
	err := k.store.db.Read(k.store.keys.Space, func(s *persist.Snapshot) (err error) { found, err = k.store.find(s, k.name); return err })
	if err != nil {
		return err
	}
	for _, key := range found.keys {
		k.wanted[key] = struct{}{}
	}
	k.state, k.rewrite, k.damaged, k.known = found.state, found.damage != nil, found.damaged, found.known
	k.noteLost(found)
	k.lost = k.lost || lostIfUnknown && !found.known
	return nil
}

// foundKeys are those of one name in a file.
type foundKeys struct {
	keys   []string
	state  keysState
	known  bool
	damage error // Says that some may be lost.
	// damaged are those of keys whose checksum is wrong.
	damaged map[string]struct{}
}

var errNotCounted = errors.New("their number is not known")

// find reads the keys of a name.
func (s *Store) find(snapshot *persist.Snapshot, name string) (found foundKeys, err error) {
	found.damaged = map[string]struct{}{}
	prefix := keyfield.Of(name)
	err = snapshot.Scan(keysBucket, prefix, func(it *persist.Item) (bool, error) {
		key, ours := strings.CutPrefix(it.Key, prefix)
		if !ours {
			return false, nil
		}
		found.keys = append(found.keys, key)
		found.state.add(key)
		if _, err := it.Payload(); err != nil {
			found.damage, found.damaged[key] = err, struct{}{}
		}
		return true, nil
	})
	if err != nil {
		return found, err
	}
	stored := &keysState{}
	found.known, err = snapshot.View(namesBucket, name, func(it *persist.Item) error {
		st, err := persist.ReadJSON[keysState](it)
		if err == nil {
			stored = st
		}
		return err
	})
	switch {
	case errors.Is(err, persist.ErrCorrupt):
		found.known, found.damage = true, err
	case err != nil:
		return found, err
	case found.known && (stored.Count != found.state.Count || stored.Digest != found.state.Digest):
		found.damage = fmt.Errorf("%d keys are there, and %d were counted", found.state.Count, stored.Count)
	case !found.known && found.state.Count > 0:
		found.damage = errNotCounted
	}
	found.state.Lost = stored.Lost
	return found, nil
}

// noteLost notes whether a file may have lost keys.
func (k *keys) noteLost(found foundKeys) {
	if found.damage != nil || found.state.Lost {
		k.setLost(true)
	}
	if found.damage != nil {
		k.store.logger.Error(found.damage, "Keys of a workqueue may be lost", "workqueue", k.name)
	}
}

// add makes a key one that the file is to have.
func (k *keys) add(key string) { k.change(key, true) }

// remove makes it one that the file is not to have.
func (k *keys) remove(key string) { k.change(key, false) }

func (k *keys) change(key string, want bool) {
	k.mu.Lock()
	_, is := k.wanted[key]
	if is == want {
		k.mu.Unlock()
		return
	}
	if want {
		k.wanted[key] = struct{}{}
	} else {
		delete(k.wanted, key)
	}
	if _, noted := k.changed[key]; noted {
		delete(k.changed, key) // Back to what the DB has.
	} else {
		k.changed[key] = is
	}
	k.mu.Unlock()
	if !k.kicked.Load() && !k.kicked.Swap(true) {
		k.store.db.Kick()
	}
}

// setLost notes, with the next commit, whether keys may be lost. Those that were added before are in the
// file by then.
func (k *keys) setLost(lost bool) {
	k.mu.Lock()
	k.lost = lost
	k.mu.Unlock()
	k.store.db.Kick()
}

func (k *keys) isLost() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.lost
}

// isDamaged reports whether a key may be one that nobody has added.
func (k *keys) isDamaged(key string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, damaged := k.damaged[key]
	return damaged
}

// believe notes that all keys are known to a Codec.
func (k *keys) believe() {
	k.mu.Lock()
	k.damaged, k.rewrite = nil, k.rewrite || len(k.damaged) > 0
	k.mu.Unlock()
	k.store.db.Kick()
}

func (k *keys) len() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.wanted)
}

// sorted returns the keys.
func (k *keys) sorted() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Sorted(maps.Keys(k.wanted))
}

// beforeCommit stores what has changed. It runs under the DB's lock.
func (k *keys) beforeCommit(b *persist.Batch) {
	k.kicked.Store(false)
	k.mu.Lock()
	defer k.mu.Unlock()
	bucket := k.store.keys
	for key, was := range k.changed {
		if was {
			b.Delete(bucket, k.prefix+key)
			k.state.remove(key)
		} else {
			b.PutNew(bucket, k.prefix+key, persist.Bytes(nil))
			k.state.add(key)
		}
	}
	clear(k.changed)
	if k.rewrite {
		for key := range k.wanted {
			if _, damaged := k.damaged[key]; !damaged {
				b.Put(bucket, k.prefix+key, persist.Bytes(nil))
			}
		}
	}
	k.state.Lost = k.lost
	if k.rewrite || k.written == nil || *k.written != k.state {
		state := k.state
		b.Put(k.store.names, k.name, state)
		k.written = &state
	}
	k.rewrite = false
}

// afterDamage has the next commit write all keys into the new file.
func (k *keys) afterDamage(error) {
	k.mu.Lock()
	k.rewrite = true
	k.mu.Unlock()
	k.store.db.Kick()
}
