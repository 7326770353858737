//go:build unix

package faults_test

import (
	"syscall"
)

func mkfifo(path string) error { return syscall.Mkfifo(path, 0o600) }

func umask(mask int) (old int) { return syscall.Umask(mask) }
