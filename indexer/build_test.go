package indexer

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/testdb"
	"github.com/warmwatch/warmwatch/persist"
)

// TestAnIndexIsWholeWhileItIsRebuilt: what was right before is served all the time (A5).
func TestAnIndexIsWholeWhileItIsRebuilt(t *testing.T) {
	pods := 3*ChunkObjects + 5
	db := testdb.Open(t, testsupport.Path(t), testdb.Manual)
	var watched *Indexer // Set while the index is rebuilt.
	ix, err := New(Options{
		DB: db, Space: testSpace, NewObject: func() any { return new(corev1.Pod) },
		Indexers: cache.Indexers{"values": func(obj any) ([]string, error) {
			if watched != nil {
				if keys, err := watched.IndexKeys("values", "all"); err != nil || len(keys) != pods {
					return nil, fmt.Errorf("while it is rebuilt the index has %d of %d objects, error %w", len(keys), pods, err)
				}
			}
			return byValues(obj)
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range pods {
		if err := ix.Add(withValues(newPod(fmt.Sprintf("pod-%04d", i), "1"), "all", fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	want := entriesOf(t, ix)
	watched = ix
	if err := ix.RebuildIndices(); err != nil {
		t.Error(err)
	}
	if watched = nil; !slices.Equal(entriesOf(t, ix), want) {
		t.Error("the index is another one")
	}
}

// TestARebuiltIndexHasWhatItShouldHaveAndNothingElse, whatever was there before.
func TestARebuiltIndexHasWhatItShouldHaveAndNothingElse(t *testing.T) {
	long := strings.Repeat("long", maxInlineBytes)
	for name, damage := range map[string]func(b *persist.Batch, ix *Indexer){
		"nothing": func(b *persist.Batch, ix *Indexer) { b.Drop(ix.indexName) },
		"one is missing": func(b *persist.Batch, ix *Indexer) {
			b.Delete(ix.indexName, newIndexPut("values", "7", "ns/pod-007").key)
		},
		"too many": func(b *persist.Batch, ix *Indexer) {
			for i := range 50 * ChunkObjects {
				b.Put(ix.indexName, newIndexPut("values", "all", fmt.Sprintf("ns/gone-%d", i)).key, nil)
			}
			b.Put(ix.indexName, newIndexPut("values", "other", "ns/pod-007").key, nil)
			b.Put(ix.indexName, newIndexPut("of an earlier program", "1", "ns/pod-007").key, nil)
			b.Put(ix.indexName, "\xff\xff no entry at all", nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			db := testdb.Open(t, testsupport.Path(t), testdb.Manual)
			ix, err := New(Options{
				DB: db, Space: testSpace, Indexers: cache.Indexers{"values": byValues},
				NewObject: func() any { return new(corev1.Pod) },
			})
			if err != nil {
				t.Fatal(err)
			}
			for i := range 10 {
				if err := ix.Add(withValues(newPod(fmt.Sprintf("pod-%03d", i), "1"), "all", fmt.Sprint(i), long)); err != nil {
					t.Fatal(err)
				}
			}
			want := entriesOf(t, ix)
			for _, flushed := range []bool{false, true} {
				if err := db.Update(func(b *persist.Batch) { damage(b, ix) }); err != nil {
					t.Fatal(err)
				}
				if flushed {
					if err := db.Flush(); err != nil {
						t.Fatal(err)
					}
				}
				if slices.Equal(entriesOf(t, ix), want) {
					t.Fatal("nothing is damaged")
				}
				if err := ix.RebuildIndices(); err != nil {
					t.Fatal(err)
				}
				if got := entriesOf(t, ix); !slices.Equal(got, want) {
					t.Errorf("flushed %t: %d entries, want %d", flushed, len(got), len(want))
				}
			}
		})
	}
}

// TestAnIndexFunctionThatFailsLeavesTheIndexAsItWas, so that nothing is missing that
// readers found before.
func TestAnIndexFunctionThatFailsLeavesTheIndexAsItWas(t *testing.T) {
	db := testdb.Open(t, testsupport.Path(t), testdb.Manual)
	fails := false
	ix, err := New(Options{
		DB: db, Space: testSpace, NewObject: func() any { return new(corev1.Pod) },
		Indexers: cache.Indexers{"values": func(obj any) ([]string, error) {
			if fails && obj.(*corev1.Pod).Name == "b" {
				return nil, errors.New("of no zone")
			}
			return byValues(obj)
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b", "c"} {
		if err := ix.Add(withValues(newPod(name, "1"), "all")); err != nil {
			t.Fatal(err)
		}
	}
	want := entriesOf(t, ix)
	fails = true
	var failed *IndexFuncError
	if err := ix.RebuildIndices(); !errors.As(err, &failed) || failed.Key != "ns/b" || ix.IndexErr() == nil {
		t.Errorf("error %v, IndexErr %v", err, ix.IndexErr())
	}
	if got := entriesOf(t, ix); !slices.Equal(got, want) {
		t.Errorf("entries %q, want %q", got, want)
	}
}

// TestAnIndexWhoseKeysAreDamagedIsMadeAnew: if the key of an entry has changed on disk,
// bbolt's cursor shows the entry, but Get does not find it, so that it cannot be removed.
func TestAnIndexWhoseKeysAreDamagedIsMadeAnew(t *testing.T) {
	path := testsupport.Path(t)
	db := testdb.Open(t, path, testdb.Manual)
	ix, err := New(Options{
		DB: db, Space: testSpace, Indexers: cache.Indexers{"values": byValues},
		NewObject: func() any { return new(corev1.Pod) },
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := 100; i < 1000; i++ {
		if err := ix.Add(withValues(newPod(fmt.Sprintf("pod-%d", i), "1"), fmt.Sprintf("%d0", i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Flush(); err != nil {
		t.Fatal(err)
	}
	want := entriesOf(t, ix)
	lowerKeys(t, path)
	if keys, err := ix.IndexKeys("values", "5000"); len(keys) > 0 {
		t.Fatalf("nothing is damaged: %q, %v", keys, err)
	}
	if err := ix.RebuildIndices(); err != nil {
		t.Fatal(err)
	}
	if err := db.Flush(); err != nil {
		t.Fatal(err)
	}
	if got := entriesOf(t, ix); !slices.Equal(got, want) {
		t.Errorf("%d entries, want %d", len(got), len(want))
	}
}

// lowerKeys makes each key of the index a little smaller, in the leaves of the file, so
// that all stay in order, and those that begin a leaf are not in its range any more.
func lowerKeys(t *testing.T, path string) {
	t.Helper()
	b := testsupport.ReadUsed(t, path)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	entry := regexp.MustCompile(`(\x06values\x05v\d\d)(\d)0ns/`)
	for at := 0; at < len(b); at += persist.PageBytes {
		page := b[at : at+persist.PageBytes]
		if page[8] != 2 { // Not a leaf.
			continue
		}
		lower := entry.ReplaceAllFunc(page, func(key []byte) []byte {
			key = slices.Clone(key)
			for i := len(key) - 4; ; i-- { // Minus one.
				if key[i]--; key[i] >= '0' {
					return key
				}
				key[i] = '9'
			}
		})
		if _, err := f.WriteAt(lower, int64(at)); err != nil {
			t.Fatal(err)
		}
	}
}
