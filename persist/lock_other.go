//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package persist

import (
	"context"
	"os"
	"time"
)

// boltTimeout is how long bbolt waits for its lock.
const boltTimeout = 5 * time.Second

// lock opens the cache file, or makes it. It takes no lock, because this system has no flock. bbolt takes a lock of its
// own when it opens the file, and waits for boltTimeout.
func (db *DB) lock(context.Context) (*os.File, error) {
	return os.OpenFile(db.path, os.O_RDWR|os.O_CREATE, 0o600)
}

// unlockFile does nothing: on such systems closing the file ends its locks.
func unlockFile(*os.File) error { return nil }
