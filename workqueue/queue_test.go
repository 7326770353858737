package workqueue

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	bolt "go.etcd.io/bbolt"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/testdb"
	"github.com/warmwatch/warmwatch/persist"
)

func TestANameHasOneQueueAtATime(t *testing.T) {
	s, db := openStore(t, testsupport.Path(t))
	for name, want := range map[string]string{"": "required", strings.Repeat("x", 1025): "too long"} {
		if _, err := New[string](s, name, Options[string]{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a name of %d bytes: %v", len(name), err)
		}
	}
	q := newQueue(t, s, Options[string]{})
	q.Add("a")
	inUse := func() {
		t.Helper()
		if _, err := New(s, "model", Options[string]{}); !errors.Is(err, ErrInUse) {
			t.Errorf("a second queue: %v", err)
		}
		if err := s.Forget("model"); !errors.Is(err, ErrInUse) {
			t.Errorf("forget: %v", err)
		}
	}
	inUse()
	item, _ := q.Get()
	q.ShutDown()
	inUse() // Somebody works on an item.
	q.Done(item)
	next := newQueue(t, s, Options[string]{}) // The first one is empty.
	if next.Len() != 0 {
		t.Errorf("%d items", next.Len())
	}
	next.Add("b")
	next.Close()
	next.Close()
	if _, shutdown := next.Get(); !shutdown {
		t.Error("a closed queue gives away items")
	}
	flush(t, db)
	if d := cmp.Diff([]Status{{Name: "model", Absent: true, Keys: 1}}, s.Status()); d != "" {
		t.Error(d)
	}
	s.Close()
	if _, err := New(s, "model", Options[string]{}); !errors.Is(err, persist.ErrClosed) {
		t.Errorf("of a closed store: %v", err)
	}
}

func TestNamesAreApart(t *testing.T) {
	path := testsupport.Path(t)
	s, db := openStore(t, path)
	for name, items := range map[string][]string{"a": {"x", "a/x"}, "a/": {"x"}, "1/a": {"y", ""}} {
		q, err := New(s, name, Options[string]{})
		if err != nil {
			t.Fatal(err)
		}
		for _, item := range items {
			q.Add(item)
		}
		q.Close()
	}
	flush(t, db)
	if err := s.Forget("a"); err != nil {
		t.Fatal(err)
	}
	flush(t, db)
	s, _ = openStore(t, crashed(t, path))
	if d := cmp.Diff([]Status{{"1/a", true, 2}, {"a/", true, 1}}, s.Status()); d != "" {
		t.Error(d)
	}
	for name, want := range map[string]int{"a": 0, "a/": 1, "1/a": 2} {
		q, err := New(s, name, Options[string]{})
		if err != nil {
			t.Fatal(err)
		}
		if q.Len() != want || q.Damaged() {
			t.Errorf("%q has %d items, damaged %t", name, q.Len(), q.Damaged())
		}
		q.Close()
	}
}

func TestItemsAreOfTheTypeOfTheQueue(t *testing.T) {
	s, _ := openStore(t, testsupport.Path(t))
	names, err := New(s, "names", Options[cache.ObjectName]{})
	if err != nil {
		t.Fatal(err)
	}
	want := []cache.ObjectName{{Name: "node"}, {Namespace: "ns", Name: "pod"}}
	for _, name := range want {
		names.Add(name)
	}
	names.Close()
	if names, err = New(s, "names", Options[cache.ObjectName]{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range want {
		if got, _ := names.Get(); got != name {
			t.Errorf("%v, expected %v", got, name)
		}
	}
	names.Close()
	if _, err := New(s, "numbers", Options[int]{}); err == nil || !strings.Contains(err.Error(), "Codec") {
		t.Errorf("no Codec: %v", err)
	}
	texts, err := New(s, "texts", Options[string]{})
	if err != nil {
		t.Fatal(err)
	}
	texts.Add("not/an/object")
	texts.Close()
	for range 2 {
		if _, err := New(s, "texts", Options[cache.ObjectName]{}); err == nil || !strings.Contains(err.Error(), "not/an/object") {
			t.Errorf("an item of another type: %v", err)
		}
	}
}

// TestAWorkerThatIsBlockedInGetEnds: as with client-go.
func TestAWorkerThatIsBlockedInGetEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := openStore(t, testsupport.Path(t))
		q := newQueue(t, s, Options[string]{})
		go func() {
			time.Sleep(time.Second)
			q.Add("a")
			q.ShutDownWithDrain()
		}()
		if item, shutdown := q.Get(); item != "a" || shutdown {
			t.Errorf("%q, %t", item, shutdown)
		}
		q.Done("a")
		if _, shutdown := q.Get(); !shutdown {
			t.Error("not shut down")
		}
		synctest.Wait()
	})
}

