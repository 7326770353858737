package warmwatch

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	bolt "go.etcd.io/bbolt"

	"github.com/warmwatch/warmwatch/internal/checkpoint"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/apiserver"
	"github.com/warmwatch/warmwatch/persist"
)

var (
	modelCrashes = flag.Int("model.crashes", 2000, "crashes of the model test")
	modelSeed    = flag.Uint64("model.seed", 1, "seed of the model test; 0 takes one from the clock")
)

// TestModel makes random changes to a server, restarts and crashes of an
// informer, and compares with a plain map. A crash is a copy of the file before
// or after a commit, with all memory forgotten.
//
// Replay a failure with -run TestModel -model.seed N -model.crashes M.
func TestModel(t *testing.T) {
	seed := *modelSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	klog.SetLogger(logr.Discard()) // The many accidents would fill the log.
	defer klog.ClearLogger()
	// apimachinery's slow down by wall clock, for years of virtual time.
	handlers := utilruntime.ErrorHandlers
	utilruntime.ErrorHandlers = nil
	defer func() { utilruntime.ErrorHandlers = handlers }()
	crashes := testsupport.Rounds(*modelCrashes, 50)
	t.Logf("replay with -run TestModel -model.seed %d -model.crashes %d", seed, crashes)
	const perLife = 25
	total := modelStats{}
	for n := 0; n*perLife < crashes && !t.Failed(); n++ {
		lifeSeed := seed + uint64(n)
		synctest.Test(t, func(t *testing.T) {
			m := newModel(t, lifeSeed)
			for range min(perLife, crashes-n*perLife) {
				if m.session(); t.Failed() {
					t.Logf("life %d of seed %d", n, seed)
					return
				}
			}
			total.add(m.stats)
		})
	}
	t.Logf("%+v", total)
	if !t.Failed() && (total.Resumes == 0 || total.Relists == 0 || total.Deletions == 0 || total.Redelivered == 0 || total.Damaged == 0) {
		t.Errorf("the test did not reach what it is for: %+v", total)
	}
}

type modelStats struct {
	Sessions, Crashes, Resumes, Relists, Events, Deletions, Redelivered, Damaged int
}

func (s *modelStats) add(o modelStats) {
	s.Sessions += o.Sessions
	s.Crashes += o.Crashes
	s.Resumes += o.Resumes
	s.Relists += o.Relists
	s.Events += o.Events
	s.Deletions += o.Deletions
	s.Redelivered += o.Redelivered
	s.Damaged += o.Damaged
}

type model struct {
	t      *testing.T
	rng    *rand.Rand
	dir    string
	path   string
	server *apiserver.Server
	stats  modelStats
	// damaged: the file was, and perhaps nothing was written since.
	damaged bool
	// durable, late and plain are what handlers have done with what they were told:
	// they outlive crashes, as a handler's effects do. The durable handler late comes
	// at any time of a session.
	durable, late, plain *believer
	addLate              func() // Once.
	shadows              *shadows
}

func newModel(t *testing.T, seed uint64) *model {
	rng := rand.New(rand.NewPCG(seed, 1))
	dir := t.TempDir()
	m := &model{
		t: t, rng: rng, dir: dir, path: filepath.Join(dir, "cache-0.db"),
		server: apiserver.New(apiserver.Options{
			Rand: rand.New(rand.NewPCG(seed, 2)), Names: 12, Fill: fillModel, StreamLists: rng.IntN(2) == 0,
			PageDelay: 200 * time.Millisecond, ObjectDelay: 100 * time.Millisecond,
		}),
		durable: newBeliever(t, "durable"), late: newBeliever(t, "late"), plain: newBeliever(t, "plain"),
		shadows: newShadows(t, seed),
	}
	m.server.Advance(1) // No server is at version 0.
	return m
}

func fillModel(rng *rand.Rand, obj apiserver.Object) {
	obj.(*corev1.ConfigMap).Data = map[string]string{"color": fmt.Sprint("c", rng.IntN(4)), "rv": obj.GetResourceVersion()}
}

