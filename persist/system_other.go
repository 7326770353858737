//go:build !windows

package persist

import (
	"errors"
	"math"
	"strings"
	"syscall"

	bolterrors "go.etcd.io/bbolt/errors"
)

// initialMapBytes costs only address space. To grow its mapping, bbolt waits for all readers.
const initialMapBytes = 64<<20 + (1<<30-64<<20)*(math.MaxInt>>62)

// isDiskFull also recognises errors that bbolt has only as text (DB.grow in its db.go).
func isDiskFull(err error) bool {
	return errors.Is(err, bolterrors.ErrMaxSizeReached) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || err != nil && strings.HasSuffix(err.Error(), syscall.ENOSPC.Error())
}
