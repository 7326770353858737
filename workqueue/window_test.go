package workqueue

import (
	"errors"
	"testing"

	"k8s.io/klog/v2"

	"github.com/warmwatch/warmwatch/persist"
)

// TestANameIsNotFreeWhileGetReturns its last item: only one queue hands the item out (D5).
func TestANameIsNotFreeWhileGetReturns(t *testing.T) {
	db, err := persist.OpenMemory(persist.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	s := NewStore(db, "space", klog.Background())
	q, err := New(s, "q", Options[string]{})
	if err != nil {
		t.Fatal(err)
	}
	q.Add("item")
	if item, _ := q.plain.Get(); item != "item" { // Get has the item, and not the lock yet.
		t.Fatal(item)
	}
	q.ShutDown()
	if _, err := New(s, "q", Options[string]{}); !errors.Is(err, ErrInUse) {
		t.Errorf("another queue has the name: %v", err)
	}
	q.Close()
}
