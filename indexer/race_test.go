package indexer

import (
	"fmt"
	"math/rand"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/testdb"
	"github.com/warmwatch/warmwatch/persist"
)

func version(t *testing.T, obj any) int {
	n, err := strconv.Atoi(obj.(*corev1.Pod).ResourceVersion)
	if err != nil {
		t.Error(err)
	}
	return n
}

// TestReadersNeverGoBack: whatever way an object is read, now from memory and
// now from disk, a reader that has seen a version never sees an older one.
func TestReadersNeverGoBack(t *testing.T) {
	for _, budget := range []int64{1, 3000, -1} {
		t.Run(fmt.Sprintf("budget %d", budget), func(t *testing.T) {
			db := testdb.Open(t, testsupport.Path(t), persist.Options{CommitInterval: time.Millisecond})
			ix := newIndexer(t, db, cache.Indexers{"node": byNode}, budget)
			objects, versions := 8, testsupport.Rounds(400, 80)
			var wg sync.WaitGroup
			done := make(chan struct{})
			read := map[string]func(key string) (int, bool){
				"Get": func(key string) (int, bool) {
					obj, exists, err := ix.GetByKey(key)
					if err != nil || !exists {
						t.Errorf("%s: exists %v, %v", key, exists, err)
						return 0, false
					}
					return version(t, obj), true
				},
				"List": func(key string) (int, bool) {
					for _, obj := range ix.List() {
						if p := obj.(*corev1.Pod); p.Namespace+"/"+p.Name == key {
							return version(t, obj), true
						}
					}
					t.Errorf("%s is not listed", key)
					return 0, false
				},
				"ByIndex": func(key string) (int, bool) {
					objs, err := ix.ByIndex("node", key)
					if err != nil || len(objs) != 1 {
						t.Errorf("%s: %d objects, %v", key, len(objs), err)
						return 0, false
					}
					return version(t, objs[0]), true
				},
				"Chunk": func(key string) (int, bool) {
					c, err := ix.Chunk(key, false)
					if err != nil || len(c.Keys) == 0 || c.Keys[0] != key {
						t.Errorf("%s: %v, %v", key, c.Keys, err)
						return 0, false
					}
					return version(t, c.Objects[0]), true
				},
			}
			set := func(i, v int) {
				p := newPod(fmt.Sprintf("pod-%d", i), strconv.Itoa(v))
				p.Spec.NodeName = "ns/" + p.Name
				if err := ix.Update(p); err != nil {
					t.Error(err)
				}
			}
			for i := range objects {
				set(i, 0)
			}
			for r := range 4 {
				wg.Go(func() {
					rnd := rand.New(rand.NewSource(int64(r)))
					ways := []string{"Get", "List", "Get", "ByIndex", "Get", "Chunk"}
					for {
						select {
						case <-done:
							return
						default:
						}
						key := fmt.Sprintf("ns/pod-%d", rnd.Intn(objects))
						last, lastWay := 0, ""
						for range 6 {
							way := ways[rnd.Intn(len(ways))]
							v, ok := read[way](key)
							if !ok {
								return
							}
							if v < last {
								t.Errorf("%s: %s returns version %d, after %s had returned %d", key, way, v, lastWay, last)
								return
							}
							last, lastWay = v, way
						}
					}
				})
			}
			for v := 1; v <= versions; v++ {
				for i := range objects {
					set(i, v)
				}
				if v%100 == 0 {
					if err := db.Flush(); err != nil {
						t.Error(err)
					}
				}
			}
			close(done)
			wg.Wait()
			for i := range objects { // What was kept in memory is the newest.
				if v, _ := read["Get"](fmt.Sprintf("ns/pod-%d", i)); v != versions {
					t.Errorf("pod %d has version %d", i, v)
				}
			}
			checkRebuild(t, ix)
		})
	}
}

// TestABatchIsInMemoryWhenItIsVisible: with many objects in one batch, no reader
// finds the new version of one by a snapshot and then the old one in memory.
func TestABatchIsInMemoryWhenItIsVisible(t *testing.T) {
	db := testdb.Open(t, testsupport.Path(t), persist.Options{CommitInterval: time.Millisecond})
	ix := newIndexer(t, db, nil, -1)
	objects, versions := 400, testsupport.Rounds(150, 15)
	replace := func(v int) {
		var list []any
		for i := range objects {
			list = append(list, newPod(fmt.Sprintf("pod-%d", i), strconv.Itoa(v)))
		}
		if err := ix.Replace(list, strconv.Itoa(v)); err != nil {
			t.Error(err)
		}
	}
	replace(0)
	var wg sync.WaitGroup
	done := make(chan struct{})
	for r := range 2 {
		wg.Go(func() {
			for i := r; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				key := fmt.Sprintf("ns/pod-%d", i%objects)
				s, err := db.Snapshot(testSpace)
				if err != nil {
					t.Error(err)
					return
				}
				st, err := stateAt(s)
				if err != nil {
					t.Error(err)
				}
				var seen lazyObject
				if _, err := s.View(ObjectsBucket, key, func(it *persist.Item) error {
					seen = ix.fetch(it, st.Seq)
					return nil
				}); err != nil {
					t.Error(err)
				}
				s.Close()
				objs, _, _ := ix.decode([]lazyObject{seen}, 0)
				obj, exists, err := ix.GetByKey(key)
				if err != nil || !exists {
					t.Errorf("%s: exists %v, %v", key, exists, err)
					return
				}
				if before, now := version(t, objs[0]), version(t, obj); now < before {
					t.Errorf("%s has version %d after version %d", key, now, before)
					return
				}
			}
		})
	}
	for v := 1; v <= versions; v++ {
		replace(v)
	}
	close(done)
	wg.Wait()
}

