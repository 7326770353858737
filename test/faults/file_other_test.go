//go:build !unix

package faults_test

import "os"

// mkfifo makes a directory where there are no named pipes: it is refused likewise.
func mkfifo(path string) error { return os.Mkdir(path, 0o700) }

// umask is for systems that have none.
func umask(int) (old int) { return 0 }
