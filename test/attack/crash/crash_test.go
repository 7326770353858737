//go:build linux && (amd64 || arm64)

package crash

import (
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmwatch/warmwatch/test/attack/check"
	"github.com/warmwatch/warmwatch/test/attack/recordfs"
)

var (
	pointsFlag = flag.Int("crash.points", 4, "operations of each workload to fail, in each way; 0: every one")
	seedsFlag  = flag.Int("crash.seeds", 1, "workloads")
	seedFlag   = flag.Uint64("crash.seed", 1, "seed of the first workload; 0 takes one from the clock")
	onlyFlag   = flag.Int("crash.only", 0, "the only operation to fail; 0: all that -crash.points says")
)

func TestMain(m *testing.M) { check.Main(m, map[string]func(*testing.T){"life": check.RunLife}) }

// A judge is asked about the operations that a way counts.
type judge func(n int, k recordfs.Kind) recordfs.Verdict

// A way in which an operation fails. It makes the judge of a run, and is told how
// to end the process.
type way struct {
	name string
	// kills: the process does not survive it.
	kills bool
	reads bool // It is about reading.
	judge func(n int, part bool, kill func()) judge
}

// counts reports whether an operation is one of those that are failed.
func (w way) counts(k recordfs.Kind) bool { return (k == recordfs.Read) == w.reads }

// refusals of a full disk are so many before there is space again. A file that cannot be
// replaced is tried again once a minute at least, so they take less time than the
// comparison waits.
const refusals = 12

// ways count operations from 1: either those that read, or all others.
var ways = []way{
	{"EIO", false, false, func(n int, part bool, _ func()) judge {
		return func(i int, _ recordfs.Kind) recordfs.Verdict {
			if i == n {
				return recordfs.Verdict{Errno: syscall.EIO, Part: part}
			}
			return recordfs.Verdict{}
		}
	}},
	{"EIO when it is read", false, true, func(n int, _ bool, _ func()) judge {
		return func(i int, _ recordfs.Kind) recordfs.Verdict {
			if i == n {
				return recordfs.Verdict{Errno: syscall.EIO}
			}
			return recordfs.Verdict{}
		}
	}},
	{"ENOSPC", false, false, func(n int, part bool, _ func()) judge {
		refused := 0
		return func(i int, k recordfs.Kind) recordfs.Verdict {
			if i >= n && refused < refusals && k.TakesSpace() {
				refused++
				return recordfs.Verdict{Errno: syscall.ENOSPC, Part: part && refused == 1}
			}
			return recordfs.Verdict{}
		}
	}},
	{"kill", true, false, func(n int, part bool, kill func()) judge {
		return func(i int, _ recordfs.Kind) recordfs.Verdict {
			if i != n {
				return recordfs.Verdict{}
			}
			kill()
			return recordfs.Verdict{Dead: true, Part: part}
		}
	}},
}

// TestEachOperationMayFail runs a workload once for each operation that it makes,
// and fails that one: with an error, as on a disk that is full for a while, or by
// killing the process there. Until a run meets fewer. The process goes on as if
// nothing had happened that handlers could notice, as long as it lives, and so does
// the next one.
//
// Replay with -crash.seed, -crash.seeds=1, -crash.only and -run .../workload/way.
func TestEachOperationMayFail(t *testing.T) {
	if err := recordfs.Available(); err != nil {
		t.Skip(err)
	}
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	for i := range uint64(*seedsFlag) {
		for _, w := range ways {
			t.Run(fmt.Sprintf("seed=%d/%s", seed+i, w.name), func(t *testing.T) { w.attack(t, seed+i) })
		}
	}
}

// attack fails one operation after the other.
func (w way) attack(t *testing.T, seed uint64) {
	points, bad := 0, 0
	fail := func(n int) (hit bool) {
		r := &run{way: w, seed: seed, n: n}
		hit, _ = r.hit(t)
		if points++; r.bad {
			bad++
		}
		return hit
	}
	switch {
	case *onlyFlag > 0:
		fail(*onlyFlag)
	case *pointsFlag == 0:
		n := 1
		for fail(n) {
			n++
		}
	default:
		r := &run{way: w, seed: seed, n: math.MaxInt} // Nothing fails.
		_, all := r.hit(t)
		rng := rand.New(rand.NewPCG(seed, uint64(len(w.name))))
		for range *pointsFlag {
			fail(1 + rng.IntN(all))
		}
	}
	t.Logf("%d points, %d bad", points, bad)
}

// A run is one run of the workload, with operation n failing.
type run struct {
	way  way
	seed uint64
	n    int
	bad  bool
}

func (r *run) errorf(t *testing.T, format string, args ...any) {
	t.Helper()
	r.bad = true
	t.Errorf("operation %d: %s", r.n, fmt.Sprintf(format, args...))
}

// hit makes the run and reports whether there was an operation n, and how many
// there were.
func (r *run) hit(t *testing.T) (hit bool, all int) {
	dir := check.FastDir(t)
	defer os.RemoveAll(dir) // There are many.
	mounted, behind := filepath.Join(dir, "mounted"), filepath.Join(dir, "behind")
	for _, d := range []string{mounted, behind} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	var p *check.Program
	started, failed := make(chan struct{}), ""
	judge := r.way.judge(r.n, (r.seed+uint64(r.n))%2 == 0, func() {
		<-started
		p.Kill()
	})
	f, err := recordfs.Mount(mounted, behind, 0, func(_ int, k recordfs.Kind, name string) recordfs.Verdict {
		if !r.way.counts(k) {
			return recordfs.Verdict{}
		}
		all++
		v := judge(all, k)
		if v.Errno != 0 || v.Dead {
			if !hit {
				failed = fmt.Sprintf("%s %s", k, name)
			}
			hit = true
		}
		return v
	})
	if err != nil {
		t.Fatal(err)
	}
	input, err := json.Marshal(check.Life{
		History: r.seed, Seed: r.seed, Sessions: 3, Errors: true, World: &check.World{},
		Path: filepath.Join(mounted, "cache", "cache.db"), Behind: filepath.Join(behind, "cache", "cache.db"), Marks: filepath.Join(mounted, recordfs.MarkFile),
	})
	if err != nil {
		t.Fatal(err)
	}
	p = check.StartProgram(t, "life", input)
	close(started)
	killed, err := p.Wait()
	if unmountErr := f.Unmount(); unmountErr != nil {
		t.Error(unmountErr)
	}
	world := &check.World{}
	for _, o := range f.Log() {
		if o.Kind == recordfs.Mark {
			if err := world.ApplyJSON(o.Data); err != nil {
				t.Fatal(err)
			}
		}
	}
	switch {
	case err != nil:
		r.errorf(t, "%s: %v", failed, err)
	case killed != (hit && r.way.kills) || (!killed && !world.Finished):
		r.errorf(t, "%s: killed: %v, finished: %v", failed, killed, world.Finished)
	}
	if len(world.Violations) > 0 {
		r.errorf(t, "%s: %s", failed, world.Brief())
		world.Violations = nil
	}
	if r.bad { // What follows would be of the same.
		return hit, all
	}
	synctest.Test(t, func(*testing.T) {
		check.Resume(r.seed, filepath.Join(behind, "cache", "cache.db"), world, r.n%12, r.n%3 == 0)
	})
	if len(world.Violations) > 0 {
		r.errorf(t, "%s, in the next process: %s", failed, world.Brief())
	}
	return hit, all
}
