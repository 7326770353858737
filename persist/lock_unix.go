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

// lockFile takes the lock that bbolt takes, for a look at the file before
// bbolt opens it.
func lockFile(path string, timeout time.Duration) (unlock func(), err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(timeout); ; time.Sleep(lockRetryDelay) {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil // Only read; closing unlocks.
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
		}
		if time.Now().After(deadline) {
			return nil, errors.Join(fmt.Errorf("%w: %s", ErrLocked, path), f.Close())
		}
	}
}
