package cache_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/test/e2e/controlplane"
)

// specsEnv says that controller-runtime's tests are laid over this package, and whether its caches
// are to begin with a file of their own, or one that an earlier cache has left.
const (
	specsEnv = "WARMWATCH_CONTROLLER_RUNTIME_SPECS"
	cold     = "cold"
	warm     = "warm"
)

// TestCacheOfControllerRuntime runs controller-runtime's own tests of its cache. They are laid over
// this directory, with newCache for cache.New, and the package is built and run again.
func TestCacheOfControllerRuntime(t *testing.T) {
	if os.Getenv(specsEnv) != "" {
		runSpecs(t)
		return
	}
	source, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/controller-runtime").Output()
	if err != nil {
		t.Skip("no source of controller-runtime: go list:", err)
	}
	program := filepath.Join(t.TempDir(), "specs.test")
	args := append([]string{"test", "-c", "-o", program, "-overlay", overlay(t, strings.TrimSpace(string(source)))}, buildFlags()...)
	if output, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput(); err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, output)
	}
	// Most of the time goes by in waiting, so three parts run beside one another.
	for name, part := range map[string]struct{ begin, specs string }{
		"several namespaces": {cold, "-ginkgo.focus=Multi-Namespace"},
		"no deep copies":     {cold, "-ginkgo.focus=without global DeepCopy"},
		"the others":         {warm, "-ginkgo.skip=Multi-Namespace|without global DeepCopy"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), program, part.specs, "-ginkgo.no-color", "-ginkgo.succinct")
			cmd.Env = append(os.Environ(), specsEnv+"="+part.begin)
			output, err := cmd.CombinedOutput()
			if err != nil || !bytes.Contains(output, []byte("SUCCESS!")) {
				t.Errorf("%v\n%s", err, output)
			}
		})
	}
}

// overlay writes the file of that name of the go command.
func overlay(t *testing.T, source string) string {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	dir, replace := t.TempDir(), map[string]string{}
	for _, name := range []string{"cache_test.go", "informer_cache_test.go"} {
		text, err := os.ReadFile(filepath.Join(source, "pkg", "cache", name))
		if err != nil {
			t.Fatal(err)
		}
		text = regexp.MustCompile(`\bcache\.New\b`).ReplaceAll(text, []byte("newCache"))
		// GetInformer starts an informer and asks HasSynced before it looks at the context: on a busy machine
		// the list may be back by then, whoever made the informer.
		text = regexp.MustCompile(`(It\("should allow .* to be cancelled", )func`).ReplaceAll(text, []byte("${1}FlakeAttempts(5), func"))
		replace[filepath.Join(here, name)] = filepath.Join(dir, name)
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// buildFlags are those that this test was built with, so that little has to be built again.
func buildFlags() (flags []string) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil
	}
	for _, s := range info.Settings {
		if s.Key == "-race" || s.Key == "-gcflags" {
			flags = append(flags, s.Key+"="+s.Value)
		}
	}
	return flags
}

// cfg is the configuration that controller-runtime's tests use.
var cfg *rest.Config

func runSpecs(t *testing.T) {
	klog.LogToStderr(false)
	klog.SetOutput(ginkgo.GinkgoWriter) // Printed for specs that fail.
	log.SetLogger(textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(ginkgo.GinkgoWriter))))
	server, err := controlplane.Start(t.Context(), controlplane.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	}()
	cfg, left.dir = server.Config(), t.TempDir()
	gomega.RegisterFailHandler(ginkgo.Fail)
	ginkgo.RunSpecs(t, "cache")
}

// files are those of caches that were closed. What is in them is not what is on the server now.
type files struct {
	mu   sync.Mutex
	dir  string
	made int
	free []string
}

var left files

func (f *files) take() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.free) == 0 {
		f.made++
		f.free = append(f.free, filepath.Join(f.dir, fmt.Sprintf("%d.db", f.made)))
	}
	path := f.free[0]
	f.free = f.free[1:]
	return path
}

func (f *files) put(path string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if os.Getenv(specsEnv) == warm {
		f.free = append([]string{path}, f.free...)
	}
}

var _ = newCache // The specs call it.

// newCache is cache.New with informers of a file. They must not work from memory.
func newCache(config *rest.Config, o cache.Options) (cache.Cache, error) {
	if o.NewInformer != nil { // A fake of the test.
		return cache.New(config, o)
	}
	path, stale := left.take(), -time.Second
	if os.Getenv(specsEnv) == warm { // The specs are about what the server has.
		stale = 0
	}
	opened, err := warmwatch.Open(context.Background(), path, warmwatch.Options{ServeStaleAfter: stale})
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var made []*warmwatch.SharedIndexInformer
	o.NewInformer = func(lw toolscache.ListerWatcher, example runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
		informer := opened.NewInformer(lw, example, resync, indexers)
		mu.Lock()
		defer mu.Unlock()
		made = append(made, informer.(*warmwatch.SharedIndexInformer))
		return informer
	}
	ginkgo.DeferCleanup(func() {
		mu.Lock()
		defer mu.Unlock()
		for _, informer := range made {
			gomega.Expect(informer.Status().Err).NotTo(gomega.HaveOccurred())
		}
		gomega.Expect(opened.Status().Err).NotTo(gomega.HaveOccurred())
		gomega.Expect(opened.Close()).To(gomega.Succeed())
		left.put(path)
	})
	config = rest.CopyConfig(config)
	config.Wrap(opened.WrapTransport)
	return cache.New(config, o)
}