// TestWhatWaitsAtShutDownIsLeft for the next queue of the name, once nobody works on an item.
func TestWhatWaitsAtShutDownIsLeft(t *testing.T) {
	s, _ := openStore(t, testsupport.Path(t))
	o := Options[string]{LeaveAtShutDown: true}
	q := newQueue(t, s, o)
	for _, item := range []string{"a", "b", "c"} {
		q.Add(item)
	}
	for _, item := range []string{"a", "b"} {
		if got, shutdown := q.Get(); got != item || shutdown {
			t.Errorf("%q, %t", got, shutdown)
		}
	}
	q.ShutDown()
	if item, shutdown := q.Get(); item != "" || !shutdown {
		t.Errorf("after ShutDown: %q, %t", item, shutdown)
	}
	q.Done("a")
	if _, err := New(s, "model", o); !errors.Is(err, ErrInUse) {
		t.Errorf("while somebody works on an item: %v", err)
	}
	q.AddRateLimited("b")
	q.Done("b")
	next := newQueue(t, s, o)
	for _, item := range []string{"b", "c"} {
		if got, shutdown := next.Get(); got != item || shutdown {
			t.Errorf("the next one: %q, %t", got, shutdown)
		}
		next.Done(item)
	}
	if st := s.Status(); st[0].Keys != 0 {
		t.Errorf("%+v", st)
	}
}

// TestAClosedQueueDrains: nobody works on an item that Get has kept back.
func TestAClosedQueueDrains(t *testing.T) {
	s, _ := openStore(t, testsupport.Path(t))
	q := newQueue(t, s, Options[string]{})
	q.Add("a")
	q.Close()
	if _, shutdown := q.Get(); !shutdown {
		t.Error("a closed queue gives away an item")
	}
	q.ShutDownWithDrain()
}

// TestAnItemThatIsDoneAfterCloseIsLeftToTheNextQueue of the name, which has it already.
func TestAnItemThatIsDoneAfterCloseIsLeftToTheNextQueue(t *testing.T) {
	path := testsupport.Path(t)
	s, db := openStore(t, path)
	q := newQueue(t, s, Options[string]{})
	q.Add("a")
	item, _ := q.Get()
	q.Close()
	next := newQueue(t, s, Options[string]{})
	q.Done(item)
	if next.Len() != 1 {
		t.Errorf("the next queue has %d items", next.Len())
	}
	flush(t, db)
	after, _ := openStore(t, crashed(t, path))
	if d := cmp.Diff([]Status{{Name: "model", Absent: true, Keys: 1}}, after.Status()); d != "" {
		t.Errorf("a process after a crash (-want +got):\n%s", d)
	}
}

// TestAnItemThatIsAddedForLaterTwiceIsKept, also where the first time comes while the second one is
// being noted.
func TestAnItemThatIsAddedForLaterTwiceIsKept(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			s, _ := openStore(t, testsupport.Path(t))
			q := newQueue(t, s, Options[string]{})
			q.AddAfter("a", time.Second)
			go func() {
				time.Sleep(time.Second)
				q.AddAfter("a", time.Minute)
			}()
			time.Sleep(time.Second)
			synctest.Wait()
			item, _ := q.Get()
			q.Done(item)
			kept := len(q.keys)
			time.Sleep(time.Hour)
			if q.Len() != kept {
				t.Errorf("%d keys were kept while %d items waited", kept, q.Len())
			}
			q.ShutDown()
			time.Sleep(time.Minute)
		})
	}
}

