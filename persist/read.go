package persist

import (
	"bytes"
	"errors"
	"fmt"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// keyPrefix begins every key in the file, because bbolt has no empty keys and
// Kubernetes objects without a name do.
const keyPrefix = 'k'

// An Item is one key of a bucket. It is valid inside the callback that got it.
type Item struct {
	bucket Bucket
	Key    string
	// Value is set while the value is still in memory. Unless it is [Bytes], there is no payload then.
	Value Value
	raw   []byte
}

// SizeBytes estimates the length of the value without reading it.
func (it *Item) SizeBytes() int {
	if it.Value != nil {
		return it.Value.SizeBytes()
	}
	return len(it.raw)
}

// Payload verifies the checksum and lends the encoded value, for as long as
// the callback runs.
func (it *Item) Payload() ([]byte, error) {
	if b, inMemory := it.Value.(Bytes); inMemory {
		return b, nil
	}
	return unseal(it.bucket, it.Key, it.raw)
}

// View calls fn with the value of a key, and reports whether there is one.
// Errors are fn's, a [CorruptError] or [ErrClosed].
func (db *DB) View(bucket Bucket, key string, fn func(*Item) error) (bool, error) {
	found, err := db.view(bucket, key, fn)
	if !found && isFileDamage(err) { // fn was not called.
		return db.view(bucket, key, fn)
	}
	return found, err
}

func (db *DB) view(bucket Bucket, key string, fn func(*Item) error) (bool, error) {
	db.mu.RLock()
	e, found := db.inMemoryLocked(bucket, key)
	if !found && db.resetCause != nil {
		db.mu.RUnlock()
		db.waitForReset(db.hangsLocked)
		db.mu.RLock()
		e, found = db.inMemoryLocked(bucket, key)
	}
	b, committed, bad, closed := db.bolt, db.boltTxID, db.resetCause, db.closed
	users := db.users
	users.Add(1)
	db.mu.RUnlock()
	defer users.Done()
	switch {
	case closed:
		return false, ErrClosed
	case found && e.value == nil:
		return false, nil
	case found:
		return true, fn(&Item{bucket: bucket, Key: key, Value: e.value})
	case bad != nil: // After a panic, bbolt may hold its locks for ever.
		return false, bad
	case b == nil:
		return false, nil
	}
	// A commit between the lookups and here only makes the file newer: the value
	// that is read was current at one moment of the call.
	err := db.readFile(b, committed, func(tx *bolt.Tx) error {
		raw := fileBucket(tx, bucket).get(key)
		if raw == nil {
			return nil
		}
		found = true
		return lend(&Item{bucket: bucket, Key: key, raw: raw}, fn)
	})
	return found, err
}

// inMemoryLocked returns what is not in the file yet.
func (db *DB) inMemoryLocked(bucket Bucket, key string) (e entry, found bool) {
	if e, found = db.pending.lookup(bucket, key); !found {
		e, found = db.flushing.lookup(bucket, key)
	}
	return e, found
}

func (db *DB) readFile(b *handle, committed int, fn func(*bolt.Tx) error) error {
	return db.readError(b, view(b, func(tx *bolt.Tx) error {
		if err := checkNotBack(tx.ID(), committed); err != nil {
			return err
		}
		return fn(tx)
	}))
}

// checkNotBack refuses a transaction that is older than the last commit: where
// the newer meta page is damaged, bbolt uses the older one.
func checkNotBack(txID, committed int) error {
	if txID >= committed {
		return nil
	}
	return &CorruptError{Err: fmt.Errorf("the file went back from transaction %d to %d", committed, txID)}
}

// readError has the file replaced if err says that it is damaged as a whole, unless
// it has been replaced meanwhile. It returns err, or [ErrClosed] for bbolt's.
func (db *DB) readError(b *handle, err error) error {
	if errors.Is(err, bolterrors.ErrDatabaseNotOpen) || errors.Is(err, bolterrors.ErrTxClosed) {
		return ErrClosed
	}
	if isFileDamage(err) {
		db.mu.Lock()
		defer db.mu.Unlock()
		stuck := db.abandonCommitLocked()
		if db.resetCause == nil && db.broken == nil && b != nil && db.bolt == b && (!db.closing || stuck) {
			db.resetCause = err
			db.cond.Broadcast()
			db.wakeCommitter()
		}
	}
	return err
}

func isFileDamage(err error) bool {
	corrupt, ok := errors.AsType[*CorruptError](err)
	return ok && corrupt.Bucket == (Bucket{})
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
