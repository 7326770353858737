package persist

import (
	"errors"
	"fmt"

	bolt "go.etcd.io/bbolt"
)

// What the file has room for.
const (
	// MaxKeyBytes is the length of the longest key.
	MaxKeyBytes = bolt.MaxKeySize - len(string(keyPrefix))
	// maxValueBytes is the length of the longest value.
	maxValueBytes = bolt.MaxValueSize - checksumBytes
)

// check panics where the file has no room for a bucket, a key or a value: its owner checks what comes from elsewhere.
func (b Bucket) check(key string, value []byte) {
	switch {
	case b.Space == "" || b.Name == "" || len(b.Space) > bolt.MaxKeySize || len(b.Name) > bolt.MaxKeySize || b.Space == formatBucket:
		panic(fmt.Sprintf("persist: %q is no name for a bucket, expected two names of 1 to %d bytes, and not the format's", shortened(b.String()), bolt.MaxKeySize))
	case len(key) > MaxKeyBytes || len(value) > maxValueBytes:
		panic(fmt.Sprintf("persist: bucket %q has no room for a key of %d bytes and a value of %d", shortened(b.String()), len(key), len(value)))
	}
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
