package processor

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/indexer"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/persist"
	"github.com/warmwatch/warmwatch/queue"
)

var (
	randomSeed   = flag.Uint64("random.seed", 1, "seed of the first round")
	randomRounds = flag.Int("random.rounds", 100, "rounds of the random test")
)

// TestRandomLists changes objects while handlers are in their initial lists, each chunk of which is one object, while
// commits are slow. No version may go back (D2), what a handler was told last of each key is what there is, and a
// durable one was told of each deletion (D2).
func TestRandomLists(t *testing.T) {
	defer func(n int) { indexer.ChunkObjects = n }(indexer.ChunkObjects)
	indexer.ChunkObjects = 1
	for i := range testsupport.Rounds(*randomRounds, 20) {
		seed := *randomSeed + uint64(i)
		synctest.Test(t, func(t *testing.T) {
			defer func() {
				if t.Failed() { // Then Test does not return.
					t.Logf("replay with -run TestRandomLists -random.seed %d -random.rounds 1", seed)
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
	t             *testing.T
	rng           *rand.Rand
	rv, uids      int
	server        map[string]objectState
	db            *persist.DB
	p             *Processor
	ix            *indexer.Indexer
	believers     []*randomBeliever
	durable, e    *randomBeliever
	plain, plain2 *randomBeliever
}

// randomBeliever is a handler, and what it, and those before it, have been told.
type randomBeliever struct {
	f          *randomLists
	name       string // Of a durable one.
	registered cache.ResourceEventHandlerRegistration
	pause      time.Duration
	addedAgain bool

	mu       sync.Mutex
	last     map[string]objectState
	knows    map[types.UID]bool // Whose deletion it has not been told of.
	greatest map[string]int
	told     []string
}

func newRandomLists(t *testing.T, seed uint64) *randomLists {
	f := &randomLists{t: t, rng: rand.New(rand.NewPCG(seed, 1)), server: map[string]objectState{}}
	for range f.rng.IntN(40) {
		f.change()
	}
	f.durable, f.e, f.plain, f.plain2 = f.believer("d"), f.believer("e"), f.believer(""), f.believer("")
	return f
}

func (f *randomLists) believer(name string) *randomBeliever {
	b := &randomBeliever{f: f, name: name, last: map[string]objectState{}, knows: map[types.UID]bool{}, greatest: map[string]int{}}
	if f.rng.IntN(3) > 0 {
		b.pause = time.Duration(f.rng.IntN(700)) * time.Millisecond
	}
	f.believers = append(f.believers, b)
	return b
}

func (b *randomBeliever) note(what string, obj any, exists bool) {
	time.Sleep(b.pause) // Virtual time.
	tomb, lost := obj.(cache.DeletedFinalStateUnknown)
	if lost {
		obj = tomb.Obj
	}
	cm := obj.(*corev1.ConfigMap)
	rv, _ := strconv.Atoi(cm.ResourceVersion)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.told = append(b.told, fmt.Sprintf("%s %s %s@%d", what, cm.Name, cm.UID, rv))
	if rv < b.greatest[cm.Name] && !lost && !b.addedAgain {
		b.f.t.Errorf("D2: %q was told %s after version %d", b.name, b.told[len(b.told)-1], b.greatest[cm.Name])
	}
	b.greatest[cm.Name] = max(b.greatest[cm.Name], rv)
	if exists {
		b.last[cm.Name], b.knows[cm.UID] = objectState{cm.UID, rv}, true
	} else {
		delete(b.last, cm.Name)
		delete(b.knows, cm.UID)
	}
}

func (b *randomBeliever) OnAdd(obj any, _ bool)  { b.note("add", obj, true) }
func (b *randomBeliever) OnUpdate(_, newObj any) { b.note("update", newObj, true) }
func (b *randomBeliever) OnDelete(obj any)       { b.note("delete", obj, false) }

// check compares when all is told.
func (b *randomBeliever) check() {
	b.mu.Lock()
	defer b.mu.Unlock()
	server, uids := b.f.server, map[types.UID]bool{}
	for _, o := range server {
		uids[o.uid] = true
	}
	if !maps.Equal(b.last, server) || b.name != "" && !maps.Equal(b.knows, uids) {
		b.f.t.Errorf("D2: %q believes in %v and has not been told of the deletion of all but %v, expected %v; told %q", b.name, b.last, b.knows, server, b.told)
	}
}

func (f *randomLists) run() {
	f.open()
	for _, b := range []*randomBeliever{f.durable, f.plain} {
		if f.rng.IntN(4) > 0 {
			b.add()
		}
	}
	f.p.Start()
	for range 5 + f.rng.IntN(60) {
		switch f.rng.IntN(17) {
		case 0, 1:
			f.addAgain()
		case 2:
			f.e.add()
		case 3:
			f.plain2.add()
		case 4, 8:
			f.slowCommit()
		case 5, 6, 7:
			time.Sleep(time.Duration(f.rng.IntN(600)) * time.Millisecond)
		default:
			f.change()
			time.Sleep(time.Duration(max(0, f.rng.IntN(90)-60)) * time.Millisecond)
		}
	}
	f.durable.add()
	f.e.add()
	f.change()
	time.Sleep(time.Hour)
	if err := f.db.Err(); err != nil {
		f.t.Error(err)
	}
	for _, b := range f.believers {
		if b.registered != nil {
			b.check()
		}
	}
}

// open begins a process, which has a list.
func (f *randomLists) open() {
	t := f.t
	var err error
	f.db, err = persist.Open(context.Background(), filepath.Join(t.TempDir(), "cache.db"), persist.Options{
		CommitInterval: time.Duration(1+f.rng.IntN(500)) * time.Millisecond, MaxPendingBytes: int64(f.rng.IntN(2)),
		Logger: &testsupport.Quiet,
	})
	if err != nil {
		t.Fatal(err)
	}
	db := f.db
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	newObject := func() any { return new(corev1.ConfigMap) }
	if f.ix, err = indexer.New(indexer.Options{DB: db, Space: "space", NewObject: newObject, OnCorrupt: func(err error) { t.Error(err) }}); err != nil {
		t.Fatal(err)
	}
	o := queue.Options{DB: db, Space: "space", NewObject: newObject}
	if f.rng.IntN(2) == 0 { // So that deltas are folded.
		o.TailBytes, o.MaxBacklogBytes = 1+f.rng.IntN(1500), int64(1+f.rng.IntN(3000))
	}
	log, err := queue.NewLog(o)
	if err != nil {
		t.Fatal(err)
	}
	ready := make(chan struct{})
	close(ready)
	f.p = New(Options{Log: log, Store: f.ix, Served: ready, ServedAt: db.Applied, Synced: ready})
	t.Cleanup(func() {
		f.p.Stop()
		f.p.Wait()
	})
	for _, key := range slices.Sorted(maps.Keys(f.server)) {
		f.write(func(w *indexer.Writer) []queue.Delta {
			w.Set(key, f.object(key, f.server[key]), false)
			return nil
		})
	}
}

func (b *randomBeliever) add() {
	if b.registered != nil {
		return
	}
	var err error
	if b.registered, err = b.f.p.Add(b, b.name, cache.HandlerOptions{}, nil); err != nil {
		b.f.t.Fatal(err)
	}
}

// addAgain removes the durable handler, perhaps in its list.
func (f *randomLists) addAgain() {
	b := f.durable
	if b.registered == nil {
		return
	}
	b.mu.Lock()
	b.addedAgain = true
	b.mu.Unlock()
	if err := f.p.Remove(b.registered); err != nil {
		f.t.Fatal(err)
	}
	b.registered = nil
	time.Sleep(time.Duration(max(0, f.rng.IntN(1000)-500)) * time.Millisecond)
	b.add()
}

func (f *randomLists) object(key string, o objectState) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: key, UID: o.uid, ResourceVersion: fmt.Sprint(o.rv)}}
}

// change makes a change of the server's, which comes at once, once there is a store.
func (f *randomLists) change() {
	key := fmt.Sprintf("o%02d", f.rng.IntN(11))
	old, existed := f.server[key]
	f.rv++
	now := objectState{old.uid, f.rv}
	if existed && f.rng.IntN(2) == 0 {
		delete(f.server, key)
		f.write(func(w *indexer.Writer) []queue.Delta {
			return []queue.Delta{{Seq: w.Delete(key, false).Seq, Type: cache.Deleted, Key: key, New: f.object(key, now), SizeBytes: 100}}
		})
		return
	}
	replaced := existed && f.rng.IntN(5) == 0
	if !existed || replaced {
		f.uids++
		now.uid = types.UID(fmt.Sprint("uid-", f.uids))
	}
	f.server[key] = now
	f.write(func(w *indexer.Writer) (ds []queue.Delta) {
		c := w.Set(key, f.object(key, now), true)
		if replaced {
			ds = append(ds, queue.Delta{Seq: c.Seq, Type: cache.Deleted, Key: key, New: c.Old, FinalStateUnknown: true, SizeBytes: 100, Replaced: true})
			w.Renumber(c)
		}
		d := queue.Delta{Seq: c.Seq, Type: cache.Added, Key: key, New: c.New, NewValue: c.Value(), SizeBytes: 200, Replaced: replaced}
		if existed {
			d.Type, d.Old = cache.Updated, c.Old
		}
		return append(ds, d)
	})
}

// write applies what stage stages, with its deltas, as the Sink does.
func (f *randomLists) write(stage func(*indexer.Writer) []queue.Delta) {
	if f.ix == nil {
		return
	}
	w, log := f.ix.Writer(), f.p.opts.Log
	defer w.Close()
	ds := stage(w)
	batch, err := w.Commit(func(b *persist.Batch) {
		log.Append(b, ds)
		b.Urgent()
	})
	if err != nil {
		f.t.Fatal(err)
	}
	log.Publish(batch, ds)
	log.Advance(batch, f.ix.Seq())
}

// slowCommit makes the next commit, or the first one, take some time.
func (f *randomLists) slowCommit() {
	took := testsupport.SlowValue(f.rng.Int64N(int64(3 * time.Second)))
	if _, err := f.db.Update(func(b *persist.Batch) { b.Put(persist.Bucket{Space: "space", Name: "slow"}, "slow", took); b.Urgent() }); err != nil {
		f.t.Fatal(err)
	}
}
