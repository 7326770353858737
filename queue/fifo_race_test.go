package queue

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/testsupport"
	"github.com/warmwatch/warmwatch/internal/testsupport/testdb"
)

// knownKeys is a store that tells when a Replace looks at it.
type knownKeys struct {
	cache.Store
	listed func()
}

func (k *knownKeys) ListKeys() []string {
	if f := k.listed; f != nil {
		k.listed = nil
		f()
	}
	return k.Store.ListKeys()
}

// TestHasSyncedAlthoughItemsArePoppedDuringTheFirstReplace: what the last process left
// is popped while Replace is still comparing. The queue has synced when the last
// item of the Replace was processed, and not before.
func TestHasSyncedAlthoughItemsArePoppedDuringTheFirstReplace(t *testing.T) {
	for early := range 4 {
		t.Run(fmt.Sprintf("%d of 3", early), func(t *testing.T) {
			path := testsupport.Path(t)
			q := newFIFO(t, testdb.Open(t, path, testdb.Manual), DeltaFIFOOptions{KnownObjects: newKnown()})
			for i := range 3 {
				if err := q.Add(newPod(fmt.Sprint(i), "1")); err != nil {
					t.Fatal(err)
				}
			}
			q = fifoOf(t, reopen(t, q.log))
			known := &knownKeys{Store: newKnown()}
			q.o.KnownObjects = known
			known.listed = func() {
				for range early {
					if p := pop(t, q, known); p.Synced || !p.Initial {
						t.Errorf("before Replace has returned: %+v", p)
					}
				}
			}
			if err := q.Replace([]any{newPod("0", "1"), newPod("3", "2")}, "2"); err != nil {
				t.Fatal(err)
			}
			// Left of 0, 1 and 2; tombstones of 1 and 2; 0 and 3.
			for left := 3 - early + 2 + 2; left > 0; left-- {
				if q.HasSynced() {
					t.Fatalf("synced with %d items left", left)
				}
				pop(t, q, known)
			}
			if !q.HasSynced() {
				t.Error("not synced although everything was processed")
			}
			if diff := cmp.Diff(2, len(known.ListKeys())); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestAReplaceThatBringsNothingHasSyncedOnceWhatWaitedIsPopped(t *testing.T) {
	q := newFIFO(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), DeltaFIFOOptions{KnownObjects: newKnown()})
	if err := q.Add(newPod("a", "1")); err != nil {
		t.Fatal(err)
	}
	q = fifoOf(t, reopen(t, q.log))
	known := &knownKeys{Store: newKnown()}
	q.o.KnownObjects = known
	known.listed = func() { pop(t, q, known) } // All of it, so that there is nothing to wait for.
	if err := q.Replace([]any{newPod("a", "1")}, "1"); err != nil {
		t.Fatal(err)
	}
	pop(t, q, known)
	if !q.HasSynced() {
		t.Error("not synced")
	}
}

func TestTwoPopsAtOnceAreGivenEachItemOnce(t *testing.T) {
	const items, poppers = 200, 4
	synctest.Test(t, func(t *testing.T) {
		q := newFIFO(t, testdb.Open(t, testsupport.Path(t), testdb.Manual), DeltaFIFOOptions{KnownObjects: newKnown()})
		seen := map[string]int{} // Guarded by Pop: items are processed one by one.
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for range poppers {
			go func() {
				for ctx.Err() == nil {
					if _, err := q.Pop(func(obj any, _ bool) error {
						seen[describe(obj.(cache.Deltas).Newest())]++
						return nil
					}); err != nil {
						return
					}
				}
			}()
		}
		for i := range items {
			if i%3 == 0 {
				synctest.Wait() // All wait in Pop.
			}
			if err := q.Add(newPod(fmt.Sprint(i), "1")); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		cancel()
		q.Close() // Ends those that wait.
		synctest.Wait()
		if len(seen) != items {
			t.Errorf("%d items were popped, expected %d", len(seen), items)
		}
		for what, times := range seen {
			if times != 1 {
				t.Errorf("%s was popped %d times", what, times)
			}
		}
	})
}
