package command

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/cachefile"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/testdb"
	"github.com/warmwatch/warmwatch/persist"
	"github.com/warmwatch/warmwatch/queue"
)

// readingVerbs returns a call of each verb that only reads, but for diff.
func readingVerbs(path string) map[string][]string {
	return map[string][]string{
		"status":       {"status", path},
		"status-wide":  {"status", path, "-o", "wide"},
		"ls":           {"ls", path},
		"ls-pods-wide": {"ls", path, "pods", "-o", "wide"},
		"ls-pods-json": {"ls", path, "pods", "-o", "json"},
		"ls-pods-name": {"ls", path, "pods", "-o", "name"},
		"get-pod":      {"get", path, "pods", "ns/a"},
		"get-secret":   {"get", path, "secrets/v1", "ns/token", "-o", "json"},
		"get-shown":    {"get", path, "secrets/v1", "ns/token", "--show-secrets"},
		"get-widget":   {"get", path, "widgets", "ns/w"},
		"dump":         {"dump", path},
		"pending":      {"pending", path},
		"pending-yaml": {"pending", path, "-o", "yaml"},
		"verify":       {"verify", path},
		"stats":        {"stats", path},
	}
}

func TestWhatTheReadingVerbsPrint(t *testing.T) {
	path := build(t)
	for name, args := range readingVerbs(path) {
		t.Run(name, func(t *testing.T) {
			out := expect(t, exitFine, "", args...)
			if name != "dump" { // It has versions of Go types.
				expectGolden(t, name, path, out)
			}
		})
	}
}

// contents returns the files of a directory, with what tells whether they were written to.
func contents(t *testing.T, dir string) map[string][]any {
	t.Helper()
	all := map[string][]any{}
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		var b []byte
		if err == nil {
			b, err = os.ReadFile(filepath.Join(dir, e.Name()))
		}
		info, infoErr := e.Info()
		if err != nil || infoErr != nil {
			t.Fatal(err, infoErr)
		}
		all[e.Name()] = []any{sha256.Sum256(b), info.ModTime(), info.Mode()}
	}
	return all
}

// TestReadingVerbsDoNotWrite: the file is byte for byte the same afterwards, and nothing is new beside it, nor, after
// --copy, in the directory for temporary files.
func TestReadingVerbsDoNotWrite(t *testing.T) {
	path, temporary := build(t), t.TempDir()
	t.Setenv("TMPDIR", temporary)
	if err := os.Chmod(path, 0o400); err != nil {
		t.Fatal(err)
	}
	before := contents(t, filepath.Dir(path))
	for name, args := range readingVerbs(path) {
		for _, more := range [][]string{nil, {"--copy"}, {"--copy=" + t.TempDir()}, {"--copy=" + filepath.Dir(path)}} {
			expect(t, exitFine, "", slices.Concat(args, more)...)
			if diff := cmp.Diff(before, contents(t, filepath.Dir(path))); diff != "" {
				t.Errorf("%s %q has changed (-before +after):\n%s", name, more, diff)
			}
			if left := contents(t, temporary); len(left) > 0 {
				t.Errorf("%s %q has left %v", name, more, left)
			}
		}
	}
}

// TestDumpHasEverything, and nothing of Secrets.
func TestDumpHasEverything(t *testing.T) {
	path := build(t)
	out := expect(t, exitFine, "", "dump", path)
	if strings.Contains(out, secret) || strings.Contains(out, `"secret"`) {
		t.Errorf("a Secret is not masked:\n%s", out)
	}
	for _, want := range []string{
		`{"informer":"` + strings.ReplaceAll(podsInformer, `"`, `\"`) + `","bucket":"objects","key":"ns/a","value":{"kind":"Pod","apiVersion":"v1",`,
		`"bucket":"index","key":"node/ns/a","value":{"index":"node","value":"one"}}`,
		`"bucket":"index","key":"data/ns/token","value":{"index":"data","value":"***"}}`,
		`"bucket":"deltas","key":"2","value":{"type":"Deleted","key":"ns/c",`,
		`"bucket":"handlers","key":"handler/network","value":{"cursor":`,
		`"bucket":"queue","key":"last","value":2}`,
		`"bucket":"checkpoint","key":"resume","value":{"state":"complete",`,
		`{"informer":"workqueues","bucket":"work","key":"4/mail/somebody"}`,
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%s is missing in:\n%s", want, out)
		}
	}
	for l := range strings.Lines(out) {
		if !json.Valid([]byte(l)) {
			t.Errorf("no JSON: %s", l)
		}
	}
	if out := expect(t, exitFine, "", "dump", path, "--show-secrets"); !strings.Contains(out, secret) || !strings.Contains(out, `"value":"secret"`) {
		t.Errorf("--show-secrets:\n%s", out)
	}
}

