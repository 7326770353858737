//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package persist

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

const lockRetryDelay = 50 * time.Millisecond

// abandonedAge is the age of a file that nobody makes any more, if it is not locked:
// whoever makes a file holds its lock.
const abandonedAge = 0

// lockFile opens the file at path and takes the lock that bbolt takes. Closing the
// file releases it. The file is opened for writing, because NFS turns an exclusive
// flock into a lock of the server, which requires that.
//
// While this process waits, the one that holds the lock may replace the file. So the
// lock counts only if path still names the file.
func lockFile(path string, timeout time.Duration) (*os.File, error) {
	for deadline := time.Now().Add(timeout); ; time.Sleep(lockRetryDelay) {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			if isAt(f, path) {
				return f, nil
			}
		case !errors.Is(err, syscall.EWOULDBLOCK):
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
		}
		late, by := !time.Now().Before(deadline), ""
		if late {
			by = holder(f)
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
		if late {
			return nil, fmt.Errorf("%w: %s%s", ErrLocked, path, by)
		}
	}
}

// unlockFile is for a file whose mapping would keep the lock.
func unlockFile(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_UN) }
