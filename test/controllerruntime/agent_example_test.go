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

func expectFiles(t *testing.T, dir string, want ...string) {
	t.Helper()
	names, err := fs.Glob(os.DirFS(filepath.Join(dir, "pods")), "*")
	if diff := cmp.Diff(want, names); err != nil || diff != "" {
		t.Errorf("%v, files (-want +got):\n%s", err, diff)
	}
}
