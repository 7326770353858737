package e2e

import (
	"os"
	"syscall"
)

// peakBytes is the memory that a process which has ended had at most.
func peakBytes(state *os.ProcessState) int64 {
	usage, ok := state.SysUsage().(*syscall.Rusage)
	if !ok {
		return 0
	}
	return int64(usage.Maxrss) << 10 // Elsewhere it is in bytes, or not there.
}
