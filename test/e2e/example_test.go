package e2e

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/warmwatch/warmwatch/test/e2e/controlplane"
)

// exampleAgent runs examples/agent, which keeps a file for each Pod of a node.
type exampleAgent struct {
	binary, kubeconfig, node, dir string

	files   string // Its directory of files.
	status  string // Its address.
	process *exec.Cmd
	log     bytes.Buffer
}

func buildExampleAgent(t *testing.T, cp *controlplane.ControlPlane, node string) *exampleAgent {
	t.Helper()
	dir := t.TempDir()
	a := &exampleAgent{binary: filepath.Join(dir, "agent"), kubeconfig: cp.Kubeconfig(), node: node, dir: dir, files: filepath.Join(dir, "files")}
	build := exec.CommandContext(t.Context(), "go", "build", "-race", "-gcflags=go.etcd.io/bbolt/...=-d=checkptr=0", "-o", a.binary, "./agent") // The flags of make test.
	build.Dir = filepath.Join("..", "..", "examples")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Cleanup(func() {
		if a.process != nil {
			_ = a.process.Process.Kill()
			_ = a.process.Wait()
		}
		if t.Failed() {
			t.Log(a.log.String())
		}
	})
	return a
}

func (a *exampleAgent) start(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a.status = l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	a.process = exec.Command(a.binary, "-kubeconfig", a.kubeconfig, "-node", a.node, "-cache", filepath.Join(a.dir, "cache.db"),
		"-dir", a.files, "-epoch", "the same", "-status", a.status)
	a.process.SysProcAttr = controlplane.ProcessAttributes()
	a.process.Stdout, a.process.Stderr = &a.log, &a.log
	if err := a.process.Start(); err != nil {
		t.Fatal(err)
	}
}

func (a *exampleAgent) stop(t *testing.T) {
	t.Helper()
	if err := a.process.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := a.process.Wait(); err != nil {
		t.Fatalf("the agent: %v", err)
	}
	a.process = nil
}

// relist waits until the agent can do it.
func (a *exampleAgent) relist(t *testing.T) {
	t.Helper()
	eventually(t, "a relist", func() error {
		answer, err := http.Post("http://"+a.status+"/relist", "", nil)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("status %s", answer.Status)
		}
		return nil
	})
}

// expectFiles waits until there is a file for each Pod of the server, with its UID, and no other. It returns the server's
// resourceVersion.
func (a *exampleAgent) expectFiles(t *testing.T, pods typedcorev1.PodInterface) string {
	t.Helper()
	list, err := pods.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for _, pod := range list.Items {
		want[pod.Namespace+"_"+pod.Name] = string(pod.UID)
	}
	eventually(t, fmt.Sprintf("%d files", len(want)), func() error {
		got := map[string]string{}
		files, err := os.ReadDir(a.files)
		if err != nil {
			return err
		}
		for _, file := range files {
			content, err := os.ReadFile(filepath.Join(a.files, file.Name()))
			if err != nil {
				return err
			}
			uid, _, _ := bytes.Cut(content, []byte(" "))
			got[file.Name()] = string(uid)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			return fmt.Errorf("files (-want +got):\n%s", diff)
		}
		return nil
	})
	return list.ResourceVersion
}

// TestTheExampleOfAnAgentSurvivesAnEtcdThatWasPutBack, with a relist.
func TestTheExampleOfAnAgentSurvivesAnEtcdThatWasPutBack(t *testing.T) {
	t.Parallel()
	cp := newControlPlane(t)
	client := newClient(t, cp.Config())
	pods := client.CoreV1().Pods(newNamespace(t, client))
	const node = "node-1"
	for _, name := range []string{"a-stays", "goes", "returns"} {
		putPod(t, pods, node, name)
	}
	a := buildExampleAgent(t, cp, node)
	if err := cp.SnapshotEtcd(); err != nil {
		t.Fatal(err)
	}
	a.start(t)
	putPod(t, pods, node, "never")
	removePod(t, pods, "returns")
	before := a.expectFiles(t, pods)
	a.stop(t)
	if err := cp.RestoreEtcd(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Nothing contradicts the cache: it has as many Pods as the server, and the same first one, and the server passes the
	// checkpoint again.
	removePod(t, pods, "goes")
	putPod(t, pods, node, "new")
	elsewhere := &history{c: client.CoreV1().ConfigMaps(newNamespace(t, client))}
	elsewhere.putUntil(t, "o", before)
	for range 10 {
		elsewhere.put(t, "o")
	}
	a.start(t)
	a.relist(t)
	a.expectFiles(t, pods)
	a.stop(t)
}

func putPod(t *testing.T, pods typedcorev1.PodInterface, node, name string) {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func removePod(t *testing.T, pods typedcorev1.PodInterface, name string) {
	t.Helper()
	if err := pods.Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
		t.Fatal(err)
	}
}
