package corrupt

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"go.uber.org/goleak"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"
)

var (
	forFlag    = flag.Duration("corrupt.for", 20*time.Second, "time after which no more files are damaged; 0: none")
	triesFlag  = flag.Int("corrupt.tries", 150, "number of damaged files")
	seedFlag   = flag.Uint64("corrupt.seed", 1, "seed of everything random; 0: another one each time")
	onlyFlag   = flag.Int("corrupt.only", -1, "run the try of this number only")
	imagesFlag = flag.String("corrupt.images", "", "directory with the images of an earlier run of this binary (of others the schema version differs); empty: new ones are made")
	keepFlag   = flag.String("corrupt.keep", "", "directory in which images are kept if a try fails; empty: a new one in the directory for temporary files")
	workers    = flag.Int("corrupt.processes", 2, "number of processes at a time")
	deadline   = flag.Duration("corrupt.deadline", 2*time.Minute, "time of a try, after which it hangs")
)

// childEnv holds the assignment of a test binary that is to run tries.
const childEnv = "WARMWATCH_CORRUPT_CHILD"

func TestMain(m *testing.M) {
	// The default handlers include one that sleeps by a clock which began
	// outside of the bubble that it is called in: for decades.
	utilruntime.ErrorHandlers = nil
	klog.SetLogger(logr.Discard())
	if os.Getenv(childEnv) != "" {
		os.Exit(m.Run())
	}
	goleak.VerifyTestMain(m)
}

// assignment is what a child is to do.
type assignment struct {
	Images, Dir string
	Seed        uint64
	From, To    int
	Until       int64 // As in hunt.
	Misbehave   string
}

// message is a line that a child writes: a try begins, is about to do its damage,
// or has ended.
type message struct {
	Begin *int     `json:",omitempty"`
	Is    *outcome `json:",omitempty"`
	End   *outcome `json:",omitempty"`
}

// messagePrefix tells messages from what package testing prints.
const messagePrefix = "corrupt: "

// TestTries is what a child runs: the tries that it was assigned, one after the
// other. By itself it runs some without damage, which shows that the attack is
// right.
func TestTries(t *testing.T) {
	work := os.Getenv(childEnv)
	if work == "" {
		dir := t.TempDir()
		for _, im := range newImages(t, t.TempDir(), 1) {
			if err := im.save(dir); err != nil {
				t.Fatal(err)
			}
		}
		images, err := imagesIn(dir)
		if err != nil {
			t.Fatal(err)
		}
		for n := range 4 {
			o := runTry(t, images, t.TempDir(), 1, 100*n+99, func(outcome) {})
			if o.Way != control || len(o.Problems) > 0 {
				t.Errorf("try %d, %s: %+v\n%v", o.Try, o.Way, o.Problems, o.Status)
			}
		}
		return
	}
	var a assignment
	if err := json.Unmarshal([]byte(work), &a); err != nil {
		t.Fatal(err)
	}
	images, err := imagesIn(a.Images)
	if err != nil {
		t.Fatal(err)
	}
	misbehave(t, a)
	for n := a.From; n < a.To && !isLate(a.Until); n++ {
		say(t, message{Begin: &n})
		dir := filepath.Join(a.Dir, fmt.Sprint(n))
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		resetPeak()
		begin, reserved := time.Now(), heapBytes()
		o := runTry(t, images, dir, a.Seed, n, func(o outcome) { say(t, message{Is: &o}) })
		// What is allocated and not touched counts, too: it depends on chance whether it is.
		o.PeakBytes, o.Milliseconds = max(peakBytes(os.Getpid()), heapBytes()-reserved), time.Since(begin).Milliseconds()
		say(t, message{End: &o})
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		debug.FreeOSMemory() // The next try's peak is its own.
	}
}

// say tells the parent.
func say(t *testing.T, m message) {
	t.Helper()
	b, err := json.Marshal(m)
	if err == nil {
		_, err = fmt.Printf("\n%s%s\n", messagePrefix, b)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// misbehave does what a program under attack must not do.
func misbehave(t *testing.T, a assignment) {
	t.Helper()
	if a.Misbehave != "" {
		say(t, message{Begin: &a.From})
	}
	switch a.Misbehave {
	case "die":
		go func() { panic("misbehaving") }()
		select {}
	case "hang":
		time.Sleep(time.Hour)
	case "eat":
		for eaten := [][]byte{}; ; time.Sleep(time.Millisecond) {
			eaten = append(eaten, bytes.Repeat([]byte{1}, 1<<20))
		}
	}
}

// heapBytes is the address space that Go has for its heap. It does not shrink.
func heapBytes() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapSys)
}