// TestADamagedItemIsNoticed, until the file is repaired: it is worked on if the Codec knows it, and the others are in
// any case.
func TestADamagedItemIsNoticed(t *testing.T) {
	for name, c := range map[string]struct {
		damage func(_, work *bolt.Bucket) error
		items  []string
	}{
		"a value":                 {func(_, work *bolt.Bucket) error { return work.Put([]byte("k5/model/a"), []byte("damaged")) }, []string{"a", "b"}},
		"a key":                   {func(_, work *bolt.Bucket) error { return rename(work, "k5/model/a", "k5/model/c") }, []string{"b", "c"}},
		"a key that nobody knows": {func(_, work *bolt.Bucket) error { return rename(work, "k5/model/a", "k5/model/unknown") }, []string{"b"}},
	} {
		t.Run(name, func(t *testing.T) {
			path := testsupport.Path(t)
			s, db := openStore(t, path)
			q := newQueue(t, s, Options[string]{})
			q.Add("a")
			q.Add("b")
			flush(t, db)
			path = crashed(t, path)
			changeWork(t, path, c.damage)
			for process := range 4 {
				s, db = openStore(t, path)
				q = newQueue(t, s, Options[string]{Codec: fussy{}})
				items := c.items
				if process == 3 {
					items = nil
				}
				if q.Damaged() != (process < 2) {
					t.Errorf("process %d: damaged %t", process, q.Damaged())
				}
				if d := cmp.Diff(items, slices.Sorted(maps.Keys(q.keys))); d != "" || q.Len() != len(items) {
					t.Errorf("process %d: %d items (-want +got):\n%s", process, q.Len(), d)
				}
				if process == 2 {
					for range items {
						item, _ := q.Get()
						q.Done(item)
					}
				}
				if process > 0 { // The first one ends before its next commit.
					flush(t, db)
				}
				path = crashed(t, path)
			}
		})
	}
}

// rename changes a key, as damage would: the checksum of its value is wrong then.
func rename(b *bolt.Bucket, from, to string) error {
	value := bytes.Clone(b.Get([]byte(from)))
	return errors.Join(b.Delete([]byte(from)), b.Put([]byte(to), value))
}

// TestWhatIsDoneBeforeACommitIsNotWritten: a queue that is worked off at once causes no commit, which much that waits
// would.
func TestWhatIsDoneBeforeACommitIsNotWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := testdb.Open(t, testsupport.Path(t), persist.Options{CommitInterval: time.Hour, MaxPendingBytes: 10_000})
		q := newQueue(t, NewStore(db, "workqueues", testsupport.Quiet), Options[string]{})
		flush(t, db)
		durable := db.Durable()
		for i := range 1000 {
			q.Add(fmt.Sprint(i))
			item, _ := q.Get()
			q.Forget(item)
			q.Done(item)
		}
		synctest.Wait()
		if now := db.Durable(); now != durable {
			t.Errorf("durable up to batch %d, expected %d", now, durable)
		}
	})
}

// TestATransientItemIsNotInTheFile, unless it is added as others are, too.
func TestATransientItemIsNotInTheFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, db := openStore(t, testsupport.Path(t))
		q := newQueue(t, s, Options[string]{RateLimiter: limiter()})
		expectStored := func(want ...string) {
			t.Helper()
			flush(t, db)
			after, _ := openStore(t, crashed(t, db.Path()))
			q := newQueue(t, after, Options[string]{})
			defer q.ShutDown()
			if d := cmp.Diff(want, slices.Sorted(maps.Keys(q.keys))); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
		}
		next := func(want string) {
			t.Helper()
			if got, _ := q.Get(); got != want {
				t.Errorf("%q, expected %q", got, want)
			}
		}
		q.AddTransient("a")
		q.Add("b")
		q.AddTransient("b")
		if q.Len() != 2 || s.Status()[0].Keys != 2 {
			t.Errorf("%d items, %v", q.Len(), s.Status())
		}
		expectStored("b")
		next("a")
		q.Done("a")
		next("b")
		q.AddTransient("b") // Not to be lost: somebody works on an earlier state.
		q.Done("b")
		expectStored("b")
		next("b")
		q.Done("b")
		expectStored()
		q.AddTransient("a")
		next("a")
		q.AddRateLimited("a") // It is kept until it has succeeded.
		q.Done("a")
		expectStored("a")
		time.Sleep(time.Second)
		synctest.Wait()
		next("a")
		q.Done("a")
		expectStored()
		if keys := s.Status()[0].Keys; keys != 0 {
			t.Errorf("%d keys", keys)
		}
	})
}

