package persist

import (
	"errors"
	"syscall"

	bolterrors "go.etcd.io/bbolt/errors"
)

// initialMapBytes is also the length that bbolt gives the file on Windows. Both grow.
const initialMapBytes = 8 << 20

func isDiskFull(err error) bool {
	const handleDiskFull, diskFull = syscall.Errno(39), syscall.Errno(112)
	return errors.Is(err, bolterrors.ErrMaxSizeReached) || errors.Is(err, handleDiskFull) || errors.Is(err, diskFull)
}
