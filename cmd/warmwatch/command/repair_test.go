package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/cachefile"
	"github.com/warmwatch/warmwatch/internal/testsupport/recorder"
	"github.com/warmwatch/warmwatch/persist"
)

// TestRelist: the next start of the informer lists, and its handler is not called for what is the same.
func TestRelist(t *testing.T) {
	for name, args := range map[string][]string{"one": {"pods"}, "all": {"--all"}} {
		t.Run(name, func(t *testing.T) {
			path := build(t)
			expect(t, exitFine, podsInformer+": the next start lists\n", append([]string{"relist", path}, args...)...)
			expect(t, exitFine, "", "verify", path)
			cachefile.Check(t, path)
			bubble.Run(t, func(t *testing.T) {
				all := resources(t)
				all[0].Put(pod("b", "two"))
				all[0].Remove("c")
				all[2].With(func() { all[2].RV++ })
				next := live(t, path, all)
				r := &recorder.Recorder{}
				if _, err := next.informers[0].AddDurableEventHandler("network", r, warmwatch.DurableOptions{}); err != nil {
					t.Fatal(err)
				}
				next.run()
				for i, informer := range next.informers {
					st := informer.Status()
					relisted := st.Relists == 1 && st.StartedFrom == "disk"
					if relisted != (i == 0 || name == "all") {
						t.Errorf("%s: %+v", all[i].options.Resource, st)
					}
				}
				if diff := cmp.Diff([]string{"update ns/b@2→4", "delete ns/c@5"}, r.Take()); diff != "" {
					t.Errorf("the handler got something else than what was pending (-want +got):\n%s", diff)
				}
				next.end()
			})
		})
	}
}

func TestForget(t *testing.T) {
	path := build(t)
	expect(t, exitFine, "forgot network of "+podsInformer, "forget", path, "pods", "--handler", "network")
	expect(t, exitFine, "forgot mail of workqueues", "forget", path, "workqueues", "--handler", "mail")
	if out := expect(t, exitFine, "reconciler/files", "pending", path); strings.Contains(out, "network") || strings.Contains(out, "mail") {
		t.Errorf("something still waits:\n%s", out)
	}
	expect(t, exitFine, "", "forget", path, "pods", "--handler", "audit")
	expect(t, exitFine, "forgot files of "+podsInformer, "forget", path, "pods", "--handler", "files")
	expectNothing(t, "pending", path)
	change(t, path, "widgets", func(b *persist.Batch, of func(string) persist.Bucket) {
		b.Put(persist.Bucket{Space: unusedSpace, Name: unusedBucket}, of("").Space, []byte(`"2026-03-01T09:30:00Z"`))
	})
	expect(t, exitFine, "complete, unused since 2026-03-01T09:30:00Z", "status", path)
	expect(t, exitFine, "forgot "+widgetsInformer, "forget", path, "widgets")
	for _, verb := range []string{"ls", "dump"} {
		if out := expect(t, exitFine, "pods", verb, path); strings.Contains(out, "widgets") {
			t.Errorf("it is still there:\n%s", out)
		}
	}
	expect(t, exitFine, "", "verify", path)
	cachefile.Check(t, path)
}

func expectNothing(t *testing.T, args ...string) {
	t.Helper()
	if out := expect(t, exitFine, "", args...); out != "" {
		t.Errorf("%q prints\n%s", args, out)
	}
}

func TestCompact(t *testing.T) {
	path := build(t)
	before := expect(t, exitFine, "", "dump", path)
	expect(t, exitFine, ", was ", "compact", path)
	if after := expect(t, exitFine, "", "dump", path); after != before {
		t.Errorf("it had\n%sand has\n%s", before, after)
	}
	cachefile.Check(t, path)
}

// TestAFileThatTheNextStartSetsAside is left as it is: the command has no business to do so.
func TestAFileThatTheNextStartSetsAside(t *testing.T) {
	path := build(t)
	if err := os.WriteFile(path+".starting", []byte("3"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := contents(t, filepath.Dir(path))
	for _, args := range [][]string{{"relist", path, "--all"}, {"forget", path, "pods"}, {"compact", path}} {
		expect(t, exitUnreadable, "", args...)
		if after := contents(t, filepath.Dir(path)); len(after) != len(before) {
			t.Fatalf("%q: %v", args, after)
		}
	}
}