// TestWhatIsAddedAfterTheEndIsForTheNextProcess, whatever another queue of the name has done meanwhile.
func TestWhatIsAddedAfterTheEndIsForTheNextProcess(t *testing.T) {
	for name, end := range map[string]func(*Queue[string]){
		"Close":    (*Queue[string]).Close,
		"ShutDown": func(q *Queue[string]) { q.ShutDown() },
	} {
		for _, others := range []string{"no other queue", "another queue", "Forget"} {
			t.Run(name+", "+others, func(t *testing.T) {
				s, db := openStore(t, testsupport.Path(t))
				q := newQueue(t, s, Options[string]{LeaveAtShutDown: true})
				q.Add("a")
				end(q)
				switch others {
				case "another queue":
					other := newQueue(t, s, Options[string]{})
					item, _ := other.Get()
					other.Done(item)
					other.Close()
				case "Forget":
					if err := s.Forget("model"); err != nil {
						t.Fatal(err)
					}
				}
				q.Add("a")
				q.AddAfter("b", time.Hour)
				q.Add("c")
				flush(t, db)
				s, _ = openStore(t, crashed(t, db.Path()))
				if next := newQueue(t, s, Options[string]{}); next.Len() != 3 {
					t.Errorf("the next process has %d items", next.Len())
				}
			})
		}
	}
}

// TestWhatAClosedQueueAddsIsRemovedByTheNextOne: the file has the key already, so a Done before the next commit has to
// be written (D5).
func TestWhatAClosedQueueAddsIsRemovedByTheNextOne(t *testing.T) {
	s, db := openStore(t, testsupport.Path(t))
	q := newQueue(t, s, Options[string]{})
	q.Add("a")
	flush(t, db)
	q.Close()
	other := newQueue(t, s, Options[string]{})
	item, _ := other.Get()
	q.Add("a")
	other.Done(item)
	flush(t, db)
	s, _ = openStore(t, crashed(t, db.Path()))
	if next := newQueue(t, s, Options[string]{}); next.Len() != 0 {
		t.Errorf("the next process has %d items", next.Len())
	}
}

// TestStatusHasAlsoNamesThatHaveNoQueue: with what waits for them.
func TestStatusHasAlsoNamesThatHaveNoQueue(t *testing.T) {
	s, db := openStore(t, testsupport.Path(t))
	add := func(name string, items ...string) *Queue[string] {
		q, err := New(s, name, Options[string]{Codec: fussy{}})
		if err != nil {
			t.Fatal(err)
		}
		for _, item := range items {
			q.Add(item)
		}
		return q
	}
	add("absent", "a", "b", "unknown").Close()
	add("empty").Close()
	used := add("used", "a")
	expect := func(want ...Status) {
		t.Helper()
		if d := cmp.Diff(want, s.Status()); d != "" {
			t.Errorf("-want +got:\n%s", d)
		}
	}
	expect(Status{"absent", true, 3}, Status{"empty", true, 0}, Status{"used", false, 1})
	used.Close()
	flush(t, db)

	s, _ = openStore(t, crashed(t, db.Path()))
	add("empty", "a").Close()
	for range 2 { // A queue that could not be made changes nothing.
		expect(Status{"absent", true, 3}, Status{"empty", true, 1}, Status{"used", true, 1})
		if _, err := New(s, "absent", Options[string]{Codec: fussy{}}); err == nil {
			t.Error("an item that the Codec does not know is accepted")
		}
	}
	if err := s.Forget("absent"); err != nil {
		t.Fatal(err)
	}
	expect(Status{"empty", true, 1}, Status{"used", true, 1})
}

