package e2e

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// peakBytes is the memory that a running process has had at most; 0 if that cannot be
// found out. (What wait4 says of one that has ended is not less than what the process had
// that started it.)
func peakBytes(pid int) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(b) {
		if words := bytes.Fields(line); len(words) == 3 && string(words[0]) == "VmHWM:" {
			kilobytes, _ := strconv.ParseInt(string(words[1]), 10, 64)
			return kilobytes << 10
		}
	}
	return 0
}
