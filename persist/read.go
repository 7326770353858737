package persist

import (
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
	meter    *meter // It counts damage of a value in the file.
}

// SizeBytes is about the length of the value. It reads nothing.
func (it *Item) SizeBytes() int { return len(it.sealed) }

// Payload lends the value until the callback returns. It verifies the checksum of a value in the file.
func (it *Item) Payload() ([]byte, error) {
	if it.inMemory {
		return unsealed(it.sealed), nil
	}
	payload, err := unseal(it.bucket, it.Key, it.sealed)
	if err != nil {
		it.meter.damagedValues.Add(1)
	}
	return payload, err
}

// View calls fn with the value of a key, and reports whether there is one.
// Errors are fn's, a [CorruptError] or [ErrClosed].
func (db *DB) View(bucket Bucket, key string, fn func(*Item) error) (bool, error) {
	db.mu.RLock()
	if db.phase == closed {
		db.mu.RUnlock()
		return false, ErrClosed
	}
	s := Snapshot{db: db, space: bucket.Space}
	e, found := db.inMemoryLocked(bucket, key)
	if !found {
		s = db.captureLocked(bucket.Space, nil, nil)
	}
	db.mu.RUnlock()
	// A commit between the lookups and here only makes the file newer: the value
	// that is read was current at one moment of the call.
	defer s.Close()
	if err := s.begin(); err != nil {
		return false, err
	}
	return s.view(bucket, key, e, found, fn)
}

// beginRead begins a read transaction. It refuses a transaction that is older than the last commit: if the newer meta
// page is damaged, bbolt uses the older one.
func (db *DB) beginRead(b *handle, committed int) (*bolt.Tx, error) {
	tx, err := b.Begin(false)
	if err == nil && tx.ID() < committed {
		err = errors.Join(corruptFile("it went back from transaction %d to %d", committed, tx.ID()), guard(tx.Rollback))
	}
	return tx, db.readError(b, Bucket{}, err)
}

// inMemoryLocked returns the entry of a key that is not in the file yet.
func (db *DB) inMemoryLocked(bucket Bucket, key string) (e entry, found bool) {
	if e, found = db.pending.lookup(bucket, key); !found {
		e, found = db.flushing.lookup(bucket, key)
	}
	return e, found
}

// fileBucket returns nil if there is no such bucket.
func fileBucket(tx *bolt.Tx, bucket Bucket) *bolt.Bucket {
	if space := tx.Bucket([]byte(bucket.Space)); space != nil {
		return space.Bucket([]byte(bucket.Name))
	}
	return nil
}

// getFrom returns nil if there is no such key.
func getFrom(b *bolt.Bucket, key string) []byte {
	if b == nil {
		return nil
	}
	var scratch [128]byte
	want := append(append(scratch[:0], keyPrefix), key...)
	if v := b.Get(want); v != nil {
		return v
	}
	if k, _ := b.Cursor().Seek(want); string(k) == string(want) { // Damage has made a bucket of it.
		return []byte{}
	}
	return nil
}
