//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package persist

import (
	"os"
	"time"
)

// abandonedAge is the age of a file that nobody makes any more.
const abandonedAge = time.Hour

// lockFile opens the file at path. It takes no lock, because there is no flock. The lock
// guards against a rename of a file in use, which such systems mostly refuse
// themselves; and bbolt takes a lock of its own when it opens the file.
func lockFile(path string, _ time.Duration) (*os.File, error) {
	return openFile(path, os.O_RDWR, 0)
}

// unlockFile does nothing: on such systems closing the file ends its locks.
func unlockFile(*os.File) error { return nil }
