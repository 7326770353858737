//go:build !linux

package persist

import (
	"math"
	"os"
)

// readAhead does nothing: reading takes longer where the page cache does not have the file.
func readAhead(*os.File, int64, int64) {}

// freeBytes does not know: a write shows whether there is room.
func freeBytes(*os.File) int64 { return math.MaxInt64 }
