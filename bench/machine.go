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

	"k8s.io/client-go/discovery"

	"github.com/warmwatch/warmwatch/bench/report"
	"github.com/warmwatch/warmwatch/test/e2e/agent"
)

// machineFacts are what figures depend on; what cannot be found is left out.
func machineFacts(dir string) map[string]string {
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
	set("cpu", after(readFile("/proc/cpuinfo"), "model name", ":"))
	set("kernel", readFile("/proc/sys/kernel/osrelease"))
	set("file system", fileSystem(readFile("/proc/mounts"), dir))
	if kilobytes := agent.ProcFields("meminfo", "MemTotal:")[0]; kilobytes > 0 {
		set("memory", report.Value("B", kilobytes*1024))
	}
	return facts
}

func readFile(path string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(content)
}

// after returns the rest of the first line that begins with name.
func after(text, name, separator string) string {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, name) {
			_, rest, _ := strings.Cut(line, separator)
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

// fileSystem is the type of the innermost mount around dir.
func fileSystem(mounts, dir string) string {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return ""
	}
	best, kind := "", ""
	for line := range strings.Lines(mounts) {
		fields := strings.Fields(line)
		if len(fields) < 3 {
			continue
		}
		point := fields[1]
		inside := point == "/" || dir == point || strings.HasPrefix(dir, point+"/")
		if inside && len(point) >= len(best) {
			best, kind = point, fields[2]
		}
	}
	return kind
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
	if err == nil {
		facts["etcd"] = after(string(etcd), "etcd Version", ":")
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
