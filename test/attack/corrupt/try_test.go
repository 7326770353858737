package corrupt

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
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
	inUse      way = "in use"
	control    way = "no damage" // Shows that the attack itself is right.
)

// A damage at rest is repaired at once, or by the check of all records that
// follows a start. One in use is repaired when it is read, or within the hour.
const (
	patienceAtRest = 3 * time.Minute
	patienceInUse  = 130 * time.Minute
)

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
	out     outcome
	aside   bool
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
	y.way = []way{atRest, serverAway, inUse}[number%3]
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
	if y.way == atRest || y.way == serverAway {
		if !y.choose(file) {
			return
		}
		file = y.damage.applyTo(file)
	}
	if err := os.WriteFile(y.path, file, 0o600); err != nil {
		y.fail("attack", err)
		return
	}
	y.whileDown()
	var first *life
	if first = y.live(present, half, absent); first == nil {
		return
	}
	switch y.way {
	case serverAway:
		time.Sleep(20 * time.Second)
		synctest.Wait()
		y.note(first, "while the server is away", first.checkServed(y.im, y.servers))
		y.setDown(nil)
		y.await(first, "first life", patienceAtRest)
	case inUse:
		y.await(first, "before the damage", patienceAtRest)
		y.damageInUse(first)
	default:
		y.await(first, "first life", patienceAtRest)
	}
	if y.way != inUse {
		y.note(first, "first life", first.checkUntold(y.im))
	}
	y.changes(30)
	y.await(first, "first life, after changes", patienceAtRest)
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
	y.damage = (&damager{layout: l, rng: y.rng, older: y.im.Older}).random()
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
// a plain one.
func (y *try) live(names ...string) *life {
	l, err := begin(y.path, y.budget, y.servers)
	if err != nil {
		y.fail("open", err)
		return nil
	}
	for _, k := range kinds {
		for _, name := range names {
			if err := l.addDurable(k, name, y.beliefs[k][name]); err != nil {
				y.fail("add handler", err)
			}
		}
		if err := l.addPlain(k); err != nil {
			y.fail("add handler", err)
		}
	}
	l.run()
	return l
}

// damageInUse damages the file while events come, so that bbolt reads and writes
// what is damaged.
func (y *try) damageInUse(l *life) {
	y.changes(y.rng.IntN(20))
	time.Sleep(time.Duration(y.rng.IntN(1200)) * time.Millisecond)
	synctest.Wait() // The committer does not write just now.
	file, err := os.ReadFile(y.path)
	if err != nil {
		y.fail("attack", err)
		return
	}
	if !y.choose(file) {
		return
	}
	if err := y.damage.applyToOpen(y.path); err != nil {
		y.fail("attack", err)
		return
	}
	y.changes(20)
	y.await(l, "after the damage", patienceInUse)
}

// await waits until all is well, and notes what still is not.
func (y *try) await(l *life, step string, patience time.Duration) {
	var found []problem
	for waited, pause := time.Duration(0), 100*time.Millisecond; waited < patience; pause = min(pause*2, time.Minute) {
		time.Sleep(pause)
		synctest.Wait()
		waited += pause
		worthAll := waited > patience/10 // Perhaps it will stay so.
		if found = l.check(y.servers, worthAll); len(found) == 0 {
			return
		}
		if worthAll && y.allExcused(l, found) {
			break
		}
	}
	y.note(l, step, found)
	y.out.Status = append(y.out.Status, step+": "+l.status())
}

// note takes down what is wrong.
func (y *try) note(l *life, step string, found []problem) {
	y.aside = y.aside || len(l.setAside()) > 0
	for _, p := range found {
		p.Excused = y.excuse(p)
		p.Detail = step + ": " + p.Detail
		y.out.Problems = append(y.out.Problems, p)
	}
}

func (y *try) allExcused(l *life, found []problem) bool {
	y.aside = y.aside || len(l.setAside()) > 0
	return !slices.ContainsFunc(found, func(p problem) bool { return y.excuse(p) == "" })
}

// excuse says why something is not promised: deletions of what was nowhere else, and
// objects that are found damaged only after HasSynced, while nobody can be asked for them.
func (y *try) excuse(p problem) string {
	switch {
	case y.damage == nil:
		return ""
	case p.Kind == "served: unreadable objects missing":
		return "objects missing while the server is away: their records cannot be read, ListKeys has them"
	case p.Kind == "served: objects missing" && y.aside:
		return "objects missing while the server is away: the file was found damaged, and set aside, after HasSynced"
	}
	plain := p.Kind == "plain handler: deletion not told"
	if !plain && p.Kind != "handler: deletion not told" {
		return ""
	}
	key := p.Detail[lastSpace(p.Detail)+1:]
	switch {
	case y.aside && y.way == inUse:
		return "deletions not told: the file was set aside in use, for damage in " + y.damage.Class
	case y.aside:
		return "deletions not told: the file was set aside at a start"
	case y.damage.informer:
		return "deletions not told: all that the informer had in the file was destroyed"
	case !plain && (y.damage.destroyedAll || y.damage.destroyed[key]):
		return "deletions not told: the record of the object itself was destroyed"
	}
	return ""
}

func lastSpace(s string) int {
	for i := len(s) - 1; i >= 0; i-- {
		if s[i] == ' ' {
			return i
		}
	}
	return -1
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
	err := l.end()
	if err != nil && killed == nil {
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
	y.aside = y.aside || len(l.setAside()) > 0
	relists, disk := 0, true
	for _, informer := range l.informers {
		s := informer.Status()
		relists += s.Relists
		disk = disk && s.StartedFrom == "disk"
	}
	switch {
	case y.aside:
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
	y.await(l, "second life", patienceAtRest)
	y.changes(10)
	y.await(l, "second life, after changes", patienceAtRest)
	l.freeze()
	if err := l.end(); err != nil {
		y.fail("close", fmt.Errorf("second life: %w", err))
	}
}
