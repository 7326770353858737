package warmwatch_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch"
	"github.com/warmwatch/warmwatch/internal/testsupport"

	bolt "go.etcd.io/bbolt"
)

func TestOpenRefusesAPathThatCannotBeMeantAndOptionsThatMakeNoSense(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := mkfifo(fifo); err != nil {
		t.Fatal(err)
	}
	good := filepath.Join(dir, "cache.db")
	for name, c := range map[string]struct {
		path string
		o    warmwatch.Options
		want string
	}{
		"no path":                  {path: "", want: "path is empty"},
		"a directory":              {path: dir, want: dir + " is not a regular file"},
		"a named pipe":             {path: fifo, want: fifo + " is not a regular file"},
		"CommitInterval negative":  {path: good, o: warmwatch.Options{CommitInterval: -1}, want: "CommitInterval is negative"},
		"DurableDelay negative":    {path: good, o: warmwatch.Options{DurableDelay: -time.Second}, want: "DurableDelay is negative"},
		"MaxPendingBytes negative": {path: good, o: warmwatch.Options{MaxPendingBytes: -1}, want: "MaxPendingBytes is negative"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := warmwatch.Open(t.Context(), c.path, c.o)
			if err == nil || !strings.HasPrefix(err.Error(), "warmwatch: ") || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %q, expected %q in it", err, c.want)
			}
		})
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("a refused Open has left something behind: %v", entries)
	}
}

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
	f := newSource(t, configMap("a", "x"), configMap("b", "x"))
	p := launch(t, path, f, func(set *warmwatch.Options, io *warmwatch.InformerOptions) {
		*set = o
		io.Indexers = cache.Indexers{"content": byContent}
	})
	r, d := add2(t, p)
	p.run()
	settle()
	f.put(configMap("a", "y"), configMap("c", "x"))
	f.remove("b")
	settle()
	relisted(f, func() { f.remove("a") })
	for _, r := range []*recorder{r, d} {
		r.expect(t, "add ns/a@1 initial", "add ns/b@2 initial", "update ns/a@1→3", "add ns/c@4", "delete ns/b@5", "lost ns/a@3")
	}
	expectStore(t, p.informer, f)
	if keys, err := p.informer.GetIndexer().IndexKeys("content", "x"); err != nil || len(keys) != 1 {
		t.Errorf("index: %q, %v", keys, err)
	}
	whileRunning = p.cache.Status()
	if st := p.informer.Status(); !errors.Is(st.Err, whileRunning.Err) || undelivered(st) != 0 {
		t.Errorf("status of the informer: %+v", st)
	}
	p.stop()
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
			bubble(t, func(t *testing.T) {
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

// holdProgram is the program "hold": it holds a file until its input ends.
func holdProgram([]string) error {
	c, err := warmwatch.Open(context.Background(), os.Getenv("WARMWATCH_TEST_FILE"), warmwatch.Options{})
	if err != nil {
		return err
	}
	if err := c.Status().Err; err != nil {
		return err
	}
	_, _ = os.Stdout.WriteString("held\n")
	_, _ = io.Copy(io.Discard, os.Stdin) // Until the other end is closed.
	return c.Close()
}

// holdFile has another process hold a file until release is called.
func holdFile(t *testing.T, path string) (release func()) {
	t.Helper()
	cmd := testsupport.Program(t, "hold")
	cmd.Env = append(cmd.Env, "WARMWATCH_TEST_FILE="+path)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "held\n" {
		t.Fatalf("the other process: %q, %v", line, err)
	}
	return func() {
		if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
			t.Errorf("the other process: %v", err)
		}
	}
}

// TestAFileThatIsHeldMeansMemoryOnlyAndIsLeftAlone (S4), also once the other process has ended.
func TestAFileThatIsHeldMeansMemoryOnlyAndIsLeftAlone(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "cache.db")
	bubble(t, func(t *testing.T) { fill(t, path, newSource(t, configMap("a")), nil) })
	release := holdFile(t, path)
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	bubble(t, func(t *testing.T) {
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
	bubble(t, func(t *testing.T) {
		down := newSource(t)
		down.setDown(errUnreachable)
		p := launch(t, path, down, nil).run()
		if st := p.informer.Status(); st.StartedFrom != "disk" || st.Objects != 1 {
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
			bubble(t, func(t *testing.T) {
				path := testsupport.Path(t)
				if err := os.WriteFile(path, content, 0o600); err != nil {
					t.Fatal(err)
				}
				if st := expectWorks(t, path, warmwatch.Options{}); st.MemoryOnly || st.Err != nil {
					t.Errorf("status %+v", st)
				}
				if len(content) > 0 { // An empty one is begun in place.
					expectSetAside(t, path, content)
				}
			})
		})
	}
}

func TestNewSharedIndexInformerRefusesWhatIsMissing(t *testing.T) {
	c, err := warmwatch.Open(t.Context(), testsupport.Path(t), warmwatch.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	f := newSource(t)
	for name, a := range map[string]struct {
		lw      cache.ListerWatcher
		example apiruntime.Object
		o       warmwatch.InformerOptions
		want    string
	}{
		"a ListerWatcher":         {nil, &corev1.ConfigMap{}, warmwatch.InformerOptions{Resource: configMaps}, "ListerWatcher is required"},
		"a ListerWatcher, typed":  {(*cache.ListWatch)(nil), &corev1.ConfigMap{}, warmwatch.InformerOptions{Resource: configMaps}, "ListerWatcher is required"},
		"an example object":       {f, nil, warmwatch.InformerOptions{Resource: configMaps}, "an example object is required"},
		"an example that is not":  {f, (*corev1.ConfigMap)(nil), warmwatch.InformerOptions{Resource: configMaps}, "an example object is required"},
		"the Resource":            {f, &corev1.ConfigMap{}, warmwatch.InformerOptions{Namespace: "ns"}, "Resource is required, because Namespace or a selector is set"},
		"the Resource's version":  {f, &corev1.ConfigMap{}, warmwatch.InformerOptions{Resource: schema.GroupVersionResource{Resource: "pods"}}, "InformerOptions.Resource is required whole"},
		"the Resource's resource": {f, &corev1.ConfigMap{}, warmwatch.InformerOptions{Resource: schema.GroupVersionResource{Version: "v1"}}, "InformerOptions.Resource is required whole"},
		"sense":                   {f, &corev1.ConfigMap{}, warmwatch.InformerOptions{Resource: configMaps, ResyncPeriod: -1}, "ResyncPeriod is negative"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := c.NewSharedIndexInformer(a.lw, a.example, a.o); err == nil || !strings.Contains(err.Error(), a.want) {
				t.Errorf("error %q, expected %q in it", err, a.want)
			}
		})
	}
	if n := len(c.Status().Informers); n != 0 {
		t.Errorf("%d informers were made", n)
	}
}

func TestAnIdentityHasOneInformerAtATime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"))
		p := launch(t, testsupport.Path(t), f, nil)
		another := func(o warmwatch.InformerOptions) error {
			o.Resource = configMaps
			_, err := p.cache.NewSharedIndexInformer(f, &corev1.ConfigMap{}, o)
			return err
		}
		for _, run := range []func(){func() { p.run() }, func() {}} {
			if err := another(warmwatch.InformerOptions{}); !errors.Is(err, warmwatch.ErrInUse) || !strings.Contains(err.Error(), "configmaps/v1 (typed)") {
				t.Errorf("a second informer: %v", err)
			}
			run()
		}
		for _, o := range []warmwatch.InformerOptions{
			{Name: "2"}, {Namespace: "ns"}, {LabelSelector: "a=b"}, {FieldSelector: "a=b"}, {LabelSelector: "a=", FieldSelector: "b="},
		} {
			if err := another(o); err != nil {
				t.Errorf("%+v: %v", o, err)
			}
		}
		p.end()
		if err := another(warmwatch.InformerOptions{}); err != nil {
			t.Errorf("after the first has stopped: %v", err)
		}
	})
}

func TestHandlersThatMakeNoSenseAreRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := launch(t, testsupport.Path(t), newSource(t, configMap("a")), nil)
		for _, run := range []func(){func() { p.run() }, func() {}} { // Before and after the start.
			for name, err := range map[string]error{
				"nil":                     second(p.informer.AddEventHandler(nil)),
				"a nil pointer":           second(p.informer.AddEventHandler((*recorder)(nil))),
				"nil with a period":       second(p.informer.AddEventHandlerWithResyncPeriod(nil, time.Second)),
				"nil, durable":            second(p.informer.AddDurableEventHandler("n", nil, warmwatch.DurableOptions{})),
				"a nil pointer, durable":  second(p.informer.AddDurableEventHandler("n", (*recorder)(nil), warmwatch.DurableOptions{})),
				"durable without a name":  second(p.informer.AddDurableEventHandler("", &recorder{}, warmwatch.DurableOptions{})),
				"forget what has no name": p.informer.ForgetDurable(""),
			} {
				if err == nil || !strings.Contains(err.Error(), "is required") {
					t.Errorf("%s: error %v", name, err)
				}
			}
			run()
		}
		if _, err := p.informer.AddDurableEventHandler(strings.Repeat("n", 33<<10), &recorder{}, warmwatch.DurableOptions{}); err == nil || !strings.Contains(err.Error(), "too long") {
			t.Errorf("a name of 33 KB: error %v", err)
		}
		// A refused name is free.
		addDurable(t, p, "n")
		if _, err := p.informer.AddDurableEventHandler("n", &recorder{}, warmwatch.DurableOptions{}); !errors.Is(err, warmwatch.ErrInUse) || !strings.Contains(err.Error(), `"n"`) {
			t.Errorf("a name that is used: %v", err)
		}
	})
}

