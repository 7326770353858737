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
)

// The buckets of a Store in its space.
const (
	NamesBucket = "workqueues" // Nothing, by name.
	KeysBucket  = "work"       // Nothing, by name and key.
)

// Buckets returns the names of the buckets that a Store has in its space.
func Buckets() []string { return []string{NamesBucket, KeysBucket} }

// maxNameBytes is the length of the longest name of a workqueue.
const maxNameBytes = 1024

// MaxKeyBytes is the length of the longest key of an item that is kept, see [Codec].
const MaxKeyBytes = persist.MaxKeyBytes - 2*maxNameBytes

// ErrInUse is returned for a name that has a workqueue.
var ErrInUse = persist.ErrInUse

// A Store has the workqueues in one space of a DB, each under its name. Cache.Workqueues returns the Store of a Cache.
// All methods are safe for concurrent use.
type Store struct {
	db     *persist.DB
	names  persist.Bucket
	keys   persist.Bucket
	logger klog.Logger

	mu     sync.Mutex
	owners map[string]owner // The last workqueue of each name.
	left   map[string]int   // The names that had no workqueue in this process yet, and how many keys they have.
	closed bool
}

// An owner is a [Queue]. Its methods are called under the Store's mu.
type owner interface {
	inUse() bool
	len() int
}

// NewStore returns the Store of a space. Only one Store at a time writes to its [Buckets], and nothing else does.
func NewStore(db *persist.DB, space string, logger klog.Logger) *Store {
	s := &Store{
		db: db, names: persist.Bucket{Space: space, Name: NamesBucket}, keys: persist.Bucket{Space: space, Name: KeysBucket},
		logger: logger, owners: map[string]owner{}, left: map[string]int{},
	}
	if err := db.Read(space, s.load); err != nil {
		logger.Error(err, "Could not read which workqueues the file has")
	}
	return s
}

// load finds the names in the file.
func (s *Store) load(snapshot *persist.Snapshot) error {
	err := snapshot.Scan(NamesBucket, "", func(it *persist.Item) (bool, error) {
		s.left[it.Key] = 0
		return true, nil
	})
	for name := range s.left {
		err = cmp.Or(err, s.scan(snapshot, name, func(string, *persist.Item) { s.left[name]++ }))
	}
	return err
}

// Close makes New fail from now on.
func (s *Store) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
}

// open gives a name to a workqueue, after read has read the keys of the name.
func (s *Store) open(name string, q owner, read func(*persist.Snapshot) error) error {
	switch {
	case name == "":
		return errors.New("workqueue: a name is required")
	case len(name) > maxNameBytes:
		return fmt.Errorf("workqueue: a name of %d bytes is too long, at most %d are allowed; it begins with %.40q", len(name), maxNameBytes, name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return persist.ErrClosed
	}
	if err := s.checkUnusedLocked(name); err != nil {
		return err
	}
	if err := s.db.Read(s.keys.Space, read); err != nil {
		return err
	}
	s.owners[name] = q
	delete(s.left, name)
	return s.db.Update(func(b *persist.Batch) { b.Put(s.names, name, nil) })
}

// checkUnusedLocked returns an error if a name has a workqueue.
func (s *Store) checkUnusedLocked(name string) error {
	if q := s.owners[name]; q != nil && q.inUse() {
		return fmt.Errorf("%w: %q", ErrInUse, name)
	}
	return nil
}

// scan calls fn with each key of a name.
func (s *Store) scan(snapshot *persist.Snapshot, name string, fn func(key string, it *persist.Item)) error {
	prefix := keyfield.Of(name)
	return snapshot.Scan(KeysBucket, prefix, func(it *persist.Item) (bool, error) {
		key, ours := strings.CutPrefix(it.Key, prefix)
		if ours {
			fn(key, it)
		}
		return ours, nil
	})
}

// Status is the state of one workqueue.
type Status struct {
	Name string
	// Absent: no workqueue has this name now. Its keys wait in the file for the next one, see [Store.Forget].
	Absent bool
	// Keys is how many keys wait, also for later, or are being worked on.
	Keys int
}

// Status returns the state of all workqueues in the file, sorted by name.
func (s *Store) Status() []Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Status, 0, len(s.left)+len(s.owners))
	for name, keys := range s.left {
		all = append(all, Status{Name: name, Absent: true, Keys: keys})
	}
	for name, q := range s.owners {
		all = append(all, Status{Name: name, Absent: !q.inUse(), Keys: q.len()})
	}
	slices.SortFunc(all, func(a, b Status) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// Forget removes all keys of a retired name. The error wraps [ErrInUse] if the name has a workqueue now.
func (s *Store) Forget(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.checkUnusedLocked(name); err != nil {
		return err
	}
	var stored []string
	err := s.db.Read(s.keys.Space, func(snapshot *persist.Snapshot) error {
		return s.scan(snapshot, name, func(_ string, it *persist.Item) { stored = append(stored, it.Key) })
	})
	if err != nil {
		return err
	}
	delete(s.owners, name)
	delete(s.left, name)
	err = s.db.Update(func(b *persist.Batch) {
		for _, key := range stored {
			b.Delete(s.keys, key)
		}
		b.Delete(s.names, name)
	})
	return err
}
