package processor

import (
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
