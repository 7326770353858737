package workqueue

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/klog/v2"

	"github.com/warmwatch/warmwatch/internal/keyfield"
	"github.com/warmwatch/warmwatch/persist"
	"github.com/warmwatch/warmwatch/queue"
)

// The buckets of a Store in its space.
const (
	namesBucket = "workqueues" // A keysState by name.
	keysBucket  = "work"       // Nothing, by name and key.
)

// Buckets returns the names of the buckets that a Store has in its space.
func Buckets() []string { return []string{namesBucket, keysBucket} }

// MaxNameBytes is the length of the longest name of a workqueue.
const MaxNameBytes = 1024

// ErrInUse is returned for a name that has a workqueue already.
var ErrInUse = queue.ErrInUse

// A Store has the workqueues in one space of a DB, each under a name of its own. That of a Cache is
// what its method Workqueues returns. All methods are safe for concurrent use.
type Store struct {
	db     *persist.DB
	names  persist.Bucket
	keys   persist.Bucket
	logger klog.Logger

	mu     sync.Mutex
	absent map[string]int   // How many keys wait for the names that had no workqueue yet, nil if they could not be read.
	opened map[string]*keys // Those that had a workqueue in this process.
	closed bool
}

// NewStore returns the Store of a space. Nothing else writes to its [Buckets], and one Store does
// at a time.
func NewStore(db *persist.DB, space string, logger klog.Logger) *Store {
	s := &Store{
		db: db, names: persist.Bucket{Space: space, Name: namesBucket}, keys: persist.Bucket{Space: space, Name: keysBucket},
		logger: logger, opened: map[string]*keys{},
	}
	s.readNamesLocked()
	return s
}

// readNamesLocked reads the names that have no workqueue yet, unless they are known. The caller holds mu, where others
// can have it.
func (s *Store) readNamesLocked() {
	if s.absent != nil {
		return
	}
	err := s.db.Read(s.names.Space, func(snapshot *persist.Snapshot) error {
		s.absent = map[string]int{}
		return snapshot.Scan(namesBucket, "", func(it *persist.Item) (bool, error) {
			if s.opened[it.Key] != nil {
				return true, nil
			}
			st, err := persist.ReadJSON[keysState](it)
			if err != nil { // It is made again when the name is used.
				s.logger.Error(err, "Could not read how many keys wait", "workqueue", it.Key)
				st = &keysState{}
			}
			s.absent[it.Key] = int(st.Count)
			return true, nil
		})
	})
	if err != nil {
		s.absent = nil
		s.logger.Error(err, "Could not read the names of workqueues")
	}
}

// Close ends the Store. What was added before is in the file with the next commit. What is added
// to its workqueues later is not kept. Close is idempotent.
func (s *Store) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, k := range s.opened {
		k.removeHook()
	}
	clear(s.opened)
}

// open makes owner the workqueue of a name, with the keys that wait for it.
func (s *Store) open(name string, lostIfUnknown bool, owner owner) error {
	switch {
	case name == "":
		return errors.New("workqueue: a name is required")
	case len(name) > MaxNameBytes:
		return fmt.Errorf("workqueue: a name of %d bytes is too long, at most %d are allowed; it begins with %.40q", len(name), MaxNameBytes, name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return persist.ErrClosed
	}
	k, _, err := s.keysLocked(name, lostIfUnknown)
	if err != nil {
		return err
	}
	if k.inUseLocked() {
		return fmt.Errorf("%w: %q", ErrInUse, name)
	}
	k.owner = owner
	owner.own(k)
	return nil
}

// keysLocked returns the keys of a name, and whether they were read now.
func (s *Store) keysLocked(name string, lostIfUnknown bool) (k *keys, first bool, err error) {
	if k := s.opened[name]; k != nil {
		return k, false, nil
	}
	k = &keys{store: s, name: name, prefix: keyfield.Of(name), wanted: map[string]struct{}{}, changed: map[string]bool{}}
	if err := k.load(lostIfUnknown); err != nil {
		return nil, false, err
	}
	k.removeHook = s.db.AddHook(&persist.Hook{
		Last: true, BeforeCommit: k.beforeCommit, AfterDamage: k.afterDamage,
	})
	s.opened[name] = k
	delete(s.absent, name)
	s.db.Kick() // The name is stored even if nothing is added.
	return k, true, nil
}

// release makes the name free for another workqueue.
func (s *Store) release(k *keys, owner owner) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k.owner == owner {
		k.owner = nil
	}
}

// MarkLost notes that items of a name may be lost, because something else than its workqueue does its work
// now: [Queue.Lost] tells the next workqueue. A name that the file does not know is left alone.
func (s *Store) MarkLost(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readNamesLocked()
	if _, known := s.absent[name]; !known && s.absent != nil && s.opened[name] == nil {
		return nil
	}
	if s.closed {
		return persist.ErrClosed
	}
	k, _, err := s.keysLocked(name, false)
	if err != nil {
		return err
	}
	k.setLost(true)
	return nil
}

// Status is the state of one workqueue.
type Status struct {
	Name string
	// Absent says that the name has no workqueue now. Its keys wait in the file for the next one,
	// see [Store.Forget].
	Absent bool
	// Keys is how many keys wait or are being worked on, also those that were added for later.
	Keys int
}

// Status returns that of all workqueues that the file knows, sorted by name.
func (s *Store) Status() []Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Status
	for name, n := range s.absent {
		all = append(all, Status{Name: name, Absent: true, Keys: n})
	}
	for name, k := range s.opened {
		all = append(all, Status{Name: name, Absent: !k.inUseLocked(), Keys: k.len()})
	}
	slices.SortFunc(all, func(a, b Status) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// Forget removes all keys of a name that is not used any more. The error wraps [ErrInUse] if
// the name has a workqueue now.
func (s *Store) Forget(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.opened[name]; k != nil {
		if k.inUseLocked() {
			return fmt.Errorf("%w: %q", ErrInUse, name)
		}
		k.removeHook()
		delete(s.opened, name)
	}
	var stored []string
	prefix := keyfield.Of(name)
	err := s.db.Read(s.keys.Space, func(snapshot *persist.Snapshot) error {
		stored = nil // Of a file that was damaged.
		return snapshot.Scan(keysBucket, prefix, func(it *persist.Item) (bool, error) {
			ours := strings.HasPrefix(it.Key, prefix)
			if ours {
				stored = append(stored, it.Key)
			}
			return ours, nil
		})
	})
	if err != nil {
		return err
	}
	_, err = s.db.Update(func(b *persist.Batch) {
		for _, key := range stored {
			b.Delete(s.keys, key)
		}
		b.Delete(s.names, name)
	})
	if err == nil {
		delete(s.absent, name)
	}
	return err
}
