package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
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
		checkThreads(t, all)
	}()
	if err := first.confine(os.Getpid()); err != nil {
		t.Fatal(err)
	}
	checkThreads(t, first)

	var here unix.CPUSet
	var child []byte
	err = second.during(func() (err error) {
		if err := unix.SchedGetaffinity(0, &here); err != nil {
			return err
		}
		child, err = exec.Command("grep", "Cpus_allowed:", "/proc/self/status").Output()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if here != second.set {
		t.Errorf("the thread runs on %v, want %v", here, second.set)
	}
	if got, other := string(child), allowedOf(t, "self"); got == other || strings.TrimSpace(got) == "" {
		t.Errorf("the child and this process are both allowed %q", got)
	}
	checkThreads(t, first)
}

// allowedOf is what the kernel says of the main thread of a process.
func allowedOf(t *testing.T, pid string) string {
	t.Helper()
	status, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "Cpus_allowed:") {
			return line
		}
	}
	t.Fatalf("/proc/%s/status has no Cpus_allowed", pid)
	return ""
}

// checkThreads looks at every thread of this process.
func checkThreads(t *testing.T, want processors) {
	t.Helper()
	threads, err := os.ReadDir("/proc/self/task")
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
