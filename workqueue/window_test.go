package workqueue

import (
	"testing"
	"time"

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
	for range 3000 {
		q, err := New(s, "q", Options[string]{})
		if err != nil {
			t.Fatal(err)
		}
		q.Add("item")
		got := make(chan bool, 1)
		go func() {
			_, shutdown := q.Get()
			got <- !shutdown
		}()
		q.ShutDown()
		var next *Queue[string]
		for deadline := time.Now().Add(200 * time.Microsecond); next == nil && time.Now().Before(deadline); {
			next, _ = New(s, "q", Options[string]{})
		}
		works := <-got
		if next != nil && works {
			t.Fatal("the queue hands out an item after another one has its name")
		}
		if works {
			q.Done("item")
		}
		if next == nil {
			if next, err = New(s, "q", Options[string]{}); err != nil {
				t.Fatal(err)
			}
		}
		for next.Len() > 0 {
			item, _ := next.Get()
			next.Done(item)
		}
		next.Close()
	}
}
