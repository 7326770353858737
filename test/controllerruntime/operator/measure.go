package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"
)

// settle is how long the server may go on with what a manager has asked for.
const settle = time.Second

// figures of one life.
type figures struct {
	lived
	ServerCPU float64 // Seconds.
	Anonymous uint64  // Bytes, the peak.
}

// starts measures one life with the stock caches, and two with a file.
func (b *bench) starts(ctx context.Context) error {
	var all []figures
	titles := []string{"stock", "cold", "warm"}
	for i, file := range []string{"", b.file(), b.file()} {
		f, err := b.live(ctx, life{File: file, Kinds: b.kinds})
		if err != nil {
			return fmt.Errorf("%s: %w", titles[i], err)
		}
		all = append(all, f)
	}
	fmt.Printf("%-28s %12s %12s %12s   stock / warm\n", "", titles[0], titles[1], titles[2])
	for _, row := range []struct {
		name string
		of   func(figures) float64
	}{
		{"reconcilers running, ms", func(f figures) float64 { return float64(f.Running.Milliseconds()) }},
		{"all objects reconciled, ms", func(f figures) float64 { return float64(f.Reconciled.Milliseconds()) }},
		{"bytes received, KB", func(f figures) float64 { return float64(f.Bytes) / 1e3 }},
		{"API server CPU, ms", func(f figures) float64 { return f.ServerCPU * 1e3 }},
		{"CPU of the manager, ms", func(f figures) float64 { return float64(f.CPU.Milliseconds()) }},
		{"peak anonymous memory, MB", func(f figures) float64 { return float64(f.Anonymous) / 1e6 }},
		{"requests", func(f figures) float64 { return float64(sum(f.Requests)) }},
	} {
		stock, cold, warm := row.of(all[0]), row.of(all[1]), row.of(all[2])
		fmt.Printf("%-28s %12.1f %12.1f %12.1f   %.1f\n", row.name, stock, cold, warm, stock/warm)
	}
	return nil
}

func sum(requests map[string]int) (n int) {
	for _, of := range requests {
		n += of
	}
	return n
}

// live runs one life of the manager until it has looked at all objects, and ends it in order.
func (b *bench) live(ctx context.Context, l life) (f figures, err error) {
	l.Kubeconfig = b.controlPlane.Kubeconfig()
	text, err := json.Marshal(l)
	if err != nil {
		return f, err
	}
	exe, err := os.Executable()
	if err != nil {
		return f, err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, exe, managerCommand, string(text))
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return f, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return f, err
	}
	var log strings.Builder
	cmd.Stderr = &log
	server := cpuOf(b.controlPlane.APIServerPID())
	if err := cmd.Start(); err != nil {
		return f, err
	}
	peak := make(chan uint64, 1)
	go func() { peak <- peakAnonymous(cmd.Process.Pid) }()
	readErr := json.NewDecoder(bufio.NewReader(stdout)).Decode(&f.lived)
	if readErr == nil {
		time.Sleep(settle)
		f.ServerCPU = cpuOf(b.controlPlane.APIServerPID()) - server
	}
	_ = stdin.Close() // It is the manager that ends.
	_, _ = io.Copy(io.Discard, stdout)
	if err := errors.Join(readErr, cmd.Wait()); err != nil {
		return f, fmt.Errorf("%w\n%s", err, log.String())
	}
	f.Anonymous = <-peak
	return f, nil
}

// peakAnonymous looks at a process until it ends.
func peakAnonymous(pid int) (peak uint64) {
	for {
		p, err := procfs.NewProc(pid)
		if err != nil {
			return peak
		}
		status, err := p.NewStatus()
		if err != nil {
			return peak
		}
		peak = max(peak, status.RssAnon)
		time.Sleep(10 * time.Millisecond)
	}
}

// cpuOf returns the seconds of processor time of a process; 0 where the system does not tell.
func cpuOf(pid int) float64 {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0
	}
	stat, err := p.Stat()
	if err != nil {
		return 0
	}
	return stat.CPUTime()
}

// leastLimits finds, for each life, the least of some limits of memory with which it ends well.
func (b *bench) leastLimits(ctx context.Context) error {
	for _, l := range []struct {
		title string
		file  string
		fresh bool
	}{{"stock", "", false}, {"cold", filepath.Join(b.dir, "limited.db"), true}, {"warm", b.file(), false}} {
		for _, mib := range []int{96, 128, 160, 192, 256, 320, 384, 448, 512, 640, 768, 1024, 1536} {
			if l.fresh {
				if err := os.RemoveAll(l.file); err != nil {
					return err
				}
			}
			group, err := newCgroup(mib << 20)
			if err != nil {
				return err
			}
			_, err = b.live(ctx, life{File: l.file, CgroupFile: group.procs(), Kinds: b.kinds})
			killed := group.killed()
			if err := group.remove(); err != nil {
				return err
			}
			if err == nil {
				fmt.Printf("%-6s works with a limit of %d MiB\n", l.title, mib)
				break
			}
			if !killed {
				return err
			}
			fmt.Printf("%-6s is killed with a limit of %d MiB\n", l.title, mib)
		}
	}
	return nil
}

// cgroup is a memory control group, of version 1 or 2.
type cgroup string

const (
	cgroupRoot1 = "/sys/fs/cgroup/memory"
	cgroupRoot2 = "/sys/fs/cgroup"
)

func newCgroup(limitBytes int) (cgroup, error) {
	root, limit := cgroupRoot1, "memory.limit_in_bytes"
	if _, err := os.Stat(root); err != nil {
		root, limit = cgroupRoot2, "memory.max"
	}
	g := cgroup(filepath.Join(root, "warmwatch-operator-"+strconv.Itoa(os.Getpid())))
	if err := os.Mkdir(string(g), 0o755); err != nil {
		return "", fmt.Errorf("a memory cgroup is needed: %w", err)
	}
	if err := os.WriteFile(filepath.Join(string(g), limit), []byte(strconv.Itoa(limitBytes)), 0o600); err != nil {
		return "", errors.Join(err, g.remove())
	}
	return g, nil
}

func (g cgroup) procs() string { return filepath.Join(string(g), "cgroup.procs") }

// killed reports whether a process was killed because of the limit.
func (g cgroup) killed() bool {
	for _, file := range []string{"memory.oom_control", "memory.events"} {
		text, err := os.ReadFile(filepath.Join(string(g), file))
		for line := range strings.Lines(string(text)) {
			if n, found := strings.CutPrefix(line, "oom_kill "); err == nil && found {
				return strings.TrimSpace(n) != "0"
			}
		}
	}
	return false
}

// remove tries for a while: members are gone a moment after they have ended.
func (g cgroup) remove() error {
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if err := os.Remove(string(g)); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}
