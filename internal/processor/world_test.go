package processor

import (
	"errors"
	"fmt"
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

	"github.com/warmwatch/warmwatch/indexer"
	"github.com/warmwatch/warmwatch/internal/record"
	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/testdb"
	"github.com/warmwatch/warmwatch/persist"
	"github.com/warmwatch/warmwatch/queue"
)

func TestMain(m *testing.M) {
	indexer.ChunkObjects = 1
	testsupport.Main(m, nil)
}

// A world is a Processor with all it needs: a store, each chunk of which is one object, and a log. Objects change as
// the Sink changes them.
type world struct {
	t       *testing.T
	path    string
	persist persist.Options
	queue   queue.Options
	opts    Options

	db               *persist.DB
	ix               *indexer.Indexer
	log              *queue.Log
	store            *watchedStore
	p                *Processor
	synced, caughtUp chan struct{}
}

// inWorld runs a test in a bubble.
func inWorld(t *testing.T, f func(*world)) {
	synctest.Test(t, func(t *testing.T) { f(newWorld(t)) })
}

// newWorld returns the world of a new file, which serves, and has synced and caught up.
func newWorld(t *testing.T) *world {
	w := &world{t: t, path: testsupport.Path(t), synced: closed(), caughtUp: closed()}
	w.opts.MaxPanics, w.queue.Logger = 5, &testsupport.Quiet
	w.opts.OnStartOver, w.opts.OnSkip = func(string, string, queue.Backlog) {}, func(string, string) {}
	t.Cleanup(w.stop)
	w.open()
	return w
}

func closed() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// open begins a process. The Processor is to be started.
func (w *world) open() {
	w.db = testdb.Open(w.t, w.path, w.persist)
	newObject := func() any { return new(corev1.ConfigMap) }
	onCorrupt := func(err error) { w.t.Error(err) }
	var err error
	if w.ix, err = indexer.New(indexer.Options{DB: w.db, Space: "s", NewObject: newObject, OnCorrupt: onCorrupt}); err != nil {
		w.t.Fatal(err)
	}
	w.queue.DB, w.queue.Space, w.queue.NewObject, w.queue.OnCorrupt = w.db, "s", newObject, onCorrupt
	if w.log, err = queue.NewLog(w.queue); err != nil {
		w.t.Fatal(err)
	}
	w.store = &watchedStore{Indexer: w.ix, leftOut: map[string]bool{}, reads: map[string]int{}}
	w.opts.Served, w.opts.Synced, w.opts.CaughtUp, w.opts.Logger = closed(), w.synced, w.caughtUp, testsupport.Quiet
	w.p = New(w.opts)
}

func (w *world) start() {
	w.t.Helper()
	if _, err := w.p.Start(w.log, w.store, testsupport.Quiet); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) stop() {
	w.p.Stop()
	w.p.Wait()
	w.log.Stop()
}

// forget forgets a name, as the root does.
func (w *world) forget(name string) error {
	if err := w.p.Unused(name); err != nil {
		return err
	}
	return w.log.Forget(name)
}

// restart ends the process, and begins the next one.
func (w *world) restart() {
	w.t.Helper()
	w.stop()
	if err := w.db.Close(); err != nil {
		w.t.Fatal(err)
	}
	w.open()
}

// add adds a handler, which is a durable one if it has a name.
func (w *world) add(h cache.ResourceEventHandler, name Name) *listener {
	w.t.Helper()
	r, err := w.p.Add(h, name, cache.HandlerOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return r.(*listener)
}

// resyncing adds a plain handler that resyncs.
func (w *world) resyncing(h cache.ResourceEventHandler, period time.Duration) {
	w.t.Helper()
	w.p.checkPeriod = time.Second
	if _, err := w.p.Add(h, Name{}, cache.HandlerOptions{ResyncPeriod: &period}); err != nil {
		w.t.Fatal(err)
	}
}

// named returns the name of a durable handler.
func named(name string) Name { return Name{Kind: queue.Handlers, Name: name} }

// epoch returns the same in another epoch.
func (n Name) epoch(epoch string) Name { n.Epoch = epoch; return n }

func (w *world) remove(l *listener) {
	w.t.Helper()
	if err := w.p.Remove(l); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) status(name string) queue.HandlerStatus {
	w.t.Helper()
	all := w.p.Status(queue.Handlers)
	i := slices.IndexFunc(all, func(h queue.HandlerStatus) bool { return h.Name == name })
	if i < 0 {
		w.t.Fatalf("%q has no status in %+v", name, all)
	}
	return all[i]
}

// configMap returns an object.
func configMap(key, uid string, rv int) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: key, UID: types.UID(uid), ResourceVersion: fmt.Sprint(rv)}}
}

const (
	updateBytes   = 2000 // The SizeBytes of deltas.
	deletionBytes = 20
)

// set stores an object, with a delta. Another uid replaces the object.
func (w *world) set(key, uid string, rv int) {
	w.write(func(wr *indexer.Writer) queue.Delta {
		c := wr.Set(key, w.encoded(key, configMap(key, uid, rv)), true)
		d := queue.Delta{Seq: c.Seq, Type: cache.Added, Key: key, New: c.New, NewRecord: c.Record(), SizeBytes: updateBytes}
		if c.Old != nil {
			d.Type, d.Old, d.Replaced = cache.Updated, c.Old, c.Old.(*corev1.ConfigMap).UID != types.UID(uid)
		}
		return d
	})
}

