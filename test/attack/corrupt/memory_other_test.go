//go:build !linux

package corrupt

import "runtime"

func resetPeak() {}

// peakBytes is what Go has from the system, of this process only.
func peakBytes(int) int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.Sys - m.HeapReleased)
}

func residentBytes(int) int64 { return 0 }
