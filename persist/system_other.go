//go:build !windows

package persist

import (
	"errors"
	"math"
	"os"
	"syscall"
)

// mayReplaceOpenFiles: a file can be renamed, and its name given to another one, while it
// is open. Tests set it to false.
var mayReplaceOpenFiles = true

// initialMapBytes costs only address space. To grow its mapping, bbolt waits for all readers.
const initialMapBytes = 64<<20 + (1<<30-64<<20)*(math.MaxInt>>62)

func openFile(name string, flag int, mode os.FileMode) (*os.File, error) {
	return os.OpenFile(name, flag, mode)
}

func isNoDirectorySync(error) bool { return false }

// isUnreadable reports whether err means that the device has lost what was to be read, or
// written.
func isUnreadable(err error) bool { return errors.Is(err, syscall.EIO) }

// diskErrors are those that isUnreadable and isDiskFull know.
var diskErrors = [...]syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EIO}

func isDiskFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
