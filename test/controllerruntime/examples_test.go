package controllerruntime_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestExamples runs the programs in examples. The ones with warmwatch are run again, and say what
// there is, and what was made meanwhile.
func TestExamples(t *testing.T) {
	for _, name := range []string{"controller/before", "controller/after", "manager/before", "manager/after"} {
		t.Run(name, func(t *testing.T) {
			w, dir := newWorld(t), t.TempDir()
			binary := buildExample(t, name)
			web := deployment(w.here, "web")
			w.create(web)
			p := runExample(t, binary, dir)
			p.await("web", "has")
			p.interrupt()
			if strings.HasSuffix(name, "/before") {
				return
			}
			w.create(deployment(w.here, "shop"))
			p = runExample(t, binary, dir)
			p.await("web", "has")
			p.await("shop", "has")
			p.interrupt()
		})
	}
}

// buildExample returns the path of the program.
func buildExample(t *testing.T, name string) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "example")
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", binary, "./"+name)
	build.Dir = filepath.FromSlash("../../examples")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return binary
}

func deployment(namespace, name string) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
			},
		},
	}
}

// exampleProcess is a life of one of the programs.
type exampleProcess struct {
	t   *testing.T
	cmd *exec.Cmd

	mu  sync.Mutex
	log bytes.Buffer
}

// runExample starts the program in its directory, where it keeps its file.
func runExample(t *testing.T, binary, dir string, args ...string) *exampleProcess {
	t.Helper()
	p := &exampleProcess{t: t, cmd: exec.CommandContext(t.Context(), binary, append(args, "-kubeconfig", shared.Kubeconfig())...)}
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = dir, p, p
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return p
}

// Write takes what the program says.
func (p *exampleProcess) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(b)
}

// await returns once the program has said a line with all the words.
func (p *exampleProcess) await(words ...string) {
	p.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		p.mu.Lock()
		log := p.log.String()
		p.mu.Unlock()
		for line := range strings.Lines(log) {
			rest := words
			for len(rest) > 0 && strings.Contains(line, rest[0]) {
				rest = rest[1:]
			}
			if len(rest) == 0 {
				return
			}
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("no line with %q:\n%s", words, log)
		}
	}
}

// kill ends the program as a crash does.
func (p *exampleProcess) kill() {
	p.t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		p.t.Error(err)
	}
	if err := p.cmd.Wait(); err == nil {
		p.t.Error("the program was not killed")
	}
}

// interrupt has the program end in order.
func (p *exampleProcess) interrupt() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		p.t.Error(err)
	}
	if err := p.cmd.Wait(); err != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.t.Errorf("%v:\n%s", err, p.log.String())
	}
}