// TestADamagedValue: verify finds it, and the others show what can be read.
func TestADamagedValue(t *testing.T) {
	path := build(t)
	flip := func(v []byte) { v[len(v)/2] ^= 1 }
	cachefile.ChangeValue(t, path, "objects", "ns/a", flip)
	expectGolden(t, "verify-damaged", path, expect(t, exitFindings, "checksum", "verify", path))
	expect(t, exitFindings, "ns/a", "verify", path, "-o", "name")
	expect(t, exitUnreadable, "checksum", "get", path, "pods", "ns/a")
	expect(t, exitFine, `"error":"persist: corrupt value`, "dump", path)
	expect(t, exitFine, "damaged", "ls", path, "pods", "-o", "wide")
	for _, args := range [][]string{{"status", path}, {"ls", path}, {"pending", path}, {"stats", path}, {"get", path, "pods", "ns/b"}} {
		expect(t, exitFine, "", args...)
	}
}

// TestWhatVerifyFinds beside checksums.
func TestWhatVerifyFinds(t *testing.T) {
	for _, tc := range []struct {
		name, want string
		damage     func(t *testing.T, path string)
	}{
		{"a state that is lost", "is missing", func(t *testing.T, path string) {
			change(t, path, "pods", func(b *persist.Batch, of func(string) persist.Bucket) { b.Delete(of("store"), "state") })
		}},
		{"an object that is missing", "1 objects, expected 2", func(t *testing.T, path string) {
			change(t, path, "pods", func(b *persist.Batch, of func(string) persist.Bucket) { b.Delete(of("objects"), "ns/a") })
		}},
		{"an index entry without an object", "there is no object ns/a", func(t *testing.T, path string) {
			change(t, path, "pods", func(b *persist.Batch, of func(string) persist.Bucket) { b.Delete(of("objects"), "ns/a") })
		}},
		{"an index entry that is missing", "the index has 1 entries, expected 2", func(t *testing.T, path string) {
			change(t, path, "pods", func(b *persist.Batch, of func(string) persist.Bucket) {
				b.Delete(of("index"), "\x04node\x04vone"+"ns/a")
			})
		}},
		{"a delta that is missing", "handler/network starts over: it needs the deltas 1 to 2, and 1 of them are there", func(t *testing.T, path string) {
			change(t, path, "pods", func(b *persist.Batch, of func(string) persist.Bucket) {
				b.Delete(of("deltas"), string(binary.BigEndian.AppendUint64(nil, 1))+"o")
			})
		}},
		{"the number of the last delta is lost", "the number of the last delta is not known", func(t *testing.T, path string) {
			change(t, path, "pods", func(b *persist.Batch, of func(string) persist.Bucket) { b.Delete(of("queue"), "last") })
		}},
		{"a checkpoint that is none", "malformed", func(t *testing.T, path string) {
			change(t, path, "pods", func(b *persist.Batch, of func(string) persist.Bucket) { b.Put(of("checkpoint"), "resume", []byte("{")) })
		}},
		{"an object that is none", "malformed", func(t *testing.T, path string) {
			change(t, path, "pods", func(b *persist.Batch, of func(string) persist.Bucket) { b.Put(of("objects"), "ns/a", []byte("x")) })
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := build(t)
			tc.damage(t, path)
			expect(t, exitFindings, tc.want, "verify", path)
			expect(t, exitFine, "", "status", path)
		})
	}
}

