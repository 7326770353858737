package persist

import (
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// readAhead asks the kernel to read a part of a file into the page cache, at most readAheadBytes. It does not wait for
// that. bbolt advises random access to its mapping (MADV_RANDOM): the kernel would read page by page, which takes a
// disk far longer. An error does no harm.
func readAhead(f *os.File, at, bytes int64) {
	_ = unix.Fadvise(int(f.Fd()), at, bytes, unix.FADV_WILLNEED)
}

// freeBytes returns how much of the file system of a file is free for this process.
func freeBytes(f *os.File) int64 {
	var stat unix.Statfs_t
	if unix.Fstatfs(int(f.Fd()), &stat) != nil {
		return math.MaxInt64
	}
	return int64(stat.Bavail) * int64(stat.Bsize)
}