// TestADeletedObjectDoesNotComeBack: readers that have read it from disk must
// not put it into memory again.
func TestADeletedObjectDoesNotComeBack(t *testing.T) {
	db := testdb.Open(t, testsupport.Path(t), persist.Options{CommitInterval: time.Millisecond})
	ix := newIndexer(t, db, cache.Indexers{"node": byNode}, 2000)
	var wg sync.WaitGroup
	done := make(chan struct{})
	for range 3 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				if _, _, err := ix.GetByKey(fmt.Sprintf("ns/pod-%d", i%10)); err != nil {
					t.Error(err)
				}
				if objs, err := ix.ByIndex("node", ""); err != nil || len(objs) > 10 {
					t.Errorf("%d objects, %v", len(objs), err)
				}
			}
		})
	}
	for round := range 200 {
		for i := range 10 {
			if err := ix.Add(newPod(fmt.Sprintf("pod-%d", i), "1")); err != nil {
				t.Error(err)
			}
		}
		if round%10 == 0 {
			if err := db.Flush(); err != nil { // From now on it is read from disk.
				t.Error(err)
			}
		}
		for i := range 10 {
			p := newPod(fmt.Sprintf("pod-%d", i), "2")
			if err := ix.Delete(p); err != nil {
				t.Error(err)
			}
			if _, exists, err := ix.Get(p); exists || err != nil {
				t.Errorf("pod %d exists after its deletion: %v", i, err)
			}
		}
	}
	close(done)
	wg.Wait()
	if ix.Len() != 0 || len(ix.List()) != 0 {
		t.Errorf("%d objects left, %v", ix.Len(), ix.List())
	}
}

// TestAnIndexIsAlwaysOfTheObjects: a reader of an index finds each object under
// the one value that it has, while that changes.
func TestAnIndexIsAlwaysOfTheObjects(t *testing.T) {
	db := testdb.Open(t, testsupport.Path(t), persist.Options{CommitInterval: time.Millisecond})
	ix := newIndexer(t, db, cache.Indexers{"node": byNode}, 3000)
	var wg sync.WaitGroup
	done := make(chan struct{})
	for range 2 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				node := fmt.Sprintf("node-%d", i%3)
				objs, err := ix.ByIndex("node", node)
				if err != nil {
					t.Error(err)
				}
				for _, obj := range objs {
					if got := obj.(*corev1.Pod).Spec.NodeName; got != node {
						t.Errorf("index value %s has a Pod of %s", node, got)
					}
				}
			}
		})
	}
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
			}
			if err := ix.AddIndexers(cache.Indexers{fmt.Sprintf("late-%d", i): byNode}); err != nil {
				t.Error(err)
			}
			if i == 5 {
				return
			}
		}
	})
	rnd := rand.New(rand.NewSource(1))
	for v := range 1500 {
		p := newPod(fmt.Sprintf("pod-%d", rnd.Intn(10)), strconv.Itoa(v))
		p.Spec.NodeName = fmt.Sprintf("node-%d", rnd.Intn(3))
		if err := ix.Update(p); err != nil {
			t.Error(err)
		}
	}
	close(done)
	wg.Wait()
	checkRebuild(t, ix)
}

// TestObjectsKeepsWithinItsBudget is for the cache alone, with random use.
func TestObjectsKeepsWithinItsBudget(t *testing.T) {
	rnd := testsupport.Rand(t)
	const budget = 20_000
	o := NewObjects(budget)
	owners := []*owner{newOwner(0), newOwner(0)}
	last := map[objectKey]uint64{}
	for i := range uint64(20_000) {
		k := objectKey{owners[rnd.Intn(2)], strconv.Itoa(rnd.Intn(200))}
		switch rnd.Intn(6) {
		case 0, 1:
			set(o, k, i, i, rnd.Intn(1000))
			last[k] = i
		case 2:
			remove(o, k, i)
			delete(last, k)
		case 3: // Read from disk, with or without a write meanwhile.
			seq, exists := last[k]
			if rnd.Intn(2) == 0 {
				set(o, k, i, i, 10)
				last[k] = i
			}
			if exists {
				o.add(k, seq, seq, rnd.Intn(1000), i-1, false)
			}
		case 4:
			if gone := k.owner.gone; gone > 0 {
				o.add(k, uint64(1<<60), 1<<60, 10, gone-1, false) // Too late.
			}
		default:
			if got, ok := o.get(k, newest); ok && got.object != last[k] {
				t.Fatalf("%v is %v, expected %d", k, got.object, last[k])
			}
			if got, ok := o.get(k, last[k]); ok && (got.object != last[k] || got.seq != last[k]) {
				t.Fatalf("%v is %v, expected %d", k, got.object, last[k])
			}
			if _, ok := o.get(k, last[k]-1); ok && last[k] > 0 {
				t.Fatalf("%v is there as it was later", k)
			}
		}
		used, n, items := int64(0), 0, len(owners[0].items)+len(owners[1].items)
		for it := o.lru.next; it != &o.lru; it = it.next {
			if it.key.item() != it || it.next.prev != it {
				t.Fatal("the ring and the map differ")
			}
			used += it.bytes
			n++
		}
		if used != o.used || used > budget || n != items {
			t.Fatalf("%d bytes in %d items, counted %d in %d, of %d", used, n, o.used, items, budget)
		}
	}
}
