//go:build linux && (amd64 || arm64)

package power

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"

	"github.com/warmwatch/warmwatch/test/attack/check"
	"github.com/warmwatch/warmwatch/test/attack/recordfs"
)

var (
	imagesFlag = flag.Int("power.images", 60, "power cuts to look at")
	seedFlag   = flag.Uint64("power.seed", 1, "seed; 0 takes one from the clock")
	keepFlag   = flag.String("power.keep", "", "directory to keep the images in that show a violation")
	imageFlag  = flag.String("power.image", "", "directory of an image that was kept, to look at only that one")
)

func TestMain(m *testing.M) {
	for env, run := range map[string]func(string) error{commitEnv: commitTwice, compactEnv: compact} {
		path := os.Getenv(env)
		if path == "" {
			continue
		}
		klog.SetLogger(quiet)
		if err := run(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	check.Main(m, map[string]func(*testing.T){"life": check.RunLife})
}

// imagesPerWorkload power cuts are made of each recorded workload.
const imagesPerWorkload = 20

// file is where the cache is: in every fourth workload in directories that it has to
// make.
func (w *workload) file() string {
	if w.n%4 == 3 {
		return "made/by/the/cache/cache.db"
	}
	return "cache.db"
}

// TestAPowerCutTakesBackNothingThatADurableHandlerGot records what an informer
// does to its file, over restarts, kills and relists, and looks at what a power cut at random moments may leave: all
// that was synced, of the rest anything. From each such image an informer must go on as if nothing had happened that
// handlers could notice.
//
// A seed means the same workloads, but not the same order of system calls: an image
// that shows a violation is for -power.keep and -power.image.
func TestAPowerCutTakesBackNothingThatADurableHandlerGot(t *testing.T) {
	if *imageFlag != "" {
		again(t, *imageFlag)
		return
	}
	if err := recordfs.Available(); err != nil {
		t.Skip(err)
	}
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("again: -power.seed=%d -power.images=%d", seed, *imagesFlag)
	var total stats
	for n := 0; n*imagesPerWorkload < *imagesFlag; n++ {
		w := &workload{seed: seed + uint64(n), n: n}
		t.Run(fmt.Sprintf("workload=%d", n), func(t *testing.T) {
			w.record(t)
			w.cut(t, min(imagesPerWorkload, *imagesFlag-n*imagesPerWorkload))
		})
		total.add(w.stats)
	}
	t.Logf("%+v", total)
	if total.Delivered == 0 || total.Killed == 0 && *imagesFlag > 3*imagesPerWorkload {
		t.Errorf("the test did not reach what it is for: %+v", total)
	}
}

type stats struct{ Images, Bad, Operations, Lives, Killed, Delivered int }

func (s *stats) add(o stats) {
	s.Images += o.Images
	s.Bad += o.Bad
	s.Operations += o.Operations
	s.Lives += o.Lives
	s.Killed += o.Killed
	s.Delivered += o.Delivered
}

type workload struct {
	seed  uint64
	n     int
	log   []recordfs.Op
	stats stats
}

// record runs processes that use the file, one after the other.
func (w *workload) record(t *testing.T) {
	rng := rand.New(rand.NewPCG(w.seed, 1))
	dir := check.FastDir(t)
	mounted, behind := filepath.Join(dir, "mounted"), filepath.Join(dir, "behind")
	for _, d := range []string{mounted, behind} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	f, err := recordfs.Mount(mounted, behind, time.Duration(w.n%2)*2*time.Millisecond, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := f.Unmount(); err != nil {
			t.Error(err)
		}
	}()
	world, done := &check.World{}, 0
	const lives = 4
	for life := range lives {
		w.stats.Lives++
		// A process that is killed before an fsync leaves what the next one reads, and
		// a power cut takes back.
		killAt, atSync, fired := 0, rng.IntN(2) == 0, false
		if life < lives-1 && rng.IntN(3) > 0 {
			killAt = 1 + rng.IntN(500)
		}
		var p *check.Program
		started := make(chan struct{})
		f.Revive(func(n int, k recordfs.Kind, _ string) recordfs.Verdict {
			if killAt == 0 || fired || n < killAt || (atSync && k != recordfs.Fsync) {
				return recordfs.Verdict{}
			}
			fired = true
			<-started
			p.Kill()
			return recordfs.Verdict{Dead: true, Part: w.seed%2 == 0}
		})
		input, err := json.Marshal(check.Life{
			History: w.seed, Seed: w.seed*lives + uint64(life), Sessions: 1 + rng.IntN(3), World: world,
			Path: filepath.Join(mounted, w.file()), Behind: filepath.Join(behind, w.file()), Marks: filepath.Join(mounted, recordfs.MarkFile),
		})
		if err != nil {
			t.Fatal(err)
		}
		p = check.StartProgram(t, "life", input)
		close(started)
		killed, err := p.Wait()
		if killed {
			w.stats.Killed++
		}
		w.log = f.Log()
		done = apply(t, world, w.log, done)
		if err != nil {
			t.Errorf("life %d: %v", life, err)
		} else if !killed && !world.Finished {
			t.Errorf("life %d ended before its end", life)
		}
		report(t, fmt.Sprintf("life %d", life), world)
	}
	w.stats.Operations = len(w.log)
}

// report tells of violations, and forgets them.
func report(t *testing.T, where string, w *check.World) {
	t.Helper()
	if len(w.Violations) > 0 {
		t.Errorf("%s: %s", where, w.Brief())
	}
	w.Violations = nil
}

// apply has a world hear what the log says behind from, and returns its end.
func apply(t *testing.T, w *check.World, log []recordfs.Op, from int) int {
	t.Helper()
	for _, o := range log[from:] {
		if o.Kind == recordfs.Mark {
			if err := w.ApplyJSON(o.Data); err != nil {
				t.Fatal(err)
			}
		}
	}
	return len(log)
}

// cut looks at some images.
func (w *workload) cut(t *testing.T, images int) {
	rng := rand.New(rand.NewPCG(w.seed, 2))
	at := make([]int, images)
	for i := range at {
		at[i] = rng.IntN(len(w.log) + 1)
		for i%2 == 0 && at[i] < len(w.log) && w.log[at[i]].Kind == recordfs.Mark { // Marks are many.
			at[i]++
		}
	}
	slices.Sort(at)
	disk, world, done := recordfs.NewDisk(), &check.World{}, 0
	for _, at := range at {
		disk.Apply(w.log[done:at]...)
		apply(t, world, w.log[:at], done)
		done = at
		world.Violations = nil // Of the recording, and reported.
		dir := check.FastDir(t)
		how, err := disk.Cut(rng, dir)
		if err != nil {
			t.Fatal(err)
		}
		w.stats.Images++
		w.stats.Delivered += len(world.Belief(check.Durable).Newest)
		next := "the end"
		if at < len(w.log) {
			next = w.log[at].String()
		}
		i := &image{File: w.file(), History: w.seed, World: world.Clone(), Further: rng.IntN(12), Compact: rng.IntN(2) == 0}
		i.What = fmt.Sprintf("seed %d, %s, cut at %d of %d before %.60s (%s)", w.seed, w.file(), at, len(w.log), next, how)
		for _, o := range w.log[max(0, at-lastOperations):at] {
			i.Log = append(i.Log, o.String())
		}
		if !i.look(t, dir) {
			w.stats.Bad++
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
}

// An image is what a power cut has left in a directory, and what is known of it.
type image struct {
	History uint64
	World   *check.World
	Further int  // So many changes the server makes before the machine is up again.
	Compact bool // And then forgets its history.
	File    string
	Log     []string // What was done last before the power cut.
	What    string
}

const (
	imageFile      = "image.json"
	lastOperations = 300 // Of them an image tells.
)

// look runs an informer on it, and reports whether all is well.
func (i *image) look(t *testing.T, dir string) bool {
	t.Helper()
	if err := i.keep(dir); err != nil {
		t.Fatal(err)
	}
	kept := ""
	if *keepFlag != "" {
		kept = filepath.Join(*keepFlag, fmt.Sprintf("%d-%d", i.History, time.Now().UnixNano()))
		if err := os.CopyFS(kept, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
	}
	w := i.World.Clone()
	synctest.Test(t, func(*testing.T) {
		check.Resume(i.History, filepath.Join(dir, i.File), w, i.Further, i.Compact)
	})
	if len(w.Violations) > 0 {
		t.Errorf("%s: %s\n\t\t%s", i.What, kept, w.Brief())
	}
	if len(w.Violations) == 0 && kept != "" {
		if err := os.RemoveAll(kept); err != nil {
			t.Error(err)
		}
	}
	return len(w.Violations) == 0
}

func (i *image) keep(dir string) error {
	b, err := json.MarshalIndent(i, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, imageFile), b, 0o600)
}

// again looks at a copy of an image that was kept.
func again(t *testing.T, kept string) {
	dir := filepath.Join(check.FastDir(t), "image")
	if err := os.CopyFS(dir, os.DirFS(kept)); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, imageFile))
	if err != nil {
		t.Fatal(err)
	}
	i := &image{}
	if err := json.Unmarshal(b, i); err != nil {
		t.Fatal(err)
	}
	i.look(t, dir)
}
