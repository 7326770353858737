package indexer

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/testdb"
	"github.com/warmwatch/warmwatch/persist"
)

// TestIndicesThatAreNotThoseThatWereWrittenAreMadeAnew: a page of the index may have lost an entry, or have one that
// is of another page. The next process finds out when it begins (A5).
func TestIndicesThatAreNotThoseThatWereWrittenAreMadeAnew(t *testing.T) {
	long := strings.Repeat("long", 1000)
	put := func(value, key string) func(*persist.Batch, *Indexer) {
		e := newIndexPut("values", value, key)
		return func(b *persist.Batch, ix *Indexer) { b.Put(ix.indexName, e.key, e.value) }
	}
	for name, damage := range map[string]func(*persist.Batch, *Indexer){
		"one is missing": func(b *persist.Batch, ix *Indexer) {
			b.Delete(ix.indexName, newIndexPut("values", "7", "ns/pod-07").key)
		},
		"all are":              func(b *persist.Batch, ix *Indexer) { b.Drop(ix.indexName) },
		"one of another value": put("other", "ns/pod-07"), "one of a long value": put(long, "ns/pod-07"), "one of an object that is gone": put("all", "ns/gone"),
		"another one": func(b *persist.Batch, ix *Indexer) {
			b.Delete(ix.indexName, newIndexPut("values", "7", "ns/pod-07").key)
			put("8", "ns/pod-07")(b, ix)
		},
	} {
		t.Run(name, func(t *testing.T) {
			db := testdb.Open(t, testsupport.Path(t), testdb.Manual)
			open := func() *Indexer { return newIndexer(t, db, cache.Indexers{"values": byValues}, 0) }
			ix := open()
			for i := range 12 {
				if err := ix.Add(withValues(newPod(fmt.Sprintf("pod-%02d", i), "1"), "all", strconv.Itoa(i))); err != nil {
					t.Fatal(err)
				}
			}
			for i := range 6 { // What changed is counted, too.
				p := withValues(newPod(fmt.Sprintf("pod-%02d", i), "2"), "all", "all", "changed")
				if err := ix.Add(p); err != nil {
					t.Fatal(err)
				}
				if i%2 == 0 {
					if err := ix.Delete(p); err != nil {
						t.Fatal(err)
					}
				}
			}
			want := entriesOf(t, ix)
			if ix = open(); ix.IndexErr() != nil {
				t.Fatalf("of sound indices: %v", ix.IndexErr())
			}
			if err := db.Update(func(b *persist.Batch) { damage(b, ix) }); err != nil {
				t.Fatal(err)
			}
			if ix = open(); ix.IndexErr() == nil {
				t.Fatal("the damage was not found")
			}
			if err := ix.RebuildIndices(); err != nil || ix.IndexErr() != nil {
				t.Fatal(err, ix.IndexErr())
			}
			if got := entriesOf(t, ix); !slices.Equal(got, want) {
				t.Errorf("%d entries, expected %d", len(got), len(want))
			}
			if ix = open(); ix.IndexErr() != nil {
				t.Errorf("made anew: %v", ix.IndexErr())
			}
		})
	}
}

// TestAReadByAnIndexThatLacksEntriesWaits until they are made anew, and fails after a while (A7).
func TestAReadByAnIndexThatLacksEntriesWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := testdb.Open(t, testsupport.Path(t), testdb.Manual)
		open := func() *Indexer { return newIndexer(t, db, cache.Indexers{"values": byValues}, 0) }
		ix := open()
		if err := ix.Add(withValues(newPod("a", "1"), "all")); err != nil {
			t.Fatal(err)
		}
		if err := db.Update(func(b *persist.Batch) { b.Drop(ix.indexName) }); err != nil {
			t.Fatal(err)
		}
		ix = open()
		begin := time.Now()
		if pods, err := ix.ByIndex("values", "all"); !errors.Is(err, errNotWhole) {
			t.Errorf("%q, %v", names(pods), err)
		}
		if waited := time.Since(begin); waited < readPatience {
			t.Errorf("it has waited for %v", waited)
		}
		time.AfterFunc(readPatience/2, func() {
			if err := ix.RebuildIndices(); err != nil {
				t.Error(err)
			}
		})
		if pods, err := ix.ByIndex("values", "all"); err != nil || len(pods) != 1 {
			t.Errorf("%q, %v", names(pods), err)
		}
		if keys, err := ix.IndexKeys("values", "all"); err != nil || len(keys) != 1 || len(ix.ListIndexFuncValues("values")) != 1 {
			t.Errorf("%q, %v", keys, err)
		}
	})
}

