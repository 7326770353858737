package testsupport

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// FailReads has all reads of a file that is open fail, but for those of its mapping, until restore is called.
func FailReads(t testing.TB, path string) (restore func()) {
	t.Helper()
	want, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	links, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if info, err := os.Stat(link); err != nil || !os.SameFile(info, want) {
			continue
		}
		var fd int
		if _, err := fmt.Sscanf(filepath.Base(link), "%d", &fd); err != nil {
			t.Fatal(err)
		}
		sound, err := syscall.Dup(fd)
		if err != nil {
			t.Fatal(err)
		}
		unreadable, err := syscall.Open(path, syscall.O_WRONLY|syscall.O_CLOEXEC, 0)
		if err = errors.Join(err, syscall.Dup3(unreadable, fd, syscall.O_CLOEXEC), syscall.Close(unreadable)); err != nil {
			t.Fatal(err)
		}
		return func() {
			if err := errors.Join(syscall.Dup3(sound, fd, syscall.O_CLOEXEC), syscall.Close(sound)); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Fatalf("%s is not open", path)
	return nil
}
