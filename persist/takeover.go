package persist

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
)

// A Found is a file, sound as far as opening it shows, that a DB could not have at first, and can have now. Until
// Options.TakeOver returns, it is only read.
type Found struct {
	// Changed says that another process may have written to the file since Options.TakeOver was asked last.
	Changed bool

	db     *DB
	file   opened
	damage error // Of the file as a whole, found by Read.
}

// Read calls fn with what the file has of a space. If fn returns an error that says that the file as a whole is
// damaged, the file is replaced once Options.TakeOver has failed.
func (f *Found) Read(space string, fn func(*Snapshot) error) error {
	s := &Snapshot{db: f.db, space: space, pending: newLayer(), users: new(sync.WaitGroup)}
	s.users.Add(1)
	err := s.begin(f.file.bolt, f.file.txID)
	if err == nil {
		defer s.Close()
		err = fn(s)
	}
	if isFileDamage(err) {
		f.damage = err
	}
	return err
}

// takeOver is how a file is taken over that becomes free after Open: TakeOver has agreed to it.
type takeOver struct {
	buckets map[string][]string // Those that the file has, by the spaces that the DB has.
	done    func()
}

// offered is a file as it was when Options.TakeOver was asked about it.
type offered struct {
	file os.FileInfo // Nil if there was none, or if that is not known.
	txID int
}

func offeredOf(o opened) offered {
	info, err := o.file.Stat()
	if err != nil {
		return offered{}
	}
	return offered{info, o.txID}
}

// isSame reports whether a file is the one that was offered, and nobody has written to it.
func (o offered) isSame(found offered) bool {
	return o.file != nil && found.file != nil && os.SameFile(o.file, found.file) && o.txID == found.txID
}

var errNotYet = errors.New("the cache file could be had, but cannot be taken over yet")

// mayTakeOver reports whether err is one after which the file may be taken over soon.
func (db *DB) mayTakeOver(err error) bool {
	return db.opts.TakeOver != nil && (errors.Is(err, ErrLocked) || errors.Is(err, errNotYet))
}

// prepareTakeOver asks Options.TakeOver about a file that was opened. If that meets damage which opening the file has
// not found, and repair is set, the file is replaced by what can be read of it, and that is asked about.
func (db *DB) prepareTakeOver(found opened, repair bool) (opened, error) {
	if err := db.ensureSynced(found.bolt); err != nil {
		return opened{}, errors.Join(err, guard(found.close))
	}
	now := offeredOf(found)
	read := &Found{Changed: !db.offered.isSame(now), db: db, file: found}
	var (
		spaces []string
		done   func()
	)
	buckets, err := bucketsBySpace(found.bolt) // Nothing fails any more once TakeOver has agreed.
	if isFileDamage(err) {
		read.damage = err
	}
	asked := err == nil
	if asked {
		db.offered = now
		spaces, done, err = db.opts.TakeOver(read)
	}
	if err != nil && repair && read.damage != nil {
		defer func() { _ = guard(found.close) }() // Only read.
		repaired, err := db.successor(found.file, read.damage, true)
		if err != nil {
			return opened{}, fmt.Errorf("replace a damaged file (%w): %w", read.damage, err)
		}
		if asked {
			db.offered = offeredOf(repaired) // No other process has changed it.
		}
		return db.prepareTakeOver(repaired, false)
	}
	if err != nil {
		return opened{}, errors.Join(fmt.Errorf("%w: %w", errNotYet, err), guard(found.close))
	}
	db.takingOver = &takeOver{map[string][]string{}, done}
	for _, space := range spaces {
		db.takingOver.buckets[space] = buckets[space]
	}
	return found, nil
}

// bucketsBySpace returns the names of the buckets that a file has in each space.
func bucketsBySpace(file *handle) (map[string][]string, error) {
	buckets := map[string][]string{}
	err := view(file, func(tx *bolt.Tx) error {
		return tx.ForEach(func(space []byte, b *bolt.Bucket) error {
			if b == nil { // Damage, which is nobody's.
				return nil
			}
			return b.ForEachBucket(func(name []byte) error {
				buckets[string(space)] = append(buckets[string(space)], string(name))
				return nil
			})
		})
	})
	return buckets, err
}

// takeOverLocked makes what is in memory changes of the file that is about to be used: the spaces of
// takingOver replace those of the file, and of the others nothing is kept.
func (db *DB) takeOverLocked() (done func()) {
	t := db.takingOver
	if t == nil {
		return func() {}
	}
	db.takingOver = nil
	for b, bl := range db.pending.buckets {
		if _, taken := t.buckets[b.Space]; taken {
			continue
		}
		bl.entries.Scan(func(key string, e entry) bool {
			db.pending.bytes -= e.bytes(key)
			return true
		})
		delete(db.pending.buckets, b)
	}
	for space, names := range t.buckets {
		for _, name := range names {
			db.pending.bucket(Bucket{space, name}).dropped = true
		}
	}
	db.leavesChecked, db.leaves = false, nil // It was written by another process.
	db.takenOverAt = time.Now()
	return func() {
		t.done()
		db.log.Info("Has taken over the cache file, which could not be had at first", "path", db.path)
	}
}

// TakenOverAt returns when a file was taken over last, zero if none was.
func (db *DB) TakenOverAt() time.Time {
	db.mu.RLock()
	defer db.mu.RUnlock()
	return db.takenOverAt
}

// Written returns the number of the last batch that is in the file, or was before the file was lost, and 0 if none
// ever was. A file that is taken over has nothing of later ones.
func (db *DB) Written() uint64 {
	db.mu.RLock()
	defer db.mu.RUnlock()
	return db.written
}

// Unwritten has names, and the number of the batch in which something was done about each of them last, until the
// file has it. A file that is taken over does not know of what has a number above [DB.Written]. Its owner guards it.
type Unwritten map[string]uint64

// Note notes that it is done about name in b.
func (u Unwritten) Note(b *Batch, name string) {
	maps.DeleteFunc(u, func(_ string, batch uint64) bool { return batch <= b.db.written })
	u[name] = b.db.applied + 1
}
