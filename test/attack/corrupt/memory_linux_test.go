package corrupt

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// resetPeak makes peakBytes begin anew.
func resetPeak() { _ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) } // Else the peak is of all tries.

// peakBytes and residentBytes are the memory that a process had at most, and has:
// 0 if that cannot be found out, as of one that has ended.
func peakBytes(pid int) int64     { return statusBytes(pid, "VmHWM:") }
func residentBytes(pid int) int64 { return statusBytes(pid, "VmRSS:") }

func statusBytes(pid int, field string) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(b) {
		if words := bytes.Fields(line); len(words) == 3 && string(words[0]) == field {
			kilobytes, err := strconv.ParseInt(string(words[1]), 10, 64)
			if err != nil {
				return 0
			}
			return kilobytes << 10
		}
	}
	return 0
}
