package indexer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/testdb"
	"github.com/warmwatch/warmwatch/persist"
)

// TestIndexValuesMayBeAnything: empty, long, of all bytes, beginning with each
// other or with what looks like the entry of another one.
func TestIndexValuesMayBeAnything(t *testing.T) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	values := []string{
		"", "a", "aa", "ab", "\x00", "\x00\x00", "\xff", "\xff\xff", string(all),
		strings.Repeat("x", maxInlineBytes-1), strings.Repeat("x", maxInlineBytes), strings.Repeat("x", maxInlineBytes+1),
		strings.Repeat("\xff", 5000), strings.Repeat("x", 100_000),
		"ns/pod-1", token("a"), valuePrefix("values", "a"), token(strings.Repeat("x", maxInlineBytes+1)),
		string(hashedToken), string(inlineToken),
	}
	path := testsupport.Path(t)
	db := testdb.Open(t, path, testdb.Manual)
	ix := newIndexer(t, db, cache.Indexers{"values": byValues}, 0)
	for i, v := range values {
		if err := ix.Add(withValues(newPod(fmt.Sprintf("pod-%02d", i), "1"), v)); err != nil {
			t.Fatal(err)
		}
	}
	check := func(when string) {
		t.Helper()
		for i, v := range values {
			objs, err := ix.ByIndex("values", v)
			if diff := cmp.Diff([]string{fmt.Sprintf("pod-%02d", i)}, names(objs)); diff != "" || err != nil {
				t.Errorf("%s: value %.20q: %v, -want +got:\n%s", when, v, err, diff)
			}
		}
		got := ix.ListIndexFuncValues("values")
		slices.Sort(got)
		if want := slices.Sorted(slices.Values(values)); !slices.Equal(want, got) {
			t.Errorf("%s: %d values, expected %d", when, len(got), len(want))
		}
	}
	check("pending")
	checkRebuild(t, ix)
	if err := db.Flush(); err != nil {
		t.Fatal(err)
	}
	check("committed")
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	db = testdb.Open(t, path, testdb.Manual)
	ix = newIndexer(t, db, cache.Indexers{"values": byValues}, 1)
	check("reopened")
	checkRebuild(t, ix)
	for i := range values {
		if err := ix.Delete(newPod(fmt.Sprintf("pod-%02d", i), "2")); err != nil {
			t.Fatal(err)
		}
	}
	if left := entriesOf(t, ix); len(left) != 0 {
		t.Errorf("left after all deletions: %q", left)
	}
}

// TestTheSameKeySeveralTimesInOneCommit checks objects and entries after all
// that two or three changes can do to each other.
func TestTheSameKeySeveralTimesInOneCommit(t *testing.T) {
	states := []string{"", "a", "b", "ab"} // Deleted, or with these values.
	set := func(w *Writer, key, state string) {
		if state == "" {
			w.Delete(key, false)
			return
		}
		w.Set(key, encoded(t, key, withValues(newPod(strings.TrimPrefix(key, "ns/"), "1"), strings.Split(state, "")...)), false)
	}
	ix := newIndexer(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), cache.Indexers{"values": byValues}, 0)
	n := 0
	for _, before := range states {
		for _, first := range states {
			for _, second := range states {
				for _, third := range states {
					n++
					key := fmt.Sprintf("ns/pod-%03d", n)
					for _, s := range []string{before, first, second, third} {
						w := ix.Writer()
						set(w, key, s)
						if err := w.Commit(nil); err != nil {
							t.Fatal(err)
						}
						w.Close()
					}
					_, exists, err := ix.GetByKey(key)
					if exists != (third != "") || err != nil {
						t.Fatalf("%q, then %q %q %q: exists %v, %v", before, first, second, third, exists, err)
					}
					for _, v := range []string{"a", "b"} {
						keys, err := ix.IndexKeys("values", v)
						if got := slices.Contains(keys, key); got != strings.Contains(third, v) || err != nil {
							t.Fatalf("%q, then %q %q %q: found by %s: %v, %v", before, first, second, third, v, got, err)
						}
					}
				}
			}
		}
	}
	checkRebuild(t, ix)
}

