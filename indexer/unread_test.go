package indexer

import (
	"bytes"
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"

	bolt "go.etcd.io/bbolt"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/testdb"
	"github.com/warmwatch/warmwatch/persist"
)

// TestAnUnreadableObjectThatIsReplaced leaves index entries of which the next process knows that they may be wrong.
func TestAnUnreadableObjectThatIsReplaced(t *testing.T) {
	for name, write := range map[string]func(*Indexer) error{
		"changed": func(ix *Indexer) error { return ix.Add(withValues(newPod("a", "2"), "v2")) },
		"deleted": func(ix *Indexer) error { return ix.Delete(newPod("a", "2")) },
	} {
		t.Run(name, func(t *testing.T) {
			u := &unreadTest{T: t, path: testsupport.Path(t), rnd: rand.New(rand.NewPCG(0, 0))}
			u.open()
			if err := errors.Join(u.ix.Add(withValues(newPod("a", "1"), "v1")), u.db.Close()); err != nil {
				t.Fatal(err)
			}
			u.damage(ObjectsBucket)
			u.open()
			if err := errors.Join(write(u.ix), u.db.Close()); err != nil {
				t.Fatal(err)
			}
			if u.reported.Load() == 0 {
				t.Error("no damage was reported")
			}
			u.open()
			if u.ix.IndexErr() == nil || !u.ix.Complete() {
				t.Errorf("the next process: %v, complete %v", u.ix.IndexErr(), u.ix.Complete())
			}
			if err := u.ix.RebuildIndices(); err != nil || u.ix.IndexErr() != nil {
				t.Errorf("rebuilt: %v, %v", err, u.ix.IndexErr())
			}
			checkRebuild(t, u.ix)
		})
	}
}