// believer is a handler that keeps what it believes to exist.
type believer struct {
	t       *testing.T
	name    string
	durable bool
	slow    func() // Called with each notification.

	mu       sync.Mutex
	dead     bool              // The process has crashed: what follows did not happen.
	believed map[string]string // Key to resourceVersion.
	since    map[string]int    // Key to the resourceVersion of the first notification.
	told     map[string]int    // Key to the greatest resourceVersion told in this session (H1).
	newest   int               // Of all sessions.
	last     map[string]lastTold
	events   int
	deleted  int
	again    int
}

// lastTold is the newest object of a key that a handler was told of, in all sessions. The uid
// is empty once it was told of the deletion.
type lastTold struct {
	uid types.UID
	rv  int
}

func newBeliever(t *testing.T, name string) *believer {
	return &believer{
		t: t, name: name, durable: name != "plain", believed: map[string]string{}, since: map[string]int{}, told: map[string]int{}, last: map[string]lastTold{},
	}
}

// noteUID checks that a durable handler is told of each deletion, also of an object that was
// made anew. After a crash it may be told again what came before.
func (b *believer) noteUID(key string, uid types.UID, rv int, exists bool) {
	last := b.last[key]
	switch {
	case !exists && uid == last.uid:
		b.last[key] = lastTold{rv: max(rv, last.rv)}
	case exists && rv > last.rv:
		if b.durable && last.uid != "" && last.uid != uid {
			b.t.Errorf("Q2: %s handler was told of %s with uid %s, and never of the deletion of uid %s", b.name, key, uid, last.uid)
		}
		b.last[key] = lastTold{uid, rv}
	}
}

func (b *believer) note(obj any, exists bool) {
	b.mu.Lock()
	slow := b.slow
	defer func() {
		b.mu.Unlock()
		if slow != nil {
			slow()
		}
	}()
	if b.dead {
		return
	}
	b.events++
	if tomb, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		if old, ok := tomb.Obj.(*corev1.ConfigMap); ok {
			b.noteUID(tomb.Key, old.UID, 0, false)
		}
		delete(b.believed, tomb.Key)
		delete(b.told, tomb.Key)
		b.deleted++
		return
	}
	cm := obj.(*corev1.ConfigMap)
	key := cm.Namespace + "/" + cm.Name
	rv, err := strconv.Atoi(cm.ResourceVersion)
	if err != nil {
		b.t.Errorf("%s: object without resourceVersion: %v", b.name, cm)
	}
	if rv < b.told[key] {
		b.t.Errorf("H1: %s handler was told of %s at %d after %d", b.name, key, rv, b.told[key])
	}
	if rv <= b.newest {
		b.again++
	}
	b.noteUID(key, cm.UID, rv, exists)
	b.told[key] = rv
	b.newest = max(b.newest, rv)
	if !exists {
		b.deleted++
		delete(b.believed, key)
		return
	}
	if cm.Data["rv"] != cm.ResourceVersion {
		b.t.Errorf("%s handler was told of a wrong object: %v", b.name, cm)
	}
	if _, known := b.believed[key]; !known {
		b.since[key] = rv
	}
	b.believed[key] = cm.ResourceVersion
}

func (b *believer) OnAdd(obj any, _ bool) { b.note(obj, true) }
func (b *believer) OnUpdate(old, obj any) {
	// A watch tells of a deletion between them; a durable handler is told of it in any case.
	if before, now := old.(*corev1.ConfigMap).UID, obj.(*corev1.ConfigMap).UID; b.durable && before != now {
		b.t.Errorf("Q2: %s handler was told that %s became %s, and not of the deletion", b.name, before, now)
	}
	b.note(obj, true)
}
func (b *believer) OnDelete(obj any) { b.note(obj, false) }

// restart forgets what is of one session only. Of what was told before its
// version rv was committed, a plain handler may never hear again.
func (b *believer) restart(forgetAfter int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.told = map[string]int{}
	b.slow, b.dead = nil, false
	for key := range b.believed {
		if b.since[key] > forgetAfter {
			delete(b.believed, key)
		}
	}
}

func (b *believer) state() map[string]string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.believed)
}

