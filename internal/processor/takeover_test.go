package processor

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/warmwatch/warmwatch/internal/indexer"
	"github.com/warmwatch/warmwatch/persist"
	"github.com/warmwatch/warmwatch/queue"
)

// changingStore is a chunkedStore in which something happens before each chunk is read.
type changingStore struct {
	chunkedStore
	before  func(from string)
	seqs    map[string]uint64 // Of the objects, 0 at first.
	leftOut string            // The key of an object that is.
}

func (s *changingStore) ReadChunk(from string, durable bool) (indexer.Chunk, error) {
	s.before(from)
	c, err := s.chunkedStore.ReadChunk(from, durable)
	c.Seqs = []uint64{s.seqs[c.Keys[0]]}
	c.Objects = []any{objectOf(c.Keys[0], c.Seqs[0])}
	if c.Keys[0] == s.leftOut {
		c.LeftOut, c.Keys, c.Seqs, c.Objects = c.Keys, nil, nil, nil
	}
	c.Next = "001" // Of two chunks.
	return c, err
}

func (s *changingStore) ReadObject(key string, _ bool) (indexer.Chunk, error) {
	of := s.seqs[key]
	return indexer.Chunk{Keys: []string{key}, Seqs: []uint64{of}, Objects: []any{objectOf(key, of)}}, nil
}

// objectOf returns an object whose uid is the Seq of its addition.
func objectOf(key string, seq uint64) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: key, UID: types.UID(fmt.Sprint(seq))}}
}

// tellsAll notes what it is told.
type tellsAll struct {
	mu   sync.Mutex
	told []string
}

func (h *tellsAll) note(what string, obj any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	o := obj.(*corev1.ConfigMap)
	h.told = append(h.told, fmt.Sprintf("%s %s uid=%s", what, o.Name, o.UID))
}

func (h *tellsAll) OnAdd(obj any, _ bool)  { h.note("add", obj) }
func (h *tellsAll) OnUpdate(_, newObj any) { h.note("update", newObj) }
func (h *tellsAll) OnDelete(obj any)       { h.note("delete", obj) }

// publish appends a delta to the log, and numbers what it adds to the store.
func (s *changingStore) publish(t *testing.T, p *Processor, db *persist.DB, what cache.DeltaType, key string, of uint64) {
	s.seq++
	if what == cache.Added {
		of = s.seq
		s.seqs[key] = s.seq
	}
	ds := []queue.Delta{{Seq: s.seq, Type: what, Key: key, New: objectOf(key, of)}}
	batch, err := db.Update(func(b *persist.Batch) { p.opts.Log.Append(b, ds) })
	if err != nil {
		t.Error(err)
	}
	p.opts.Log.Publish(batch, ds)
}

// TestAListThatATakeoverMeetsTellsOfTheDeletionsSince (Q2), before the object that the list has in place of the deleted
// one; of those before the takeover, which the file owes if its handlers know the object, it does not tell.
func TestAListThatATakeoverMeetsTellsOfTheDeletionsSince(t *testing.T) {
	for _, at := range []string{"", "001"} {
		t.Run("before chunk "+at, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &changingStore{chunkedStore: chunkedStore{chunks: 2}, seqs: map[string]uint64{}}
				p, db := processorOf(t, store)
				publish := func(what cache.DeltaType, key string, of uint64) { store.publish(t, p, db, what, key, of) }
				replaced := cmp.Or(at, "000")
				store.before = func(from string) {
					if from != at {
						return
					}
					publish(cache.Deleted, "gone before", 0)
					publish(cache.Deleted, replaced, 0)
					publish(cache.Added, replaced, 0)
					if err := db.Read("file", p.opts.Log.Names); err != nil {
						t.Error(err)
					}
					publish(cache.Deleted, "gone since", 0)
					publish(cache.Deleted, replaced, 3)
					publish(cache.Added, replaced, 0)
				}
				h := &tellsAll{}
				if _, err := p.Add(h, "d", cache.HandlerOptions{}, nil); err != nil {
					t.Fatal(err)
				}
				p.Start()
				time.Sleep(time.Minute)
				want := []string{"delete 000 uid=3", "add 000 uid=6", "add 001 uid=0", "delete gone since uid=0"}
				if at == "001" {
					want = []string{"add 000 uid=0", "delete 001 uid=3", "add 001 uid=6", "delete gone since uid=0"}
				}
				h.mu.Lock()
				defer h.mu.Unlock()
				if !slices.Equal(h.told, want) {
					t.Errorf("told %q, expected %q", h.told, want)
				}
			})
		})
	}
}

// TestADeletionThatAListDoesNotFindIsToldBehindIt, with what follows, because its tombstone is lost, or the list has left
// out the object that took the name.
func TestADeletionThatAListDoesNotFindIsToldBehindIt(t *testing.T) {
	for name, c := range map[string]struct {
		replaced  int    // How often 000 is, once the file is taken over; 0: it is owed a deletion only.
		lost      uint64 // The Seq of a deletion whose tombstone is lost.
		leftOut   bool   // The list leaves 000 out.
		isPending bool   // The list is not done, because 000 is not told of.
		want      []string
	}{
		"lost": {replaced: 1, lost: 1, want: []string{"add 000 uid=2", "add 001 uid=0", "delete 000 uid=0", "add 000 uid=2"}},
		"the first of two is lost": {replaced: 2, lost: 1, want: []string{
			"delete 000 uid=2", "add 000 uid=4", "add 001 uid=0", "delete 000 uid=0", "add 000 uid=2", "delete 000 uid=2", "add 000 uid=4",
		}},
		"the second of two is lost": {replaced: 2, lost: 3, want: []string{
			"delete 000 uid=0", "add 000 uid=4", "add 001 uid=0", "delete 000 uid=2", "add 000 uid=4",
		}},
		"left out":          {replaced: 1, leftOut: true, want: []string{"add 001 uid=0", "delete 000 uid=0", "add 000 uid=2"}},
		"left out and owed": {leftOut: true, isPending: true, want: []string{"add 001 uid=0", "delete 000 uid=0"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &changingStore{chunkedStore: chunkedStore{chunks: 2}, seqs: map[string]uint64{}}
				if c.leftOut {
					store.leftOut = "000"
				}
				p, db := processorOf(t, store)
				store.before = func(from string) {
					if from != "" {
						return
					}
					if err := db.Read("file", p.opts.Log.Names); err != nil {
						t.Error(err)
					}
					if c.replaced == 0 {
						store.publish(t, p, db, cache.Deleted, "000", 0)
					}
					for n := range c.replaced {
						store.publish(t, p, db, cache.Deleted, "000", uint64(2*n))
						store.publish(t, p, db, cache.Added, "000", 0)
					}
					if _, err := db.Update(func(b *persist.Batch) {
						b.Delete(persist.Bucket{Space: "space", Name: "tombstones"}, string(binary.BigEndian.AppendUint64(nil, c.lost)))
					}); err != nil {
						t.Error(err)
					}
				}
				h := &tellsAll{}
				if _, err := p.Add(h, "d", cache.HandlerOptions{}, nil); err != nil {
					t.Fatal(err)
				}
				p.Start()
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
