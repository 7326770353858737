package persist

import (
	"fmt"
	"sync"

	bolt "go.etcd.io/bbolt"
)

// A Snapshot is the state of one space at one moment. Close it soon: until then
// bbolt reuses no page that is freed, and no commit follows one whose fsync has failed. It is
// not safe for concurrent use.
type Snapshot struct {
	db                *DB
	space             string
	pending, flushing *layer
	bolt              *handle // Nil without a file.
	users             *sync.WaitGroup
	tx                *bolt.Tx
	// The last bucket that was looked up, which takes longer than to find a key.
	lastName string
	last     boltBucket
}

// Snapshot captures a space as it is now, with the changes that are not yet durable.
func (db *DB) Snapshot(space string) (*Snapshot, error) { return db.snapshot(space, db.hangsLocked) }

func (db *DB) snapshot(space string, hangsLocked func() bool) (*Snapshot, error) {
	for {
		db.waitForReset(hangsLocked)
		db.mu.Lock() // Not RLock: copying a tree marks it.
		if err := db.unreadableLocked(); err != nil {
			db.mu.Unlock()
			return nil, err
		}
		s := db.captureLocked(space, db.pending.copySpace(space), db.flushing)
		b, committed := db.bolt, db.boltTxID
		db.mu.Unlock()
		if ok, err := s.beginBelow(b, committed); err != nil {
			return nil, err
		} else if ok {
			return s, nil
		}
	}
}

// captureLocked begins a snapshot of which pending and flushing are in memory. If there is a file, the transaction has
// to be begun next.
func (db *DB) captureLocked(space string, pending, flushing *layer) *Snapshot {
	s := &Snapshot{db: db, space: space, pending: pending, flushing: flushing}
	if db.bolt != nil {
		s.users = db.users
		s.users.Add(1)
	}
	return s
}

// beginBelow begins the transaction below what is in memory, if there is a file. It returns false if the file is too new.
func (s *Snapshot) beginBelow(b *handle, committed int) (ok bool, err error) {
	if b == nil {
		return true, nil
	}
	// begin may block in bbolt, so db.mu is not held, and commits may come
	// first. A commit that wrote what this snapshot has in flushing does no
	// harm: the same values hide it. Any other makes the file too new.
	if err := s.begin(b, committed); err != nil {
		return false, err
	}
	id := s.tx.ID()
	if id == committed || (s.flushing != nil && (id == committed+1 || s.db.isLastCommit(b, committed))) {
		return true, nil
	}
	s.Close()
	return false, s.db.checkOurs(b, id)
}

// checkOurs returns an error if nobody here can have made a transaction that was seen in the
// file: somebody else writes to it.
func (db *DB) checkOurs(b *handle, txID int) error {
	db.mu.RLock()
	defer db.mu.RUnlock()
	if db.bolt == b && db.flushing == nil && db.resetCause == nil && txID > db.boltTxID {
		return db.notOursLocked(txID)
	}
	return nil
}

func (db *DB) notOursLocked(txID int) error {
	return fmt.Errorf("persist: transaction %d is not ours, the last one was %d", txID, db.boltTxID)
}

// Read calls fn with a [Snapshot] of a space, and closes it. If the file turns out to be
// damaged, Read calls fn once more after the file was replaced: fn has to forget what it
// found before.
func (db *DB) Read(space string, fn func(*Snapshot) error) error {
	return db.readTwice(space, db.hangsLocked, fn)
}

// ReadPatiently is Read for those who cannot return an error, and hold no lock that others need: while a
// damaged file is being replaced, it waits for as long as the disk answers.
func (db *DB) ReadPatiently(space string, fn func(*Snapshot) error) error {
	return db.readTwice(space, db.replacementHangsLocked, fn)
}

func (db *DB) readTwice(space string, hangsLocked func() bool, fn func(*Snapshot) error) error {
	err := db.read(space, hangsLocked, fn)
	if isFileDamage(err) {
		err = db.read(space, hangsLocked, fn)
	}
	return err
}

func (db *DB) read(space string, hangsLocked func() bool, fn func(*Snapshot) error) error {
	s, err := db.snapshot(space, hangsLocked)
	if err != nil {
		return err
	}
	defer s.Close()
	return fn(s)
}

// isLastCommit reports whether the last successful commit was the bbolt transaction txID of b. A commit
// that failed only in its fsync may be visible in the file all the same.
func (db *DB) isLastCommit(b *handle, txID int) bool {
	db.mu.RLock()
	defer db.mu.RUnlock()
	return db.bolt == b && db.boltTxID == txID // The transactions of another file have the same numbers.
}

// DurableSnapshot captures a space as it is in the file, which is what would be
// found after a crash. Without a file, until the first commit to a file that was
// begun late, and where more counts as durable than is in the file (Options.DurableGrace), it
// is the same as Snapshot, or, while the commit is being written that ends this, as that
// leaves the file. So what one has seen, a later one sees, unless the file is damaged between
// them, or cannot have a value (Value.AppendTo). While a commit is being written it may wait
// for its end; while commits fail, or the disk does not answer, it may return an error.
func (db *DB) DurableSnapshot(space string) (*Snapshot, error) {
	for {
		db.waitForReset(db.hangsLocked)
		db.mu.Lock() // Not RLock, as in snapshot.
		if err := db.unreadableLocked(); err != nil {
			db.mu.Unlock()
			return nil, err
		}
		var pending, flushing *layer
		inFile := db.bolt != nil && !db.unwritten && db.grace.countedTo <= db.durable
		if !inFile {
			flushing = db.flushing
			if flushing == nil || db.grace.countedTo > db.flushingTo { // Else pending comes only after what the file has next.
				pending = db.pending.copySpace(space)
			}
		}
		s := db.captureLocked(space, pending, flushing)
		b, committed := db.bolt, db.boltTxID
		db.mu.Unlock()
		begin := s.beginBelow
		if inFile {
			begin = s.beginSynced
		}
		if ok, err := begin(b, committed); err != nil {
			return nil, err
		} else if ok {
			return s, nil
		}
	}
}

