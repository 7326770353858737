package corrupt

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	// memoryLimit is what no try may take.
	memoryLimit = memoryFactor * 512 << 20
	// perChild tries are run by one process, if it survives them.
	perChild = 10
	// triesPerImages is how many tries share a history.
	triesPerImages = 1000
)

// TestCorrupt damages files. Nothing is served that never was (S2), List is never shorter after HasSynced (A7), no
// process hangs or takes more than 512 MiB, and no more than three die over one file (S3). In the end the store and its
// indices equal the server, and so do the objects that every handler was notified of.
func TestCorrupt(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	h := newHunt(t, seed)
	h.images = h.makeImages()
	if *forFlag > 0 {
		h.until = time.Now().Add(*forFlag).UnixMilli()
	}
	from, to := 0, *triesFlag
	if *onlyFlag >= 0 {
		from, to = *onlyFlag, *onlyFlag+1
	}
	h.run(from, to)
	t.Logf("seed %d\n%s", seed, h.count)
	if h.count.tries == 0 {
		t.Error("no file was damaged")
	}
	h.verdict()
}

// TestDeathsHangsAndMemoryAreNoticed, each as one try that has failed, after which
// the next ones are run.
func TestDeathsHangsAndMemoryAreNoticed(t *testing.T) {
	all := map[string]string{"die": "died", "hang": "hung", "eat": "memory"}
	if residentBytes(os.Getpid()) == 0 {
		delete(all, "eat") // Not known here; the tries themselves say it at their end.
	}
	for misbehave, want := range all {
		h := newHunt(t, 1)
		h.images, h.misbehave = h.makeImages(), misbehave
		h.memoryLimit, h.deadline = memoryFactor*200<<20, time.Minute
		if want == "hung" {
			h.deadline = time.Second
		}
		a := assignment{Images: h.images, Dir: h.dir, Seed: 1, From: 5, To: 8}
		for a.From == 5 && len(h.count.failed) == 0 {
			a.From = h.child(a)
		}
		next := a.From
		if next != 6 || len(h.count.failed) != 1 || h.count.failed[0] != 5 {
			t.Errorf("%s: the next try is %d, failed %v, want 6 and [5]", misbehave, next, h.count.failed)
		}
		if kind := want + " |  | no damage"; h.count.kinds[kind] == nil {
			t.Errorf("%s: %v, want %q", misbehave, h.count.kinds, kind)
		}
	}
}

func newHunt(t *testing.T, seed uint64) *hunt {
	return &hunt{t: t, seed: seed, dir: workDir(t), count: newCount(), memoryLimit: memoryLimit, deadline: *deadline}
}

// workDir is in memory where that is possible: tries commit thousands of times.
func workDir(t *testing.T) string {
	t.Helper()
	parent := ""
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		parent = "/dev/shm"
	}
	dir, err := os.MkdirTemp(parent, "warmwatch-corrupt-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// hunt runs tries in child processes.
type hunt struct {
	t    *testing.T
	seed uint64
	// What no try may exceed.
	memoryLimit int64
	deadline    time.Duration
	misbehave   string // For the test of this test.
	until       int64  // In milliseconds since 1970; 0: for ever.
	dir         string
	images      string

	mu    sync.Mutex
	count *count
	died  map[int]int // How many processes, by try.
}

// makeImages returns a directory with images.
func (h *hunt) makeImages() string {
	if *imagesFlag != "" {
		return *imagesFlag
	}
	dir := h.dir + "/images"
	if err := os.Mkdir(dir, 0o700); err != nil {
		h.t.Fatal(err)
	}
	for n := range 1 + *triesFlag/triesPerImages {
		for _, im := range newImages(h.t, h.dir, h.seed+uint64(n)) {
			if err := im.save(dir); err != nil {
				h.t.Fatal(err)
			}
		}
	}
	return dir
}

// run runs the tries, some processes at a time.
func (h *hunt) run(from, to int) {
	ranges := make(chan assignment)
	var wg sync.WaitGroup
	for range *workers {
		wg.Go(func() {
			for a := range ranges {
				for a.From < a.To && !h.late() {
					a.From = h.child(a)
				}
			}
		})
	}
	for ; from < to && !h.late(); from += perChild {
		ranges <- assignment{Images: h.images, Dir: h.dir, Seed: h.seed, From: from, To: min(to, from+perChild), Until: h.until}
	}
	close(ranges)
	wg.Wait()
}

// late reports whether no more files are to be damaged.
func (h *hunt) late() bool { return isLate(h.until) }

func isLate(until int64) bool { return until > 0 && time.Now().UnixMilli() > until }

// child runs one process and returns the first try that it did not come to.
func (h *hunt) child(a assignment) (next int) {
	a.Misbehave = h.misbehave
	work, err := json.Marshal(a)
	if err != nil {
		panic(err) // A struct of strings and numbers.
	}
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	cmd := exec.Command(exe, "-test.run=^TestTries$", "-test.timeout=0")
	cmd.Env = append(os.Environ(), childEnv+"="+string(work), "GORACE=halt_on_error=1", "GOTRACEBACK=all")
	stderr := &tail{}
	cmd.Stderr = stderr
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		h.add(outcome{Try: a.From, Problems: []problem{{Kind: "attack", Detail: err.Error()}}})
		return a.To
	}
	g := h.guard(cmd)
	next, current := a.From, outcome{Try: a.From}
	for line := range lines(stdout) {
		var m message
		rest, isMessage := strings.CutPrefix(line, messagePrefix)
		if !isMessage || json.Unmarshal([]byte(rest), &m) != nil {
			fmt.Fprintln(stderr, line)
			continue
		}
		g.alive()
		switch {
		case m.Begin != nil:
			next, current = *m.Begin, outcome{Try: *m.Begin}
		case m.Is != nil:
			current = *m.Is
		case m.End != nil:
			h.add(*m.End)
			next = m.End.Try + 1
		}
	}
	err = cmd.Wait()
	reason := g.stop()
	if err == nil && reason == "" && (next == a.To || h.late()) {
		return a.To
	}
	if reason == "" {
		reason = "died"
		if h.deaths(next) <= maxDeaths {
			return next // The same file once more.
		}
	}
	current.Result = "process ended"
	current.Problems = []problem{{Kind: reason, Detail: fmt.Sprintf("%v\n%s", err, stderr)}}
	h.add(current)
	return max(next, current.Try+1)
}

