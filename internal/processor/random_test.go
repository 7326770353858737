package processor

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/queue"
)

var (
	randomSeed   = flag.Uint64("random.seed", 1, "seed of the first round")
	randomRounds = flag.Int("random.rounds", 100, "rounds of the random test")
)

// TestWhoeverGotEverythingBelievesWhatIsTrue changes objects while handlers come and go and are slow, in their
// initial lists and behind them, while commits are slow, over restarts and crashes, with bounds that are small or not.
// A handler that has got everything believes what the store has (D1, D2, D3), and a durable one was notified of each
// deletion. Unless something is delivered again, no version goes back.
//
// Where deletions were dropped (D6), durable handlers get at the end what is missing of Known.
func TestWhoeverGotEverythingBelievesWhatIsTrue(t *testing.T) {
	for i := range testsupport.Rounds(*randomRounds, 20) {
		seed := *randomSeed + uint64(i)
		synctest.Test(t, func(t *testing.T) {
			defer func() {
				if t.Failed() { // Then Test does not return.
					t.Logf("replay with -run %s -random.seed %d -random.rounds 1", t.Name(), seed)
				}
			}()
			newRandomLists(t, seed).run()
		})
	}
}

type objectState struct {
	uid types.UID
	rv  int
}

type randomLists struct {
	*world
	rng      *rand.Rand
	rv, uids int
	server   map[string]objectState
	backlog  int64 // MaxBacklogBytes.
	dropped  bool  // Some deletions were dropped.
	leftOut  string
	durable  []*believer
	plain    []*believer
}

func newRandomLists(t *testing.T, seed uint64) *randomLists {
	f := &randomLists{world: newWorld(t), rng: rand.New(rand.NewPCG(seed, 1)), server: map[string]objectState{}}
	f.persist.CommitInterval = time.Duration(1+f.rng.IntN(500)) * time.Millisecond
	f.backlog = []int64{0, 0, 2 * updateBytes, 8 * updateBytes}[f.rng.IntN(4)]
	f.queue.MaxBacklogBytes = f.backlog
	logger := funcr.New(func(_, args string) { f.dropped = f.dropped || strings.Contains(args, `"dropped"=`) }, funcr.Options{})
	f.queue.Logger = &logger
	f.queue.TailBytes = []int{0, 1, 3 * updateBytes}[f.rng.IntN(3)]
	f.restart()
	if f.rng.IntN(4) > 0 { // Else deltas are hardly ever stored.
		f.durable = []*believer{f.believer("d"), f.believer("e")}
	}
	for range f.rng.IntN(12) {
		f.change()
	}
	return f
}

func (f *randomLists) run() {
	f.begin()
	for range 5 + f.rng.IntN(80) {
		f.step()
	}
	f.change()
	if f.dropped {
		f.restart()
		f.begin()
	}
	f.store.leaveOut(f.leftOut, false)
	for _, b := range f.durable {
		b.add()
	}
	time.Sleep(time.Hour)
	for _, b := range slices.Concat(f.durable, f.plain) {
		if b.l != nil {
			b.check()
		}
	}
}

func (f *randomLists) step() {
	b := f.believer("") // Or another plain one.
	if len(f.durable) > 0 {
		b = f.durable[f.rng.IntN(len(f.durable))]
	}
	switch f.rng.IntN(24) {
	case 0, 1:
		b.remove()
		time.Sleep(time.Duration(max(0, f.rng.IntN(1000)-500)) * time.Millisecond)
		b.add()
	case 2, 3:
		b.add()
	case 4:
		b = f.believer("")
		b.add()
	case 5:
		f.forget(b)
	case 6, 7:
		f.commitTakes(time.Duration(f.rng.Int64N(int64(3 * time.Second))))
	case 8, 9, 10:
		time.Sleep(time.Duration(f.rng.IntN(600)) * time.Millisecond)
	case 11:
		f.store.leaveOut(f.leftOut, false)
		f.leftOut = f.key()
		f.store.leaveOut(f.leftOut, f.rng.IntN(2) == 0)
	case 12:
		if f.p.ShouldResync() {
			f.p.Resync()
		}
	case 13:
		if f.rng.IntN(2) == 0 {
			f.restart()
		} else {
			f.crash()
		}
		f.begin()
	default:
		f.change()
		time.Sleep(time.Duration(max(0, f.rng.IntN(90)-60)) * time.Millisecond)
	}
}

// begin begins a process, with some handlers.
func (f *randomLists) begin() {
	synced := make(chan struct{})
	f.p.opts.Synced = synced
	f.p.checkPeriod = time.Second
	f.plain = nil
	for _, b := range f.durable {
		b.mu.Lock()
		b.l, b.again = nil, true
		b.mu.Unlock()
	}
	for _, b := range append([]*believer{f.believer("")}, f.durable...) {
		if f.rng.IntN(4) > 0 {
			b.add()
		}
	}
	f.start()
	time.AfterFunc(time.Duration(max(0, f.rng.IntN(2000)-1000))*time.Millisecond, func() { close(synced) })
}

// crash ends a process, and begins the next one with the file as it is now.
func (f *randomLists) crash() {
	for _, b := range f.durable {
		b.mu.Lock()
	}
	path := testsupport.Path(f.t)
	testsupport.CopyFile(f.t, f.db.Path(), path)
	for _, b := range f.durable {
		b.process++ // It gets nothing more from the process that ends.
		b.mu.Unlock()
	}
	f.path = path
	f.restart()
	f.server = map[string]objectState{}
	for _, obj := range f.ix.List() {
		cm := obj.(*corev1.ConfigMap)
		f.server[cm.Name] = objectState{cm.UID, versionOf(cm)}
	}
}