// change changes the space of an informer.
func change(t *testing.T, path, informer string, fn func(b *persist.Batch, of func(name string) persist.Bucket)) {
	t.Helper()
	err := write(t.Context(), path, func(f *file) error {
		i, err := f.find(informer)
		if err == nil {
			err = f.Update(func(b *persist.Batch) { fn(b, i.bucket) })
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestAFileThatAProcessHolds(t *testing.T) {
	path := build(t)
	release := process.Hold(t, path)
	defer release()
	for _, args := range [][]string{{"status", path}, {"verify", path}, {"ls", path}} {
		expect(t, exitHeld, "--copy", args...)
		expect(t, exitHeld, "by process ", args...)
		expect(t, exitFine, "", append(args, "--copy")...)
	}
	for _, args := range [][]string{{"relist", path, "--all"}, {"forget", path, "pods"}, {"compact", path}} {
		expect(t, exitHeld, "by process ", args...)
		expect(t, exitHeld, "end that process", args...)
	}
}

// TestWhatIsNoCacheFile: it is not touched.
func TestWhatIsNoCacheFile(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, []byte(strings.Repeat("not a cache file\n", 5000)), 0o600); err != nil {
		t.Fatal(err)
	}
	damaged := filepath.Join(dir, "damaged.db")
	testsupport.CopyFile(t, build(t), damaged)
	testsupport.DamageFreelist(t, damaged)
	before := contents(t, dir)
	for _, path := range []string{text, damaged, dir, filepath.Join(dir, "missing")} {
		for verb, args := range readingVerbs(path) {
			expect(t, exitUnreadable, "", args...)
			expect(t, exitUnreadable, "", append(args, "--copy")...)
			if diff := cmp.Diff(before, contents(t, dir)); diff != "" {
				t.Fatalf("%s (-before +after):\n%s", verb, diff)
			}
		}
		for _, args := range [][]string{{"relist", path, "--all"}, {"forget", path, "pods"}, {"compact", path}} {
			expect(t, exitUnreadable, "", args...)
			if diff := cmp.Diff(before, contents(t, dir)); diff != "" {
				t.Fatalf("%q (-before +after):\n%s", args, diff)
			}
		}
	}
}

func TestWrongUsage(t *testing.T) {
	path := build(t)
	for _, tc := range []struct {
		want string
		args []string
	}{
		{"unknown command", []string{"mend", path}},
		{"unknown flag", []string{"status", path, "--all"}},
		{"accepts 1 arg", []string{"status"}},
		{"accepts 3 arg", []string{"get", path, "pods"}},
		{"table, wide, json, yaml, name", []string{"status", path, "-o", "xml"}},
		{"It has:\n" + podsInformer, []string{"ls", path, "nodes"}},
		{podsInformer + "\n" + secretsInformer, []string{"ls", path, "(typed)"}},
		{"or --all", []string{"relist", path}},
		{"or --all", []string{"relist", path, "pods", "--all"}},
		{"no handler", []string{"forget", path, "pods", "--handler", "disk"}},
	} {
		expect(t, exitUsage, tc.want, tc.args...)
	}
	expect(t, exitFindings, "no object", "get", path, "pods", "ns/z")
	expect(t, exitFine, "warmwatch", "version")
	expect(t, exitFine, "bash", "completion", "bash")
	expect(t, exitFine, "Usage:")
}

// TestPendingOfAHandlerThatStartsOver: of the deltas behind its cursor it needs the deletions.
func TestPendingOfAHandlerThatStartsOver(t *testing.T) {
	path := build(t)
	change(t, path, "pods", func(b *persist.Batch, of func(string) persist.Bucket) {
		b.Put(of("handlers"), "handler/network", persist.JSON(queue.Handled{StartsOver: true}))
		b.Put(of("handlers"), "handler/audit", persist.JSON(queue.Handled{Cursor: 2, StartsOver: true}))
	})
	out := strings.Join(strings.Fields(expect(t, exitFine, "", "pending", path)), " ")
	for _, want := range []string{"handler/network (starts over) 1 ", " ns/c pods", "handler/audit (starts over) 0 "} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in %s", want, out)
		}
	}
	expect(t, exitFine, "", "verify", path)
}

// TestTheTimeline: the last events, each with its page.
func TestTheTimeline(t *testing.T) {
	path := testsupport.Path(t)
	db := testdb.Open(t, path, persist.Options{})
	begin := time.Date(2026, 3, 1, 9, 30, 0, 0, time.UTC)
	err := db.Update(func(b *persist.Batch) {
		for n := range 12 {
			e := warmwatch.Event{Time: begin.Add(time.Duration(n) * time.Second), Code: warmwatch.CodeResumed, Informer: podsInformer}
			if n == 11 {
				e = warmwatch.Event{
					Time: begin.Add(time.Hour), Code: warmwatch.CodeRelisted, Informer: podsInformer, Cause: string(warmwatch.CauseExpired),
					Message: "too old", Numbers: map[string]float64{"updated": 2, "added": 1}, Times: 3,
				}
			}
			b.Put(persist.Bucket{Space: timelineSpace, Name: timelineBucket}, string(binary.BigEndian.AppendUint64(nil, uint64(n))), persist.JSON(e))
		}
	})
	if err == nil {
		err = db.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	out := expect(t, exitFine, "", "status", path)
	last := "2026-03-01T10:30:00Z   Relisted   " + podsInformer + " Expired too old added=1 updated=2 (3 times) " + runbook + "relisted\n"
	if rows := strings.Count(out, runbook); rows != shownEvents || !strings.HasSuffix(out, last) {
		t.Errorf("%d events, want %d and the last as\n%s:\n%s", rows, shownEvents, last, out)
	}
	expect(t, exitFine, `"key":"11","value":{"Time":"2026-03-01T10:30:00Z"`, "dump", path)
}

// TestNoCopyIsThereWhileTheVerbPrints: a closed pipe ends the process.
func TestNoCopyIsThereWhileTheVerbPrints(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("an open file cannot be removed")
	}
	path, dir := build(t), t.TempDir()
	var left []os.DirEntry
	cmd := NewCommand()
	cmd.SetOut(writerFunc(func(p []byte) (int, error) {
		entries, err := os.ReadDir(dir)
		left = append(left, entries...)
		return len(p), err
	}))
	cmd.SetArgs([]string{"ls", path, "--copy=" + dir})
	if err := cmd.ExecuteContext(t.Context()); err != nil || len(left) > 0 {
		t.Errorf("%v, in the directory: %v", err, left)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