// TestRebuiltWithoutAnObjectThatCannotBeRead: a rebuild keeps the entries of the object, by which a reader meets the
// damage. If they are damaged, too, nobody reads by the index, in the next process either.
func TestRebuiltWithoutAnObjectThatCannotBeRead(t *testing.T) {
	for _, indexDamaged := range []bool{false, true} {
		u := &unreadTest{T: t, path: testsupport.Path(t), rnd: rand.New(rand.NewPCG(0, 0))}
		u.open()
		if err := errors.Join(u.ix.Add(withValues(newPod("a", "1"), "v1")), u.ix.Add(withValues(newPod("b", "1"), "v1")), u.db.Close()); err != nil {
			t.Fatal(err)
		}
		u.damage(ObjectsBucket)
		if indexDamaged {
			u.damage(IndexBucket)
		}
		for process := range 3 {
			u.open()
			if err := u.ix.RebuildIndices(); err != nil || u.ix.IndexErr() == nil {
				t.Errorf("process %d: %v, %v", process, err, u.ix.IndexErr())
			}
			if keys, err := u.ix.IndexKeys("values", "v1"); err == nil && len(keys) != 2 || err != nil != indexDamaged {
				t.Errorf("process %d: by the index, with damage of it %v: %q, %v", process, indexDamaged, keys, err)
			}
			if err := u.db.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestAnIndexThatIsAddedOverAnObjectItFailsOn is doubted by the next process, too.
func TestAnIndexThatIsAddedOverAnObjectItFailsOn(t *testing.T) {
	u := &unreadTest{T: t, path: testsupport.Path(t)}
	u.open()
	if err := u.ix.Add(withValues(newPod("a", "1"), "v1")); err != nil {
		t.Fatal(err)
	}
	u.ix.Hide(true)
	err := u.ix.AddIndexers(cache.Indexers{"fails": func(any) ([]string, error) { return nil, errors.New("no value") }})
	if err := errors.Join(err, u.db.Close()); err != nil {
		t.Fatal(err)
	}
	if u.open(); u.ix.IndexErr() == nil {
		t.Error("the file does not say so")
	}
}

// TestRandomWritesOverDamage: whatever is written while records are damaged, and across restarts and
// crashes, nothing is missing, and whatever else is wrong is known, to the next process, too.
func TestRandomWritesOverDamage(t *testing.T) {
	for seed := range uint64(testsupport.Rounds(100, 20)) {
		synctest.Test(t, func(t *testing.T) {
			u := &unreadTest{
				T: t, path: testsupport.Path(t), rnd: rand.New(rand.NewPCG(seed, 0)), objects: map[string]*corev1.Pod{},
				budget: []int64{0, -1, 2500}[seed%3],
			}
			u.open()
			for range 60 {
				u.step()
				if t.Failed() {
					t.FailNow()
				}
			}
			u.compare()
			for u.reported.Load() > 0 || u.ix.IndexErr() != nil {
				u.relist()
			}
			u.compare()
			if !u.ix.Complete() || u.reported.Load() > 0 || u.ix.Len() != len(u.objects) {
				t.Errorf("after the relist: damage was reported %d times, %d objects, expected %d", u.reported.Load(), u.ix.Len(), len(u.objects))
			}
		})
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// unreadTest is an Indexer whose file may be damaged, beside what it should have.
type unreadTest struct {
	*testing.T
	path     string
	rnd      *rand.Rand
	budget   int64
	db       *persist.DB
	ix       *Indexer
	reported atomic.Int32 // How often damage was reported.
	rv       int
	objects  map[string]*corev1.Pod
	damaged  []string // Objects whose records cannot be read, until the next relist.

	flushed        []byte // The file as of the last flush, and what it has.
	flushedObjects map[string]*corev1.Pod
}

func (u *unreadTest) open() {
	u.Helper()
	u.db = testdb.Open(u, u.path, testdb.Manual)
	u.reported.Store(0)
	var err error
	u.ix, err = New(Options{
		DB: u.db, Space: testSpace, Indexers: cache.Indexers{"values": byValues}, Logger: &testsupport.Quiet, Objects: NewObjects(u.budget),
		NewObject: func() any { return new(corev1.Pod) }, OnCorrupt: func(error) { u.reported.Add(1) },
	})
	if err != nil {
		u.Fatal(err)
	}
}

// damage flips a bit of a value in a bucket of the file, which is closed, and returns its key.
func (u *unreadTest) damage(bucket string) (key string) {
	u.Helper()
	db, err := bolt.Open(u.path, 0o600, nil)
	if err != nil {
		u.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		space := tx.Bucket([]byte(testSpace))
		if space == nil || space.Bucket([]byte(bucket)) == nil || space.Bucket([]byte(bucket)).Stats().KeyN == 0 {
			return nil // Nothing was written yet.
		}
		b := space.Bucket([]byte(bucket))
		c := b.Cursor()
		k, v := c.First()
		for range u.rnd.IntN(b.Stats().KeyN) {
			k, v = c.Next()
		}
		key, v = string(k), bytes.Clone(v)
		v[u.rnd.IntN(len(v))] ^= 1 << u.rnd.IntN(8)
		return b.Put([]byte(key), v)
	})
	if err := errors.Join(err, db.Close()); err != nil {
		u.Fatal(err)
	}
	return key
}

// relist does what one that damage has asked for does last.
func (u *unreadTest) relist() {
	for _, name := range u.damaged {
		if obj := u.objects[name]; obj != nil {
			if err := u.ix.Add(obj); err != nil {
				u.Fatal(err)
			}
		}
	}
	if err := u.ix.RebuildIndices(); err != nil {
		u.Fatal(err)
	}
	u.damaged = nil
	u.reported.Store(0)
}

func (u *unreadTest) pod() *corev1.Pod {
	u.rv++
	return withValues(newPod(string('a'+rune(u.rnd.IntN(5))), strconv.Itoa(u.rv)), "v"+strconv.Itoa(u.rnd.IntN(3)))
}

func (u *unreadTest) step() {
	var err error
	switch n := u.rnd.IntN(18); {
	case n < 5:
		pod := u.pod()
		u.objects[pod.Name] = pod
		err = u.ix.Add(pod)
	case n < 7:
		pod := u.pod()
		delete(u.objects, pod.Name)
		err = u.ix.Delete(pod)
	case n < 10:
		err = u.batch()
	case n < 14:
		err = u.flush()
	case n == 14:
		if err = u.db.Close(); u.rnd.IntN(2) == 0 {
			if bucket := []string{ObjectsBucket, ObjectsBucket, IndexBucket}[u.rnd.IntN(3)]; bucket == IndexBucket {
				u.damage(bucket)
			} else if key := u.damage(bucket); key != "" {
				u.damaged = append(u.damaged, key[len("kns/"):])
			}
		}
		u.start()
	case n == 15 && u.flushed != nil && len(u.damaged) == 0:
		if err = errors.Join(u.db.Close(), os.WriteFile(u.path, u.flushed, 0o600)); err == nil { // A crash.
			u.objects = maps.Clone(u.flushedObjects)
			u.start()
		}
	case n == 16:
		list := []any{}
		clear(u.objects)
		for range 1 + u.rnd.IntN(3) {
			if pod := u.pod(); u.objects[pod.Name] == nil {
				u.objects[pod.Name] = pod
				list = append(list, pod)
			}
		}
		err = u.ix.Replace(list, strconv.Itoa(u.rv))
	case u.reported.Load() > 0 || u.ix.IndexErr() != nil:
		u.relist()
	}
	if err != nil {
		u.Fatal(err)
	}
	u.compare()
}

func (u *unreadTest) flush() error {
	if err := u.db.Flush(); err != nil || len(u.damaged) > 0 {
		return err
	}
	u.flushed, u.flushedObjects = testsupport.ReadUsed(u, u.path), maps.Clone(u.objects)
	return nil
}

// start opens the file, and does what a start does with what it finds. The server may be away.
func (u *unreadTest) start() {
	u.open()
	if !u.ix.Counted() || !u.ix.Complete() {
		u.relist()
	} else if u.ix.IndexErr() != nil {
		if err := u.ix.RebuildIndices(); err != nil {
			u.Fatal(err)
		}
	}
}

// batch writes several objects, and may not commit them.
func (u *unreadTest) batch() (err error) {
	w := u.ix.Writer()
	defer w.Close()
	next := maps.Clone(u.objects)
	changed := map[string]bool{}
	for range 1 + u.rnd.IntN(4) {
		pod, wantOld := u.pod(), u.rnd.IntN(2) == 0
		if changed[pod.Name] {
			continue
		}
		changed[pod.Name] = true
		if u.rnd.IntN(3) == 0 {
			w.Delete("ns/"+pod.Name, wantOld)
			delete(next, pod.Name)
		} else {
			w.Set("ns/"+pod.Name, encoded(u, "ns/"+pod.Name, pod), wantOld)
			next[pod.Name] = pod
		}
	}
	if u.rnd.IntN(4) > 0 {
		u.objects = next
		err = w.Commit(nil)
	}
	return err
}

// compare compares the Indexer, which can be read, with what it should have.
func (u *unreadTest) compare() {
	u.Helper()
	want := slices.Sorted(maps.Keys(u.objects))
	if got := u.ix.ListKeys(); len(got) != len(want) || u.ix.Len() < len(want) {
		u.Errorf("keys %q, %d counted, expected %q", got, u.ix.Len(), want)
	}
	lacks := func(objects []any, want string) bool {
		return !slices.ContainsFunc(objects, func(o any) bool { return o.(*corev1.Pod).ResourceVersion == u.objects[want].ResourceVersion })
	}
	list := u.ix.List()
	for _, name := range want {
		if lacks(list, name) && (u.reported.Load() == 0 || !slices.Contains(u.damaged, name)) {
			u.Errorf("List lacks %s", name)
		}
	}
	if len(list) > len(want) {
		u.Errorf("listed %q, expected %q", names(list), want)
	}
	for _, value := range []string{"v0", "v1", "v2"} {
		got, err := u.ix.ByIndex("values", value)
		wrong, expected := err != nil, 0
		for _, name := range want {
			if values, _ := byValues(u.objects[name]); values[0] != value {
				continue
			}
			expected++
			if lacks(got, name) {
				wrong = true
				if err == nil && !slices.Contains(u.damaged, name) {
					u.Errorf("the index lacks %s", name)
				}
			}
		}
		known := u.reported.Load() > 0 || u.ix.IndexErr() != nil
		if wrong = wrong || len(got) != expected; wrong && !known {
			u.Errorf("ByIndex(%s) = %q, %v, and nobody knows that it is wrong", value, names(got), err)
		}
	}
}
