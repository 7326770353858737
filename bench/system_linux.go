package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// processors are those that a process may run on.
type processors struct{ set unix.CPUSet }

// halves are the processors that this process may run on, in two parts.
func halves() (first, second processors, err error) {
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return first, second, err
	}
	if all.Count() < 2 {
		return first, second, errors.New("there is one processor only")
	}
	seen := 0
	for cpu := 0; seen < all.Count(); cpu++ {
		if !all.IsSet(cpu) {
			continue
		}
		half := &first
		if seen >= all.Count()/2 {
			half = &second
		}
		half.set.Set(cpu)
		seen++
	}
	return first, second, nil
}

// and is both together.
func (p processors) and(other processors) processors {
	for i := range p.set {
		p.set[i] |= other.set[i]
	}
	return p
}

// confine has all threads of a process run there, and those that they begin.
func (p processors) confine(pid int) error {
	done := map[string]bool{}
	for again := true; again; {
		again = false
		threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			return err
		}
		for _, t := range threads {
			if done[t.Name()] {
				continue
			}
			tid, err := strconv.Atoi(t.Name())
			if err != nil {
				return err
			}
			// A thread may have ended meanwhile.
			if err := unix.SchedSetaffinity(tid, &p.set); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("sched_setaffinity: %w", err)
			}
			done[t.Name()], again = true, true
		}
	}
	return nil
}

// cpuModel is that of the first processor; empty if it is not known.
func cpuModel() string {
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return ""
	}
	cpus, err := proc.CPUInfo()
	if err != nil || len(cpus) == 0 {
		return ""
	}
	return cpus[0].ModelName
}
