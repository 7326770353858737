package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

func TestAgentsAndServersRunOnHalvesOfTheProcessors(t *testing.T) {
	first, second, err := halves()
	if err != nil {
		t.Skip(err)
	}
	all := first.and(second)
	var before unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		t.Fatal(err)
	}
	if all.set != before || first.set.Count()+second.set.Count() != before.Count() {
		t.Fatalf("halves of %v are %v and %v", before, first.set, second.set)
	}
	defer func() {
		if err := all.confine(os.Getpid()); err != nil {
			t.Error(err)
		}
		checkThreads(t, os.Getpid(), all)
	}()
	if err := first.confine(os.Getpid()); err != nil {
		t.Fatal(err)
	}
	checkThreads(t, os.Getpid(), first)

	child := exec.Command("sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	checkThreads(t, child.Process.Pid, first) // As its parent, from the start.
	if err := second.confine(child.Process.Pid); err != nil {
		t.Fatal(err)
	}
	checkThreads(t, child.Process.Pid, second)
	checkThreads(t, os.Getpid(), first)

	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // Says that it was killed.
	if err := second.confine(child.Process.Pid); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("confining a process that is gone: %v", err)
	}
}

// checkThreads looks at every thread of a process.
func checkThreads(t *testing.T, pid int, want processors) {
	t.Helper()
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		var tid int
		if _, err := fmt.Sscan(thread.Name(), &tid); err != nil {
			t.Fatal(err)
		}
		var got unix.CPUSet
		if err := unix.SchedGetaffinity(tid, &got); err == nil && got != want.set { // Else it has ended.
			t.Errorf("thread %d runs on %v, want %v", tid, got, want.set)
		}
	}
}
