//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package persist

import (
	"os"
	"time"
)

// abandonedAge is how old a file is that nobody makes any more.
const abandonedAge = time.Hour

// lockFile opens the file at path. It takes no lock where there is no flock. What the
// lock guards against, a rename of a file in use, such systems mostly refuse
// themselves; and bbolt takes a lock of its own when it opens the file.
func lockFile(path string, _ time.Duration) (*os.File, error) {
	return openFile(path, os.O_RDWR, 0)
}

// unlockFile does nothing: locks of such systems end when the file is closed.
func unlockFile(*os.File) error { return nil }
