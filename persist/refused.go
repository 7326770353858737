package persist

import (
	"errors"
	"fmt"

	bolt "go.etcd.io/bbolt"
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

// errorBeforeCommit makes a [CorruptError] of an error that bbolt returns before its Commit.
// Until then bbolt only reads its mapping, so the file is damaged, and trying again would not
// help.
func errorBeforeCommit(err error) error {
	if err == nil || errors.Is(err, ErrCorrupt) {
		return err
	}
	return &CorruptError{Err: err}
}