func (b *believer) die() (newest int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dead = true
	return b.newest
}

// session runs the informer once, from the file to a crash or a stop.
func (m *model) session() {
	t := m.t
	c, err := Open(m.path, Options{
		CommitInterval: time.Duration(1+m.rng.IntN(1000)) * time.Millisecond,
		MemoryBudget:   int64(m.rng.IntN(3)-1) * 2000,
		// Now and then everything that waits is folded.
		MaxBacklogBytes: int64(m.rng.IntN(3)) * 500,
		// 1: each batch is committed before the next, so that a crash comes between any two.
		MaxPendingBytes: int64(m.rng.IntN(2)),
	})
	if err != nil {
		t.Fatal(err)
	}
	crash := m.armCrash(c)
	s, err := c.NewSharedIndexInformer(m.server, &corev1.ConfigMap{}, InformerOptions{
		Resource: corev1.SchemeGroupVersion.WithResource("configmaps"),
		Indexers: cache.Indexers{"color": byColor},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.pageSize, s.relistItems = 3, 2 // So that a crash can come in between.
	if _, err := s.AddDurableEventHandler("model", m.durable); err != nil {
		t.Fatal(err)
	}
	if _, err := s.AddEventHandler(m.plain); err != nil {
		t.Fatal(err)
	}
	if err := m.shadows.add(s, 1+m.rng.IntN(10), m.rng.IntN(2) == 0); err != nil {
		t.Fatal(err)
	}
	for _, b := range []*believer{m.durable, m.late} {
		if m.rng.IntN(3) == 0 {
			d := time.Duration(m.rng.IntN(300)) * time.Millisecond
			b.slow = func() { time.Sleep(d) } // Virtual time.
		}
	}
	m.addLate = sync.OnceFunc(func() {
		if _, err := s.AddDurableEventHandler("late", m.late); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); s.RunWithContext(ctx) }()
	m.disturb(crash)
	if !crash.armed {
		m.quiet(s)
		crash.arm()
	}
	for !crash.happened(time.Second) {
		m.server.Advance(1) // So that there will be a commit.
	}
	st := s.Status()
	m.stats.Resumes += st.Resumes
	m.stats.Relists += st.Relists
	cancel()
	<-done
	if err := c.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
	m.afterwards(crash)
}

// disturb lets a while pass with changes and accidents.
func (m *model) disturb(crash *modelCrash) {
	for range m.rng.IntN(40) {
		switch m.rng.IntN(17) {
		case 0:
			m.server.Disconnect()
		case 1:
			m.server.Compact()
			if m.rng.IntN(2) == 0 {
				m.server.Disconnect()
			}
		case 2:
			m.server.Bookmark()
		case 3:
			m.server.FailPages(m.rng.IntN(3))
		case 4:
			time.Sleep(time.Duration(m.rng.IntN(2000)) * time.Millisecond) // Virtual time.
		case 5:
			crash.arm()
		case 6:
			m.addLate()
		default:
			m.server.Advance(1)
			if m.rng.IntN(4) == 0 {
				time.Sleep(time.Duration(m.rng.IntN(20)) * time.Millisecond)
			}
		}
	}
	if m.rng.IntN(2) == 0 {
		crash.arm()
	}
}

// quiet waits until everything has been told, and compares (I2, Q2).
func (m *model) quiet(s *SharedIndexInformer) {
	m.addLate()
	for _, b := range []*believer{m.durable, m.late} {
		b.mu.Lock()
		b.slow = nil
		b.mu.Unlock()
	}
	m.shadows.hurry()
	var diff string
	for range 600 {
		time.Sleep(time.Second) // Virtual time.
		if diff = m.compare(s); diff == "" {
			break
		}
	}
	if diff != "" {
		m.t.Errorf("after quiet (status %+v):\n%s", s.Status(), diff)
	}
	m.checkIndices(s)
}

func (m *model) compare(s *SharedIndexInformer) string {
	want, uids := map[string]string{}, map[types.UID]bool{}
	for key, obj := range m.server.Objects() {
		want[key], uids[obj.GetUID()] = obj.GetResourceVersion(), true
	}
	got := map[string]string{}
	for _, obj := range s.GetStore().List() {
		cm := obj.(*corev1.ConfigMap)
		got[cm.Namespace+"/"+cm.Name] = cm.ResourceVersion
	}
	for _, c := range []struct {
		what string
		got  map[string]string
	}{{"I2: cache", got}, {"Q2: durable handler", m.durable.state()}, {"Q2: late durable handler", m.late.state()}, {"Q2: plain handler", m.plain.state()}} {
		if d := cmp.Diff(want, c.got); d != "" {
			return c.what + " differs from the server (-want +got):\n" + d
		}
	}
	return m.shadows.compare(want, uids)
}

func byColor(obj any) ([]string, error) { return []string{obj.(*corev1.ConfigMap).Data["color"]}, nil }

func (m *model) checkIndices(s *SharedIndexInformer) {
	want := map[string][]string{}
	for _, obj := range s.GetStore().List() {
		cm := obj.(*corev1.ConfigMap)
		want[cm.Data["color"]] = append(want[cm.Data["color"]], cm.Namespace+"/"+cm.Name)
	}
	got := map[string][]string{}
	for _, v := range s.GetIndexer().ListIndexFuncValues("color") {
		keys, err := s.GetIndexer().IndexKeys("color", v)
		if err != nil {
			m.t.Error(err)
		}
		got[v] = keys
	}
	for _, keys := range want {
		slices.Sort(keys)
	}
	if d := cmp.Diff(want, got); d != "" {
		m.t.Errorf("I1: index differs from the objects (-want +got):\n%s", d)
	}
}

// modelCrash copies the file at a commit, once armed.
type modelCrash struct {
	m     *model
	armed bool
	done  chan struct{}

	mu       sync.Mutex
	skip     int    // So many commits come before: a relist, for example, is several.
	inCommit func() // Not nil: copy at the one after them.
	before   bool
	to       string
	told     int // Newest version told to a durable handler by then.
}

func (m *model) armCrash(c *Cache) *modelCrash {
	m.stats.Sessions++
	crash := &modelCrash{m: m, done: make(chan struct{}), before: m.rng.IntN(2) == 0,
		to: filepath.Join(m.dir, fmt.Sprintf("cache-%d.db", m.stats.Sessions))}
	at := func() {
		crash.mu.Lock()
		f := crash.inCommit
		if f != nil && crash.skip > 0 {
			crash.skip, f = crash.skip-1, nil
		} else {
			crash.inCommit = nil
		}
		crash.mu.Unlock()
		if f != nil {
			f()
		}
	}
	hook := &persist.Hook{AfterCommit: func(uint64) { at() }}
	if crash.before {
		hook = &persist.Hook{BeforeCommit: func(*persist.Batch) { at() }}
	}
	c.db.AddHook(hook)
	crash.m.t.Logf("session %d: crash before commit: %v, file %s", m.stats.Sessions, crash.before, filepath.Base(m.path))
	return crash
}

// happened waits for the crash, but not for long.
func (c *modelCrash) happened(within time.Duration) bool {
	select {
	case <-c.done:
		return true
	case <-time.After(within): // Virtual time.
		return false
	}
}

func (c *modelCrash) arm() {
	if c.armed {
		return
	}
	c.armed = true
	c.m.server.Advance(1) // So that there will be a commit.
	c.mu.Lock()
	defer c.mu.Unlock()
	c.skip = max(0, c.m.rng.IntN(12)-6)
	from := c.m.path
	c.inCommit = func() {
		defer close(c.done)
		c.told = max(c.m.durable.die(), c.m.late.die())
		c.m.plain.die()
		c.m.shadows.die()
		testsupport.CopyFile(c.m.t, from, c.to)
	}
}

// afterwards looks at what the crash has left, and goes on with it.
func (m *model) afterwards(crash *modelCrash) {
	old := m.path
	m.path = crash.to
	m.stats.Crashes++
	if err := os.Remove(old); err != nil {
		m.t.Fatal(err)
	}
	rv := m.inspect(crash)
	for _, b := range []*believer{m.durable, m.late, m.plain} {
		b.mu.Lock()
		m.stats.Events, m.stats.Deletions = m.stats.Events+b.events, m.stats.Deletions+b.deleted
		m.stats.Redelivered += b.again
		b.events, b.deleted, b.again = 0, 0, 0
		b.mu.Unlock()
	}
	m.durable.restart(math.MaxInt)
	m.late.restart(math.MaxInt)
	m.plain.restart(rv)
	m.shadows.restart(rv)
	if m.rng.IntN(4) == 0 && !m.damaged { // A name may be lost with two damages, and late comes late.
		m.damage()
	}
}

// damage changes or removes one value of the file: of one delta, a cursor, or what says
// how many there are.
func (m *model) damage() {
	db, err := bolt.Open(m.path, 0o600, nil)
	if err != nil {
		m.t.Fatal(err)
	}
	defer db.Close()
	vanish := m.rng.IntN(2) == 0
	if err := db.Update(func(tx *bolt.Tx) error {
		return tx.ForEach(func(name []byte, space *bolt.Bucket) error {
			if string(name) == "warmwatch" {
				return nil
			}
			b := space.Bucket([]byte([]string{"deltas", "deltas", "deltas", "cursors", "store", "queue"}[m.rng.IntN(6)]))
			if b == nil {
				return nil
			}
			var keys [][]byte
			c := b.Cursor()
			for k, _ := c.First(); k != nil; k, _ = c.Next() {
				keys = append(keys, slices.Clone(k))
			}
			if len(keys) == 0 {
				return nil
			}
			m.stats.Damaged++
			m.damaged = true
			k := keys[m.rng.IntN(len(keys))]
			v := slices.Clone(b.Get(k))
			if vanish {
				return b.Delete(k)
			}
			v[m.rng.IntN(len(v))] ^= 1 << m.rng.IntN(8)
			return b.Put(k, v)
		})
	}); err != nil {
		m.t.Fatal(err)
	}
}

// inspect checks the invariants of the file itself: it holds the state of the
// server at the version it says (P1, P2), and all that the durable handler was
// told of (Q4).
func (m *model) inspect(crash *modelCrash) (rv int) {
	t := m.t
	c, err := Open(m.path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}()
	if err := c.Status().Err; err != nil {
		t.Errorf("the crashed file is bad: %v", err)
	}
	s, err := c.NewSharedIndexInformer(m.server, &corev1.ConfigMap{}, InformerOptions{
		Resource: corev1.SchemeGroupVersion.WithResource("configmaps"), Indexers: cache.Indexers{"color": byColor}})
	if err != nil {
		t.Fatal(err)
	}
	parts := s.parts.Load()
	parts.sink.Load(s.want(""), nil, 0)
	r := parts.sink.Checkpoint()
	rv, err = strconv.Atoi(r.ResourceVersion)
	if r.ResourceVersion != "" && err != nil {
		t.Error(err)
	}
	parts.indexer.Hide(false)
	if r.State == checkpoint.StateComplete {
		want, got := map[string]string{}, map[string]string{}
		for key, obj := range m.server.ObjectsAt(rv) {
			want[key] = obj.GetResourceVersion()
		}
		for _, obj := range parts.indexer.List() {
			cm := obj.(*corev1.ConfigMap)
			got[cm.Namespace+"/"+cm.Name] = cm.ResourceVersion
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("P2: the file does not hold the state at its resourceVersion %d (-want +got):\n%s", rv, d)
		}
		if parts.indexer.Len() != len(got) {
			t.Errorf("Len is %d, expected %d", parts.indexer.Len(), len(got))
		}
		if r.IndexVersion == s.indexVersion() { // Else they were being rebuilt, and will be again.
			m.checkIndices(s)
		}
		if crash.told > rv {
			t.Errorf("Q4: the durable handler was told of version %d, the file has %d", crash.told, rv)
		}
	}
	if err := s.Status().Err; err == nil {
		m.damaged = false
	} else if !m.damaged && !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	return rv
}