// TestEveryCommitWithAnAcknowledgementHasTheItem, or what says that it is done: a handler adds it before it
// acknowledges (D5).
func TestEveryCommitWithAnAcknowledgementHasTheItem(t *testing.T) {
	s, db := openStore(t, testsupport.Path(t))
	q := newQueue(t, s, Options[string]{LeaveAtShutDown: true})
	notes := persist.Bucket{Space: "pods", Name: "notes"}
	note := func(key, value string) {
		if err := db.Update(func(b *persist.Batch) { b.Put(notes, key, []byte(value)) }); err != nil {
			t.Error(err)
		}
		runtime.Gosched() // To the committer.
	}
	var worker sync.WaitGroup
	worker.Go(func() { // Does every second item.
		for {
			item, shutdown := q.Get()
			switch i, _ := strconv.Atoi(item); {
			case shutdown:
				return
			case i%2 == 0:
				note("done "+item, "")
			default:
				q.AddAfter(item, time.Hour)
			}
			q.Done(item)
		}
	})
	added := 0
	for range testsupport.Rounds(60, 25) {
		var handler sync.WaitGroup
		handler.Go(func() { // While a commit begins.
			for range 20 {
				q.Add(fmt.Sprint(added))
				runtime.Gosched()
				added++
				note("acknowledged", fmt.Sprint(added))
			}
		})
		committed := db.Committed()
		flush(t, db)
		<-committed
		path := testsupport.Path(t)
		testsupport.CopyFile(t, db.Path(), path)
		expectAcknowledgedItems(t, path, notes)
		handler.Wait()
	}
	q.ShutDown()
	worker.Wait()
}

// expectAcknowledgedItems expects in a file that each item which is acknowledged by the notes is there, or is done.
func expectAcknowledgedItems(t *testing.T, path string, notes persist.Bucket) {
	t.Helper()
	s, db := openStore(t, path)
	there := newQueue(t, s, Options[string]{}).keys
	acknowledged := 0
	err := db.Read(notes.Space, func(snapshot *persist.Snapshot) error {
		return snapshot.Scan(notes.Name, "", func(it *persist.Item) (bool, error) {
			if done, ok := strings.CutPrefix(it.Key, "done "); ok {
				there[done] = struct{}{}
				return true, nil
			}
			b, err := it.Payload()
			acknowledged, _ = strconv.Atoi(string(b))
			return true, err
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range acknowledged {
		if _, ok := there[fmt.Sprint(i)]; !ok {
			t.Fatalf("%d are acknowledged, item %d is neither there nor done", acknowledged, i)
		}
	}
}

// TestManyUseAQueueAtOnce: with the race detector.
func TestManyUseAQueueAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := testsupport.Path(t)
		s, db := openStore(t, path)
		q := newQueue(t, s, Options[string]{})
		for i := range 4 {
			go func() {
				for n := range 500 {
					q.Add(string(rune('a' + n%20)))
					if n%7 == i {
						q.AddAfter(string(rune('a'+n%20)), time.Duration(n)*time.Millisecond)
					}
				}
			}()
			go func() {
				for n := 0; ; n++ {
					item, shutdown := q.Get()
					if shutdown {
						return
					}
					if n%5 == 0 {
						q.AddRateLimited(item)
					} else {
						q.Forget(item)
					}
					q.Done(item)
				}
			}()
		}
		for range 20 {
			time.Sleep(100 * time.Millisecond)
			flush(t, db)
			s.Status()
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := s.Status()[0].Keys; n != 0 || q.Len() != 0 {
			t.Errorf("%d keys are kept, %d are in the queue", n, q.Len())
		}
	})
}

// fussy is a Codec that does not know the key "unknown".
type fussy struct{ Strings }

func (fussy) Decode(key string) (string, error) {
	if key == "unknown" {
		return "", errors.New("unknown")
	}
	return key, nil
}
