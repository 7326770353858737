package workqueue

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
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
		if q.Len() != want || q.Known() != (name != "a") || q.Lost() {
			t.Errorf("%q has %d items, known %t, lost %t", name, q.Len(), q.Known(), q.Lost())
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
			kept := q.keys.len()
			time.Sleep(time.Hour)
			if q.Len() != kept {
				t.Errorf("%d keys were kept while %d items waited", kept, q.Len())
			}
			q.ShutDown()
			time.Sleep(time.Minute)
		})
	}
}

// TestKeysThatAreLostAreNoticed: and the others are worked on.
func TestKeysThatAreLostAreNoticed(t *testing.T) {
	for name, c := range map[string]struct {
		damage func(names, work *bolt.Bucket) error
		items  int
	}{
		"a key is gone":          {func(_, work *bolt.Bucket) error { return work.Delete([]byte("k5/model/a")) }, 1},
		"a value is damaged":     {func(_, work *bolt.Bucket) error { return work.Put([]byte("k5/model/a"), []byte("damaged")) }, 2},
		"a key is damaged":       {func(_, work *bolt.Bucket) error { return rename(work, "k5/model/a", "k5/model/c") }, 2},
		"nobody knows it":        {func(_, work *bolt.Bucket) error { return rename(work, "k5/model/a", "k5/model/unknown") }, 1},
		"their number is gone":   {func(names, _ *bolt.Bucket) error { return names.Delete([]byte("kmodel")) }, 2},
		"their number is damage": {func(names, _ *bolt.Bucket) error { return names.Put([]byte("kmodel"), []byte("damaged")) }, 2},
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
			s, db = openStore(t, path)
			q = newQueue(t, s, Options[string]{Codec: fussy{}})
			if !q.Lost() || q.Len() != c.items {
				t.Errorf("lost: %t, %d items", q.Lost(), q.Len())
			}
			for _, recovered := range []bool{false, true} { // Before that a process may end.
				if recovered {
					q.Recovered()
				}
				flush(t, db)
				s, db = openStore(t, crashed(t, path))
				if q = newQueue(t, s, Options[string]{Codec: fussy{}}); q.Lost() == recovered || !q.Known() || q.Len() != c.items {
					t.Errorf("lost: %t, after it was recovered %t, %d items", q.Lost(), recovered, q.Len())
				}
				path = db.Path()
			}
		})
	}
}

// TestWhatAnotherUserOfTheNameHasDoneIsLost: before the first workqueue of the name, or since.
func TestWhatAnotherUserOfTheNameHasDoneIsLost(t *testing.T) {
	path := testsupport.Path(t)
	s, db := openStore(t, path)
	if err := s.MarkLost("model"); err != nil {
		t.Fatal(err)
	}
	if q := newQueue(t, s, Options[string]{}); q.Lost() {
		t.Error("the first one of a name that nobody had has lost something")
	}
	flush(t, db)
	for _, ended := range []bool{false, true} {
		s, db = openStore(t, crashed(t, path))
		if ended { // The mark is for the next one of this process, too.
			newQueue(t, s, Options[string]{}).Close()
		}
		if err := s.MarkLost("model"); err != nil {
			t.Fatal(err)
		}
		flush(t, db)
		if !ended {
			s, db = openStore(t, crashed(t, db.Path()))
		}
		q := newQueue(t, s, Options[string]{})
		if !q.Lost() {
			t.Error("what the other one did is not lost")
		}
		q.Recovered()
		flush(t, db)
		path = db.Path()
	}
	s, _ = openStore(t, crashed(t, path))
	if q := newQueue(t, s, Options[string]{LostIfUnknown: true}); q.Lost() {
		t.Error("what was recovered is lost")
	}
	if err := s.Forget("unknown"); err != nil {
		t.Fatal(err)
	}
	other, err := New(s, "unknown", Options[string]{LostIfUnknown: true})
	if err != nil {
		t.Fatal(err)
	}
	if !other.Lost() {
		t.Error("nothing is lost of what was done before the first one of the name")
	}
	other.Close()
}

// rename changes a key, as damage would: the checksum of its value is wrong then.
func rename(b *bolt.Bucket, from, to string) error {
	value := bytes.Clone(b.Get([]byte(from)))
	return errors.Join(b.Delete([]byte(from)), b.Put([]byte(to), value))
}

// TestKeysAreWrittenIntoTheFileThatReplacesADamagedOne: also those that were only in the old one.
func TestKeysAreWrittenIntoTheFileThatReplacesADamagedOne(t *testing.T) {
	path := testsupport.Path(t)
	s, db := openStore(t, path)
	q := newQueue(t, s, Options[string]{})
	q.Add("a")
	flush(t, db)
	_, err := db.Update(func(b *persist.Batch) { b.Drop(s.keys); b.Drop(s.names) }) // As if nothing could be read.
	if err != nil {
		t.Fatal(err)
	}
	q.keys.afterDamage(errors.New("damaged"))
	flush(t, db)
	s, _ = openStore(t, crashed(t, path))
	if q = newQueue(t, s, Options[string]{}); q.Lost() || q.Len() != 1 {
		t.Errorf("lost: %t, %d items", q.Lost(), q.Len())
	}
}

// TestWhatIsDoneBeforeACommitIsNotWritten: a queue that is worked off at once costs no writes.
func TestWhatIsDoneBeforeACommitIsNotWritten(t *testing.T) {
	path := testsupport.Path(t)
	s, db := openStore(t, path)
	q := newQueue(t, s, Options[string]{})
	flush(t, db)
	puts := 0
	db.AddHook(&persist.Hook{BeforeCommit: func(*persist.Batch) { puts = len(q.keys.changed) }})
	for range 100 {
		q.Add("a")
		item, _ := q.Get()
		q.Forget(item)
		q.Done(item)
	}
	flush(t, db)
	if puts != 0 {
		t.Errorf("%d changes", puts)
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

// TestEveryCommitWithAnAcknowledgementHasTheItem: a handler may add and acknowledge at any moment, also
// while a commit asks one hook after the other what it has (D5).
func TestEveryCommitWithAnAcknowledgementHasTheItem(t *testing.T) {
	path := testsupport.Path(t)
	s, db := openStore(t, path)
	q := newQueue(t, s, Options[string]{})
	for _, file := range testdb.AddDuringCommits(t, db, path, func(n int) { q.Add(fmt.Sprint(n)) }, q.keys.len) {
		next, after := openStore(t, file)
		there := 0
		for _, st := range next.Status() {
			there += st.Keys
		}
		testdb.ExpectAcknowledged(t, after, there)
	}
}

// TestANameIsMarkedAlthoughTheNamesCouldNotBeRead: the file may know it.
func TestANameIsMarkedAlthoughTheNamesCouldNotBeRead(t *testing.T) {
	s, db := openStore(t, testsupport.Path(t))
	newQueue(t, s, Options[string]{}).Close()
	s.Close()
	s = NewStore(db, s.keys.Space, testsupport.Quiet)
	s.absent = nil // As after an error of the read.
	if err := s.MarkLost("model"); err != nil {
		t.Fatal(err)
	}
	if q := newQueue(t, s, Options[string]{LostIfUnknown: true}); !q.Known() || !q.Lost() {
		t.Errorf("known: %v, lost: %v", q.Known(), q.Lost())
	}
}

// fussy is a Codec that does not know the key "unknown".
type fussy struct{ Strings }

func (fussy) Decode(key string) (string, error) {
	if key == "unknown" {
		return "", errors.New("unknown")
	}
	return key, nil
}
