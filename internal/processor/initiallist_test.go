package processor

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/tools/cache"
)

// TestAListLacksAnObjectUntilItIsTold: a delta that changed nothing is told while the handler resyncs only.
func TestAListLacksAnObjectUntilItIsTold(t *testing.T) {
	for name, c := range map[string]struct {
		resyncPeriod time.Duration
		isPending    bool
		want         []string
	}{
		"the handler resyncs": {resyncPeriod: time.Minute, want: []string{"add 001 uid=0", "update 000 uid=0"}},
		"nobody resyncs":      {isPending: true, want: []string{"add 001 uid=0"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &changingStore{chunkedStore: chunkedStore{chunks: 2}, leftOut: "000", before: func(string) {}}
				p, db := processorOf(t, store)
				p.checkPeriod = c.resyncPeriod
				h := &tellsAll{}
				if _, err := p.Add(h, "d", cache.HandlerOptions{ResyncPeriod: &c.resyncPeriod}, nil); err != nil {
					t.Fatal(err)
				}
				p.Start()
				time.Sleep(2 * time.Minute)
				if !p.Status()[0].InitialList {
					t.Error("the list is done without the object")
				}
				p.ShouldResync()
				store.publish(t, p, db, cache.Sync, "000", 0)
				time.Sleep(time.Minute)
				h.mu.Lock()
				defer h.mu.Unlock()
				if !slices.Equal(h.told, c.want) {
					t.Errorf("told %q, expected %q", h.told, c.want)
				}
				if pending := p.Status()[0].InitialList; pending != c.isPending {
					t.Errorf("the list is pending: %v, expected %v", pending, c.isPending)
				}
			})
		})
	}
}

// TestAListTellsOfAllDeletionsOfAName (Q2), of which it reads some at a time.
func TestAListTellsOfAllDeletionsOfAName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &changingStore{chunkedStore: chunkedStore{chunks: 2}, seqs: map[string]uint64{}}
		p, db := processorOf(t, store)
		const deletions = 600
		var want []string
		store.before = func(from string) {
			if from != "" {
				return
			}
			if err := db.Read("file", p.opts.Log.Names); err != nil {
				t.Error(err)
			}
			for uid := range uint64(deletions) {
				store.publish(t, p, db, cache.Deleted, "000", uid)
				want = append(want, fmt.Sprintf("delete 000 uid=%d", uid))
			}
			store.publish(t, p, db, cache.Added, "000", 0)
			want = append(want, fmt.Sprintf("add 000 uid=%d", deletions+1), "add 001 uid=0")
		}
		h := &tellsAll{}
		if _, err := p.Add(h, "d", cache.HandlerOptions{}, nil); err != nil {
			t.Fatal(err)
		}
		p.Start()
		time.Sleep(time.Minute)
		h.mu.Lock()
		defer h.mu.Unlock()
		if !slices.Equal(h.told, want) {
			t.Errorf("told %d times, expected %d, of which the last are %q", len(h.told), len(want), h.told[max(0, len(h.told)-3):])
		}
	})
}
