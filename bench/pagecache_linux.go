package main

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// evict removes a file that is synced from the page cache.
func evict(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED), f.Close())
}
