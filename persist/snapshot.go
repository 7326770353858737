package persist

import (
	"fmt"
	"sync/atomic"

	bolt "go.etcd.io/bbolt"
)

// A Snapshot is the state of one space at one moment. Close it soon: until then bbolt reuses no freed page, and after a
// failed commit no other commit is tried. It is not safe for concurrent use.
type Snapshot struct {
	db                *DB
	space             string
	pending, flushing *layer
	bolt              *handle       // Nil without a file.
	committed         int           // The last bbolt transaction whose commit had succeeded.
	final             bool          // No commits follow, because the file is damaged.
	users             *atomic.Int64 // The DB.users that counts this snapshot.
	tx                *bolt.Tx
	// The last bucket that was looked up: to find a bucket takes longer than to find a key.
	lastName string
	last     *bolt.Bucket
}

// Snapshot captures a space as it is now, with the changes that are not yet durable.
func (db *DB) Snapshot(space string) (*Snapshot, error) { return db.snapshot(space, false) }

func (db *DB) snapshot(space string, durable bool) (*Snapshot, error) {
	for {
		db.mu.Lock() // Not RLock: copying a tree marks it.
		if db.phase == closed {
			db.mu.Unlock()
			return nil, ErrClosed
		}
		var pending, flushing *layer
		inFile := durable && db.writes() && db.countedTo <= db.durable
		if !inFile {
			flushing = db.flushing
			// A durable snapshot leaves pending out, unless pending counts as durable already.
			if !durable || flushing == nil || db.countedTo > db.flushingTo {
				pending = db.pending.copySpace(space)
			}
		}
		s := db.captureLocked(space, pending, flushing)
		db.mu.Unlock()
		begin := s.beginBelow
		if inFile {
			begin = s.beginDurable
		}
		if ok, err := begin(); err != nil {
			return nil, err
		} else if ok {
			return &s, nil
		}
	}
}

// captureLocked begins a snapshot with the layers pending and flushing in memory. If there is a file, the caller begins
// the transaction next.
func (db *DB) captureLocked(space string, pending, flushing *layer) Snapshot {
	s := Snapshot{db: db, space: space, pending: pending, flushing: flushing}
	if !db.MemoryOnly() {
		s.bolt, s.committed, s.final, s.users = db.bolt, db.boltTxID, !db.writes(), db.users
		s.users.Add(1)
	}
	return s
}

// beginBelow begins the transaction below the layers in memory, if there is a file. It returns false if the file is too
// new.
func (s *Snapshot) beginBelow() (ok bool, err error) {
	// begin may block in bbolt, so db.mu is not held, and commits may come
	// first. A commit that wrote this snapshot's flushing does no harm: the
	// same values hide it. Any other commit makes the file too new.
	if err := s.begin(); err != nil {
		return false, err
	}
	if s.bolt == nil || s.final || s.tx.ID() == s.committed {
		return true, nil
	}
	id, db := s.tx.ID(), s.db
	db.mu.RLock()
	// A commit that failed only in its fsync may be visible in the file all the same.
	ok = s.flushing != nil && (id == s.committed+1 || db.boltTxID == s.committed)
	if !ok && db.writes() && db.flushing == nil && id > db.boltTxID { // Somebody else writes to it.
		err = db.notOursLocked(id)
	}
	db.mu.RUnlock()
	if !ok {
		s.Close()
	}
	return ok, err
}

func (db *DB) notOursLocked(txID int) error {
	return fmt.Errorf("persist: transaction %d is not ours, the last one was %d", txID, db.boltTxID)
}

// Read calls fn with a [Snapshot] of a space, and closes it.
func (db *DB) Read(space string, fn func(*Snapshot) error) error {
	s, err := db.Snapshot(space)
	if err != nil {
		return err
	}
	defer s.Close()
	return fn(s)
}

// DurableSnapshot captures a space as it is in the file, and as a crash would leave it. While more counts as durable
// than is in the file, see [DB.Durable], it returns what Snapshot returns. While the commit that ends the failure runs,
// it returns the file after that commit. A later DurableSnapshot never sees less, unless the file is damaged in
// between. It may wait for the end of a commit. While commits fail, it may return an error.
func (db *DB) DurableSnapshot(space string) (*Snapshot, error) { return db.snapshot(space, true) }

