package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/prometheus/procfs"
	"k8s.io/client-go/discovery"

	"github.com/warmwatch/warmwatch/test/e2e/display"
)

// machineFacts are what figures depend on; what cannot be found is left out.
func machineFacts(ctx context.Context, dir string) map[string]string {
	facts := map[string]string{
		"cpus":         fmt.Sprint(runtime.NumCPU()),
		"architecture": runtime.GOARCH,
		"os":           runtime.GOOS,
	}
	set := func(name, value string) {
		if value = strings.TrimSpace(value); value != "" {
			facts[name] = value
		}
	}
	if kernel, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		set("kernel", string(kernel))
	}
	if fileSystem, err := exec.CommandContext(ctx, "findmnt", "-n", "-o", "FSTYPE", "-T", dir).Output(); err == nil {
		set("file system", string(fileSystem))
	}
	set("cpu", cpuModel())
	if total := memoryFacts().MemTotalBytes; total != nil {
		set("memory", display.Value("B", float64(*total)))
	}
	return facts
}

// memoryFacts has nothing where the system does not tell.
func memoryFacts() procfs.Meminfo {
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return procfs.Meminfo{}
	}
	memory, err := proc.Meminfo()
	if err != nil {
		return procfs.Meminfo{}
	}
	return memory
}

// versionFacts are those of what was measured.
func (s *suite) versionFacts(ctx context.Context) (map[string]string, error) {
	facts := map[string]string{"go": runtime.Version()}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			switch module.Path {
			case "k8s.io/client-go", "go.etcd.io/bbolt":
				facts[filepath.Base(module.Path)] = module.Version
			}
		}
	}
	client, err := discovery.NewDiscoveryClientForConfig(s.controlPlane.Config())
	if err != nil {
		return nil, err
	}
	version, err := client.ServerVersion()
	if err != nil {
		return nil, err
	}
	facts["kube-apiserver"] = version.GitVersion
	etcd, err := exec.CommandContext(ctx, "/proc/"+fmt.Sprint(s.controlPlane.EtcdPID())+"/exe", "--version").Output()
	if first, _, ok := strings.Cut(string(etcd), "\n"); err == nil && ok {
		facts["etcd"] = strings.TrimPrefix(first, "etcd Version: ")
	}
	return facts, nil
}

// commit is the git revision of the working directory; "unknown" outside of one.
func commit(ctx context.Context) string {
	head, err := exec.CommandContext(ctx, "git", "rev-parse", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	revision := strings.TrimSpace(string(head))
	// What a run writes does not make it another one.
	changes, err := exec.CommandContext(ctx, "git", "status", "--porcelain", "--", ":/*.go", ":/**/go.mod").Output()
	if err == nil && len(changes) > 0 {
		revision += "-dirty"
	}
	return revision
}
