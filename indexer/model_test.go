package indexer

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/testdb"
	"github.com/warmwatch/warmwatch/persist"
)

var modelSteps = flag.Int("model.steps", 500, "number of random operations for each budget")

// TestTheIndexerBehavesLikeClientGos does the same to both, and compares all
// that can be read, over restarts and with little, much and no bound on memory.
func TestTheIndexerBehavesLikeClientGos(t *testing.T) {
	rnd := testsupport.Rand(t)
	for _, budget := range []int64{1, 4000, 0, -1} {
		t.Run(fmt.Sprintf("budget %d", budget), func(t *testing.T) {
			w := &walk{t: t, rnd: rand.New(rand.NewSource(rnd.Int63())), path: testsupport.Path(t), budget: budget}
			w.indexers = cache.Indexers{"node": byNode, cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
			w.want = cache.NewIndexer(cache.DeletionHandlingMetaNamespaceKeyFunc, maps.Clone(w.indexers))
			w.open()
			for range testsupport.Rounds(*modelSteps, 150) {
				w.step()
			}
			w.compare()
		})
	}
}

type walk struct {
	t        *testing.T
	rnd      *rand.Rand
	path     string
	budget   int64
	db       *persist.DB
	indexers cache.Indexers // What the next process is opened with.
	got      *Indexer
	want     cache.Indexer
	rv       int
}

func (w *walk) open() {
	w.db = testdb.Open(w.t, w.path, persist.Options{CommitInterval: time.Duration(1+w.rnd.Intn(3)) * time.Millisecond})
	w.got = newIndexer(w.t, w.db, w.indexers, w.budget)
}

var modelValues = []string{"", "a", "b", "\x00", "\xff\xff", "a\x00b", string(rune(0x10ffff)), "long"}

func (w *walk) pod() *corev1.Pod {
	w.rv++
	p := newPod("pod-"+strconv.Itoa(w.rnd.Intn(40)), strconv.Itoa(w.rv))
	if w.rnd.Intn(30) == 0 {
		p.Name, p.Namespace = "", "" // The empty key.
	}
	if w.rnd.Intn(20) == 0 {
		p.ResourceVersion = ""
	}
	p.Namespace = []string{"ns", "other", ""}[w.rnd.Intn(3)]
	p.Spec.NodeName = "node-" + strconv.Itoa(w.rnd.Intn(5))
	p.Labels = map[string]string{"n": strconv.Itoa(w.rnd.Intn(1000))}
	for range w.rnd.Intn(4) {
		withValues(p, w.value())
	}
	if w.rnd.Intn(3) == 0 {
		withValues(p, w.value(), w.value(), w.value())
	}
	return p
}

func (w *walk) value() string {
	v := modelValues[w.rnd.Intn(len(modelValues))]
	if v == "long" {
		b := make([]byte, maxInlineBytes-1+w.rnd.Intn(4))
		for i := range b {
			b[i] = byte(i)
		}
		return string(b)
	}
	return v
}

// both does the same to both.
func (w *walk) both(what string, do func(cache.Indexer) error) {
	w.t.Helper()
	got, want := do(w.got), do(w.want)
	if (got == nil) != (want == nil) {
		w.t.Fatalf("%s: %v, client-go %v", what, got, want)
	}
}

func (w *walk) step() {
	switch r := w.rnd.Intn(1000); {
	case r < 350:
		p := w.pod()
		w.both("add", func(ix cache.Indexer) error { return ix.Add(p.DeepCopy()) })
	case r < 550:
		p := w.pod()
		w.both("update", func(ix cache.Indexer) error { return ix.Update(p.DeepCopy()) })
	case r < 700:
		p := w.pod()
		w.both("delete", func(ix cache.Indexer) error { return ix.Delete(p.DeepCopy()) })
	case r < 740:
		p := w.pod()
		key, _ := cache.MetaNamespaceKeyFunc(p)
		w.both("delete a tombstone", func(ix cache.Indexer) error {
			return ix.Delete(cache.DeletedFinalStateUnknown{Key: key, Obj: p.DeepCopy()})
		})
	case r < 760:
		var list []any
		for range w.rnd.Intn(60) { // Some of them twice.
			list = append(list, w.pod())
		}
		rv := strconv.Itoa(w.rv)
		w.both("replace", func(ix cache.Indexer) error { return ix.Replace(slices.Clone(list), rv) })
	case r < 800:
		rv := strconv.Itoa(w.rnd.Intn(10_000))
		w.both("bookmark", func(ix cache.Indexer) error { ix.Bookmark(rv); return ix.Resync() })
	case r < 820:
		w.both("add a thing without metadata", func(ix cache.Indexer) error {
			return errors.Join(ix.Add("a string"), ix.Update(nil), ix.Delete(7), ix.Replace([]any{"x"}, "1"))
		})
	case r < 840:
		w.addIndexers()
	case r < 860:
		if err := w.db.Flush(); err != nil {
			w.t.Fatal(err)
		}
	case r < 880:
		if err := w.db.Close(); err != nil {
			w.t.Fatal(err)
		}
		w.open()
		w.compare()
	case r < 890:
		checkRebuild(w.t, w.got)
	case r < 900:
		w.compare()
	default:
		w.sample()
	}
}

func (w *walk) addIndexers() {
	added := cache.Indexers{"values": byValues}
	if w.rnd.Intn(3) == 0 {
		added = cache.Indexers{"more": byNode, "values": byValues}
	}
	w.both("add indexers", func(ix cache.Indexer) error { return ix.AddIndexers(maps.Clone(added)) })
	w.indexers = maps.Clone(w.got.GetIndexers())
	if got, want := slices.Sorted(maps.Keys(w.got.GetIndexers())), slices.Sorted(maps.Keys(w.want.GetIndexers())); !slices.Equal(got, want) {
		w.t.Fatalf("indexers %v, client-go %v", got, want)
	}
}

// sample compares a few reads.
func (w *walk) sample() {
	t, p := w.t, w.pod()
	t.Helper()
	got, gotFound, gotErr := w.got.Get(p)
	want, wantFound, wantErr := w.want.Get(p)
	if gotFound != wantFound {
		t.Fatalf("Get %s: found %v, client-go %v", p.Name, gotFound, wantFound)
	}
	w.same("Get "+p.Name, got, want, gotErr, wantErr)
	for _, name := range []string{"values", "node", "unknown"} {
		gotObjs, gotErr := w.got.Index(name, p)
		wantObjs, wantErr := w.want.Index(name, p)
		w.same("Index "+name, sorted(gotObjs), sorted(wantObjs), gotErr, wantErr)
		_, gotErr = w.got.Index(name, "no Pod")
		_, wantErr = w.want.Index(name, "no Pod")
		w.same("Index of a string", nil, nil, gotErr, wantErr)
	}
	w.byValue("values", w.value())
	w.byValue("node", p.Spec.NodeName)
	w.byValue("node", "none")
	w.byValue("unknown", "x")
}

func (w *walk) byValue(name, value string) {
	w.t.Helper()
	gotObjs, gotErr := w.got.ByIndex(name, value)
	wantObjs, wantErr := w.want.ByIndex(name, value)
	w.same(fmt.Sprintf("ByIndex %s %.20q", name, value), sorted(gotObjs), sorted(wantObjs), gotErr, wantErr)
	gotKeys, gotErr := w.got.IndexKeys(name, value)
	wantKeys, wantErr := w.want.IndexKeys(name, value)
	slices.Sort(wantKeys)
	w.same(fmt.Sprintf("IndexKeys %s %.20q", name, value), gotKeys, wantKeys, gotErr, wantErr)
}

func (w *walk) same(what string, got, want any, gotErr, wantErr error) {
	w.t.Helper()
	if fmt.Sprint(gotErr) != fmt.Sprint(wantErr) {
		w.t.Fatalf("%s: error %v, client-go %v", what, gotErr, wantErr)
	}
	if !equality.Semantic.DeepEqual(want, got) { // Takes empty for nil, and is faster than cmp.
		w.t.Fatalf("%s: -want +got:\n%.2000s", what, cmp.Diff(want, got, cmpopts.EquateEmpty()))
	}
}

// compare compares everything.
func (w *walk) compare() {
	w.t.Helper()
	w.same("List", sorted(w.got.List()), sorted(w.want.List()), nil, nil)
	want := w.want.ListKeys()
	slices.Sort(want)
	w.same("ListKeys", w.got.ListKeys(), want, nil, nil)
	if got := w.got.Len(); got != len(want) {
		w.t.Fatalf("Len is %d, expected %d", got, len(want))
	}
	if got, want := w.got.LastStoreSyncResourceVersion(), w.want.LastStoreSyncResourceVersion(); got != want {
		w.t.Fatalf("resourceVersion %q, client-go %q", got, want)
	}
	for _, key := range append(want, "none", "") {
		got, gotFound, gotErr := w.got.GetByKey(key)
		want, wantFound, wantErr := w.want.GetByKey(key)
		if gotFound != wantFound {
			w.t.Fatalf("GetByKey %q: found %v, client-go %v", key, gotFound, wantFound)
		}
		w.same("GetByKey "+key, got, want, gotErr, wantErr)
	}
	for name := range w.got.GetIndexers() {
		got, want := w.got.ListIndexFuncValues(name), w.want.ListIndexFuncValues(name)
		slices.Sort(got)
		slices.Sort(want)
		w.same("ListIndexFuncValues "+name, got, want, nil, nil)
		for _, v := range want {
			w.byValue(name, v)
		}
	}
	w.same("ListIndexFuncValues", w.got.ListIndexFuncValues("unknown"), w.want.ListIndexFuncValues("unknown"), nil, nil)
	w.chunks()
}

// chunks compares the list in parts with the whole.
func (w *walk) chunks() {
	w.t.Helper()
	var keys []string
	var objs []any
	for from := ""; ; {
		c, err := w.got.Chunk(from, false)
		if err != nil {
			w.t.Fatal(err)
		}
		if len(c.Keys) != len(c.Objects) || len(c.Keys) != len(c.Seqs) {
			w.t.Fatalf("a chunk of %d keys, %d objects, %d seqs", len(c.Keys), len(c.Objects), len(c.Seqs))
		}
		for i, seq := range c.Seqs {
			if seq > c.Seq || seq == 0 {
				w.t.Fatalf("key %q was written as of %d, in a chunk as of %d", c.Keys[i], seq, c.Seq)
			}
		}
		keys, objs = append(keys, c.Keys...), append(objs, c.Objects...)
		if from = c.Next; c.Done {
			break
		}
	}
	w.same("keys of the chunks", keys, w.got.ListKeys(), nil, nil)
	w.same("objects of the chunks", sorted(objs), sorted(w.got.List()), nil, nil)
	var batched []string
	if err := w.got.Keys(func(ks []string) error { batched = append(batched, ks...); return nil }); err != nil {
		w.t.Fatal(err)
	}
	w.same("Keys", batched, keys, nil, nil)
}
