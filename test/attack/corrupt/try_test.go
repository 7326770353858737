package corrupt

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmwatch/warmwatch/internal/testsupport/apiserver"
)

// way is how a file is damaged.
type way string

const (
	atRest     way = "at rest"
	serverAway way = "at rest, server away"
	control    way = "no damage" // Shows that the attack itself is right.
)

// patience is how long a repair may take: it begins when the file is opened, or when the damage is read.
const patience = 3 * time.Minute

// outcome is what became of a try.
type outcome struct {
	Try          int
	Way          way
	Image        string
	Class, Field string
	Damage       string
	Result       string // What the program did about it.
	Status       []string
	Problems     []problem
	PeakBytes    int64
	Milliseconds int64
}

// try is one damaged file and what happens to it.
type try struct {
	rng     *rand.Rand
	im      *image
	damage  *damage
	way     way
	path    string
	budget  int64
	servers map[kind]*apiserver.Server
	beliefs map[kind]map[string]map[string]int
	since   map[kind]int // Versions that the cache reaches before it has synced.
	out     outcome
	// announce hears what the try is about, before the damage is done.
	announce func(outcome)
}

// newTry decides what the try of a number is about.
func newTry(t *testing.T, images []string, dir string, seed uint64, number int, announce func(outcome)) *try {
	rng := rand.New(rand.NewPCG(seed, uint64(number)))
	im, err := loadImage(images[rng.IntN(len(images))])
	if err != nil {
		t.Fatal(err)
	}
	y := &try{rng: rng, im: im, path: filepath.Join(dir, "cache.db"), announce: announce}
	y.way = []way{atRest, serverAway}[number%2]
	if number%100 == 99 {
		y.way = control
	}
	y.budget = []int64{0, 64 << 10}[rng.IntN(2)]
	y.out = outcome{Try: number, Way: y.way, Image: y.im.Name}
	return y
}

// runTry runs a try.
func runTry(t *testing.T, images []string, dir string, seed uint64, number int, announce func(outcome)) outcome {
	y := newTry(t, images, dir, seed, number, announce)
	synctest.Test(t, func(*testing.T) { y.run() })
	return y.out
}

func (y *try) fail(kind string, err error) {
	y.out.Problems = append(y.out.Problems, problem{Kind: kind, Detail: err.Error()})
}

// run is the whole story. What is wrong is in y.out afterwards.
func (y *try) run() {
	y.servers, y.beliefs = map[kind]*apiserver.Server{}, map[kind]map[string]map[string]int{}
	for _, k := range kinds {
		y.servers[k] = y.im.server(k, y.rng)
		y.beliefs[k] = maps.Clone(y.im.Servers[k].Beliefs)
	}
	file := y.im.File
	if y.way != control {
		if !y.choose(file) {
			return
		}
		file = y.damage.applyTo(file)
	}
	// Where a process has died over the file, the next one finds it as that has left it.
	if _, err := os.Stat(y.path); err != nil {
		if err := os.WriteFile(y.path, file, 0o600); err != nil {
			y.fail("attack", err)
			return
		}
	}
	y.whileDown()
	var first *life
	if first = y.live(present, half, absent); first == nil {
		return
	}
	if y.way == serverAway {
		time.Sleep(20 * time.Second)
		synctest.Wait()
		y.reads("while the server is away", first)
		y.setDown(nil)
	}
	y.await(first, "first life")
	y.changes(30)
	y.await(first, "first life, after changes")
	if y.die(first) {
		y.secondLife()
	}
}

// choose makes the damage of a file.
func (y *try) choose(file []byte) bool {
	l, err := parse(file)
	if err != nil {
		y.fail("attack", err)
		return false
	}
	y.damage = (&damager{layout: l, rng: y.rng}).random()
	y.out.Class, y.out.Field, y.out.Damage = y.damage.Class, y.damage.Field, y.damage.String()
	y.announce(y.out)
	return true
}

// whileDown is what the server does meanwhile.
func (y *try) whileDown() {
	y.changes(y.rng.IntN(25))
	for _, s := range y.servers {
		if y.rng.IntN(3) == 0 {
			s.Compact()
		}
	}
	if y.way == serverAway {
		y.setDown(syscall.ECONNREFUSED)
	}
}

