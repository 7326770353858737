package persist

import (
	"errors"
	"fmt"

	bolt "go.etcd.io/bbolt"
)

// MaxKeyBytes is the length of the longest key. The owner of a bucket checks the keys that come from elsewhere.
const MaxKeyBytes = bolt.MaxKeySize - len(string(keyPrefix))

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

// errorBeforeCommit makes a [CorruptError] of an error that bbolt returns before its Commit.
// Until then bbolt only reads its mapping, so the file is damaged, and trying again would not
// help.
func errorBeforeCommit(err error) error {
	if err == nil || errors.Is(err, ErrCorrupt) {
		return err
	}
	return &CorruptError{Err: err}
}
