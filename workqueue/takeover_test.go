package workqueue

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	bolt "go.etcd.io/bbolt"

	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/persist"
)

// fussy is a Codec that does not know the key "unknown".
type fussy struct{ Strings }

func (fussy) Decode(key string) (string, error) {
	if key == "unknown" {
		return "", errors.New("unknown")
	}
	return key, nil
}

// TestADamagedKeyOfATakenOverFileIsLost: nobody knows whether it was ever added.
func TestADamagedKeyOfATakenOverFileIsLost(t *testing.T) {
	path := testsupport.Path(t)
	theirs, file := openStore(t, path)
	q := newQueue(t, theirs, Options[string]{})
	q.Add("a")
	q.Add("b")
	flush(t, file)
	path = crashed(t, path)
	changeWork(t, path, func(_, work *bolt.Bucket) error { return rename(work, "k5/model/a", "k5/model/unknown") })
	_, file = openStore(t, path)
	ours, _ := openStore(t, testsupport.Path(t))
	if err := file.Read("workqueues", ours.TakeOver); err != nil {
		t.Fatal(err)
	}
	if q := newQueue(t, ours, Options[string]{Codec: fussy{}}); q.Len() != 1 || !q.Lost() {
		t.Errorf("lost: %t, %d items", q.Lost(), q.Len())
	}
}

// TestATakenOverFileWithKeysThatNobodyKnows: keys that a Codec does not know, of a name that has no queue,
// and of one whose number is lost, stay in the file (Q5).
func TestATakenOverFileWithKeysThatNobodyKnows(t *testing.T) {
	theirs, file := openStore(t, testsupport.Path(t))
	for name, items := range map[string][]string{"model": {"a", "unknown"}, "absent": {"b"}, "lost": {"c", "d"}} {
		q, err := New(theirs, name, Options[string]{})
		if err != nil {
			t.Fatal(err)
		}
		for _, item := range items {
			q.Add(item)
		}
		q.ShutDown()
	}
	flush(t, file)
	if _, err := file.Update(func(b *persist.Batch) { b.Delete(theirs.names, "lost") }); err != nil {
		t.Fatal(err)
	}

	path := testsupport.Path(t)
	ours, db := openStore(t, path)
	q := newQueue(t, ours, Options[string]{Codec: fussy{}})
	q.Add("e")
	for range 2 { // The first attempt may have failed elsewhere.
		if err := file.Read("workqueues", ours.TakeOver); err != nil {
			t.Fatal(err)
		}
	}
	want := []Status{{Name: "absent", Absent: true, Keys: 1}, {Name: "lost", Absent: true, Keys: 2}, {Name: "model", Keys: 3}}
	if diff := cmp.Diff(want, ours.Status()); diff != "" {
		t.Errorf("unexpected status (-want +got):\n%s", diff)
	}
	var got []string
	for q.Len() > 0 {
		item, _ := q.Get()
		got = append(got, item)
	}
	if slices.Sort(got); !slices.Equal(got, []string{"a", "e"}) {
		t.Errorf("the queue has %q", got)
	}
	for name, wantLost := range map[string]bool{"absent": false, "lost": true} {
		q, err := New(ours, name, Options[string]{})
		if err != nil {
			t.Fatal(err)
		}
		if q.Known() == wantLost || q.Lost() != wantLost {
			t.Errorf("%s: known %v, lost %v", name, q.Known(), q.Lost())
		}
		q.ShutDown()
	}
	flush(t, db)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	next, _ := openStore(t, path)
	if _, err := New(next, "model", Options[string]{Codec: fussy{}}); err == nil {
		t.Error("the key that nobody knows is lost")
	}
}

// TestWorkOfAFileIsLostWhereAnotherHadItsNameHere, however much of what was done here is written.
func TestWorkOfAFileIsLostWhereAnotherHadItsNameHere(t *testing.T) {
	for _, written := range []bool{false, true} {
		theirs, file := openStore(t, testsupport.Path(t))
		q, err := New(theirs, "name", Options[string]{})
		if err != nil {
			t.Fatal(err)
		}
		q.Add("x")
		q.ShutDown()
		flush(t, file)
		ours, db := openStore(t, testsupport.Path(t))
		if written {
			flush(t, db)
		}
		if err := errors.Join(ours.MarkLost("name"), file.Read("workqueues", ours.TakeOver)); err != nil {
			t.Fatal(err)
		}
		if q, err = New(ours, "name", Options[string]{}); err != nil || !q.Lost() {
			t.Errorf("all is written: %v; %v", written, err)
		}
		q.ShutDown()
	}
}

// TestWhatWasForgottenDoesNotComeBack with a file, also where that is taken over at the second attempt.
func TestWhatWasForgottenDoesNotComeBack(t *testing.T) {
	theirs, file := openStore(t, testsupport.Path(t))
	q, err := New(theirs, "gone", Options[string]{})
	if err != nil {
		t.Fatal(err)
	}
	q.Add("x")
	q.ShutDown()
	flush(t, file)
	db, err := persist.OpenMemory(persist.Options{Logger: &testsupport.Quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	ours := NewStore(db, "workqueues", testsupport.Quiet)
	if err := ours.Forget("gone"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := file.Read("workqueues", ours.TakeOver); err != nil {
			t.Fatal(err)
		}
		if st := ours.Status(); len(st) > 0 {
			t.Errorf("%+v", st)
		}
	}
}

// quick is the owner of a name whose workers are done with an item before it was added to the end.
type quick struct{ keys *keys }

func (o *quick) own(k *keys)      { o.keys = k }
func (o *quick) adopt(key string) { o.keys.add(key); o.keys.remove(key) }
func (o *quick) drained() bool    { return false }

// TestAKeyThatIsDoneDuringATakeoverIsNotKept: no queue would have it.
func TestAKeyThatIsDoneDuringATakeoverIsNotKept(t *testing.T) {
	theirs, file := openStore(t, testsupport.Path(t))
	newQueue(t, theirs, Options[string]{}).Add("a")
	flush(t, file)
	ours, _ := openStore(t, testsupport.Path(t))
	o := &quick{}
	if err := ours.open("model", false, o); err != nil {
		t.Fatal(err)
	}
	if err := file.Read("workqueues", ours.TakeOver); err != nil {
		t.Fatal(err)
	}
	if n := o.keys.len(); n > 0 {
		t.Errorf("%d keys are kept", n)
	}
}