func (y *try) changes(n int) {
	for _, k := range kinds {
		y.servers[k].Advance(n)
	}
}

func (y *try) setDown(err error) {
	for _, k := range kinds {
		y.servers[k].SetDown(err)
	}
}

// live begins a life with some durable handlers, which go on where they were, and
// a plain one. Where damage may have cost deletions, the durable ones say what they know (D3).
func (y *try) live(names ...string) *life {
	y.reached()
	l, err := begin(y.path, y.budget, y.servers)
	if err != nil {
		y.fail("open", err)
		return nil
	}
	for _, k := range kinds {
		for _, name := range names {
			if err := l.addDurable(k, name, y.beliefs[k][name], y.damage != nil && !y.damage.ofOneObject()); err != nil {
				y.fail("add handler", err)
			}
		}
		if err := l.addPlain(k); err != nil {
			y.fail("add handler", err)
		}
	}
	l.run(y.servers, y.since)
	return l
}

// await waits until all is well, and notes what still is not.
func (y *try) await(l *life, step string) {
	var found []problem
	for waited, pause := time.Duration(0), 100*time.Millisecond; waited < patience; pause = min(pause*2, time.Minute) {
		time.Sleep(pause)
		synctest.Wait()
		waited += pause
		y.reads(step, l)
		if found = l.check(y.servers, waited > patience/10); len(found) == 0 {
			y.reached()
			return
		}
	}
	y.note(step, found)
	y.out.Status = append(y.out.Status, step+": "+l.status())
}

// reached: the cache has what the servers have now, or will have it when it has synced.
func (y *try) reached() {
	y.since = map[kind]int{}
	for _, k := range kinds {
		y.since[k] = y.servers[k].Version()
	}
}

// reads takes down what is wrong with what a life serves now.
func (y *try) reads(step string, l *life) {
	for _, k := range kinds {
		y.note(step, l.checkReads(k, y.servers[k], y.since[k]))
	}
}

// end ends a life in order.
func (y *try) end(l *life) error {
	err := l.end()
	for _, found := range l.atSync {
		y.note("when it had synced", found)
	}
	return err
}

// note takes down what is wrong.
func (y *try) note(step string, found []problem) {
	for _, p := range found {
		p.Detail = step + ": " + p.Detail
		y.out.Problems = append(y.out.Problems, p)
	}
}

// die ends a life, by force or in order, and keeps what its handlers believe.
func (y *try) die(l *life) bool {
	y.result(l)
	var killed []byte
	if y.rng.IntN(2) == 0 {
		time.Sleep(2 * time.Second) // Acknowledgements are stored.
		synctest.Wait()
		var err error
		if killed, err = os.ReadFile(y.path); err != nil {
			y.fail("attack", err)
		}
		l.freeze()
	}
	readOnly := l.readOnly()
	err := y.end(l)
	if err != nil && killed == nil && !readOnly { // S3, S7: what is found damaged in use is only read, and Close says so.
		y.fail("close", err)
	}
	for _, k := range kinds {
		for name, b := range l.durable[k] {
			y.beliefs[k][name], _, _ = b.state()
		}
	}
	if killed != nil {
		if err := os.WriteFile(y.path, killed, 0o600); err != nil {
			y.fail("attack", err)
			return false
		}
	}
	return true
}

// result says in a word what the program did.
func (y *try) result(l *life) {
	relists, disk := 0, true
	for _, informer := range l.informers {
		s := informer.Status()
		relists += s.Relists
		disk = disk && s.StartedFrom == "disk"
	}
	switch {
	case len(l.setAside()) > 0:
		y.out.Result = "file set aside"
	case !disk:
		y.out.Result = "not served from disk"
	case relists > 0:
		y.out.Result = "relisted"
	default:
		y.out.Result = "resumed"
	}
}

// secondLife begins with what the first one left: it must have repaired all.
func (y *try) secondLife() {
	y.changes(15)
	for _, s := range y.servers {
		if y.rng.IntN(2) == 0 {
			s.Compact()
		}
	}
	l := y.live(durableNames...)
	if l == nil {
		return
	}
	y.await(l, "second life")
	y.changes(10)
	y.await(l, "second life, after changes")
	l.freeze()
	if err := y.end(l); err != nil {
		y.fail("close", fmt.Errorf("second life: %w", err))
	}
}
