package faults_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/cache"

	bolt "go.etcd.io/bbolt"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/bubble"
	"github.com/warmwatch/warmwatch/internal/testsupport/process"
	"github.com/warmwatch/warmwatch/internal/testsupport/recorder"
	"github.com/warmwatch/warmwatch/internal/testsupport/source"
)

func TestOpenMakesWhatItNeedsForItsOwnerAlone(t *testing.T) {
	defer umask(umask(0))
	path := filepath.Join(t.TempDir(), "a", "b", "cache.db")
	c, err := warmwatch.Open(t.Context(), path, warmwatch.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, f := range []struct {
		path string
		want os.FileMode
	}{{path, 0o600}, {filepath.Dir(path), 0o700}, {filepath.Dir(filepath.Dir(path)), 0o700}} {
		info, err := os.Stat(f.path)
		if err != nil || info.Mode().Perm() != f.want {
			t.Errorf("%s has mode %v: %v", f.path, info.Mode(), err)
		}
	}
	if st := c.Status(); st.Path != path || st.MemoryOnly || st.Err != nil {
		t.Errorf("status %+v", st)
	}
}

// expectWorks runs an informer through a life, whatever its file is.
func expectWorks(t *testing.T, path string, o warmwatch.Options) (whileRunning warmwatch.Status) {
	t.Helper()
	f := source.New(t, source.ConfigMap("a", "x"), source.ConfigMap("b", "x"))
	p := process.Launch(t, path, f, func(set *warmwatch.Options, io *warmwatch.InformerOptions) {
		*set = o
		io.Indexers = cache.Indexers{"content": source.ByContent}
	})
	r, d := process.AddBoth(t, p)
	p.Run()
	bubble.Settle()
	f.Put(source.ConfigMap("a", "y"), source.ConfigMap("c", "x"))
	f.Remove("b")
	bubble.Settle()
	source.Relisted(f, func() { f.Remove("a") })
	for _, r := range []*recorder.Recorder{r, d} {
		r.Expect(t, "add ns/a@1 initial", "add ns/b@2 initial", "update ns/a@1→3", "add ns/c@4", "delete ns/b@5", "lost ns/a@3")
	}
	process.ExpectStore(t, p.Informer, f)
	if keys, err := p.Informer.GetIndexer().IndexKeys("content", "x"); err != nil || len(keys) != 1 {
		t.Errorf("index: %q, %v", keys, err)
	}
	whileRunning = p.Cache.Status()
	if st := p.Informer.Status(); !errors.Is(st.Err, whileRunning.Err) || process.Undelivered(st) != 0 {
		t.Errorf("status of the informer: %+v", st)
	}
	p.Stop()
	return whileRunning
}

func TestAPathThatCannotBeWrittenMeansMemoryOnly(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ path, skip string }{
		"its directory is a file":            {path: filepath.Join(file, "cache.db")},
		"its directory cannot be made":       {path: filepath.Join(file, "dir", "cache.db")},
		"its file system has no files of us": {path: "/proc/warmwatch/cache.db", skip: unless(runtime.GOOS == "linux", "/proc is Linux's")},
		"its directory is not writable":      {path: filepath.Join(dir, "cache.db"), skip: unless(os.Getuid() != 0, "root can write everywhere")},
	} {
		t.Run(name, func(t *testing.T) {
			if c.skip != "" {
				t.Skip(c.skip)
			}
			bubble.Run(t, func(t *testing.T) {
				st := expectWorks(t, c.path, warmwatch.Options{})
				if !st.MemoryOnly || st.Err == nil || !strings.Contains(st.Err.Error(), "working from memory") {
					t.Errorf("status %+v", st)
				}
			})
		})
	}
}

func unless(ok bool, why string) string {
	if ok {
		return ""
	}
	return why
}

