package persist

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// holder names the process that holds the lock of a file, as far as /proc shows it: a process of
// another container is not seen, and some file systems have other numbers there.
func holder(f *os.File) string {
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return ""
	}
	pid := lockedBy(locks, uint64(stat.Dev), stat.Ino)
	switch {
	case pid <= 0:
		return ""
	case pid == os.Getpid():
		return ", locked by this process"
	}
	name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if name := strings.TrimSpace(string(name)); name != "" {
		return fmt.Sprintf(", locked by process %d (%s)", pid, name)
	}
	return fmt.Sprintf(", locked by process %d", pid)
}

// lockedBy returns which process holds a flock, 0 if none is found. The lines of /proc/locks are
//
//	1: FLOCK  ADVISORY  WRITE 4711 fe:01:262209 0 EOF
//
// with the device in hexadecimal. Those that wait for a lock have "->" behind the number.
func lockedBy(locks []byte, dev, inode uint64) (pid int) {
	major := dev>>8&0xfff | dev>>32&^0xfff
	minor := dev&0xff | dev>>12&^0xff
	file := fmt.Sprintf("%02x:%02x:%d", major, minor, inode)
	lines := bufio.NewScanner(bytes.NewReader(locks))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 6 || fields[1] != "FLOCK" || fields[5] != file {
			continue
		}
		if pid, err := strconv.Atoi(fields[4]); err == nil {
			return pid
		}
	}
	return 0
}
