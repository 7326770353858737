package persist

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// holder names the process that holds the lock of a file, as far as /proc/locks shows it. Its lines are
//
//	1: FLOCK  ADVISORY  WRITE 4711 fe:01:262209 0 EOF
//
// with the device in hexadecimal. A line of a process that waits for a lock has "->" behind the number.
func holder(path string) string {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return ""
	}
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(stat.Dev), unix.Minor(stat.Dev), stat.Ino)
	locks, _ := os.ReadFile("/proc/locks")
	for line := range strings.Lines(string(locks)) {
		if fields := strings.Fields(line); len(fields) > 5 && fields[1] == "FLOCK" && fields[5] == file {
			return ", locked by process " + fields[4]
		}
	}
	return ""
}
