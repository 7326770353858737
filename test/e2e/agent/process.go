package agent

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const samplePeriod = 10 * time.Millisecond

// sampler looks at the memory of this process all the time.
type sampler struct {
	stop chan struct{}
	done sync.WaitGroup
	once sync.Once

	peakAnon float64 // Of the sampler's goroutine until it is done.
}

func startSampler() *sampler {
	s := &sampler{stop: make(chan struct{})}
	s.done.Go(func() {
		tick := time.NewTicker(samplePeriod)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				s.peakAnon = max(s.peakAnon, anonBytes())
			case <-s.stop:
				return
			}
		}
	})
	return s
}

// peak of the anonymous memory so far; none is sampled from now on. Without a sampler it is zero.
func (s *sampler) peak() float64 {
	if s == nil {
		return 0
	}
	s.once.Do(func() { close(s.stop) })
	s.done.Wait()
	return s.peakAnon
}

// anonBytes is the resident memory that is not that of files. What is mapped of
// warmwatch's file the kernel can take back at any time.
func anonBytes() float64 { return 1024 * procField("self/status", "RssAnon:") }

// steadyMemory is the anonymous memory that is left when all garbage is gone.
func steadyMemory() float64 {
	runtime.GC()
	debug.FreeOSMemory()
	return anonBytes()
}

// PeakResident is the largest resident set of a running process so far; 0 where the
// system does not tell. (What wait4 says of one that has ended is not less than what
// the process had that started it.)
func PeakResident(pid int) int64 {
	return 1024 * int64(procField(fmt.Sprintf("%d/status", pid), "VmHWM:"))
}

// diskWritten is what this process has caused to be written to disks.
func diskWritten() float64 { return procField("self/io", "write_bytes:") }

// procField is the number after a name in a file of /proc; 0 where the system does not
// tell.
func procField(file, name string) float64 {
	content, err := os.ReadFile("/proc/" + file)
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(content), name)
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0
	}
	number, _ := strconv.ParseFloat(fields[0], 64) // 0 stands for "unknown".
	return number
}

// CPUTime is what this process has used: on a shared machine a steadier measure than
// the time that has passed.
func CPUTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func fileSize(path string) float64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return float64(info.Size())
}