// beginDurable begins the transaction, and waits until it is durable. It returns false if the file is damaged.
func (s *Snapshot) beginDurable() (ok bool, err error) {
	if err := s.begin(); err != nil {
		return false, err
	}
	if ok, err = s.db.waitForCommit(s.tx.ID()); !ok {
		s.Close()
	}
	return ok, err
}

// waitForCommit waits until a transaction that was seen in the file is durable. bbolt shows a commit as soon as its
// meta page is written. Until the fsync has returned, that page may be lost. If the fsync fails, the commit stays
// visible. If waitForCommit returns neither durable nor an error, the file is only read from now on.
func (db *DB) waitForCommit(txID int) (durable bool, err error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	for {
		switch {
		case db.phase == closed:
			return false, ErrClosed
		case !db.writes():
			return false, nil
		case txID <= db.boltTxID:
			return true, nil
		case db.failingLocked():
			return false, db.problem.Load().err
		case db.flushing == nil:
			return false, db.notOursLocked(txID)
		}
		db.waitLocked()
	}
}

// begin begins the transaction, if there is a file.
func (s *Snapshot) begin() (err error) {
	if s.bolt == nil {
		return nil
	}
	if s.tx, err = s.db.beginRead(s.bolt, s.committed); err != nil {
		s.tx = nil
		s.Close()
	}
	return err
}

// Close ends the snapshot. It is idempotent.
func (s *Snapshot) Close() {
	if s.tx != nil {
		_ = guard(s.tx.Rollback)
		s.tx = nil
	}
	if s.users != nil {
		s.users.Add(-1)
		s.users = nil
	}
}

// View is [DB.View] as of the moment of the snapshot.
func (s *Snapshot) View(name, key string, fn func(*Item) error) (bool, error) {
	bucket := Bucket{s.space, name}
	e, found := s.pending.lookup(bucket, key)
	if !found {
		e, found = s.flushing.lookup(bucket, key)
	}
	return s.view(bucket, key, e, found, fn)
}

// view calls fn with the entry that was found in memory, or with the value in the file.
func (s *Snapshot) view(bucket Bucket, key string, e entry, inMemory bool, fn func(*Item) error) (found bool, err error) {
	switch {
	case inMemory && e.sealed != nil:
		return true, fn(&Item{bucket: bucket, Key: key, sealed: e.sealed, inMemory: true})
	case inMemory || s.tx == nil:
		return false, nil
	}
	err = guard(func() error {
		raw := getFrom(s.fileBucket(bucket), key)
		if raw == nil {
			return nil
		}
		found = true
		return lend(&Item{bucket: bucket, Key: key, sealed: raw, meter: &s.db.meter}, fn)
	})
	return found, s.db.readError(s.bolt, bucket, err)
}

func (s *Snapshot) fileBucket(bucket Bucket) *bolt.Bucket {
	if s.lastName != bucket.Name {
		s.last, s.lastName = fileBucket(s.tx, bucket), bucket.Name
	}
	return s.last
}

// Scan calls fn for each key from from on, in order, until fn returns false or an
// error. To go on later, set from to the last key and a zero byte.
func (s *Snapshot) Scan(name, from string, fn func(*Item) (bool, error)) error {
	bucket := Bucket{s.space, name}
	return s.db.readError(s.bolt, bucket, guard(func() error {
		c := newMergeCursor(s, bucket, from)
		item := Item{bucket: bucket, meter: &s.db.meter}
		more := false
		visit := func(it *Item) (err error) {
			more, err = fn(it)
			return err
		}
		for last, first := from, true; c.next(&item); last, first = item.Key, false {
			// Without the order, callers might never come to an end.
			if item.Key < last || (item.Key == last && !first) {
				return &CorruptError{Err: fmt.Errorf("bucket %q is out of order at key %q", bucket, item.Key)}
			}
			if err := lend(&item, visit); err != nil || !more {
				return err
			}
		}
		return nil
	}))
}
