package controllerruntime_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestTheExampleOfAnAgent: what was deleted while it was dead, it cleans up, also where the cache file was lost (D3).
func TestTheExampleOfAnAgent(t *testing.T) {
	w, dir := newWorld(t), t.TempDir()
	buildExample(t, dir, "agent")
	t.Setenv("NODE_NAME", w.here) // A name that no other test has.
	stays, goes := pod(w.here, "stays", w.here), pod(w.here, "goes", w.here)
	w.create(stays)
	w.create(goes)
	p := runExample(t, dir)
	p.await(w.here+"/stays", "is there")
	p.await(w.here+"/goes", "is there")
	expectFiles(t, dir, w.here+"_goes", w.here+"_stays")
	p.kill()
	w.delete(goes)
	p = runExample(t, dir)
	p.await(w.here+"/goes", "is gone")
	p.interrupt()
	expectFiles(t, dir, w.here+"_stays")

	if err := os.Remove(filepath.Join(dir, "cache.db")); err != nil {
		t.Fatal(err)
	}
	w.delete(stays)
	p = runExample(t, dir)
	p.await(w.here+"/stays", "is gone")
	p.interrupt()
	expectFiles(t, dir)
}

// TestTheExampleOfAnAgentMakesItsFilesAnew where they are gone (D4): somebody has removed them, or there was a boot.
func TestTheExampleOfAnAgentMakesItsFilesAnew(t *testing.T) {
	w, dir := newWorld(t), t.TempDir()
	buildExample(t, dir, "agent")
	t.Setenv("NODE_NAME", w.here)
	w.create(pod(w.here, "a", w.here))
	for _, args := range [][]string{nil, nil, {"-epoch=first boot"}, {"-epoch=second boot"}} {
		p := runExample(t, dir, args...)
		p.await(w.here+"/a", "is there")
		p.interrupt()
		expectFiles(t, dir, w.here+"_a")
		if err := os.RemoveAll(filepath.Join(dir, "pods")); err != nil {
			t.Fatal(err)
		}
	}
	w.create(pod(w.here, "b", w.here))
	p := runExample(t, dir, "-epoch=second boot")
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