func (w *world) encoded(key string, obj any) *record.Object {
	value, err := indexer.Encode(key, obj)
	if err != nil {
		w.t.Fatal(err)
	}
	return value
}

// delete deletes an object.
func (w *world) delete(key string) {
	w.write(func(wr *indexer.Writer) queue.Delta {
		c := wr.Delete(key, true)
		return queue.Delta{Seq: c.Seq, Type: cache.Deleted, Key: key, New: c.Old, SizeBytes: deletionBytes}
	})
}

// write applies a change.
func (w *world) write(stage func(*indexer.Writer) queue.Delta) {
	wr := w.ix.Writer()
	defer wr.Close()
	ds := []queue.Delta{stage(wr)}
	if err := wr.Commit(func(b *persist.Batch) { w.log.Append(b, ds) }); err != nil {
		w.t.Error(err)
	}
}

// silently stores objects without deltas, as the first list does.
func (w *world) silently(keys ...string) {
	w.t.Helper()
	for _, key := range keys {
		if err := w.ix.Add(configMap(key, "u", 1)); err != nil {
			w.t.Fatal(err)
		}
	}
	if err := w.db.Flush(); err != nil {
		w.t.Fatal(err)
	}
}

// commitTakes has the next commit take so long.
func (w *world) commitTakes(d time.Duration) {
	testsupport.BeforeCommit(w.t, func() { time.Sleep(d) })
	if err := w.db.Update(func(b *persist.Batch) { b.Urgent() }); err != nil {
		w.t.Fatal(err)
	}
}

// watchedStore counts which chunks are read, and may lack objects.
type watchedStore struct {
	*indexer.Indexer
	before func(from string) // Called before a chunk is read.

	mu      sync.Mutex
	leftOut map[string]bool // The keys of objects that cannot be read.
	reads   map[string]int
}

func (s *watchedStore) Chunk(from string, durable bool) (indexer.Chunk, error) {
	if s.before != nil {
		s.before(from)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads[fmt.Sprintf("%q, durable %v", from, durable)]++
	c, err := s.Indexer.Chunk(from, durable)
	if len(c.Keys) > 0 && s.leftOut[c.Keys[0]] {
		c.LeftOut, c.Keys, c.Seqs, c.Objects = errors.New("damaged"), nil, nil, nil
	}
	return c, err
}

func (s *watchedStore) leaveOut(key string, leftOut bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leftOut[key] = leftOut
}

// A recorder is a handler that notes what it gets.
type recorder struct {
	during func(what string) // Called in each callback.

	mu        sync.Mutex
	delivered []string
}

func (h *recorder) note(what string) {
	h.mu.Lock()
	h.delivered = append(h.delivered, what)
	h.mu.Unlock()
	if h.during != nil {
		h.during(what)
	}
}

func (h *recorder) OnAdd(obj any, initial bool) {
	h.note(map[bool]string{false: "add ", true: "list "}[initial] + nameOf(obj))
}
func (h *recorder) OnUpdate(old, obj any) { h.note("update " + nameOf(old) + " " + nameOf(obj)) }
func (h *recorder) OnDelete(obj any) {
	if gone, unknown := obj.(cache.DeletedFinalStateUnknown); unknown {
		h.note(fmt.Sprintf("gone %s %s", gone.Key, nameOf(gone.Obj)))
		return
	}
	h.note("delete " + nameOf(obj))
}

// nameOf returns what tells objects from each other, such as "a u@1".
func nameOf(obj any) string {
	if obj == nil {
		return "nil"
	}
	cm := obj.(*corev1.ConfigMap)
	return fmt.Sprintf("%s %s@%s", cm.Name, cm.UID, cm.ResourceVersion)
}

func versionOf(cm *corev1.ConfigMap) int {
	rv, _ := strconv.Atoi(cm.ResourceVersion)
	return rv
}

// expect waits, and compares what the handler got since the call before.
func (h *recorder) expect(t *testing.T, want ...string) {
	t.Helper()
	time.Sleep(time.Minute)
	synctest.Wait()
	h.expectNow(t, want...)
}

func (h *recorder) expectNow(t *testing.T, want ...string) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if !slices.Equal(h.delivered, want) {
		t.Errorf("delivered %q, expected %q", h.delivered, want)
	}
	h.delivered = nil
}

// only has the callback for one notification call f, once.
func only(what string, f func()) func(string) {
	var once sync.Once
	return func(delivered string) {
		if delivered == what {
			once.Do(f)
		}
	}
}

// takes returns what has each callback take a while.
func takes(d time.Duration) func(string) { return func(string) { time.Sleep(d) } }

// sync writes an object again, as it is.
func (w *world) sync(key string) {
	w.write(func(wr *indexer.Writer) queue.Delta {
		c := wr.Set(key, w.encoded(key, wr.Sound(key)), true)
		return queue.Delta{Seq: c.Seq, Type: cache.Sync, Key: key, Old: c.Old, New: c.New, SizeBytes: updateBytes}
	})
}
