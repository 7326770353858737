package persist

import (
	"errors"
	"fmt"

	bolt "go.etcd.io/bbolt"
)

// MaxKeyBytes is the length of the longest key. The owner of a bucket checks keys that it did not make itself.
const MaxKeyBytes = bolt.MaxKeySize - len(string(keyPrefix))

// lend calls fn with an item. fn may run code of the value's type. If fn panics, only this value counts as corrupt, not
// the whole file as after a panic of bbolt. After a fault the whole file does, because fn reads its mapping.
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