func (f *randomLists) forget(b *believer) {
	if b.name == "" {
		return
	}
	err := f.world.forget(b.name)
	if b.l == nil && err == nil {
		// A crash must not bring the name back, whose handler knows nothing of what came before.
		if err := f.db.Flush(); err != nil {
			f.t.Fatal(err)
		}
		b.reset()
	} else if !errors.Is(err, queue.ErrInUse) {
		f.t.Errorf("Forget: %v", err)
	}
}

func (f *randomLists) key() string { return fmt.Sprintf("o%02d", f.rng.IntN(11)) }

// change makes a change of the server's, which comes at once.
func (f *randomLists) change() {
	key := f.key()
	old, existed := f.server[key]
	if existed && f.rng.IntN(2) == 0 {
		delete(f.server, key)
		f.delete(key)
		return
	}
	f.rv++
	now := objectState{old.uid, f.rv}
	if !existed || f.rng.IntN(5) == 0 {
		f.uids++
		now.uid = types.UID(fmt.Sprint("uid-", f.uids))
	}
	f.server[key] = now
	f.set(key, string(now.uid), now.rv)
}

// A believer takes what its handlers get for true. That of a name is one for all processes.
type believer struct {
	f     *randomLists
	name  string // Of a durable one.
	epoch int
	l     *listener // Nil: it has no handler now.
	pause time.Duration

	mu        sync.Mutex
	process   int  // Callbacks of others are not heard.
	again     bool // It may get something again.
	last      map[string]objectState
	knows     map[types.UID]string // The names of those whose deletion it was not notified of.
	greatest  map[string]int
	delivered []string
}

func (f *randomLists) believer(name string) *believer {
	b := &believer{f: f, name: name, again: f.backlog > 0}
	b.reset()
	if f.rng.IntN(3) > 0 {
		b.pause = time.Duration(f.rng.IntN(700)) * time.Millisecond
	}
	return b
}

func (b *believer) reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last, b.knows, b.greatest = map[string]objectState{}, map[types.UID]string{}, map[string]int{}
}

func (b *believer) add() {
	if b.l != nil {
		return
	}
	name := Name{}
	if b.name != "" {
		if b.f.rng.IntN(6) == 0 {
			b.epoch++
		}
		name = named(b.name).epoch(fmt.Sprint(b.epoch))
		if b.f.backlog > 0 {
			name.Known = b.known
		}
	}
	o := cache.HandlerOptions{}
	if b.f.rng.IntN(3) == 0 {
		period := time.Second
		o.ResyncPeriod = &period
	}
	r, err := b.f.p.Add(&believing{b, b.process}, name, o)
	if errors.Is(err, queue.ErrInUse) { // A callback of the one before has not returned.
		time.Sleep(time.Second)
		b.add()
		return
	}
	if err != nil {
		b.f.t.Fatal(err)
	}
	b.l = r.(*listener)
	if b.name == "" {
		b.f.plain = append(b.f.plain, b)
	}
}

// remove removes the handler, perhaps in its list.
func (b *believer) remove() {
	if b.l == nil {
		return
	}
	b.mu.Lock()
	b.again = true
	b.mu.Unlock()
	b.f.remove(b.l)
	b.l = nil
}

func (b *believer) known(context.Context) (names []cache.ObjectName, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for key := range b.last {
		names = append(names, cache.ObjectName{Name: key})
	}
	return names, nil
}

// check compares when all is delivered.
func (b *believer) check() {
	b.mu.Lock()
	defer b.mu.Unlock()
	server, uids := b.f.server, map[types.UID]string{}
	for key, o := range server {
		uids[o.uid] = key
	}
	if !maps.Equal(b.last, server) || b.name != "" && !b.f.dropped && !maps.Equal(b.knows, uids) {
		b.f.t.Errorf("D2: %q believes in %v and was not notified of the deletion of all but %v, expected %v; got %q", b.name, b.last, b.knows, server, b.delivered)
	}
}

// believing is the handler of a believer in one process.
type believing struct {
	*believer
	of int
}

func (h *believing) OnAdd(obj any, _ bool)  { h.note("add", obj, true) }
func (h *believing) OnUpdate(_, newObj any) { h.note("update", newObj, true) }
func (h *believing) OnDelete(obj any)       { h.note("delete", obj, false) }

func (h *believing) note(what string, obj any, exists bool) {
	time.Sleep(h.pause) // Virtual time.
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.of != h.process {
		return
	}
	gone, unknown := obj.(cache.DeletedFinalStateUnknown)
	if unknown && gone.Obj == nil {
		delete(h.last, gone.Key)
		return
	} else if unknown {
		obj = gone.Obj
	}
	cm := obj.(*corev1.ConfigMap)
	rv := versionOf(cm)
	h.delivered = append(h.delivered, what+" "+nameOf(cm))
	if rv < h.greatest[cm.Name] && !h.again {
		h.f.t.Errorf("D2: %q got %s after version %d", h.name, h.delivered[len(h.delivered)-1], h.greatest[cm.Name])
	}
	h.greatest[cm.Name] = max(h.greatest[cm.Name], rv)
	if exists {
		h.last[cm.Name], h.knows[cm.UID] = objectState{cm.UID, rv}, cm.Name
	} else {
		delete(h.last, cm.Name)
		delete(h.knows, cm.UID)
	}
}