func second[T any](_ T, err error) error { return err }

func TestAClosedCacheSaysSo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"))
		p := launch(t, testsupport.Path(t), f, nil).run()
		never, err := p.cache.NewSharedIndexInformer(f, &corev1.ConfigMap{}, warmwatch.InformerOptions{Resource: configMaps, Name: "never run"})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := p.cache.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		}
		if _, err := p.cache.NewSharedIndexInformer(f, &corev1.ConfigMap{}, warmwatch.InformerOptions{Resource: configMaps, Name: "late"}); !errors.Is(err, warmwatch.ErrClosed) {
			t.Errorf("a new informer: %v", err)
		}
		if !p.informer.IsStopped() || !never.IsStopped() {
			t.Error("the informers are not stopped")
		}
		never.RunWithContext(t.Context())
		if err := p.informer.GetStore().Add(configMap("a")); err == nil {
			t.Errorf("write: %v", err)
		}
		if _, _, err := p.informer.GetStore().GetByKey("ns/none"); err != nil {
			t.Logf("read: %v", err) // Nothing, or an error.
		}
		p.cache.Status()
	})
}

func TestClosingDoesNotWaitForAHandlerThatHangs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"))
		path := testsupport.Path(t)
		p := launch(t, path, f, nil)
		release := make(chan struct{})
		d := &recorder{during: func(event string) {
			if event == "add ns/b@2" {
				<-release
			}
		}}
		if _, err := p.informer.AddDurableEventHandler("d", d, warmwatch.DurableOptions{}); err != nil {
			t.Fatal(err)
		}
		p.run()
		settle()
		f.put(configMap("b"), configMap("c"))
		settle()
		if err := p.cache.Close(); err != nil {
			t.Fatal(err)
		}
		q := launch(t, path, f, nil)
		again := addDurable(t, q, "d")
		q.run()
		settle()
		again.expect(t, "add ns/b@2", "add ns/c@3")
		close(release)
		q.stop()
	})
}

func TestAListerWatcherThatAnswersNonsenseIsAskedAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newSource(t, configMap("a"))
		f.onList = func(context.Context, metav1.ListOptions) (apiruntime.Object, error) {
			f.with(func() { f.onList = nil })
			return &corev1.ConfigMap{}, nil
		}
		p := launch(t, testsupport.Path(t), f, nil)
		r, _ := add(t, p.informer)
		p.run()
		if p.informer.HasSynced() {
			t.Error("synced with what is no list")
		}
		settle()
		r.expect(t, "add ns/a@1 initial")
	})
}
