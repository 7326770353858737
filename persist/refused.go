package persist

import (
	"errors"
	"fmt"
	"strings"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// MaxKeyBytes is the length of the longest key that the file has room for. The value of
// a longer key stays in memory for the life of the process, as one that cannot be
// encoded does, and [DB.Err] returns an error.
const MaxKeyBytes = bolt.MaxKeySize - len(string(keyPrefix))

// maxValueBytes is the length of the longest value, with its checksum. Longer ones stay
// in memory as well.
var maxValueBytes = bolt.MaxValueSize // Less in tests.

// check refuses a bucket that the file cannot have. What is put into it stays in memory.
func (b Bucket) check() error {
	for _, name := range []string{b.Space, b.Name} {
		if name == "" || len(name) > bolt.MaxKeySize || b.Space == formatBucket {
			return fmt.Errorf("%q is no name for a bucket, expected two names of 1 to %d bytes, and not the format's", shortened(b.String()), bolt.MaxKeySize)
		}
	}
	return nil
}

// lend calls fn with an item. If fn, which may run code of the value's type, panics, only
// this value is corrupt, and not the whole file as after a panic of bbolt. A fault does mean
// the file, because fn reads its mapping.
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

// shortened returns a key as errors print it.
func shortened(key string) string {
	const most = 1000
	if len(key) <= most {
		return key
	}
	return key[:most] + "..."
}

// markSpacesOfLongKeys marks the spaces in which a value is missing because its key is too
// long for the file.
func markSpacesOfLongKeys(tx *bolt.Tx, bad []unencodable) error {
	last := ""
	for _, u := range bad {
		if len(u.key) <= MaxKeyBytes || u.bucket.Space == last || u.bucket.check() != nil {
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

// errorBeforeCommit makes a [CorruptError] of an error that bbolt returns before its Commit.
// Until then bbolt only reads its mapping, so the file is damaged, and trying again would not
// help.
func errorBeforeCommit(err error) error {
	if err == nil || errors.Is(err, ErrCorrupt) || errors.Is(err, bolterrors.ErrDatabaseReadOnly) {
		return err
	}
	return &CorruptError{Err: err}
}

// errorOfCommit makes a [CorruptError] of an error of Commit that is bbolt's own. Most are
// the disk's. errors.Is cannot tell all of those, so bbolt's are listed. If the file is
// damaged as well, the next attempt finds out before its Commit.
func errorOfCommit(err error) error {
	if err == nil {
		return nil
	}
	// DB.grow in bbolt's db.go says these in words only.
	if text := err.Error(); strings.HasPrefix(text, "file resize error: ") || strings.HasPrefix(text, "file sync error: ") {
		for _, errno := range diskErrors {
			if strings.HasSuffix(text, errno.Error()) {
				return fmt.Errorf("%w (%w)", err, errno)
			}
		}
	}
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