// beginSynced begins the transaction once what it sees is durable. It returns false if the file was replaced.
func (s *Snapshot) beginSynced(b *handle, committed int) (ok bool, err error) {
	defer func() {
		if !ok {
			s.Close()
		}
	}()
	if err := s.db.awaitSynced(b); err != nil {
		return false, err
	}
	if err := s.begin(b, committed); err != nil {
		return false, err
	}
	return s.db.waitForCommit(b, s.tx.ID())
}

// waitForCommit waits until a transaction that was seen in the file is durable. bbolt
// shows a commit as soon as its meta page is written, which may be lost until the fsync
// has returned; if the fsync fails, the commit stays visible. If it returns neither
// durable nor an error, the file was replaced, or is about to be.
func (db *DB) waitForCommit(b *handle, txID int) (durable bool, err error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	for {
		switch {
		case db.closed:
			return false, ErrClosed
		case db.bolt != b || db.resetCause != nil:
			return false, nil
		case txID <= db.boltTxID:
			return true, nil
		case db.commitErr != nil:
			return false, db.commitErr
		case db.hangsLocked():
			return false, db.hangErrorLocked()
		case db.flushing == nil:
			return false, db.notOursLocked(txID)
		}
		db.cond.Wait()
	}
}

// unreadableLocked says why the file must not be read now.
func (db *DB) unreadableLocked() error {
	if db.closed {
		return ErrClosed
	}
	return db.resetCause
}

func (s *Snapshot) begin(b *handle, committed int) (err error) {
	s.bolt = b
	if s.tx, err = b.Begin(false); err == nil {
		err = checkNotBack(s.tx.ID(), committed)
	}
	if err != nil {
		s.Close()
	}
	return s.db.readError(b, err)
}

// Close ends the snapshot. It is idempotent.
func (s *Snapshot) Close() {
	if s.tx != nil {
		s.bolt.end(s.tx)
		s.tx = nil
	}
	if s.users != nil {
		s.users.Done()
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
	if found {
		if e.value == nil {
			return false, nil
		}
		return true, fn(&Item{bucket: bucket, Key: key, Value: e.value})
	}
	if s.tx == nil {
		return false, nil
	}
	err := guard(func() error {
		raw := s.fileBucket(bucket).get(key)
		if raw == nil {
			return nil
		}
		found = true
		return lend(&Item{bucket: bucket, Key: key, raw: raw}, fn)
	})
	return found, s.db.readError(s.bolt, err)
}

func (s *Snapshot) fileBucket(bucket Bucket) boltBucket {
	if s.lastName != bucket.Name {
		s.last, s.lastName = fileBucket(s.tx, bucket), bucket.Name
	}
	return s.last
}

// Scan calls fn for each key from from on, in order, until fn returns false or an
// error. To go on later, set from to the last key and a zero byte.
func (s *Snapshot) Scan(name, from string, fn func(*Item) (bool, error)) error {
	bucket := Bucket{s.space, name}
	return s.db.readError(s.bolt, guard(func() error {
		c := newMergeCursor(s, bucket, from)
		item := Item{bucket: bucket}
		more := false
		visit := func(it *Item) (err error) {
			more, err = fn(it)
			return err
		}
		for last, first := from, true; c.next(&item); last, first = item.Key, false {
			// Without the order, callers might never come to an end. And bbolt
			// finds keys that are out of order by chance only, so it can neither
			// replace nor remove them: the file is of no use any more.
			if item.Key < last || (item.Key == last && !first) {
				return &CorruptError{Err: fmt.Errorf("bucket %q is out of order at key %q", bucket, item.Key)}
			}
			if err := lend(&item, visit); err != nil || !more {
				return err
			}
		}
		return c.err
	}))
}

// Verify checks up to n values, from a key on. It returns a [CorruptError] for a value that
// fails its checksum, and for one that a scan finds and a lookup does not: it could be
// neither replaced nor removed, and readers would disagree. The next call goes on from
// next, unless done.
func (s *Snapshot) Verify(name, from string, n int) (next string, done bool, err error) {
	next, done = from, true
	err = s.Scan(name, from, func(it *Item) (bool, error) {
		if n == 0 {
			done = false
			return false, nil
		}
		n--
		next = it.Key + "\x00"
		if it.Value != nil {
			return true, nil
		}
		if _, err := it.Payload(); err != nil {
			return false, err
		}
		if raw := s.fileBucket(it.bucket).get(it.Key); len(raw) == 0 || &raw[0] != &it.raw[0] {
			return false, corruptFile("bucket %q has key %q where it is not found", it.bucket, it.Key)
		}
		return true, nil
	})
	return next, done, err
}
