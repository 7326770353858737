package persist

import (
	"os"

	"golang.org/x/sys/unix"
)

// readAhead has the kernel read a part of a file, of readAheadBytes at most, into the page
// cache, and does not wait for that. bbolt has its map read at random (MADV_RANDOM), page by
// page, which takes a disk far longer. It is advice: an error means no more than that.
func readAhead(f *os.File, at, bytes int64) {
	_ = unix.Fadvise(int(f.Fd()), at, bytes, unix.FADV_WILLNEED)
}
