package persist

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/warmwatch/warmwatch/internal/testsupport"
)

func TestWhoHoldsALockIsReadFromTheKernelsTable(t *testing.T) {
	const locks = `1: FLOCK  ADVISORY  WRITE 100 fe:01:262209 0 EOF
2: -> FLOCK  ADVISORY  WRITE 200 fe:01:262210 0 EOF
3: POSIX  ADVISORY  WRITE 300 fe:01:262210 0 EOF
4: FLOCK  ADVISORY  WRITE 400 fe:00:262210 0 EOF
5: FLOCK  ADVISORY  WRITE 500 fe:01:262210 0 EOF
6: FLOCK
`
	const dev = 0xfe<<8 | 0x01
	for inode, want := range map[uint64]int{262209: 100, 262210: 500, 262211: 0} {
		if got := lockedBy([]byte(locks), dev, inode); got != want {
			t.Errorf("%d is held by %d, expected %d", inode, got, want)
		}
	}
}

// TestALockedFileNamesItsHolder, where the numbers of the file system are those of /proc/locks.
func TestALockedFileNamesItsHolder(t *testing.T) {
	path := testsupport.Path(t)
	pid, release := holdFile(t, path)
	_, err := lockFile(path, 0)
	comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	want := fmt.Sprintf("locked by process %d (%s)", pid, strings.TrimSpace(string(comm)))
	locks, _ := os.ReadFile("/proc/locks")
	listed := strings.Contains(string(locks), fmt.Sprintf(" %d ", pid))
	if !errors.Is(err, ErrLocked) || listed && !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, expected %s; /proc/locks has\n%s", err, want, locks)
	}
	release()
	db := open(t, path, Options{LockTimeout: time.Millisecond})
	_, err = lockFile(path, 0)
	if !errors.Is(err, ErrLocked) || listed && !strings.Contains(err.Error(), "locked by this process") || db.MemoryOnly() {
		t.Errorf("error %v", err)
	}
	if !listed {
		t.Skip("/proc/locks does not have the lock: who holds the file was not compared")
	}
}
