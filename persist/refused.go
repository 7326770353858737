package persist

import (
	"errors"
	"fmt"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// MaxKeyBytes is the length of the longest key that the file has room for. The value of
// a longer one stays in memory for the life of the process, as one that cannot be
// encoded does, and the DB says so in [DB.Err].
const MaxKeyBytes = bolt.MaxKeySize - len(string(keyPrefix))

// maxValueBytes is the length of the longest value, with its checksum. Longer ones stay
// in memory likewise.
var maxValueBytes = bolt.MaxValueSize // Less in tests.

// lend calls fn with an item. A panic of fn, which may run code of the value's type, is
// about this value, and not about the whole file as one of bbolt's; a fault is the
// file's, from which fn reads.
func lend(it *Item, fn func(*Item) error) (err error) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		if _, fault := p.(interface{ Addr() uintptr }); fault {
			panic(p)
		}
		err = &CorruptError{it.bucket, it.Key, fmt.Errorf("panic: %v", p)}
	}()
	return fn(it)
}

// shortened is a key as errors name it.
func shortened(key string) string {
	const most = 1000
	if len(key) <= most {
		return key
	}
	return key[:most] + "..."
}

// markSpacesOfLongKeys marks the spaces of keys that are too long to have marks of their own in
// the file: something is missing there.
func markSpacesOfLongKeys(tx *bolt.Tx, bad []unencodable) error {
	last := ""
	for _, u := range bad {
		if len(u.key) <= MaxKeyBytes || u.bucket.Space == last {
			continue
		}
		last = u.bucket.Space
		mark := Bucket{last, salvagedBucket}
		space, err := tx.CreateBucketIfNotExists([]byte(mark.Space))
		if err != nil {
			return err
		}
		bucket, err := space.CreateBucketIfNotExists([]byte(mark.Name))
		if err != nil {
			return err
		}
		if err := bucket.Put([]byte(string(keyPrefix)+salvagedKey), seal(nil, 0, mark, salvagedKey)); err != nil {
			return err
		}
	}
	return nil
}

// errorBeforeCommit is what an error of bbolt's means that comes before its Commit. Nothing is
// read or written there but the mapped file, so there is something wrong with that; to
// try again would not help.
func errorBeforeCommit(err error) error {
	if err == nil || errors.Is(err, ErrCorrupt) || errors.Is(err, bolterrors.ErrDatabaseReadOnly) {
		return err
	}
	return &CorruptError{Err: err}
}

// errorOfCommit is the same for errors of Commit. Most are the disk's; bbolt does not
// always say so in a way that errors.Is could tell, so it is the others that are listed.
// A file that is damaged as well is found out by the next attempt, before its Commit.
func errorOfCommit(err error) error {
	for _, damage := range []error{
		bolterrors.ErrInvalid, bolterrors.ErrInvalidMapping, bolterrors.ErrChecksum, bolterrors.ErrVersionMismatch,
		bolterrors.ErrBucketNotFound, bolterrors.ErrBucketExists, bolterrors.ErrBucketNameRequired,
		bolterrors.ErrKeyRequired, bolterrors.ErrKeyTooLarge, bolterrors.ErrValueTooLarge, bolterrors.ErrIncompatibleValue,
		bolterrors.ErrTxClosed, bolterrors.ErrTxNotWritable, bolterrors.ErrDatabaseNotOpen,
	} {
		if errors.Is(err, damage) {
			return &CorruptError{Err: err}
		}
	}
	return err
}
