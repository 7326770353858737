//go:build !windows

package persist

import (
	"errors"
	"math"
	"os"
	"strings"
	"syscall"
)

// initialMapBytes costs only address space. To grow its mapping, bbolt waits for all readers.
const initialMapBytes = 64<<20 + (1<<30-64<<20)*(math.MaxInt>>62)

func openFile(name string, flag int, mode os.FileMode) (*os.File, error) {
	return os.OpenFile(name, flag, mode)
}

func isNoDirectorySync(error) bool { return false }

// isUnreadable reports whether err means that the device has lost what was to be read.
func isUnreadable(err error) bool { return errors.Is(err, syscall.EIO) }

// isDiskFull knows also the errors that bbolt gives in words (DB.grow in its db.go).
func isDiskFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || err != nil && strings.HasSuffix(err.Error(), syscall.ENOSPC.Error())
}
