package persist

import (
	"bytes"
	"errors"

	bolt "go.etcd.io/bbolt"
)

// keyPrefix begins every key in the file, because bbolt has no empty keys and
// Kubernetes objects without a name do.
const keyPrefix = 'k'

// An Item is one key of a bucket. It is valid inside the callback that got it.
type Item struct {
	bucket Bucket
	Key    string
	sealed []byte
	// inMemory: the value is not in the file yet.
	inMemory bool
}

// SizeBytes is about the length of the value. It reads nothing.
func (it *Item) SizeBytes() int { return len(it.sealed) }

// Payload lends the value for as long as the callback runs. It verifies the checksum of a value in the file.
func (it *Item) Payload() ([]byte, error) {
	if it.inMemory {
		return unsealed(it.sealed), nil
	}
	return unseal(it.bucket, it.Key, it.sealed)
}

// View calls fn with the value of a key, and reports whether there is one.
// Errors are fn's, a [CorruptError] or [ErrClosed].
func (db *DB) View(bucket Bucket, key string, fn func(*Item) error) (bool, error) {
	db.mu.RLock()
	e, found := db.inMemoryLocked(bucket, key)
	committed, ended := db.boltTxID, db.phase == closed
	var b *handle
	if !ended && !found && !db.memoryOnly() {
		b = db.bolt
		defer db.useLocked()()
	}
	db.mu.RUnlock()
	switch {
	case ended:
		return false, ErrClosed
	case found && e.sealed == nil:
		return false, nil
	case found:
		return true, fn(&Item{bucket: bucket, Key: key, sealed: e.sealed, inMemory: true})
	case b == nil:
		return false, nil
	}
	// A commit between the lookups and here only makes the file newer: the value
	// that is read was current at one moment of the call.
	tx, err := db.beginRead(b, committed)
	if err != nil {
		return false, err
	}
	defer func() { _ = guard(tx.Rollback) }()
	err = guard(func() error {
		raw := fileBucket(tx, bucket).get(key)
		if raw == nil {
			return nil
		}
		found = true
		return lend(&Item{bucket: bucket, Key: key, sealed: raw}, fn)
	})
	return found, db.readError(b, bucket, err)
}

// useLocked notes that somebody is about to begin a transaction, until end is called behind its end.
func (db *DB) useLocked() (end func()) {
	users := db.users
	users.Add(1)
	return func() { users.Add(-1) }
}

// beginRead begins a read transaction. It refuses one that is older than the last commit: where
// the newer meta page is damaged, bbolt uses the older one.
func (db *DB) beginRead(b *handle, committed int) (*bolt.Tx, error) {
	tx, err := b.Begin(false)
	if err == nil && tx.ID() < committed {
		err = errors.Join(corruptFile("it went back from transaction %d to %d", committed, tx.ID()), guard(tx.Rollback))
	}
	return tx, db.readError(b, Bucket{}, err)
}

// inMemoryLocked returns what is not in the file yet.
func (db *DB) inMemoryLocked(bucket Bucket, key string) (e entry, found bool) {
	if e, found = db.pending.lookup(bucket, key); !found {
		e, found = db.flushing.lookup(bucket, key)
	}
	return e, found
}

// boltBucket is a bucket that may not exist.
type boltBucket struct{ b *bolt.Bucket }

func fileBucket(tx *bolt.Tx, bucket Bucket) boltBucket {
	space := tx.Bucket([]byte(bucket.Space))
	if space == nil {
		return boltBucket{}
	}
	return boltBucket{space.Bucket([]byte(bucket.Name))}
}

// get returns nil if there is no such key. A key that has become a bucket by damage has a value
// that is too short for a checksum: bbolt's Get would say that it is not there.
func (b boltBucket) get(key string) []byte {
	if b.b == nil {
		return nil
	}
	var scratch [128]byte
	want := append(append(scratch[:0], keyPrefix), key...)
	k, v := b.b.Cursor().Seek(want)
	switch {
	case !bytes.Equal(k, want):
		return nil
	case v == nil:
		return []byte{}
	}
	return v
}
