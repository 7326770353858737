package persist

import (
	"errors"
	"fmt"
)

var (
	// ErrClosed is returned by every call on a closed DB.
	ErrClosed = errors.New("persist: database is closed")

	// ErrCorrupt is wrapped by every [CorruptError].
	ErrCorrupt = errors.New("persist: corrupt")

	// ErrLocked says that another process holds the file.
	ErrLocked = errors.New("persist: file is held by another process")

	// ErrInUse says that this process already uses something: a file, or, in other packages, the name of a handler.
	ErrInUse = errors.New("in use already")

	// ErrUnknownFormat says that the file is a bbolt file, but another program or an unknown version of this package
	// has written it.
	ErrUnknownFormat = errors.New("persist: unknown file format")
)

// CorruptError says where something unreadable was found. errors.Is(err,
// [ErrCorrupt]) holds.
type CorruptError struct {
	Bucket Bucket // Zero for the file as a whole.
	Key    string
	Err    error
}

func (e *CorruptError) Error() string {
	if e.Bucket == (Bucket{}) {
		return fmt.Sprintf("persist: file is corrupt: %v", e.Err)
	}
	return fmt.Sprintf("persist: corrupt value in bucket %q, key %q: %v", e.Bucket, e.Key, e.Err)
}

func (e *CorruptError) Unwrap() []error { return []error{ErrCorrupt, e.Err} }
