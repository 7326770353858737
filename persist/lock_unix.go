//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package persist

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

const (
	lockRetryDelay = 50 * time.Millisecond
	lockLogDelay   = time.Second // After it, the log names the process that holds the lock.
)

// boltTimeout bounds bbolt's own wait for its lock. This process already has that lock.
const boltTimeout = time.Second

// lock opens the cache file, or makes it, and takes the same lock as bbolt. It waits for LockTimeout, at most until ctx
// ends. Closing the file releases the lock. The file is opened for writing, because NFS turns an exclusive flock into a
// lock of the server, which requires that.
//
// While this process waits, the process that holds the lock may set the file aside. So the lock counts only if the path
// still names the file.
func (db *DB) lock(ctx context.Context) (*os.File, error) {
	logged := false
	for begin := time.Now(); ; {
		f, err := os.OpenFile(db.path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil && isAt(f, db.path):
			return f, nil
		case err != nil && !errors.Is(err, syscall.EWOULDBLOCK):
			return nil, errors.Join(fmt.Errorf("lock %s: %w", db.path, err), f.Close())
		}
		waited := time.Since(begin)
		if late := waited >= db.opts.LockTimeout; late || waited >= lockLogDelay && !logged {
			logged, err = true, fmt.Errorf("%w: %s%s", ErrLocked, db.path, holder(db.path))
			if late {
				return nil, errors.Join(err, f.Close())
			}
			db.opts.Logger.Info("Waiting for the process that holds the cache file", "path", db.path, "err", err)
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
		select {
		case <-time.After(lockRetryDelay):
		case <-ctx.Done():
			return nil, fmt.Errorf("persist: %s: wait for its lock: %w", db.path, ctx.Err())
		}
	}
}

// unlockFile is for a file whose mapping would keep the lock.
func unlockFile(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_UN) }