// TestAReleasedIndexerKeepsNothing: its space may belong to another one by now.
func TestAReleasedIndexerKeepsNothing(t *testing.T) {
	db := testdb.Open(t, testsupport.Path(t), testdb.Manual)
	objects := NewObjects(-1)
	open := func() *Indexer {
		ix, err := New(Options{DB: db, Space: testSpace, Objects: objects, NewObject: func() any { return new(corev1.Pod) }})
		if err != nil {
			t.Fatal(err)
		}
		return ix
	}
	one := open()
	if err := one.Add(newPod("a", "1")); err != nil {
		t.Fatal(err)
	}
	one.Release()
	two := open()
	if _, exists, err := one.GetByKey("ns/a"); !exists || err != nil {
		t.Fatalf("%v, %v", exists, err)
	}
	if err := two.Delete(newPod("a", "1")); err != nil {
		t.Fatal(err)
	}
	if err := two.Add(newPod("b", "2")); err != nil {
		t.Fatal(err)
	}
	if got := names(one.List()); len(got) != 1 || got[0] != "b" {
		t.Errorf("listed %q", got)
	}
	if n := len(one.owner.items); n > 0 {
		t.Errorf("%d objects are kept", n)
	}
	// And it writes nothing: two has another number of objects, and of its last write.
	for name, err := range map[string]error{
		"Add":            one.Add(newPod("c", "3")),
		"Delete":         one.Delete(newPod("b", "2")),
		"Replace":        one.Replace(nil, "4"),
		"AddIndexers":    one.AddIndexers(cache.Indexers{"node": byNode}),
		"RebuildIndices": one.RebuildIndices(),
	} {
		if !errors.Is(err, errReleased) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := open(); got.Len() != 1 || got.Seq() != two.Seq() || !got.Complete() {
		t.Errorf("it has %d objects and the number %d, expected 1 and %d", got.Len(), got.Seq(), two.Seq())
	}
}

// TestADamagedStateDoesNotEmptyTheStore: every object is intact.
func TestADamagedStateDoesNotEmptyTheStore(t *testing.T) {
	path := testsupport.Path(t)
	db := testdb.Open(t, path, testdb.Manual)
	reports := 0
	ix, err := New(Options{
		DB: db, Space: testSpace, Objects: NewObjects(1),
		NewObject: func() any { return new(corev1.Pod) },
		OnCorrupt: func(error) { reports++ },
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		if err := ix.Add(newPod(fmt.Sprintf("pod-%d", i), "1")); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Flush(); err != nil {
		t.Fatal(err)
	}
	b := testsupport.ReadUsed(t, path)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	for at := 0; ; {
		i := bytes.Index(b[at:], []byte(`"count":10,`))
		if i < 0 {
			break
		}
		at += i + 8
		if _, err := f.WriteAt([]byte{'9'}, int64(at)); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if got := len(ix.List()); got != 10 {
		t.Errorf("List has %d of 10 objects, all of which are intact (%d reports)", got, reports)
	}
	if reports == 0 {
		t.Error("the damage was not reported")
	}
	if c, err := ix.Chunk("", false); err != nil || len(c.Objects) != 10 {
		t.Errorf("a walk has %d objects, %v", len(c.Objects), err)
	}
}

// TestALostStateIsALostSpace (S2): nobody knows the number of the last write.
func TestALostStateIsALostSpace(t *testing.T) {
	db := testdb.Open(t, testsupport.Path(t), testdb.Manual)
	open := func() (*Indexer, error) {
		return New(Options{DB: db, Space: testSpace, NewObject: func() any { return new(corev1.Pod) }})
	}
	ix, err := open()
	if err != nil {
		t.Fatal(err)
	}
	if err := ix.Add(newPod("a", "1")); err != nil {
		t.Fatal(err)
	}
	if err := db.Update(func(b *persist.Batch) { b.Delete(ix.storeName, stateKey) }); err != nil {
		t.Fatal(err)
	}
	if _, err := open(); !errors.Is(err, persist.ErrCorrupt) {
		t.Errorf("opened: %v", err)
	}
}

// TestIndexFunctionsAreCalledByOneGoroutineAtATime, as in client-go: they may remember what
// they have computed.
func TestIndexFunctionsAreCalledByOneGoroutineAtATime(t *testing.T) {
	db := testdb.Open(t, testsupport.Path(t), testdb.Manual)
	var running, most atomic.Int32
	ix, err := New(Options{DB: db, Space: testSpace, Objects: NewObjects(-1), NewObject: func() any { return new(corev1.Pod) },
		Indexers: cache.Indexers{"values": func(obj any) ([]string, error) {
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			time.Sleep(time.Microsecond)
			return byValues(obj)
		}}})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 300 {
			_ = ix.Add(withValues(newPod(fmt.Sprintf("pod-%d", i%20), strconv.Itoa(i)), "all"))
		}
	}()
	for most.Load() < 2 && ix.Seq() < 300 {
		if err := ix.RebuildIndices(); err != nil {
			t.Fatal(err)
		}
	}
	<-done
	if n := most.Load(); n != 1 {
		t.Errorf("%d at once", n)
	}
}

// TestAnObjectWhoseKeyHasChangedIsMissed: the number of objects is right, and one of them
// is not found.
func TestAnObjectWhoseKeyHasChangedIsMissed(t *testing.T) {
	path := testsupport.Path(t)
	db := testdb.Open(t, path, testdb.Manual)
	var reports []string
	open := func() *Indexer {
		ix, err := New(Options{
			DB: db, Space: testSpace, Objects: NewObjects(1), NewObject: func() any { return new(corev1.Pod) },
			OnCorrupt: func(err error) { reports = append(reports, err.Error()) },
		})
		if err != nil {
			t.Fatal(err)
		}
		return ix
	}
	ix := open()
	for i := range 12 {
		if err := ix.Add(newPod(fmt.Sprintf("pod-%02d", i), "1")); err != nil {
			t.Fatal(err)
		}
	}
	if err := ix.Delete(newPod("pod-11", "2")); err != nil {
		t.Fatal(err)
	}
	if ix = open(); !ix.Complete() || len(reports) > 0 {
		t.Fatalf("of a sound store: %q", reports)
	}
	value := encoded(t, "ns/pod-07x", newPod("pod-07", "1")).Record()
	if err := db.Update(func(b *persist.Batch) {
		b.Delete(ix.objectsName, "ns/pod-07")
		b.Put(ix.objectsName, "ns/pod-07x", value)
	}); err != nil {
		t.Fatal(err)
	}
	if ix.Complete() || len(reports) != 1 || !strings.Contains(reports[0], "keys") {
		t.Errorf("reports: %q", reports)
	}
	if err := ix.RebuildIndices(); err != nil { // Which counts what is there.
		t.Fatal(err)
	}
	if reports = nil; !ix.Complete() || !open().Complete() || len(reports) > 0 {
		t.Errorf("counted anew: %q", reports)
	}
}
