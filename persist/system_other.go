//go:build !windows

package persist

import (
	"errors"
	"math"
	"os"
	"syscall"
)

// mayReplaceOpenFiles: files can be renamed, and names be given to other files, while
// they are open. Tests have it otherwise.
var mayReplaceOpenFiles = true

// initialMapBytes is address space only. Growing the map waits for all readers.
const initialMapBytes = 64<<20 + (1<<30-64<<20)*(math.MaxInt>>62)

func openFile(name string, flag int, mode os.FileMode) (*os.File, error) {
	return os.OpenFile(name, flag, mode)
}

func isNoDirectorySync(error) bool { return false }

// isUnreadable reports whether err says that the device has lost what was to be read, or
// written.
func isUnreadable(err error) bool { return errors.Is(err, syscall.EIO) }

func isDiskFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