// maxDeaths is how many processes may die over a file.
const maxDeaths = 3

// deaths counts one more over the file of a try.
func (h *hunt) deaths(try int) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.died == nil {
		h.died = map[int]int{}
	}
	h.died[try]++
	return h.died[try]
}

func (h *hunt) add(o outcome) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if o.PeakBytes > h.memoryLimit {
		o.Problems = append(o.Problems, problem{Kind: "memory", Detail: fmt.Sprintf("%d MiB", o.PeakBytes>>20)})
	}
	h.count.add(o)
	if len(o.Problems) > 0 {
		p := o.Problems[0]
		h.t.Logf("try %d (%s, image %s): %s\n\t%s: %s\n\t%s", o.Try, o.Way, o.Image, o.Damage, p.Kind, p.Detail, strings.Join(o.Status, "\n\t"))
	}
}

// verdict fails the test if a try did, and says how to have it again.
func (h *hunt) verdict() {
	if len(h.count.failed) == 0 {
		return
	}
	kept := *imagesFlag
	if kept == "" {
		kept = *keepFlag
		var err error
		if kept == "" {
			kept, err = os.MkdirTemp("", "warmwatch-corrupt-images-")
		}
		if err == nil {
			err = os.CopyFS(kept, os.DirFS(h.images))
		}
		if err != nil {
			h.t.Error(err)
		}
	}
	h.t.Errorf("%d of %d tries have failed, the first of them %d; again: -corrupt.tries=%d -corrupt.seed=%d -corrupt.only=%d, and with the same binary -corrupt.images=%s",
		len(h.count.failed), h.count.tries, h.count.failed[0], *triesFlag, h.seed, h.count.failed[0], kept)
}

// lines yields what is read until the end.
func lines(r io.Reader) func(func(string) bool) {
	return func(yield func(string) bool) {
		in := bufio.NewReader(r)
		for {
			line, err := in.ReadString('\n')
			if line != "" && !yield(strings.TrimSuffix(line, "\n")) || err != nil {
				return
			}
		}
	}
}

// tail keeps the beginning and the end of what is written.
type tail struct {
	mu         sync.Mutex
	head, rest bytes.Buffer
}

func (b *tail) Write(p []byte) (int, error) {
	const most = 3000
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.head.Len() < most {
		return b.head.Write(p)
	}
	n, err := b.rest.Write(p)
	if b.rest.Len() > 4*most {
		b.rest.Next(b.rest.Len() - most)
	}
	return n, err
}

func (b *tail) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.head.String() + b.rest.String()
}

// warden ends a process that hangs or takes too much memory.
type warden struct {
	h    *hunt
	cmd  *exec.Cmd
	done chan struct{}
	wg   sync.WaitGroup

	mu     sync.Mutex
	heard  time.Time
	reason string
}

func (h *hunt) guard(cmd *exec.Cmd) *warden {
	g := &warden{h: h, cmd: cmd, done: make(chan struct{}), heard: time.Now()}
	g.wg.Go(g.run)
	return g
}

func (g *warden) alive() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.heard = time.Now()
}

func (g *warden) run() {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-g.done:
			return
		case <-tick.C:
		}
		g.mu.Lock()
		hangs := time.Since(g.heard) > g.h.deadline
		g.mu.Unlock()
		switch {
		case residentBytes(g.cmd.Process.Pid) > g.h.memoryLimit:
			g.end("memory", os.Kill)
			return
		case hangs:
			g.end("hung", quit) // Go prints its goroutines.
			return
		}
	}
}

func (g *warden) end(reason string, signal os.Signal) {
	g.mu.Lock()
	g.reason = reason
	g.mu.Unlock()
	_ = g.cmd.Process.Signal(signal) // It may have ended.
	if signal == os.Kill {
		return
	}
	select {
	case <-g.done:
	case <-time.After(10 * time.Second):
		_ = g.cmd.Process.Kill()
	}
}

// stop says why the process was ended, if it was.
func (g *warden) stop() string {
	close(g.done)
	g.wg.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.reason
}