// TestAFileThatIsHeldMeansMemoryOnlyAndIsLeftAlone (S4), also once the other process has ended.
func TestAFileThatIsHeldMeansMemoryOnlyAndIsLeftAlone(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "cache.db")
	bubble.Run(t, func(t *testing.T) { process.Fill(t, path, source.New(t, source.ConfigMap("a")), nil) })
	release := process.Hold(t, path)
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	bubble.Run(t, func(t *testing.T) {
		begin := time.Now()
		st := expectWorks(t, path, warmwatch.Options{LockTimeout: 3 * time.Second})
		if !st.MemoryOnly || !errors.Is(st.Err, warmwatch.ErrLocked) || !strings.Contains(st.Err.Error(), "held by another process") {
			t.Errorf("status %+v", st)
		}
		if time.Since(begin) < 3*time.Second {
			t.Error("did not wait for LockTimeout")
		}
	})
	after, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(before, after) {
		t.Errorf("the file was changed: %v", err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
	release()
	bubble.Run(t, func(t *testing.T) {
		down := source.New(t)
		down.SetDown(source.ErrUnreachable)
		p := process.Launch(t, path, down, nil).Run()
		if st := p.Informer.Status(); st.StartedFrom != "disk" || st.Objects != 1 {
			t.Errorf("after it was let go: %+v", st)
		}
	})
}

// TestTwoCachesOfOneFile in one process (S4): the second one is an error, until the first is closed.
func TestTwoCachesOfOneFile(t *testing.T) {
	path := testsupport.Path(t)
	for range 2 {
		c, err := warmwatch.Open(t.Context(), path, warmwatch.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := warmwatch.Open(t.Context(), path, warmwatch.Options{}); !errors.Is(err, warmwatch.ErrInUse) {
			t.Errorf("the second one: %v", err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

// expectSetAside checks that a bad file is kept under another name and that a
// new one was begun.
func expectSetAside(t *testing.T, path string, content []byte) {
	t.Helper()
	aside, err := filepath.Glob(path + ".corrupt-*")
	if err != nil || len(aside) != 1 {
		t.Fatalf("set aside: %q, %v", aside, err)
	}
	if kept, err := os.ReadFile(aside[0]); err != nil || !bytes.Equal(kept, content) {
		t.Errorf("the file that was set aside has other content: %v", err)
	}
}

func TestAFileThatIsNotOursIsSetAside(t *testing.T) {
	boltFile := func(t *testing.T, update func(*bolt.Tx) error) []byte {
		path := testsupport.Path(t)
		db, err := bolt.Open(path, 0o600, nil)
		if err == nil {
			err = errors.Join(db.Update(update), db.Close())
		}
		b, readErr := os.ReadFile(path)
		if err := errors.Join(err, readErr); err != nil {
			t.Fatal(err)
		}
		return b
	}
	withFormat := func(version string) func(*bolt.Tx) error {
		return func(tx *bolt.Tx) error {
			b, err := tx.CreateBucket([]byte("warmwatch"))
			if err != nil {
				return err
			}
			return b.Put([]byte("format"), []byte(version))
		}
	}
	for name, content := range map[string][]byte{
		"an empty file":              {},
		"a text":                     []byte("apiVersion: v1\nkind: Config\n"),
		"zeros":                      make([]byte, 1<<20),
		"a SQLite file":              append([]byte("SQLite format 3\x00"), make([]byte, 8<<10)...),
		"a bbolt file of others":     boltFile(t, func(tx *bolt.Tx) error { _, err := tx.CreateBucket([]byte("theirs")); return err }),
		"an empty bbolt file":        boltFile(t, func(*bolt.Tx) error { return nil }),
		"a format of the future":     boltFile(t, withFormat("2")),
		"a format that is no number": boltFile(t, withFormat("")),
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Run(t, func(t *testing.T) {
				path := testsupport.Path(t)
				if err := os.WriteFile(path, content, 0o600); err != nil {
					t.Fatal(err)
				}
				if st := expectWorks(t, path, warmwatch.Options{}); st.MemoryOnly || st.Err != nil {
					t.Errorf("status %+v", st)
				}
				if len(content) > 0 && name != "an empty bbolt file" { // These are begun in place.
					expectSetAside(t, path, content)
				}
			})
		})
	}
}
