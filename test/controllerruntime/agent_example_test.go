package controllerruntime_test

import (
	"bytes"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestTheExampleOfAnAgent(t *testing.T) {
	binary := buildExample(t, "agent")
	for _, test := range []struct {
		name string
		run  func(t *testing.T, binary string)
	}{
		{"cleans up what was deleted while it was dead, also where the cache file was lost", checkAgentCleansUp}, // D3
		{"makes its files anew where somebody has removed them, or there was a boot", checkAgentMakesFilesAnew},  // D4
		{"survives, with a relist, an etcd that was put back", checkAgentSurvivesRewind},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, binary) })
	}
}

func checkAgentCleansUp(t *testing.T, binary string) {
	w, dir := newWorld(t), t.TempDir()
	t.Setenv("NODE_NAME", w.here) // A name that no other test has.
	stays, goes := pod(w.here, "stays", w.here), pod(w.here, "goes", w.here)
	w.create(stays)
	w.create(goes)
	p := runExample(t, binary, dir)
	p.await(w.here+"/stays", "is there")
	p.await(w.here+"/goes", "is there")
	expectFiles(t, dir, w.here+"_goes", w.here+"_stays")
	p.kill()
	w.delete(goes)
	p = runExample(t, binary, dir)
	p.await(w.here+"/goes", "is gone")
	p.interrupt()
	expectFiles(t, dir, w.here+"_stays")

	if err := os.Remove(filepath.Join(dir, "cache.db")); err != nil {
		t.Fatal(err)
	}
	w.delete(stays)
	p = runExample(t, binary, dir)
	p.await(w.here+"/stays", "is gone")
	p.interrupt()
	expectFiles(t, dir)
}

func checkAgentMakesFilesAnew(t *testing.T, binary string) {
	w, dir := newWorld(t), t.TempDir()
	t.Setenv("NODE_NAME", w.here)
	w.create(pod(w.here, "a", w.here))
	for _, args := range [][]string{nil, nil, {"-epoch=first boot"}, {"-epoch=second boot"}} {
		p := runExample(t, binary, dir, args...)
		p.await(w.here+"/a", "is there")
		p.interrupt()
		expectFiles(t, dir, w.here+"_a")
		if err := os.RemoveAll(filepath.Join(dir, "pods")); err != nil {
			t.Fatal(err)
		}
	}
	w.create(pod(w.here, "b", w.here))
	p := runExample(t, binary, dir, "-epoch=second boot")
	p.await(w.here+"/b", "is there")
	p.interrupt()
	expectFiles(t, dir, w.here+"_b") // What is done is not made again.
}

func expectFiles(t *testing.T, dir string, want ...string) {
	t.Helper()
	names, err := fs.Glob(os.DirFS(filepath.Join(dir, "pods")), "*")
	if diff := cmp.Diff(want, names); err != nil || diff != "" {
		t.Errorf("%v, files (-want +got):\n%s", err, diff)
	}
}

func checkAgentSurvivesRewind(t *testing.T, binary string) {
	w, dir := newWorld(t), t.TempDir()
	t.Setenv("NODE_NAME", w.here)
	for _, name := range []string{"a-stays", "goes", "returns"} {
		w.create(pod(w.here, name, w.here))
	}
	if err := shared.SnapshotEtcd(); err != nil {
		t.Fatal(err)
	}
	p := runExample(t, binary, dir, "-epoch=the same")
	w.create(pod(w.here, "never", w.here))
	w.delete(pod(w.here, "returns", ""))
	lost := configMap(w.elsewhere, "lost", "red")
	w.create(lost)
	for range 30 { // More than the server writes by itself when it starts again.
		lost.Data["color"] += "."
		w.update(lost)
	}
	before := w.expectFileOfEachPod(dir)
	p.interrupt()
	if err := shared.RestoreEtcd(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Nothing contradicts the cache: it has as many Pods as the server, and the same first one, and the server passes the
	// checkpoint again.
	w.delete(pod(w.here, "goes", ""))
	w.create(pod(w.here, "new", w.here))
	other := configMap(w.elsewhere, "other", "red")
	w.create(other)
	for more := 10; more > 0; {
		other.Data["color"] += "."
		w.update(other)
		if order, err := resourceversion.CompareResourceVersion(other.ResourceVersion, before); err != nil {
			t.Fatal(err)
		} else if order > 0 {
			more--
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	p = runExample(t, binary, dir, "-epoch=the same", "-status="+l.Addr().String())
	w.eventually(func() string {
		answer, err := http.Post("http://"+l.Addr().String()+"/relist", "", nil)
		if err != nil {
			return err.Error()
		}
		if err := answer.Body.Close(); err != nil || answer.StatusCode != http.StatusOK {
			return answer.Status
		}
		return ""
	})
	http.DefaultClient.CloseIdleConnections()
	w.expectFileOfEachPod(dir)
	p.interrupt()
}

// expectFileOfEachPod waits until there is a file for each Pod of the server, with its UID, and no other. It returns
// the server's resourceVersion.
func (w *world) expectFileOfEachPod(dir string) string {
	w.t.Helper()
	list := &corev1.PodList{}
	if err := w.client.List(w.t.Context(), list, client.InNamespace(w.here)); err != nil {
		w.t.Fatal(err)
	}
	want := map[string]string{}
	for _, pod := range list.Items {
		want[pod.Namespace+"_"+pod.Name] = string(pod.UID)
	}
	w.eventually(func() string {
		got := map[string]string{}
		files, err := os.ReadDir(filepath.Join(dir, "pods"))
		if err != nil {
			return err.Error()
		}
		for _, file := range files {
			content, err := os.ReadFile(filepath.Join(dir, "pods", file.Name()))
			if err != nil {
				return err.Error()
			}
			uid, _, _ := bytes.Cut(content, []byte(" "))
			got[file.Name()] = string(uid)
		}
		return cmp.Diff(want, got)
	})
	return list.ResourceVersion
}

// eventually waits until check has nothing to object to.
func (w *world) eventually(check func() string) {
	w.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		wrong := check()
		if wrong == "" {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatal(wrong)
		}
	}
}
