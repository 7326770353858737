package indexer

import (
	"fmt"
	"testing"

	"github.com/warmwatch/warmwatch/persist"
)

// TestAListStaysInMemoryOnlyWhereThereIsRoom: what is listed again is not
// decoded again, and who lists everything does not drive out what others use.
func TestAListStaysInMemoryOnlyWhereThereIsRoom(t *testing.T) {
	db := openDB(t, tempPath(t), persist.Options{})
	ix := newIndexer(t, db, nil, -1)
	const objects = 100
	for i := range objects {
		if err := ix.Add(newPod(fmt.Sprintf("pod-%03d", i), "1")); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Flush(); err != nil {
		t.Fatal(err)
	}
	all := ix.objects.used
	for budget, want := range map[int64]int{-1: objects, 0: objects, all: objects, all / 2: objects / 2, 1: 0} {
		ix := newIndexer(t, db, nil, budget)
		first, second := sorted(ix.List()), sorted(ix.List())
		same := 0
		for i := range first {
			if first[i] == second[i] {
				same++
			}
		}
		if len(first) != objects || len(second) != objects || same != want {
			t.Errorf("with a budget of %d: %d of %d objects are the same, expected %d", budget, same, len(second), want)
		}
		if n := len(ix.objects.items); n != want {
			t.Errorf("with a budget of %d: %d objects are in memory, expected %d", budget, n, want)
		}
	}

	half := newIndexer(t, db, nil, all/2)
	used, _, err := half.GetByKey("ns/pod-099")
	if err != nil {
		t.Fatal(err)
	}
	half.List()
	if again, _, _ := half.GetByKey("ns/pod-099"); again != used {
		t.Error("a List has driven out what was in use")
	}
}

// TestWhatWasReadBeforeAWriteIsNotKept: the writer knows better.
func TestWhatWasReadBeforeAWriteIsNotKept(t *testing.T) {
	o := NewObjects(-1)
	k := objectKey{o.newOwner(), "key"}
	m := o.mark()
	o.offer(k, "read", 1, 1, m)
	if got, _, _ := o.getAsOf(k, 1); got != "read" {
		t.Errorf("it is %v", got)
	}
	o.offer(k, "read again", 1, 1, m)
	if got, _, _ := o.getAsOf(k, 1); got != "read" {
		t.Errorf("it was replaced by its equal: %v", got)
	}
	o.remove(k)
	o.offer(k, "read", 1, 1, m)
	if got, _, ok := o.getAsOf(k, 1); ok {
		t.Errorf("deleted, and there again: %v", got)
	}
	m = o.mark()
	o.set(k, "written", 2, 1)
	o.remove(k)
	o.offer(k, "read", 1, 1, m)
	if got, _, ok := o.getAsOf(k, 2); ok {
		t.Errorf("it is %v", got)
	}
}