// TestAFailingIndexFuncPanicsAndNoLockIsLeft is client-go's behaviour.
func TestAFailingIndexFuncPanicsAndNoLockIsLeft(t *testing.T) {
	fails := errors.New("cannot be indexed")
	picky := func(obj any) ([]string, error) {
		if obj.(*corev1.Pod).Spec.NodeName == "bad" {
			return nil, fails
		}
		return []string{"good"}, nil
	}
	bad := newPod("bad", "1")
	bad.Spec.NodeName = "bad"
	ix := newIndexer(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), cache.Indexers{"picky": picky}, 0)
	panics := func(what string, f func() error) {
		t.Helper()
		defer func() {
			p := recover()
			if err, ok := p.(error); !ok || !errors.Is(err, fails) {
				t.Errorf("%s panics with %v", what, p)
			}
		}()
		if err := f(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := ix.Add(newPod("good", "1")); err != nil {
		t.Fatal(err)
	}
	panics("Add", func() error { return ix.Add(bad) })
	panics("Update", func() error { return ix.Update(bad) })
	panics("Replace", func() error { return ix.Replace([]any{bad}, "5") })
	if err := ix.Add(newPod("good-2", "2")); err != nil {
		t.Fatal(err)
	}
	if got := names(ix.List()); !slices.Equal(got, []string{"good", "good-2"}) || ix.Len() != 2 {
		t.Errorf("the store has %v, %d", got, ix.Len())
	}
	if rv := ix.LastStoreSyncResourceVersion(); rv != "2" {
		t.Errorf("resourceVersion is %q", rv)
	}
	never := func(any) ([]string, error) { return nil, fails }
	panics("AddIndexers", func() error { return ix.AddIndexers(cache.Indexers{"never": never}) })
	if _, err := ix.ByIndex("never", "x"); err == nil {
		t.Error("an index that could not be made can be asked")
	}
	if _, err := ix.Index("picky", bad); !errors.Is(err, fails) {
		t.Errorf("Index returned %v", err)
	}
	if err := ix.AddIndexers(cache.Indexers{"never": byNode}); err != nil {
		t.Error(err)
	}
	checkRebuild(t, ix)
}

// TestAnIndexThatIsNotThereAnyMoreHasNoValues, although the file has its entries.
func TestAnIndexThatIsNotThereAnyMoreHasNoValues(t *testing.T) {
	path := testsupport.Path(t)
	db := testdb.Open(t, path, testdb.Manual)
	ix := newIndexer(t, db, cache.Indexers{"values": byValues, "node": byNode}, 0)
	if err := ix.Add(withValues(newPod("pod", "1"), "old")); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	db = testdb.Open(t, path, testdb.Manual)
	ix = newIndexer(t, db, cache.Indexers{"node": byNode}, 0)
	if got := ix.ListIndexFuncValues("values"); len(got) != 0 {
		t.Errorf("values %q", got)
	}
	if _, err := ix.ByIndex("values", "old"); err == nil {
		t.Error("no error")
	}
	// It comes back, with other values: nothing of the old ones shines through.
	if err := ix.Update(withValues(newPod("pod", "2"), "new")); err != nil {
		t.Fatal(err)
	}
	if err := ix.AddIndexers(cache.Indexers{"values": byValues}); err != nil {
		t.Fatal(err)
	}
	if got := ix.ListIndexFuncValues("values"); !slices.Equal(got, []string{"new"}) {
		t.Errorf("values %q", got)
	}
	checkRebuild(t, ix)
}

func TestHiddenObjectsAreNotFoundByAnyRead(t *testing.T) {
	ix := newIndexer(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), cache.Indexers{"node": byNode}, 0)
	pod := newPod("pod", "1")
	if err := ix.Add(pod); err != nil {
		t.Fatal(err)
	}
	found := func() (n int) {
		one := func(ok bool) {
			if ok {
				n++
			}
		}
		_, ok, _ := ix.Get(pod)
		one(ok)
		_, ok, _ = ix.GetByKey("ns/pod")
		one(ok)
		one(len(ix.List()) > 0)
		one(len(ix.ListKeys()) > 0)
		objs, _ := ix.ByIndex("node", "")
		one(len(objs) > 0)
		objs, _ = ix.Index("node", pod)
		one(len(objs) > 0)
		keys, _ := ix.IndexKeys("node", "")
		one(len(keys) > 0)
		one(len(ix.ListIndexFuncValues("node")) > 0)
		return n
	}
	if n := found(); n != 8 {
		t.Errorf("%d of 8 reads find it", n)
	}
	ix.Hide(true)
	if n := found(); n != 0 {
		t.Errorf("%d reads find what is hidden", n)
	}
	w := ix.Writer()
	if _, rv, exists := w.Head("ns/pod"); !exists || rv != "1" {
		t.Errorf("the writer finds %q, %v", rv, exists)
	}
	w.Close()
	ix.Hide(false)
	if n := found(); n != 8 {
		t.Errorf("%d of 8 reads find it again", n)
	}
}

