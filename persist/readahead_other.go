//go:build !linux

package persist

import "os"

// readAhead does nothing: reading takes longer where the page cache does not have the file.
func readAhead(*os.File, int64, int64) {}
