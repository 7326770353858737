package queue

import (
	"context"
	"errors"
	"slices"
	"testing"

	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/persist"
)

// setAside sets the object of a delta aside, as a listener does.
func setAside(t *testing.T, c *Consumer, d Delta) {
	t.Helper()
	if n, err := c.NotePanic(d.Key); n != 1 || err != nil {
		t.Fatalf("%d panics, %v", n, err)
	}
	if withheld, now, err := c.Withholds(&d, 1); !withheld || !now || err != nil {
		t.Fatalf("withheld %v, now %v, %v", withheld, now, err)
	}
}

func openDB(t *testing.T) *persist.DB {
	t.Helper()
	db, err := persist.Open(context.Background(), testsupport.Path(t), persist.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func named(t *testing.T, q *Log, name string) *Consumer {
	t.Helper()
	c, err := q.Durable(name)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestWhatIsSetAsideIsOfOneName, whatever is in names and keys.
func TestWhatIsSetAsideIsOfOneName(t *testing.T) {
	db := openDB(t)
	q := newLog(t, db, Options{})
	for _, name := range []string{"d", "d/", "\x01d", "d\x00\xff"} {
		c := named(t, q, name)
		for _, key := range []string{"ns/a", "", name, "\xff"} {
			setAside(t, c, Delta{Seq: 1, Type: cache.Updated, Key: key})
		}
	}
	flush(t, q)
	other := newLog(t, db, Options{})
	for _, name := range []string{"d", "d/", "\x01d", "d\x00\xff"} {
		want := []string{"", "ns/a", name, "\xff"}
		slices.Sort(want)
		if got := other.SetAside(name); !slices.Equal(got, want) {
			t.Errorf("%q are set aside for %q, expected %q", got, name, want)
		}
	}
}

// TestADeletionThatIsSetAsideAndCannotBeReadIsTold, without its object.
func TestADeletionThatIsSetAsideAndCannotBeReadIsTold(t *testing.T) {
	db := openDB(t)
	q := newLog(t, db, Options{})
	setAside(t, named(t, q, "d"), Delta{Seq: 3, Type: cache.Deleted, Key: "ns/a", New: newPod("a", "3")})
	_, err := db.Update(func(b *persist.Batch) {
		b.Put(persist.Bucket{Space: testSpace, Name: asideBucket}, asideKey("d", "ns/a"), persist.Bytes("noise"))
	})
	if err != nil {
		t.Fatal(err)
	}
	flush(t, q)
	damage := 0
	q = newLog(t, db, Options{OnCorrupt: func(err error) {
		if damage++; !errors.Is(err, persist.ErrCorrupt) {
			t.Error(err)
		}
	}})
	d, owed := named(t, q, "d").Owed("ns/a")
	lost, ok := d.Object().(cache.DeletedFinalStateUnknown)
	if !owed || !ok || lost.Key != "ns/a" || lost.Obj != nil || damage != 1 {
		t.Errorf("owed %v: %+v, %d reports of damage", owed, d, damage)
	}
	commitAnew(t, q)
	newLog(t, db, Options{}) // It has been written anew.
}

// TestAReplacedFileHasWhatIsSetAside, and nothing else.
func TestAReplacedFileHasWhatIsSetAside(t *testing.T) {
	db := openDB(t)
	q := newLog(t, db, Options{})
	setAside(t, named(t, q, "d"), Delta{Seq: 3, Type: cache.Updated, Key: "ns/a"})
	_, err := db.Update(func(b *persist.Batch) { // As if the copy had something else.
		b.Delete(persist.Bucket{Space: testSpace, Name: asideBucket}, asideKey("d", "ns/a"))
		b.Put(persist.Bucket{Space: testSpace, Name: asideBucket}, asideKey("d", "ns/b"), deltaValue{&Delta{Type: cache.Updated, Key: "ns/b"}})
	})
	if err != nil {
		t.Fatal(err)
	}
	q.afterDamage(nil)
	commitAnew(t, q)
	if got := newLog(t, db, Options{}).SetAside("d"); !slices.Equal(got, []string{"ns/a"}) {
		t.Errorf("%q are set aside", got)
	}
}

// TestWhatEndsThatAnObjectIsSetAsideIsAcknowledgedWithIt: a crash comes before both or after both.
func TestWhatEndsThatAnObjectIsSetAsideIsAcknowledgedWithIt(t *testing.T) {
	db := openDB(t)
	q := newLog(t, db, Options{})
	c := named(t, q, "d")
	d := numbered(3)
	publish(t, q, d)
	setAside(t, c, Delta{Seq: 1, Type: cache.Updated, Key: d.Key})
	if ended := c.EndAside(&Delta{Seq: 2, Type: cache.Updated, Key: d.Key}); ended || c.Cursor() != 0 {
		t.Errorf("an update has ended it: %v, cursor %d", ended, c.Cursor())
	}
	if ended := c.EndAside(&d); !ended || c.Cursor() != 3 || len(q.SetAside("d")) != 0 {
		t.Errorf("ended %v, cursor %d, set aside %q", ended, c.Cursor(), q.SetAside("d"))
	}
}