// TestAnUnreadableObjectIsNeverServed is S2: it is reported, and left out, or the read fails (A7).
func TestAnUnreadableObjectIsNeverServed(t *testing.T) {
	db := testdb.Open(t, testsupport.Path(t), testdb.Manual)
	var reported []error
	ix, err := New(Options{
		DB: db, Space: testSpace, Indexers: cache.Indexers{"node": byNode}, Objects: NewObjects(1),
		NewObject: func() any { return new(corev1.Pod) },
		OnCorrupt: func(err error) { reported = append(reported, err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "bad", "c", "other"} {
		if err := ix.Add(newPod(name, "1")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := db.Update(func(b *persist.Batch) {
		b.Put(ix.objectsName, "ns/bad", []byte("no record"))
		b.Put(ix.objectsName, "ns/other", encoded(t, "ns/other", &corev1.ConfigMap{}).Record()) // Of another type.
	}); err != nil {
		t.Fatal(err)
	}
	if err := db.Flush(); err != nil {
		t.Fatal(err)
	}
	expectReport := func(what string) {
		t.Helper()
		if len(reported) == 0 {
			t.Errorf("%s: not reported", what)
		}
		reported = nil
	}
	for _, key := range []string{"ns/bad", "ns/other"} {
		if obj, exists, err := ix.GetByKey(key); obj != nil || exists || err == nil {
			t.Errorf("GetByKey %s: %v, %v, %v", key, obj, exists, err)
		}
		expectReport("GetByKey")
	}
	if got := names(ix.List()); !slices.Equal(got, []string{"a", "c"}) {
		t.Errorf("List: %v", got)
	}
	expectReport("List")
	if objs, err := ix.ByIndex("node", ""); len(objs) > 0 || err == nil {
		t.Errorf("ByIndex: %v, %v", names(objs), err)
	}
	expectReport("ByIndex")
	w := ix.Writer()
	uid, rv, exists := w.Head("ns/bad")
	w.Close()
	if uid != "" || rv != "" || !exists {
		t.Errorf("Head: %q, %q, %v", uid, rv, exists)
	}
	// It can be replaced and deleted, and is counted right.
	for _, name := range []string{"bad", "other"} {
		if err := ix.Update(newPod(name, "2")); err != nil {
			t.Fatal(err)
		}
	}
	reported = nil
	if got := names(ix.List()); len(got) != 4 || ix.Len() != 4 || len(reported) != 0 {
		t.Errorf("after an update: %v, %d, %v", got, ix.Len(), reported)
	}
}

func TestUnstructuredObjectsNeedNoType(t *testing.T) {
	path := testsupport.Path(t)
	db := testdb.Open(t, path, testdb.Manual)
	want := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget",
		"metadata": map[string]any{"name": "widget", "resourceVersion": "7"},
		"spec":     map[string]any{"int": int64(1), "float": 1.5},
	}}
	ix, err := New(Options{DB: db, Space: "widgets"})
	if err != nil {
		t.Fatal(err)
	}
	if err := ix.Add(want); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if ix, err = New(Options{DB: testdb.Open(t, path, testdb.Manual), Space: "widgets"}); err != nil {
		t.Fatal(err)
	}
	got, exists, err := ix.GetByKey("widget")
	if diff := cmp.Diff(want, got); diff != "" || !exists || err != nil {
		t.Errorf("%v, %v, -want +got:\n%s", exists, err, diff)
	}
	if rv := ix.LastStoreSyncResourceVersion(); rv != "7" {
		t.Errorf("resourceVersion is %q", rv)
	}
}

func TestSpacesOfOneDBAreApart(t *testing.T) {
	db := testdb.Open(t, testsupport.Path(t), testdb.Manual)
	objects := NewObjects(0) // Of both.
	one, err := New(Options{DB: db, Space: "one", Objects: objects, NewObject: func() any { return new(corev1.Pod) }})
	if err != nil {
		t.Fatal(err)
	}
	two, err := New(Options{DB: db, Space: "two", Objects: objects, NewObject: func() any { return new(corev1.Pod) }})
	if err != nil {
		t.Fatal(err)
	}
	for i, ix := range []*Indexer{one, two} {
		if err := ix.Add(newPod("pod", fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		for i, ix := range []*Indexer{one, two} {
			obj, exists, err := ix.GetByKey("ns/pod")
			if !exists || err != nil || obj.(*corev1.Pod).ResourceVersion != fmt.Sprint(i) {
				t.Errorf("space %d has %v, %v, %v", i, obj, exists, err)
			}
		}
		one.Release() // Takes nothing from the other one.
	}
}

func TestNewNeedsADBAndASpace(t *testing.T) {
	db := testdb.Open(t, testsupport.Path(t), testdb.Manual)
	for _, o := range []Options{{}, {DB: db}, {Space: "space"}} {
		if _, err := New(o); err == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
}

// FuzzIndexEntries: two entries are the same only if name, value and object
// are, and what is put in comes out.
func FuzzIndexEntries(f *testing.F) {
	f.Add("node", "node-1", "ns/pod", "node", "node-2", "ns/pod")
	f.Add("", "", "", "", "", "\x00")
	f.Add("a", "b", "c", "a", "bc", "")
	f.Add("ab", "", "c", "a", "b", "c")
	long := strings.Repeat("x", maxInlineBytes)
	f.Add("n", long, "k", "n", long+"x", "k")
	db, err := persist.OpenMemory(persist.Options{})
	if err != nil {
		f.Fatal(err)
	}
	defer db.Close()
	bucket := persist.Bucket{Space: testSpace, Name: IndexBucket}
	parse := func(entry string, content []byte, namePrefix string) (value, prefix, objectKey string, err error) {
		_, err = db.Update(func(b *persist.Batch) { b.Put(bucket, entry, content) })
		_, viewErr := db.View(bucket, entry, func(it *persist.Item) (err error) {
			value, prefix, objectKey, err = parseEntry(it, namePrefix)
			return err
		})
		return value, prefix, objectKey, errors.Join(err, viewErr)
	}
	f.Fuzz(func(t *testing.T, name1, value1, key1, name2, value2, key2 string) {
		if len(key1) > MaxKeyBytes || len(value2) > MaxKeyBytes {
			return
		}
		p, q := newIndexPut(name1, value1, key1), newIndexPut(name2, value2, key2)
		same := name1 == name2 && value1 == value2 && key1 == key2
		if (p.key == q.key) != same {
			t.Errorf("%q is of (%q, %q, %q) and of (%q, %q, %q)", p.key, name1, value1, key1, name2, value2, key2)
		}
		prefix := indexPrefix(name1)
		value, valuePart, key, err := parse(p.key, p.value, prefix)
		if err != nil || value != value1 || key != key1 || valuePart != valuePrefix(name1, value1) {
			t.Errorf("(%q, %q) comes out as (%q, %q), %v", value1, key1, value, key, err)
		}
		if next := after(valuePart); next <= p.key || next <= valuePart+"\xff\xff\xff" {
			t.Errorf("%q is not behind all of %q", next, valuePart)
		}
		// Any other string is refused, or has parts that fit it.
		raw := prefix + value2
		if v, part, k, err := parse(raw, []byte("v"), prefix); err == nil {
			n, used := binary.Uvarint([]byte(value2))
			if part+k != raw || (value2[used] != hashedToken && v != value2[used+1:used+int(n)]) {
				t.Errorf("%q was taken for value %q of %q", raw, v, k)
			}
		} else if !errors.Is(err, persist.ErrCorrupt) {
			t.Error(err)
		}
	})
}

// TestAChunkIsDecodedAsItWasRead: the pages that it was in may be used again by then.
func TestAChunkIsDecodedAsItWasRead(t *testing.T) {
	const pods = 50
	db := testdb.Open(t, testsupport.Path(t), testdb.Manual)
	ix, err := New(Options{DB: db, Space: testSpace, Objects: NewObjects(1), NewObject: func() any { return new(corev1.Pod) }})
	if err != nil {
		t.Fatal(err)
	}
	write := func(value string) {
		for i := range pods {
			if err := ix.Add(withValues(newPod(fmt.Sprintf("pod-%02d", i), "1"), strings.Repeat(value, 500))); err != nil {
				t.Fatal(err)
			}
		}
		if err := db.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	write("a")
	want := ix.List()
	_, ls, err := ix.readChunk("", false)
	if err != nil {
		t.Fatal(err)
	}
	for _, value := range []string{"b", "c", "d"} {
		write(value)
	}
	got, _, _ := ix.decode(ls, 0)
	if diff := cmp.Diff(sorted(want), sorted(got)); diff != "" || len(want) != pods {
		t.Errorf("%d objects; -as they were read +as they were decoded:\n%.2000s", len(want), diff)
	}
}

// TestNamesThatComeAndGoWhileNothingIsWrittenTakeNoMemory: so much would wait that a commit is due.
func TestNamesThatComeAndGoWhileNothingIsWrittenTakeNoMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := testdb.Open(t, testsupport.Path(t), persist.Options{CommitInterval: time.Hour, MaxPendingBytes: 64 << 10})
		ix := newIndexer(t, db, cache.Indexers{"node": byNode, "values": byValues}, 0)
		if err := ix.Add(newPod("stays", "1")); err != nil {
			t.Fatal(err)
		}
		if err := db.Flush(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		durable := db.Durable()
		for i := range 1000 {
			pod := newPod(fmt.Sprint("pod-", i), "1")
			bound := withValues(newPod(fmt.Sprint("pod-", i), "2"), "value")
			bound.Spec.NodeName = "node"
			for _, err := range []error{ix.Add(pod), ix.Update(bound), ix.Update(pod), ix.Delete(bound)} {
				if err != nil {
					t.Fatal(err)
				}
			}
			synctest.Wait()
		}
		if got := db.Durable(); got != durable {
			t.Errorf("batch %d is durable, expected no commit after %d", got, durable)
		}
		checkRebuild(t, ix)
		if got := names(ix.List()); !slices.Equal(got, []string{"stays"}) {
			t.Errorf("there are %v", got)
		}
	})
}

// TestAnObjectThatIsMadeAnewBeforeTheCommitIsDeleted, with its index entries, although the file has
// the one before.
func TestAnObjectThatIsMadeAnewBeforeTheCommitIsDeleted(t *testing.T) {
	db := testdb.Open(t, testsupport.Path(t), testdb.Manual)
	ix := newIndexer(t, db, cache.Indexers{"values": byValues}, 0)
	pod := withValues(newPod("pod", "1"), "value")
	if err := errors.Join(ix.Add(pod), db.Flush(), ix.Delete(pod), ix.Add(pod), ix.Delete(pod)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got := names(ix.List()); len(got) > 0 || len(entriesOf(t, ix)) > 0 {
			t.Errorf("there are %v, and the entries %v", got, entriesOf(t, ix))
		}
		if err := db.Flush(); err != nil {
			t.Fatal(err)
		}
	}
}
